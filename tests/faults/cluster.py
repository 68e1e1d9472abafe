"""The production shape on this machine: web nodes, workers, toolboxes and beat, on servers of its own.

docker-compose.yml's own services: each node has its service's command, and of what is set here only the variables that
its service is given. Whoever is killed is started again, as a service manager would; whoever ends in any other way that
nobody asked for is remembered, and is a failure.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from nanohost.stack import COMPOSE_FILE, JOB, Machine, Service, read_services
from tests.faults.ledger import Ledger
from tests.faults.servers import PostgreSql, Redis, leashed
from tests.support.hosts import KEY, PLAIN, ROOT

PATIENCE = 120.0
LEASE_SECONDS, SWEEP_SECONDS = 3, 1
# Seconds by which the clocks of workers and toolboxes go wrong, in turn.
CLOCKS = (600, -600)

# What a deployment may set, so that its faults come sooner: a service has those that docker-compose.yml gives it.
SETTINGS = {
    "NANOHOST_API_KEY": KEY,
    "NANOHOST_ADMIN_PASSWORD": "correct horse battery",
    "NANOHOST_EXTRA_APPS": "tests.faults",
    "LLM_PROVIDER": "mock",
    "LOG_LEVEL": "WARNING",
    "CHAT_WAIT_SECONDS": "0.02",
    "WEB_DRAIN_SECONDS": "1",
    "TURN_LEASE_SECONDS": str(LEASE_SECONDS),
    "SWEEP_SECONDS": str(SWEEP_SECONDS),
}


class Node:
    """One process, and those that take its place."""

    def __init__(
        self, service: Service, name: str, root: Path, environment: dict[str, str], *, code: Path = ROOT
    ) -> None:
        self.kind, self.name, self.code = service.name, name, code
        self.log = root / f"{self.name}.log"
        self.wanted = True
        self._command, self._environment = leashed(self.command(service)), environment
        self.start()

    def command(self, service: Service) -> list[str]:
        """What is run."""
        return list(service.command)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_begins = log.tell()
            self.process = subprocess.Popen(self._command, cwd=self.code, env=self._environment, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has told its service manager so; a web node does not."""
        return self.log.with_suffix(".alive").exists()

    @property
    def address(self) -> str:
        """Of a web node, once it says it; "" before."""
        with self.log.open("rb") as log:
            log.seek(self._log_begins)
            found = re.search(rb"listening on (http://\S+)", log.read())
        return found.group(1).decode() if found else ""

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


class Cluster:
    """Servers, a ledger and nodes. ``ended``: who ended with another code than it was asked for.

    ``FAULTS_KEEP`` in the environment leaves the folder with everybody's log and the ledger behind. ``HOST``: where web
    nodes listen. ``code``: whose commands new nodes run.
    """

    HOST = "127.0.0.1"

    def __init__(self, *, workers: int, toolboxes: int, most_attempts: int, code: Path = ROOT) -> None:
        self.code = code
        # Short: a Unix socket's path has a hundred characters at most.
        self.root = Path(tempfile.mkdtemp(prefix="nh-faults-"))
        self.root.chmod(0o755)
        self.nodes: list[Node] = []
        self.ended: list[str] = []
        self._counts = {"worker": workers, "toolbox": toolboxes, "web": 2, "beat": 1}
        self.most_attempts = most_attempts
        self._closing = threading.Event()
        self._lock = threading.RLock()
        self._numbers = 0

    def __enter__(self) -> "Cluster":
        try:
            self.ledger = Ledger(self.root)
            self.postgresql, self.redis = self.servers()
            self.postgresql.start()
            self.redis.start()
            self._machine = Machine(
                folder=self.root,
                database_url=self.postgresql.url,
                redis_url=self.redis.url,
                host=self.HOST,
                port=0,
            )
            key = "of these tests, and long enough to be taken for one: 0123456789"
            mounted = {name for service in read_services().values() for name in service.secrets} - {"database_url"}
            own = {"secret_key": key, "webhook_key": f"{key} of webhooks"}
            self._machine.write_secrets(**dict.fromkeys(mounted, "") | own)
            self.prepare()
            with self.postgresql.connect() as database:
                database.execute("UPDATE tools_toolsetting SET enabled = true WHERE name IN ('strike', 'glance')")
            for kind, count in self._counts.items():
                self.scale(kind, count)
            self.wait_until_ready()
            self._supervisor = threading.Thread(target=self._supervise, daemon=True)
            self._supervisor.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with self._lock:
            for node in self.nodes:
                node.wanted = False
                with suppress(ProcessLookupError):
                    node.process.send_signal(signal.SIGCONT)
                    node.process.kill()
            for node in self.nodes:
                node.process.wait()
        for server in (getattr(self, "redis", None), getattr(self, "postgresql", None)):
            if server is not None and server.process is not None:
                server.go_on()
                server.stop(signal.SIGQUIT if server is self.postgresql else signal.SIGKILL)
        if ledger := getattr(self, "ledger", None):
            ledger.close()
        if not os.environ.get("FAULTS_KEEP"):
            shutil.rmtree(self.root, ignore_errors=True)

    def servers(self) -> tuple[PostgreSql, Redis]:
        """The servers, not started yet."""
        return PostgreSql(self.root / "postgresql"), Redis(self.root / "redis")

    def node(self, service: Service, name: str, environment: dict[str, str]) -> Node:
        """A node that has been started."""
        return Node(service, name, self.root, environment, code=self.code)

    def _environment_of(self, service: Service, name: str) -> dict[str, str]:
        """What a node is given; and for all of them, where the ledger is, which no deployment has."""
        settings = SETTINGS | {"TURN_MAX_ATTEMPTS": str(self.most_attempts)}
        return {
            **self._machine.environment_of(service, name),
            **{variable: value for variable, value in settings.items() if variable in service.environment},
            "DATA_DIR": str(self.root),
            "FAULT_LEDGER": "1",
            "TOOL_SANDBOX": "none",  # tools kill what they run for, and write to its ledger
        }

    def _services(self) -> dict[str, Service]:
        return read_services(self.code / COMPOSE_FILE.name)

    def prepare(self) -> None:
        """Bring the database up to date."""
        job = self._services()[JOB]
        environment = self._environment_of(job, JOB)
        done = subprocess.run(
            leashed(job.command), cwd=self.code, env=environment, capture_output=True, text=True, timeout=3 * PATIENCE
        )
        assert done.returncode == 0, done.stderr

    # --- nodes -------------------------------------------------------------------------------------------------------

    def of(self, kind: str) -> list[Node]:
        """The nodes of a kind."""
        with self._lock:
            return [node for node in self.nodes if node.kind == kind and node.wanted]

    def add(self, kind: str, *, clock: int | None = None) -> Node:
        """One more node. ``clock``: so many seconds its clock is off; by default those of workers and toolboxes are."""
        with self._lock:
            self._numbers += 1
            if clock is None and kind in ("worker", "toolbox"):
                clock = CLOCKS[self._numbers % len(CLOCKS)]
            off = {"FAULT_CLOCK": str(clock)} if clock else {}
            service, name = self._services()[kind], f"{kind}-{self._numbers}"
            node = self.node(service, name, self._environment_of(service, name) | off)
            self.nodes.append(node)
            return node

    def scale(self, kind: str, count: int) -> None:
        """See that there are so many; those too many are asked to stop, and have stopped when this returns."""
        while len(self.of(kind)) < count:
            self.add(kind)
        for node in self.of(kind)[count:]:
            self.stop(node)

    def stop(self, node: Node, *, seconds: float = 30) -> float:
        """SIGTERM; returns after how many seconds it was gone."""
        with self._lock:
            node.wanted = False
        began = time.monotonic()
        node.process.terminate()
        code = node.process.wait(timeout=seconds)
        if code != 0:
            self.ended.append(f"{node.name} ended with {code} when it was asked to stop")
        with self._lock:
            self.nodes.remove(node)
        return time.monotonic() - began

    def kill(self, pid: int, name: str) -> None:
        """kill -9 of whoever has that pid, and it is in the ledger before."""
        self.ledger.tell("died", name, pid=pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def has(self, pid: int) -> bool:
        """Whether that process is one of ours, and alive."""
        with self._lock:
            return any(node.pid == pid and node.process.poll() is None for node in self.nodes)

    def _supervise(self) -> None:
        while not self._closing.wait(0.05):
            with self._lock:
                for node in self.nodes:
                    if not node.wanted or (code := node.process.poll()) is None:
                        continue
                    if code != -signal.SIGKILL:
                        self.ended.append(f"{node.name} ended with {code}:\n{node.log_text()[-3000:]}")
                    node.start()

    def wait_until_ready(self) -> None:
        """Until every node works: the webs say so, and every worker is heard of."""
        self.wait_for(lambda: all(_is_ready(node.address) for node in self.of("web")), "web nodes")
        self.wait_for(lambda: {node.pid for kind in ("worker", "toolbox") for node in self.of(kind)} <= self.heard_of())

    def ready(self, kind: str) -> list[int]:
        """The pids of those workers or toolboxes that are at work."""
        heard_of = self.heard_of()
        return [node.pid for node in self.of(kind) if node.process.poll() is None and node.pid in heard_of]

    def heard_of(self) -> set[int]:
        """The pids of the workers and toolboxes that have introduced themselves, since they started."""
        with self.postgresql.connect() as database:
            rows = database.execute("SELECT name FROM conversations_worker WHERE ended_at IS NULL").fetchall()
        return {int(str(row["name"]).split(":")[1]) for row in rows}

    def wait_for(self, condition: Callable[[], object], what: str = "it", *, seconds: float = PATIENCE) -> Any:
        """What the condition gives once it is true; with a server away it is not."""
        until = time.monotonic() + seconds
        while True:
            try:
                if found := condition():
                    return found
            except (httpx2.HTTPError, OSError):
                pass
            if time.monotonic() > until:
                raise AssertionError(f"{what}: not within {seconds} s; see {self.root}\n{self.logs()}")
            time.sleep(0.02)

    def logs(self) -> str:
        """The last of what each node said."""
        return "\n".join(f"--- {node.name}\n{node.log_text()[-1500:]}" for node in self.nodes)


def _is_ready(address: str) -> bool:
    return bool(address) and httpx2.get(f"{address}/health/live", timeout=5, verify=PLAIN).status_code == 200
