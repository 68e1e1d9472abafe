"""What is measured: hosts of both shapes, and the model that they ask."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.servers import PostgreSql, Redis, free_port
from tests.support.hosts import KEY, PROCESSES, ROOT

# The default one, and those that do what they are called.
ONE_WORD, TOOL, STREAMED, SLOW, USUAL = "words:1", "tool", "words:20", "words:1+1000", "words:1+200"
MODELS = ("gpt-4.1-mini", ONE_WORD, TOOL, STREAMED, SLOW, USUAL)

TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 120.0


class Database(PostgreSql):
    """As it comes, but for the port: a commit waits for the disk, as in production."""

    OPTIONS = (
        *(option for option in PostgreSql.OPTIONS if not option.startswith(("fsync", "shared_buffers"))),
        "shared_buffers=128MB",
        "shared_preload_libraries=pg_stat_statements",
    )


@dataclass
class Processes:
    """Processes by what they are; more than one may be of a kind."""

    environment: Mapping[str, str]
    log: Path
    running: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where the host is reached."""
        return f"http://127.0.0.1:{self.environment['PORT']}"

    def start(self, kind: str, *command: str, count: int = 1) -> None:
        with self.log.open("ab") as log:
            self.running[kind] = [
                subprocess.Popen(
                    [sys.executable, *command], cwd=ROOT, env=dict(self.environment), stdout=log, stderr=log
                )
                for _ in range(count)
            ]

    def stop(self) -> None:
        every = [process for of_a_kind in self.running.values() for process in of_a_kind]
        for process in every:
            process.terminate()
        for process in every:
            process.wait(timeout=30)

    def until_ready(self) -> None:
        until(lambda: _is_ready(self.address), "it does not start", self.log)

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU each kind has used."""
        return {kind: sum(cpu_of(each.pid) for each in several) for kind, several in self.running.items()}

    def memory(self) -> float:
        """MiB that the processes and all that they have started hold, what they share counted once."""
        return sum(memory_of(each.pid) for several in self.running.values() for each in several)


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process, of its children that have ended, and of all that it has started."""
    try:
        ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    except FileNotFoundError:
        return 0.0
    return ticks / TICKS + sum(map(cpu_of, _children_of(pid)))


def cpu_of_all() -> float:
    """Seconds of CPU that this machine has spent on anything, since it was started."""
    user, nice, system, _idle, _wait, interrupts, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft) / TICKS


def memory_of(pid: int) -> float:
    """MiB of a process and of all that it has started; a page that several share counts by its part (PSS)."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except FileNotFoundError:
        return 0.0
    (kilobytes,) = (line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(kilobytes) / 1024 + sum(map(memory_of, _children_of(pid)))


def _children_of(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children += map(int, (task / "children").read_text().split())
        except FileNotFoundError:
            continue
    return children


def environment(directory: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "DJANGO_SETTINGS_MODULE": "nanohost.settings",
        "DATA_DIR": str(directory / "data"),
        "NANOHOST_API_KEY": KEY,
        "NANOHOST_ADMIN_PASSWORD": "correct horse battery",
        "SECRET_KEY": "of every web node: it signs the sessions",
        "WEBHOOK_KEY": "of web nodes and workers: the secrets of webhooks are made of it",
        "HTTPS": "false",  # there is no proxy
        "LOG_FORMAT": "json",
        **more,
    }


def until(holds: Callable[[], object], otherwise: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{otherwise}:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.02)


def _is_ready(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/health/ready", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


# --- the model ---------------------------------------------------------------------------------------------------


@contextmanager
def model(directory: Path) -> Iterator[str]:
    """The model of :mod:`tests.bench.model` in a process of its own; its address."""
    port = str(free_port())
    processes = Processes({"PATH": os.environ["PATH"], "PORT": port}, directory / "model.log")
    processes.start("model", "-m", "tests.bench.model", port)
    try:
        until(lambda: _answers(processes.address), "the model does not start", processes.log)
        yield processes.address
    finally:
        processes.stop()


def _answers(address: str) -> bool:
    body = {"model": "words:1", "messages": [{"role": "user", "content": "Hello"}]}
    try:
        return httpx2.post(f"{address}/v1/chat/completions", json=body, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


def asks(model_address: str) -> dict[str, str]:
    """The environment of a host that asks these models."""
    return {"LLM_BASE_URL": f"{model_address}/v1", "LLM_MODELS": ",".join(MODELS)}


# --- the embedded shape ------------------------------------------------------------------------------------------


@contextmanager
def embedded(directory: Path, **more: str) -> Iterator[Processes]:
    """One process."""
    directory.mkdir()
    processes = Processes(environment(directory, PORT=str(free_port()), **more), directory / "host.log")
    try:
        processes.start("serve", "manage.py", "serve")
        processes.until_ready()
        yield processes
    finally:
        processes.stop()


# --- the production shape ----------------------------------------------------------------------------------------


class Production:
    """Servers of its own, with a prepared database. The host has its own role: so its statements are known."""

    def __init__(self, directory: Path, keep: ExitStack, **more: str) -> None:
        (directory / "host").mkdir()
        self.postgresql, self.redis = Database(directory / "postgresql"), Redis(directory / "redis")
        for server in (self.postgresql, self.redis):
            server.start()
            keep.callback(server.stop, signal.SIGINT)  # it waits for no client
        self._connection = keep.enter_context(self.postgresql.connect())
        self.sql("CREATE EXTENSION pg_stat_statements")
        self.sql("CREATE ROLE host LOGIN")
        self.sql("CREATE DATABASE host OWNER host")
        server = f"127.0.0.1:{self.postgresql.port}"
        self.log = directory / "host.log"
        self.environment = environment(
            directory / "host", DATABASE_URL=f"postgresql://host@{server}/host", REDIS_URL=self.redis.url, **more
        )
        prepare = [sys.executable, "manage.py", "prepare"]
        subprocess.run(prepare, cwd=ROOT, env=self.environment, check=True, capture_output=True)
        # This process says what turns are about, and looks whether they have ended: as another role.
        os.environ.update(self.environment | {"DATABASE_URL": f"postgresql://postgres@{server}/host"})
        import django

        django.setup()

    @contextmanager
    def running(self, *, workers: int = 1, toolboxes: int = 1, web: bool = True) -> Iterator[Processes]:
        """The host's processes, once they are there."""
        from conversations.models import Worker

        processes = Processes(self.environment | {"PORT": str(free_port())}, self.log)
        Worker.objects.all().delete()
        try:
            for kind, count in (("worker", workers), ("toolbox", toolboxes), ("web", int(web))):
                processes.start(kind, *PROCESSES[kind], count=count)
            # A worker of either kind listens on one connection.
            until(lambda: Worker.objects.count() == workers + toolboxes <= self._listeners(), "no workers", self.log)
            if web:
                processes.until_ready()
            yield processes
        finally:
            processes.stop()

    def servers_cpu(self) -> dict[str, float]:
        """Seconds of CPU that PostgreSQL and Redis have used."""
        servers = {"PostgreSQL": self.postgresql.process, "Redis": self.redis.process}
        return {kind: cpu_of(process.pid) for kind, process in servers.items() if process}

    def sql(self, statement: str) -> Any:
        """The only value a statement gives, if it gives one."""
        cursor = self._connection.execute(statement)
        return next(iter((cursor.fetchone() or {"": None}).values())) if cursor.description else None

    def _listeners(self) -> int:
        with self.redis.connect() as connection:
            return sum(client["cmd"] == "brpop" for client in connection.client_list())
