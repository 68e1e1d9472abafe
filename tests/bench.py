"""How fast it is, and what it costs: ``make bench``. Its figures are this machine's; what counts are the ratios.

Everything runs on loopback, with a PostgreSQL and a Redis of its own, on the scripted model: what is measured is the
host. All turns of a line are stored first and then rung for, at once; from then on it is measured until the last has
ended. CPU is that of the processes and of what they have started, from ``/proc``. Each line starts its processes anew.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.servers import PostgreSql, Redis, free_port
from tests.host import CELERY, KEY, ROOT
from tests.scripts import script

TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 120.0

ECHO, TOOL, SLOW = "Hello", "What time is it?", script({"sleep": 1, "say": "Done."})


class Database(PostgreSql):
    """As it comes, but for the port: a commit waits for the disk, as in production."""

    OPTIONS = (
        *(option for option in PostgreSql.OPTIONS if not option.startswith(("fsync", "shared_buffers"))),
        "shared_buffers=128MB",
        "shared_preload_libraries=pg_stat_statements",
    )


@dataclass(frozen=True)
class Size:
    """How much of it: turns of a line, of slow turns, and requests of each latency."""

    turns: int
    slow: int
    requests: int
    workers: tuple[int, ...]


FULL = Size(turns=300, slow=200, requests=200, workers=(1, 2, 4))
QUICK = Size(turns=4, slow=2, requests=2, workers=(1,))


# --- processes ---------------------------------------------------------------------------------------------------


@dataclass
class Processes:
    """Processes of a shape, by what they are; more than one may be of a kind."""

    environment: Mapping[str, str]
    log: Path
    running: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

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

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU each kind has used."""
        return {kind: sum(cpu_of(each.pid) for each in several) for kind, several in self.running.items()}


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process, of its children that have ended, and of all that it has started."""
    try:
        ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0.0
    return ticks / TICKS + sum(cpu_of(int(child)) for child in below)


def environment(directory: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "DJANGO_SETTINGS_MODULE": "nanohost.settings",
        "DATA_DIR": str(directory),
        "NANOHOST_API_KEY": KEY,
        "NANOHOST_ADMIN_PASSWORD": "correct horse battery",
        "SECRET_KEY": "of every web node: it signs the sessions",
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


# --- the production shape ----------------------------------------------------------------------------------------


class Production:
    """Servers of its own, with a prepared database. The host has its own role: so its statements are known."""

    def __init__(self, directory: Path, keep: ExitStack) -> None:
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
            directory / "host", DATABASE_URL=f"postgresql://host@{server}/host", REDIS_URL=self.redis.url
        )
        prepare = [sys.executable, "manage.py", "prepare"]
        subprocess.run(prepare, cwd=ROOT, env=self.environment, check=True, capture_output=True)
        # This process says what turns are about, and looks whether they have ended: as another role.
        os.environ.update(self.environment | {"DATABASE_URL": f"postgresql://postgres@{server}/host"})
        import django

        django.setup()

    @contextmanager
    def running(self, *, workers: int, toolboxes: int, web: bool) -> Iterator[Processes]:
        """The host's processes, once they are there."""
        from conversations.models import Worker

        processes = Processes(self.environment | {"PORT": str(free_port())}, self.log)
        Worker.objects.all().delete()
        try:
            processes.start("worker", *CELERY, "worker", "--queues", "turns,compaction", count=workers)
            processes.start("toolbox", *CELERY, "worker", "--queues", "tools", count=toolboxes)
            processes.start("web", "manage.py", "web", count=int(web))
            # A worker of either kind listens on one connection.
            until(lambda: Worker.objects.count() == workers + toolboxes <= self._listeners(), "no workers", self.log)
            yield processes
        finally:
            processes.stop()

    def turns(self, processes: Processes, said: str, count: int) -> dict[str, float]:
        """Run turns, each in a conversation of its own. The turns a second, and of a turn: milliseconds of CPU by
        process, statements, transactions, and bytes of PostgreSQL's log."""
        self._run(said, 4 * len(processes.running["worker"]))  # the first ones import and connect
        before = self._spent(processes)
        seconds = self._run(said, count)
        after = self._spent(processes)
        return {"turns/s": count / seconds, **{name: (after[name] - before[name]) / count for name in after}}

    def _run(self, said: str, count: int) -> float:
        from django.contrib.auth import get_user_model
        from django.db import transaction

        from conversations import inbox
        from conversations.models import Turn

        owner = get_user_model().objects.get(username="admin")
        with transaction.atomic():  # they are rung for when it has committed: all at once
            talks = [inbox.start_conversation(owner_id=owner.pk, metadata={}) for _ in range(count)]
            turns = [inbox.receive(conversation=talk, content=said, request_id="bench").pk for talk in talks]
            began = time.monotonic()
        open_turns = Turn.objects.open().filter(pk__in=turns)
        until(lambda: not open_turns.exists(), "the turns did not end", self.log)
        took = time.monotonic() - began
        assert Turn.objects.filter(pk__in=turns, status="succeeded").count() == count
        return took

    def _spent(self, processes: Processes) -> dict[str, float]:
        servers = {"PostgreSQL": self.postgresql.process, "Redis": self.redis.process}
        own = {kind: cpu_of(process.pid) for kind, process in servers.items() if process}
        # Without what PostgreSQL itself asks, for foreign keys.
        of_host = "FROM pg_stat_statements WHERE userid = 'host'::regrole AND query NOT LIKE 'SELECT % FROM ONLY %'"
        return {
            **{kind: 1000 * seconds for kind, seconds in (processes.cpu() | own).items()},
            "statements": float(self.sql(f"SELECT coalesce(sum(calls), 0) {of_host}")),
            "transactions": float(self.sql(f"SELECT coalesce(sum(calls), 0) {of_host} AND query = 'COMMIT'")),
            "log": float(self.sql("SELECT pg_current_wal_lsn() - '0/0'")),
        }

    def sql(self, statement: str) -> Any:
        """The only value a statement gives, if it gives one."""
        cursor = self._connection.execute(statement)
        return next(iter((cursor.fetchone() or {"": None}).values())) if cursor.description else None

    def _listeners(self) -> int:
        with self.redis.connect() as connection:
            return sum(client["cmd"] == "brpop" for client in connection.client_list())


# --- HTTP --------------------------------------------------------------------------------------------------------


def latency(address: str, *, clients: int, requests: int) -> list[float]:
    """Milliseconds that each of the requests took, of clients that ask one after the other."""
    address = f"{address}/api/v1/conversations"

    def ask(count: int) -> list[float]:
        took = []
        with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
            talk = client.post(address, json={}).json()["conversationId"]
            for _ in range(count):
                began = time.perf_counter()
                answer = client.post(f"{address}/{talk}/chat", json={"message": ECHO})
                took.append(1000 * (time.perf_counter() - began))
                assert answer.status_code == 200, answer.text
        return took[1:]

    with ThreadPoolExecutor(clients) as threads:
        return [each for took in threads.map(ask, [requests // clients + 2] * clients) for each in took]


@contextmanager
def embedded(directory: Path) -> Iterator[tuple[str, Path]]:
    """The other shape, in one process; its address and its log."""
    directory.mkdir()
    port = str(free_port())
    processes = Processes(environment(directory, PORT=port), directory / "host.log")
    try:
        processes.start("serve", "manage.py", "serve")
        yield f"http://127.0.0.1:{port}", processes.log
    finally:
        processes.stop()


def is_ready(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/health/ready", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


# --- the tables --------------------------------------------------------------------------------------------------

CPU = ("worker", "toolbox", "PostgreSQL", "Redis")
LAST = ("statements", "transactions", "log")


def print_turns(production: Production, size: Size) -> list[tuple[int, list[float]]]:
    """A table of turns; returns the latencies of the smallest production there is, by the number of clients."""
    first: dict[str, float] = {}
    latencies: list[tuple[int, list[float]]] = []
    say("", "turns/s", "ratio", *CPU, "a core", *LAST)
    for workers in size.workers:
        toolboxes = min(workers, 2)
        with production.running(workers=workers, toolboxes=toolboxes, web=workers == 1) as processes:
            for kind, said, count in (("echo", ECHO, size.turns), ("tool", TOOL, size.turns // 2)):
                found = production.turns(processes, said, count)
                ratio = found["turns/s"] / first.setdefault(kind, found["turns/s"])
                cells = [
                    found["turns/s"],
                    ratio,
                    *(found[each] for each in CPU),
                    1000 / sum(found[each] for each in CPU),
                ]
                name = f"{kind}, {workers} worker(s), {toolboxes} toolbox(es)"
                say(name, *(f"{cell:.2f}" for cell in cells), *(f"{found[each]:.0f}" for each in LAST))
            if workers == 1:
                a_second = production.turns(processes, SLOW, size.slow)["turns/s"]
                say(
                    f"{size.slow} at once, model of 1 s, 1 worker(s)",
                    f"{a_second:.2f}",
                    f"{size.slow / a_second:.1f} s",
                )
                latencies = measure_latencies(f"http://127.0.0.1:{processes.environment['PORT']}", size, processes.log)
    return latencies


def measure_latencies(address: str, size: Size, log: Path) -> list[tuple[int, list[float]]]:
    until(lambda: is_ready(address), "it does not start", log)
    latency(address, clients=2, requests=4)
    return [(clients, latency(address, clients=clients, requests=size.requests)) for clients in (1, 20)]


def print_latencies(directory: Path, size: Size, production: list[tuple[int, list[float]]]) -> None:
    """A table of one chat request, in both shapes."""
    say("", "p50 ms", "p95 ms", "ratio of p50")
    with embedded(directory) as (address, log):
        measured = measure_latencies(address, size, log)
    for (clients, one), (_, other) in zip(measured, production, strict=True):
        for shape, took in (("embedded", one), ("production", other)):
            p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[-1]
            cells = (p50, p95, p50 / statistics.median(one))
            say(f"chat, {clients} client(s), {shape}", *(f"{cell:.2f}" for cell in cells))


def print_calls(size: Size) -> None:
    """A table of one call of a tool that does next to nothing, side by side: the function itself; in a process that has
    waited for it; and with such a process ended after it and another made, as for a tool that was given a secret."""
    from tools.agent_tools import time as function
    from tools.children import ChildPool, Task

    pool = ChildPool()

    def call(*secrets: str) -> None:
        task = Task(
            module="tools.agent_tools",
            qualname="time",
            arguments={},
            timeout=60,
            output_bytes=65536,
            secrets=secrets,
            repeatable=True,
        )
        assert pool.run(task, still_wanted=lambda: True).ok

    def call_and_replace() -> None:
        call("OF_THE_BENCH")
        pool.start()

    ways: dict[str, Callable[[], object]] = {
        "a tool, as a function": function,
        "a tool, in a warm process": call,
        "a tool, its process ended and replaced": call_and_replace,
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    try:
        call()  # it starts the nursery
        for _ in range(5 * size.requests):
            for name, do in ways.items():
                call()  # a process's first call makes what checks its arguments
                began = time.perf_counter()
                do()
                took[name].append(1000 * (time.perf_counter() - began))
    finally:
        pool.close()
    say("", "p50 ms", "p95 ms")
    for name, each in took.items():
        say(name, *(f"{cell:.3f}" for cell in (statistics.median(each), statistics.quantiles(each, n=20)[-1])))


def say(name: str, *cells: str) -> None:
    print(f"{name:42}" + "".join(f"{cell:>13}" for cell in cells), flush=True)  # noqa: T201 -- a command


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few turns only: shows that it works, and no figure")
    size = QUICK if parser.parse_args(arguments).quick else FULL
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    say(f"{os.cpu_count()} cores; load before: {load}")
    say("CPU: ms a turn, of all processes of a kind; a core: turns it does in a second, of all CPU; log: bytes a turn")
    with tempfile.TemporaryDirectory(prefix="nanohost-bench-") as place, ExitStack() as keep:
        directory = Path(place)
        directory.chmod(0o755)  # PostgreSQL runs as somebody else
        production = Production(directory, keep)
        print_latencies(directory / "embedded", size, print_turns(production, size))
        print_calls(size)


if __name__ == "__main__":
    main(sys.argv[1:])
