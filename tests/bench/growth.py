"""Turns a second with 1, 2 and 4 workers, and what a turn costs each process; a call of a tool, side by side."""

import statistics
import time
from collections.abc import Callable

from tests.bench.hosts import ONE_WORD, TOOL, Processes, Production, until

KINDS = ("worker", "toolbox", "PostgreSQL", "Redis")
LAST = ("statements", "transactions", "log")


def turns_by_workers(production: Production, *, workers: tuple[int, ...], turns: int) -> list[list[str]]:
    """Rows of a table: which turns, workers, turns/s, that to one worker's, ms of CPU a turn of each kind of process,
    statements, transactions and bytes of PostgreSQL's log a turn.

    All turns of a line are stored first and then rung for, at once; from then on it is measured
    until the last has ended. Each number of workers starts its processes anew.
    """
    first: dict[str, float] = {}
    rows = []
    for count in workers:
        toolboxes = min(count, 2)
        with production.running(workers=count, toolboxes=toolboxes, web=False) as processes:
            for kind, model, many in (("echo", ONE_WORD, turns), ("tool", TOOL, turns // 2)):
                found = _turns(production, processes, model, many)
                ratio = found["turns/s"] / first.setdefault(kind, found["turns/s"])
                cells = [f"{each:.1f}" for each in (found["turns/s"], ratio, *(found[kind] for kind in KINDS))]
                rows.append([kind, f"{count} + {toolboxes}", *cells, *(f"{found[each]:.0f}" for each in LAST)])
    return rows


def _turns(production: Production, processes: Processes, model: str, count: int) -> dict[str, float]:
    _run(production, model, 4 * len(processes.running["worker"]))  # the first ones import and connect
    before = _spent(production, processes)
    seconds = _run(production, model, count)
    after = _spent(production, processes)
    return {"turns/s": count / seconds, **{name: (after[name] - before[name]) / count for name in after}}


def _run(production: Production, model: str, count: int) -> float:
    from django.contrib.auth import get_user_model
    from django.db import transaction

    from conversations.engine import inbox
    from conversations.models import Turn

    owner = get_user_model().objects.get(username="admin")
    with transaction.atomic():  # they are rung for when it has committed: all at once
        talks = [inbox.start_conversation(owner_id=owner.pk, metadata={}) for _ in range(count)]
        turns = [
            inbox.receive(conversation=talk, content="Hello", model=model, request_id="bench").pk for talk in talks
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
        "statements": float(production.sql(f"SELECT coalesce(sum(calls), 0) {of_host}")),
        "transactions": float(production.sql(f"SELECT coalesce(sum(calls), 0) {of_host} AND query = 'COMMIT'")),
        "log": float(production.sql("SELECT pg_current_wal_lsn() - '0/0'")),
    }


def calls_of_a_tool(times: int) -> list[list[str]]:
    """Rows of a table, milliseconds p50 and p95, of a tool that does next to nothing: the function itself; in a process
    that has waited for it; and with such a process ended after it and another made, as for a tool that was given a
    secret."""
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
        "in a warm process": call,
        "its process ended and replaced": call_and_replace,
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
    return [
        [name, f"{statistics.median(each):.3f}", f"{statistics.quantiles(each, n=20)[-1]:.3f}"]
        for name, each in took.items()
    ]
