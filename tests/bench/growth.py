"""Turns a second by the number of workers, beside what a model on paper says; a call of a tool, side by side."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.hosts import ONE_WORD, TOOL, USUAL, Processes, Production, cpu_of_all, until

KINDS = ("worker", "toolbox", "PostgreSQL", "Redis")
LAST = ("statements", "transactions", "log")
WARM, FRESH = "in a warm process", "its process ended and replaced"
USUAL_SECONDS = 0.2
# Python's interpreter runs one thread at a time; what a worker does beside it (waits, C code) is little.
LOOP = "s=0\nfor n in range(6_000_000): s+=n"


@dataclass(frozen=True)
class GrowthLine:
    """A kind of turn with so many workers: turns a second; and per turn, milliseconds of CPU of each kind of process,
    and of all that runs here, statements, transactions and bytes of PostgreSQL's log. ``count``: how many there were.
    ``places``: how many turns a worker has at a time."""

    turn: str
    workers: int
    toolboxes: int
    count: int
    rate: float
    costs: Mapping[str, float]
    places: int

    @property
    def cores(self) -> float:
        """How many of the machine's were busy."""
        return self.costs["all"] * self.rate / 1000


def lines(production: Production, *, workers: tuple[int, ...], turns: int) -> list[GrowthLine]:
    """Turns that are all stored first, and then notified of at once: from then on it is measured until the last has
    ended. Each number of workers starts its processes anew."""
    found = []
    for count in workers:
        toolboxes = min(count, 2)
        with production.running(workers=count, toolboxes=toolboxes, web=False) as processes:
            for turn, model, many in (("echo", ONE_WORD, turns), ("200 ms", USUAL, turns), ("tool", TOOL, turns // 2)):
                _run(production, model, 4 * count)  # the first ones import and connect
                before = _spent(production, processes)
                seconds = _run(production, model, many)
                after = _spent(production, processes)
                costs = {name: (after[name] - before[name]) / many for name in after}
                found.append(GrowthLine(turn, count, toolboxes, many, many / seconds, costs, _places()))
    return found


def _places() -> int:
    from conversations.kinds import TURNS

    return TURNS.places()


def predicted(one: GrowthLine, workers: int, *, cores: int, slowdown: float) -> tuple[float, str]:
    """Turns a second that so many workers should have, and what is full first, by what a turn costs with one worker.

    A worker has one interpreter, so it uses one core at most; all processes together have the machine's; and a worker
    has so many turns at a time, each of which takes the model's time at least. ``slowdown``: of each core, while all of
    them work.
    """
    # With one worker, which the costs are of, so many of the other cores worked.
    more = slowdown / (1 + (slowdown - 1) * min(max(one.cores - 1, 0.0) / max(cores - 1, 1), 1.0))
    model = USUAL_SECONDS if one.turn == "200 ms" else 0.0
    bounds = {
        "interpreters": workers * 1000 / one.costs["worker"],
        "cores": cores * 1000 / (one.costs["all"] * more),
        "places": workers * one.places / (model + one.costs["all"] / 1000),
    }
    full = min(bounds, key=lambda name: bounds[name])
    return one.count / (one.count / bounds[full] + model), full


def slowdown_of_full_cores() -> float:
    """How much longer a loop of Python takes while every core has one: cores share what they are made of."""

    def seconds(count: int) -> float:
        began = time.perf_counter()
        running = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
        for each in running:
            each.wait()
        return time.perf_counter() - began

    cores = len(os.sched_getaffinity(0))
    return statistics.median(seconds(cores) / seconds(1) for _ in range(5))


def rows(found: Sequence[GrowthLine], *, cores: int, slowdown: float) -> list[list[str]]:
    """Of a table: each line, what was predicted for it, and what was full."""
    first = {line.turn: line for line in reversed(found)}
    made = []
    for line in found:
        rate, full = predicted(first[line.turn], line.workers, cores=cores, slowdown=slowdown)
        cells = [
            f"{line.rate:.0f}",
            f"{rate:.0f}",
            f"{line.rate / rate:.2f}",
            f"{line.rate / first[line.turn].rate:.2f}",
        ]
        cells += [f"{line.cores:.2f}", full]
        cells += [f"{line.costs[kind]:.1f}" for kind in KINDS] + [f"{line.costs[name]:.0f}" for name in LAST]
        made.append([line.turn, f"{line.workers} + {line.toolboxes}", *cells])
    return made


def _run(production: Production, model: str, count: int) -> float:
    from django.contrib.auth import get_user_model
    from django.db import transaction

    from conversations.engine import inbox
    from conversations.engine.incoming import Incoming
    from conversations.models import Turn

    owner = get_user_model().objects.get(username="admin")
    with transaction.atomic():  # they are notified of when it has committed: all at once
        talks = [inbox.start_conversation(owner_id=owner.pk, metadata={}) for _ in range(count)]
        turns = [
            inbox.receive(Incoming("Hello", model=model), conversation=talk, request_id="bench").pk for talk in talks
        ]
        began = time.monotonic()
    open_turns = Turn.objects.open().filter(pk__in=turns)
    until(lambda: not open_turns.exists(), "the turns did not end", production.log)
    took = time.monotonic() - began
    assert Turn.objects.filter(pk__in=turns, status="succeeded").count() == count
    return took


def _spent(production: Production, processes: Processes) -> dict[str, float]:
    # Without what PostgreSQL itself asks, for foreign keys.
    of_host = "FROM pg_stat_statements WHERE userid = 'host'::regrole AND query NOT LIKE 'SELECT % FROM ONLY %'"
    return {
        **{kind: 1000 * seconds for kind, seconds in (processes.cpu() | production.servers_cpu()).items()},
        "all": 1000 * cpu_of_all(),
        "statements": float(production.sql(f"SELECT coalesce(sum(calls), 0) {of_host}")),
        "transactions": float(production.sql(f"SELECT coalesce(sum(calls), 0) {of_host} AND query = 'COMMIT'")),
        "log": float(production.sql("SELECT pg_current_wal_lsn() - '0/0'")),
    }


def calls_of_a_tool(times: int) -> dict[str, tuple[float, float]]:
    """Milliseconds, p50 and p95, of a tool that does next to nothing: the function itself; in a process that has waited
    for it; and with such a process ended after it and another made, as for a tool that was given a secret."""
    from tools.agent_tools import time as function
    from tools.sandbox.children import ChildPool, Task

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
        "as a function": function,
        WARM: call,
        FRESH: call_and_replace,
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    try:
        call()  # it starts the fork server
        for _ in range(times):
            for name, do in ways.items():
                call()  # a process's first call makes what checks its arguments
                began = time.perf_counter()
                do()
                took[name].append(1000 * (time.perf_counter() - began))
    finally:
        pool.close()
    return {name: (statistics.median(each), statistics.quantiles(each, n=20)[-1]) for name, each in took.items()}
