"""What a host adds to the model it asks, in both shapes: time, throughput, CPU and memory, and the goals for them.

Each round measures the model itself, the embedded host and the production one, one right after the other; what is told
is the median of the rounds. "Over" is what a host takes beyond what the model takes when it is asked directly.
"""

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.bench.clients import BenchClient, Direct
from tests.bench.hosts import ONE_WORD, SLOW, STREAMED, TOOL, Processes
from tests.support.hosts import KEY

DIRECT, EMBEDDED, PRODUCTION = "direct", "embedded", "production"
SHAPES = (EMBEDDED, PRODUCTION)


@dataclass(frozen=True)
class Size:
    """How much of it: rounds; and a round's turns one after the other, turns with a tool, turns of each of 16 that talk
    at once, clients of the slow model, streams one after the other; and messages of the long conversation."""

    rounds: int
    turns: int
    tools: int
    busy: int
    slow: int
    streams: int
    long: int


FULL = Size(rounds=5, turns=40, tools=20, busy=20, slow=200, streams=10, long=2000)
QUICK = Size(rounds=1, turns=2, tools=2, busy=2, slow=4, streams=2, long=12)

TALKING, STREAMING = 16, 20


@dataclass(frozen=True)
class Goal:
    """A figure, what it is at most or at least, by shape, and how it is written."""

    name: str
    unit: str
    bounds: Mapping[str, float]
    at_least: bool = False

    def is_met(self, shape: str, value: float) -> bool:
        bound = self.bounds[shape]
        return value >= bound if self.at_least else value <= bound


def _both(embedded: float, production: float) -> dict[str, float]:
    return {EMBEDDED: embedded, PRODUCTION: production}


CACHED = "prompts that a cache can serve, 60 turns"
SCOPED = "a turn with a key of scopes to one without"
BUDGETED = "a turn with a budget to one without"
COMPLETED = "a chat completion of /v1 to the turn by /api/v1"
COMPLETED_FIRST = "its first piece of text to that one's"
FILE_READ = "a call that reads files to one of time"
FILE_WRITTEN = "a call that writes a file to one of time"
MCP_CALLED = "a call of an MCP server over stdio, over the server"
RECALLED = "a search of 100,000 entries of history"
WARM_CALL = "a call of a tool in a warm process"
FRESH_CALL = "a call of a tool in a process made for it"
DRAWN = "scripts of the chat page until it is drawn"

GOALS = (
    Goal("a turn, over the model", "ms", _both(5, 9)),
    Goal("a turn, over the model, over 200 turns", "ms", _both(6.5, 11)),
    Goal("a turn, the last of 200 to the first", "ratio", _both(1.15, 1.15)),
    Goal("a turn with one tool, over the model", "ms", _both(12, 20)),
    Goal("turns at 16 conversations", "1/s", _both(220, 200), at_least=True),
    Goal("CPU of a turn", "ms", _both(4.5, 6)),
    Goal("200 turns at once, model of 1 s", "s", _both(1.5, 1.6)),
    Goal("first piece of text over the model's, 1 stream", "ms", _both(5, 10)),
    Goal("first piece of text over the model's, 20 streams", "ms", _both(35, 45)),
    Goal("a turn at 2,000 messages to one at 10", "ratio", _both(1.1, 1.1)),
    Goal("memory after the load", "MiB", _both(130, 300)),
    Goal(CACHED, "%", {EMBEDDED: 90}, at_least=True),
    Goal(SCOPED, "ratio", _both(1.05, 1.05)),
    Goal(BUDGETED, "ratio", _both(1.05, 1.05)),
    Goal(COMPLETED, "ratio", _both(1.1, 1.1)),
    Goal(COMPLETED_FIRST, "ratio", _both(1.1, 1.1)),
    Goal(FILE_READ, "ratio", _both(1.2, 1.2)),
    Goal(FILE_WRITTEN, "ratio", _both(1.2, 1.2)),
    Goal(MCP_CALLED, "ms", _both(5, 5)),
    Goal(RECALLED, "ms", _both(50, 50)),
    # The same in both: no host is asked.
    Goal(WARM_CALL, "ms", {EMBEDDED: 1}),
    Goal(FRESH_CALL, "ms", {EMBEDDED: 50}),
    Goal(DRAWN, "ms", {EMBEDDED: 100}),
)

# By the goal's name, and by whom: the figure of each round.
Found = dict[str, dict[str, list[float]]]


class Measuring:
    """Measures hosts that run, and the model they ask."""

    def __init__(self, size: Size, model: str, hosts: Mapping[str, Processes]) -> None:
        self.size, self._model, self._hosts = size, model, hosts
        self.found: Found = defaultdict(lambda: defaultdict(list))
        self._one = {name: self._asker(name) for name in (DIRECT, *hosts)}
        self._with_tool = {name: self._asker(name) for name in (DIRECT, *hosts)}
        self._flat: dict[str, list[float]] = defaultdict(list)

    def _asker(self, name: str) -> Any:
        return Direct(self._model, KEY) if name == DIRECT else BenchClient(self._hosts[name].address, KEY)

    def measure(self, tell: Callable[[str], None]) -> Found:
        """All of it."""
        for asker in (*self._one.values(), *self._with_tool.values()):
            asker.ask(ONE_WORD)  # a first turn imports and connects
            asker.ask(TOOL)
        self._one = {name: self._asker(name) for name in self._one}
        long = self._long_conversations()
        for number in range(self.size.rounds):
            tell(f"round {number + 1} of {self.size.rounds}")
            self._one_after_the_other()
            self._tools()
            self._streams()
            self._long(long)
            for name in self._hosts:
                self._busy(name)
            for name in (DIRECT, *self._hosts):
                self._slow(name)
                self._streams_at_once(name)
        for name, took in self._flat.items():
            part = self.size.turns
            first, last = statistics.median(took[:part]), statistics.median(took[-part:])
            self.found["a turn, the last of 200 to the first"][name].append(last / first)
            over = statistics.median(took) - statistics.median(self.found["a turn, over the model"][DIRECT])
            self.found["a turn, over the model, over 200 turns"][name].append(over)
            self.found["memory after the load"][name].append(self._hosts[name].memory())
        return self.found

    def _side_by_side(
        self, askers: Mapping[str, Any], ask: Callable[[Any], float], times: int
    ) -> dict[str, list[float]]:
        took: dict[str, list[float]] = {name: [] for name in askers}
        for _ in range(times):
            for name, asker in askers.items():
                took[name].append(ask(asker))
        return took

    def _note_over(self, goal: str, took: Mapping[str, Sequence[float]]) -> None:
        direct = statistics.median(took[DIRECT])
        self.found[goal][DIRECT].append(direct)
        for name in self._hosts:
            self.found[goal][name].append(statistics.median(took[name]) - direct)

    def _one_after_the_other(self) -> None:
        took = self._side_by_side(self._one, lambda asker: float(asker.ask(ONE_WORD).whole), self.size.turns)
        self._note_over("a turn, over the model", took)
        for name in self._hosts:
            self._flat[name] += took[name]

    def _tools(self) -> None:
        took = self._side_by_side(self._with_tool, lambda asker: float(asker.ask(TOOL).whole), self.size.tools)
        self._note_over("a turn with one tool, over the model", took)

    def _streams(self) -> None:
        ask = lambda asker: float(asker.ask(STREAMED, stream=True).first)  # noqa: E731 -- as the others
        took = self._side_by_side(self._with_tool, ask, self.size.streams)
        self._note_over("first piece of text over the model's, 1 stream", took)

    def _long_conversations(self) -> dict[str, tuple[Any, Any]]:
        """By host, two who talk: in a long conversation, and in a short one, at first."""
        made = {name: (self._asker(name), self._asker(name)) for name in self._hosts}

        def fill(name: str) -> None:
            for asker, messages in zip(made[name], (self.size.long, 10), strict=True):
                for _ in range(messages // 2):
                    asker.ask(ONE_WORD)

        with ThreadPoolExecutor(len(made)) as threads:
            list(threads.map(fill, made))
        return made

    def _long(self, conversations: Mapping[str, tuple[Any, Any]]) -> None:
        for name, (long, _) in conversations.items():
            short = self._asker(name)
            for _ in range(5):
                short.ask(ONE_WORD)
            askers = {"long": long, "short": short}
            took = self._side_by_side(askers, lambda asker: float(asker.ask(ONE_WORD).whole), 10)
            ratio = statistics.median(took["long"]) / statistics.median(took["short"])
            self.found["a turn at 2,000 messages to one at 10"][name].append(ratio)
            short.close()

    def _at_once(self, name: str, count: int, do: Callable[[Any], float]) -> tuple[float, list[float]]:
        """So many clients, each in a thread, all let go at the same moment; seconds until the last is done."""
        askers = [self._asker(name) for _ in range(count)]
        for asker in askers:  # the first of many may have been silent for too long
            asker.connect()
        gate = threading.Barrier(count + 1)

        def run(asker: Any) -> float:
            gate.wait()
            return do(asker)

        with ThreadPoolExecutor(count) as threads:
            running = [threads.submit(run, asker) for asker in askers]
            gate.wait()
            began = time.perf_counter()
            took = [each.result() for each in running]
            seconds = time.perf_counter() - began
        for asker in askers:
            asker.close()
        return seconds, took

    def _busy(self, name: str) -> None:
        before = sum(self._hosts[name].cpu().values())

        def talk(asker: Any) -> float:
            for _ in range(self.size.busy):
                asker.ask(ONE_WORD)
            return 0.0

        seconds, _ = self._at_once(name, TALKING, talk)
        turns = TALKING * self.size.busy
        spent = sum(self._hosts[name].cpu().values()) - before
        self.found["turns at 16 conversations"][name].append(turns / seconds)
        self.found["CPU of a turn"][name].append(1000 * spent / turns)

    def _slow(self, name: str) -> None:
        seconds, _ = self._at_once(name, self.size.slow, lambda asker: float(asker.ask(SLOW).whole))
        self.found["200 turns at once, model of 1 s"][name].append(seconds)

    def _streams_at_once(self, name: str) -> None:
        goal = "first piece of text over the model's, 20 streams"
        _, firsts = self._at_once(name, STREAMING, lambda asker: float(asker.ask(STREAMED, stream=True).first))
        first = statistics.median(firsts)
        over = first if name == DIRECT else first - self.found[goal][DIRECT][-1]
        self.found[goal][name].append(over)
