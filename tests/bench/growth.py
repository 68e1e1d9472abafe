"""Turns a second by the number of workers, beside what a model on paper says, and what more of them would need; a call
of a tool, side by side."""

import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from nanohost.lib.garbage import LOADED_AFTER
from tests.bench.clients import BenchClient
from tests.bench.hosts import ONE_WORD, TOOL, USUAL, Processes, Production, cpu_of_all, until
from tests.bench.speed import TALKING
from tests.support.hosts import KEY

KINDS = ("worker", "toolbox", "PostgreSQL", "Redis")
LAST = ("statements", "transactions", "log")
WARM, FRESH = "in a warm process", "its process ended and replaced"
USUAL_SECONDS = 0.2
# A service moves into large pages some seconds after its start, and has done so after as many.
SETTLED_SECONDS = LOADED_AFTER + 2
# Of an interpreter's time, what a process is planned with: the rest is waits that nothing else fills.
PLANNED = 0.8
# Conversations are taken to have so many turns, and a model to answer within so many seconds.
TURNS_EACH, ANSWER_SECONDS = 10, 10
# What is told of: so many turns a second, and as many as so many workers do.
RATES, WORKERS = (100, 1000), (16, 64)
# Ten million conversations: a row of each of these, in GB, by its bytes.
GB_OF_A_BYTE = 10_000_000 / 1e9


@dataclass(frozen=True)
class GrowthLine:
    """A kind of turn with so many workers: turns a second; and per turn, milliseconds of CPU of each kind of process,
    and of all that runs here, statements, transactions and bytes of PostgreSQL's log. ``count``: how many at a time.
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


def lines(production: Production, *, workers: tuple[int, ...], turns: int, settled: float) -> list[GrowthLine]:
    """Turns that are all stored first, and then notified of at once: from then on it is measured until the last has
    ended. Each number of workers starts its processes anew; ``settled``: so many seconds after that it begins. It is
    measured on the way up and on the way back: a machine that others share is slower for minutes."""
    found: dict[tuple[int, str], list[GrowthLine]] = defaultdict(list)
    for count in (*workers, *reversed(workers)):
        toolboxes = min(count, 2)
        with production.running(workers=count, toolboxes=toolboxes, web=False) as processes:
            begins = time.monotonic() + settled
            for turn, model, many in (("echo", ONE_WORD, turns), ("200 ms", USUAL, turns), ("tool", TOOL, turns // 2)):
                # The first ones import; and each of a worker's connections plans its statements for itself.
                _run(production, processes, model, min(many, 100 * count))
                while time.monotonic() < begins:
                    _run(production, processes, model, min(many, 100 * count))
                seconds, spent = _run(production, processes, model, many)
                costs = {name: cost / many for name, cost in spent.items()}
                line = GrowthLine(turn, count, toolboxes, many, many / seconds, costs, _places())
                # Of a short run that tells nothing: the kernel counts in hundredths of a second.
                assert seconds < 1 or line.cores < 1.1 * cores_here(), "more was counted than what was spent meanwhile"
                found[count, turn].append(line)
    return [_mean(both) for both in found.values()]


def _mean(both: Sequence[GrowthLine]) -> GrowthLine:
    """Of as many turns each: all of them by all of the time."""
    rate = statistics.harmonic_mean(line.rate for line in both)
    costs = {name: statistics.mean(line.costs[name] for line in both) for name in both[0].costs}
    return replace(both[0], rate=rate, costs=costs)


def cores_here() -> int:
    """How many the benchmark may use."""
    return len(os.sched_getaffinity(0))


def over_http(production: Production, *, turns: int, settled: float) -> list[GrowthLine]:
    """The same of turns over HTTP, on one worker: so many talk at once, with so many ``turns`` each."""
    found = []
    with production.running() as processes, ThreadPoolExecutor(TALKING) as threads:
        begins = time.monotonic() + settled
        clients = [BenchClient(processes.address, KEY) for _ in range(TALKING)]
        for turn, model in (("echo", ONE_WORD), ("tool", TOOL)):

            def talk(client: BenchClient, model: str = model) -> None:
                for _ in range(turns):
                    client.ask(model)

            list(threads.map(talk, clients))
            while time.monotonic() < begins:
                list(threads.map(talk, clients))
            before, began = _spent(production, processes), time.monotonic()
            list(threads.map(talk, clients))
            seconds, after = time.monotonic() - began, _spent(production, processes)
            many = turns * TALKING
            costs = {name: (after[name] - before[name]) / many for name in after}
            found.append(GrowthLine(turn, 1, 1, many, many / seconds, costs, _places()))
    return found


def needed(by_http: Sequence[GrowthLine]) -> list[list[str]]:
    """Of a table: what more turns would need."""
    return [needs(line, rate) for line in by_http for rate in (*RATES, *(rate_of(line, count) for count in WORKERS))]


def rate_of(line: GrowthLine, workers: int) -> float:
    """As many turns a second as so many workers do, where nothing else is full."""
    return workers * PLANNED * 1000 / line.costs["worker"]


def needs(line: GrowthLine, rate: float) -> list[str]:
    """What so many turns a second would need, by what one costs over HTTP."""
    costs = {name: cost / 1000 for name, cost in line.costs.items()}
    of_each = [math.ceil(round(rate * costs[kind] / PLANNED, 6)) for kind in ("worker", "web", "toolbox")]
    return [
        line.turn,
        f"{rate:,.0f}",
        *map(str, of_each),
        *(f"{rate * costs[kind]:.1f}" for kind in ("PostgreSQL", "Redis")),
        f"{rate * line.costs['transactions']:,.0f}",
        f"{rate * costs['log'] / 1000:.1f}",
        f"{rate * ANSWER_SECONDS:,.0f}",
        f"{math.ceil(rate * ANSWER_SECONDS / line.places)}",
    ]


def stored() -> Iterator[list[str]]:
    """Of a table: what a row takes with its part of the indexes, after many updates; and ten million conversations."""
    from django.db import connection

    from conversations.models import Conversation, Message, Turn
    from tools.models import ToolCall

    each = {Conversation: 1, Turn: TURNS_EACH, Message: 2 * TURNS_EACH, ToolCall: TURNS_EACH}
    with connection.cursor() as cursor:
        for model, count in each.items():
            cursor.execute("SELECT pg_total_relation_size(%s)", [model._meta.db_table])
            size = cursor.fetchone()[0] / max(model._default_manager.count(), 1)
            yield [str(model._meta.verbose_name), f"{size:.0f}", f"{size * count * GB_OF_A_BYTE:.0f}"]


def _places() -> int:
    from conversations.kinds import TURNS

    return TURNS.places()


def predicted(one: GrowthLine, most: GrowthLine, workers: int, *, cores: int) -> tuple[float, str]:
    """Turns a second that so many workers should have, and what is full first, by what a turn costs with ``one`` worker
    and with the ``most`` that were measured.

    So many workers do so many times what one does, until all processes together use all of the machine's cores; and a
    worker has so many turns at a time, each of which takes the model's time at least. A turn costs more where more
    workers than cores share these, which are then colder for each: as much more with each worker beyond one a core.
    """
    beyond, most_beyond = max(workers - cores, 0), max(most.workers - cores, 1)
    more = (most.costs["all"] - one.costs["all"]) * beyond / most_beyond
    cost = (one.costs["all"] + more) / 1000
    model = USUAL_SECONDS if one.turn == "200 ms" else 0.0
    bounds = {
        "workers": workers * one.count / (one.count / one.rate - model),
        "cores": cores / cost,
        "places": workers * one.places / (model + cost),
    }
    full = min(bounds, key=lambda name: bounds[name])
    return one.count / (one.count / bounds[full] + model), full


def rows(found: Sequence[GrowthLine]) -> list[list[str]]:
    """Of a table: each line, what was predicted for it, and what was full."""
    first, last = {line.turn: line for line in reversed(found)}, {line.turn: line for line in found}
    made = []
    for line in found:
        rate, full = predicted(first[line.turn], last[line.turn], line.workers, cores=cores_here())
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


def _run(production: Production, processes: Processes, model: str, count: int) -> tuple[float, dict[str, float]]:
    """Seconds from when turns are notified of, which is when they have all been stored, until the last has ended; and
    what was spent meanwhile."""
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
        before, began = _spent(production, processes), time.monotonic()
    open_turns = Turn.objects.open().filter(pk__in=turns)
    until(lambda: not open_turns.exists(), "the turns did not end", production.log)
    took, after = time.monotonic() - began, _spent(production, processes)
    assert Turn.objects.filter(pk__in=turns, status="succeeded").count() == count
    return took, {name: after[name] - before[name] for name in after}


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
