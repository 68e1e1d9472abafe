"""The production shape on hosts apart: each in a network namespace of its own, on one bridge, and cut off pair by pair.

A cut is silence, as of a switch that fails: packets to the other go to an address on the bridge that nobody has, so
that connections stay open on both sides and hear nothing. The judge stands outside, and reaches everybody.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from nanohost.stack import Service
from tests.faults.cluster import Cluster, Node
from tests.faults.servers import PostgreSql, Redis

HOSTS = ("postgresql", "redis", "web", "worker", "toolbox", "beat")
_NOBODY = "02:00:00:00:00:ff"
_NAME = re.compile(r"nhp([0-9]+)-")


def why_not() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces need root, and ip"
    name = f"nhp{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return tried.stderr.strip() if tried.returncode else ""


def _ip(*arguments: str, within: str = "") -> str:
    command = ["ip", *(["-n", within] if within else []), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Network:
    """Hosts on a bridge. Those of tests that were killed are taken away when the next network is made."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._bridge = f"nhp{self._pid}-br"[:15]
        self._net = f"10.{77 + self._pid % 100}.{self._pid // 100 % 250}"
        self.judge = f"{self._net}.1"
        self.addresses = {host: f"{self._net}.{number}" for number, host in enumerate(HOSTS, start=10)}

    def __enter__(self) -> "Network":
        _forget_the_dead()
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.judge}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number, host in enumerate(HOSTS):
                name, outer = self.name(host), f"nhp{self._pid}-{number}"[:15]
                _ip("netns", "add", name)
                _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", outer, "master", self._bridge, "up")
                _ip("addr", "add", f"{self.addresses[host]}/24", "dev", "eth0", within=name)
                _ip("link", "set", "lo", "up", within=name)
                _ip("link", "set", "eth0", "up", within=name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self._pid)

    def name(self, host: str) -> str:
        """Of a host's namespace."""
        return f"nhp{self._pid}-{host}"

    def at(self, host: str, command: Sequence[str]) -> list[str]:
        """The command as it is run on a host."""
        return ["ip", "netns", "exec", self.name(host), *command]

    @contextmanager
    def cut(self, one: str, other: str) -> Iterator[None]:
        """Neither hears the other meanwhile."""
        sides = ((one, other), (other, one))
        try:
            for here, there in sides:
                to = (self.addresses[there], "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")
                _ip("neigh", "replace", *to, within=self.name(here))
            yield
        finally:
            for here, there in sides:
                with suppress(subprocess.CalledProcessError):
                    _ip("neigh", "del", self.addresses[there], "dev", "eth0", within=self.name(here))


def _forget_the_dead() -> None:
    names = f"{_ip('netns', 'list')} {_ip('-o', 'link', 'show')}"
    for pid in {int(found) for found in _NAME.findall(names)}:
        if not Path(f"/proc/{pid}").exists():
            _remove(pid)


def _remove(pid: int) -> None:
    """Whatever a network of that process has left; its own processes end with it."""
    for line in _ip("netns", "list").splitlines():
        if line.startswith(f"nhp{pid}-"):
            subprocess.run(["ip", "netns", "del", line.split()[0]], capture_output=True)
    for found in set(re.findall(rf"nhp{pid}-[a-z0-9]+", _ip("-o", "link", "show"))):
        subprocess.run(["ip", "link", "del", found], capture_output=True)


class _PostgreSql(PostgreSql):
    OPTIONS = ("listen_addresses=*", *PostgreSql.OPTIONS[1:])

    def __init__(self, directory: Path, network: Network) -> None:
        super().__init__(directory)
        self._network = network
        with (directory / "pg_hba.conf").open("a") as file:
            file.write("host all all samenet trust\n")

    @property
    def url(self) -> str:
        return f"postgres://postgres@{self._network.addresses['postgresql']}:{self.port}/postgres"

    def command(self, *command: str) -> list[str]:
        return self._network.at("postgresql", command)


class _Redis(Redis):
    def __init__(self, directory: Path, network: Network) -> None:
        super().__init__(directory)
        self._network = network

    @property
    def url(self) -> str:
        return f"redis://{self._network.addresses['redis']}:{self.port}/0"

    def connect(self) -> redis.Redis:
        return redis.Redis(host=self._network.addresses["redis"], port=self.port, socket_timeout=5)

    def command(self, *command: str) -> list[str]:
        open_to_all = ["0.0.0.0" if each == "127.0.0.1" else each for each in command]  # of its namespace
        return self._network.at("redis", [*open_to_all, "--protected-mode", "no"])


class _Node(Node):
    def __init__(self, service: Service, name: str, root: Path, environment: dict[str, str], network: Network) -> None:
        self._network = network
        super().__init__(service, name, root, environment)

    def command(self, service: Service) -> list[str]:
        return self._network.at(service.name, super().command(service))

    @property
    def address(self) -> str:
        said = super().address
        return re.sub(r"//[^:/]+", f"//{self._network.addresses[self.kind]}", said) if said else ""


class Apart(Cluster):
    """A cluster on the hosts of a network."""

    HOST = "0.0.0.0"  # of its namespace

    def __init__(self, network: Network, **counts: Any) -> None:
        super().__init__(**counts)
        self.network = network

    def servers(self) -> tuple[PostgreSql, Redis]:
        return _PostgreSql(self.root / "postgresql", self.network), _Redis(self.root / "redis", self.network)

    def node(self, service: Service, name: str, environment: dict[str, str]) -> Node:
        hosts = {"ALLOWED_HOSTS": ",".join(self.network.addresses.values())}
        return _Node(service, name, self.root, environment | hosts, self.network)

    def wait_for_seconds(self, seconds: float) -> None:
        """While the others go on: a cut has its length, whatever happens in it."""
        time.sleep(seconds)
