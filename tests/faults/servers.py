"""PostgreSQL and Redis of one's own, from the installed binaries: to be killed, silenced, emptied and started again."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import redis

# Seconds a server may take to start: this machine may have other work, and PostgreSQL may have to recover.
PATIENCE = 60.0

# Run before a command, which keeps its pid: Linux kills it when the thread that started it is gone, however that ends.
# Another user comes first, since whoever changes is let off the leash.
_LEASH = """
import ctypes, os, pwd, sys
linux, user, command = ctypes.CDLL(None), sys.argv[1], sys.argv[2:]
if user:
    owner = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(owner.pw_gid)
    os.setuid(owner.pw_uid)
try: linux.prctl(1, 9)
except AttributeError: pass
os.execvp(command[0], command)
"""

# Debian keeps PostgreSQL's server programs out of the PATH.
_POSTGRESQL_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def missing_binaries() -> list[str]:
    """What would have to be installed first; empty if all is there."""
    missing = [name for name in ("initdb", "postgres", "redis-server") if _binary(name) is None]
    if os.geteuid() == 0 and "postgres" not in {user.pw_name for user in pwd.getpwall()}:
        missing.append("a user named postgres")  # it refuses to run as root
    return missing


def free_port() -> int:
    """A loopback port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def leashed(command: Sequence[str], *, user: str | None = None) -> list[str]:
    """The command as one that does not outlive the tests, also when they are killed."""
    return [sys.executable, "-S", "-c", _LEASH, user or "", *command]


class Server:
    """A server process on a loopback port, with its data in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.log = directory.parent / f"{directory.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers."""
        until = time.monotonic() + PATIENCE
        self.process = self._launch()
        while not self._answers():
            if self.process.poll() is not None:  # its predecessor's memory may not be gone yet
                time.sleep(0.2)
                self.process = self._launch()
            assert time.monotonic() < until, f"{self.log}:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, gently or not, and wait until it is gone."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=PATIENCE)
            self.process = None

    def hang(self) -> None:
        """Have it say nothing more: connections stay open, and new ones are taken by the kernel."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        """End :meth:`hang`."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self.process is not None
        for pid in [self.process.pid, *_children_of(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def command(self, *command: str) -> list[str]:
        """The command as it is run."""
        return list(command)

    def _launch(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError


class PostgreSql(Server):
    """A cluster of its own. It does not wait for the disk: it survives its own death here, not a machine's."""

    OPTIONS = (
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "max_connections=150",
        "fsync=off",
        "shared_buffers=64MB",
        "timezone=UTC",
    )

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory.mkdir()
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self.directory, self._user)
        identity = {"user": self._user, "group": self._user, "extra_groups": []} if self._user else {}
        subprocess.run(
            [str(_binary("initdb")), "-D", str(self.directory), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"],
            **identity,
            cwd="/",
            check=True,
            capture_output=True,
        )

    @property
    def url(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    def connect(self) -> "psycopg.Connection[dict[str, object]]":
        """A connection of the judge's."""
        return psycopg.connect(self.url, autocommit=True, connect_timeout=5, row_factory=psycopg.rows.dict_row)

    def _launch(self) -> subprocess.Popen[bytes]:
        options = [f"--{option}" for option in (*self.OPTIONS, f"port={self.port}")]
        with self.log.open("ab") as log:
            command = leashed([str(_binary("postgres")), "-D", str(self.directory), *options], user=self._user)
            return subprocess.Popen(self.command(*command), cwd="/", stdout=log, stderr=log)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


class Redis(Server):
    """A Redis that keeps nothing: what it held is gone when it is started again."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory.mkdir()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def connect(self) -> redis.Redis:
        """A connection of the judge's."""
        return redis.Redis(port=self.port, socket_timeout=5)

    def flush(self) -> None:
        """FLUSHALL."""
        with self.connect() as client:
            client.flushall()

    def _launch(self) -> subprocess.Popen[bytes]:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with self.log.open("ab") as log:
            command = leashed([str(_binary("redis-server")), *options])
            return subprocess.Popen(self.command(*command), cwd=self.directory, stdout=log, stderr=log)

    def _answers(self) -> bool:
        try:
            with self.connect() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def binary(name: str) -> str:
    """Where a program of the servers is."""
    found = _binary(name)
    assert found is not None, f"not installed: {name}"
    return str(found)


def _binary(name: str) -> Path | None:
    places = [*map(str, _POSTGRESQL_BINARIES), os.environ.get("PATH", "")]
    found = shutil.which(name, path=os.pathsep.join(places))
    return Path(found) if found else None


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def need_servers(*, wanted: bool) -> None:
    """On a machine without the servers' programs these tests are skipped; where they are wanted, that is a failure."""
    if missing := missing_binaries():
        (pytest.fail if wanted else pytest.skip)(f"not installed: {', '.join(missing)}")
