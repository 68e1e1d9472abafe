"""A circuit breaker for each provider: one that fails for everybody is left alone for a while. Pure, but for the clock.

It is for everybody that it fails if several pieces of work, turns or compactions, have failed at it one after the other
and none has got an answer in between. Then nobody asks it for a while, which spares those who wait a time-out each,
and the provider a crowd. After that one asks: if it answers, all may; if not, it is left alone for twice as long. A
provider that asks to wait, or that refuses a request, has not failed.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.errors import LlmError, LlmRateLimited, LlmUnavailable

# So many failures in a row, of so many pieces of work.
FAILURES, WORKS = 5, 3
# It is left alone for so many times as long as at first, at most.
MAX_TIMES = 4
# Of those who may ask whether it is back, the next may if the last one has told nothing for so many seconds.
PROBE_SECONDS = 30.0
# Who comes while one asks looks again so soon.
WHILE_ASKED_SECONDS = 2.0


class ProviderRests(LlmUnavailable):
    """The provider is left alone for a while: it was not asked."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is to be told to others: that a provider is left alone for so many ``seconds`` from now, because of what; or
    (0) that it answers again."""

    provider: str
    seconds: float
    code: str = ""


@dataclass
class _Circuit:
    failures: int = 0
    works: set[object] = field(default_factory=set)
    times: int = 0  # how many times as long as at first; 0: it is not left alone
    until: float = 0.0
    probe_until: float = 0.0
    code: str = ""
    known_at: float | None = None  # since when others have been told, as far as we have heard


class Breaker:
    """What a process knows of its providers. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._circuits: dict[str, _Circuit] = {}
        self._of_others: dict[str, float] = {}
        self._changes: list[Change] = []
        self._lock = threading.Lock()

    def check(self, provider: str) -> None:
        """Raise :class:`ProviderRests` while the provider is left alone; whoever comes first after that may ask."""
        with self._lock:
            now, circuit = self._clock(), self._circuits.get(provider)
            left = self._of_others.get(provider, now) - now
            if circuit and circuit.times:
                left = max(left, circuit.until - now)
                if left <= 0 and circuit.probe_until > now:
                    left = WHILE_ASKED_SECONDS
                elif left <= 0:
                    circuit.probe_until = now + PROBE_SECONDS
            if left > 0:
                detail = f"{provider} is left alone for a while: it has failed for several turns in a row"
                raise ProviderRests(detail, retry_after=max(left, 1.0))

    def rests(self, provider: str) -> bool:
        """Whether it is left alone, as far as is known here."""
        with self._lock:
            circuit = self._circuits.get(provider)
            until = max(circuit.until if circuit else 0.0, self._of_others.get(provider, 0.0))
            return until > self._clock()

    def answered(self, provider: str) -> None:
        """It has answered, whatever it said."""
        with self._lock:
            circuit = self._circuits.pop(provider, None)
            of_others = self._of_others.pop(provider, None)
            if of_others is not None or (circuit and circuit.times):
                self._changes.append(Change(provider=provider, seconds=0))

    def failed(self, provider: str, error: LlmError, *, work: object, rest: float) -> None:
        """It has failed for a piece of work. ``rest``: seconds for which it is left alone at first; 0: never."""
        with self._lock:
            circuit = self._circuits.setdefault(provider, _Circuit())
            circuit.failures += 1
            circuit.works.add(work)
            circuit.code = error.code
            is_out = circuit.failures >= FAILURES and len(circuit.works) >= WORKS
            now = self._clock()
            if not rest or not (circuit.times or is_out) or circuit.until > now:
                return
            circuit.times = min(2 * circuit.times or 1, MAX_TIMES)
            circuit.until, circuit.probe_until, circuit.known_at = now + rest * circuit.times, 0.0, None
            self._changes.append(Change(provider=provider, seconds=rest * circuit.times, code=error.code))

    def take_changes(self) -> list[Change]:
        """What others are to be told, once."""
        if not self._changes:
            return []
        with self._lock:
            changes, self._changes = self._changes, []
            return changes

    def now(self) -> float:
        """By the clock that it goes by."""
        return self._clock()

    def told(self, changes: Sequence[Change]) -> None:
        """Others can read these from now on."""
        with self._lock:
            for change in changes:
                if circuit := self._circuits.get(change.provider):
                    circuit.known_at = self._clock()

    def learn(self, outages: Mapping[str, float], *, read_at: float) -> None:
        """What all processes have found, as it was ``read_at``: by provider, for how many seconds it is left alone
        still; 0 or less: it is to be asked, and has not answered yet. What we have found ourselves ends before its time
        if others could read of it by then, and do no more: somebody wants it asked, or it answers."""
        now = self._clock()
        with self._lock:
            for name, circuit in self._circuits.items():
                is_left_alone = outages.get(name, 0.0) > 0
                if circuit.times and not is_left_alone and circuit.known_at is not None and circuit.known_at <= read_at:
                    circuit.until = min(circuit.until, now)
                if is_left_alone and circuit.known_at is None:
                    circuit.known_at = now
            self._of_others = {
                name: now + seconds
                for name, seconds in outages.items()
                if not (name in self._circuits and self._circuits[name].times)
            }

    def forget(self) -> None:
        """Everything."""
        with self._lock:
            self._circuits, self._of_others, self._changes = {}, {}, []


def counts(error: LlmError) -> bool:
    """Whether an error is the provider's failure for whoever asks. LlmTimeout is none of one that is slow for a single
    long answer, but for several turns in a row it is."""
    return error.transient and not isinstance(error, LlmRateLimited | ProviderRests)


# What this process knows.
breaker = Breaker()
