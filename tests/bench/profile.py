"""Where a turn's time goes: a host's Python stacks, sampled by py-spy while it works, put into few kinds."""

import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.bench.clients import Asker
from tests.bench.hosts import ONE_WORD, Processes
from tests.bench.speed import TALKING
from tests.support.hosts import KEY

# The first whose pattern a frame's file fits, from the innermost frame outwards, is what a sample counts for.
OWN = "agent|conversations|memory|nanohost|scheduler|tools"
KINDS = {
    "database drivers": r"/(psycopg|psycopg_pool|(backends|lib)/(sqlite3?|postgresql))/",
    "database, written by the ORM": r"nanohost/lib/statements|/django/db/",
    "broker (Celery, kombu, redis)": r"/(celery|kombu|redis|amqp|vine|billiard)/",
    "model's client (openai, httpx2)": r"/(openai|httpx2|httpcore2|pydantic|anyio|h11)/",
    "REST framework": r"/rest_framework/",
    "logs and redaction": r"/(structlog|logging)/|nanohost/lib/(logs|redaction)",
    "Django": r"/(django|asgiref|whitenoise)/",
    "web server (uvicorn, a2wsgi)": r"/(uvicorn|a2wsgi|uvloop|httptools)/",
    "nanohost": rf"[( /]({OWN})/[^(]*[.]py",
    "event loops and threads": r"/(asyncio|concurrent)/|threading|/queue[.]|selectors|contextlib|contextvars",
}
_KINDS = {name: re.compile(pattern) for name, pattern in KINDS.items()}
OTHER = "other"


def while_busy(hosts: Mapping[str, Processes], *, seconds: int) -> dict[str, list[tuple[str, float]]]:
    """By host and kind of process: each kind of code's part of the time in which Python code ran, the largest first,
    while 16 talk at once."""
    found = {}
    for name, host in hosts.items():
        for kind, processes in host.running.items():
            if kind != "toolbox":
                with _talking(host):
                    found[f"{name}, {kind}"] = by_kind(stacks(processes[0].pid, seconds=seconds))
    return found


@contextmanager
def _talking(host: Processes) -> Iterator[None]:
    enough = threading.Event()

    def talk() -> None:
        asker = Asker(host.address, KEY)
        while not enough.is_set():
            asker.ask(ONE_WORD)
        asker.close()

    with ThreadPoolExecutor(TALKING) as threads:
        running = [threads.submit(talk) for _ in range(TALKING)]
        try:
            yield
        finally:
            enough.set()
        for each in running:
            each.result()


def stacks(pid: int, *, seconds: int) -> Counter[str]:
    """Samples by stack, of the thread that holds the interpreter: frames from the outermost in, divided by ``;``."""
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "stacks"
        command = ["record", "--pid", str(pid), "--duration", str(seconds), "--rate", "500", "--gil", "--format", "raw"]
        subprocess.run(
            [str(Path(sys.executable).parent / "py-spy"), *command, "--full-filenames", "--output", str(output)],
            check=True,
            capture_output=True,
        )
        counted: Counter[str] = Counter()
        for line in output.read_text().splitlines():
            stack, _, samples = line.rpartition(" ")
            counted[stack] += int(samples)
        return counted


def by_kind(sampled: Counter[str]) -> list[tuple[str, float]]:
    """Each kind's part of the samples, the largest first."""
    found: Counter[str] = Counter()
    for stack, samples in sampled.items():
        found[_kind(stack)] += samples
    total = sum(found.values()) or 1
    return [(name, samples / total) for name, samples in found.most_common()]


def _kind(stack: str) -> str:
    for frame in reversed(stack.split(";")):
        for name, pattern in _KINDS.items():
            if pattern.search(frame):
                return name
    return OTHER
