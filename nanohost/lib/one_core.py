"""Keeps the threads of a process on one core of the machine, and moves them all to another when others need it.

One thread at a time runs Python. Where a process may use several cores, each wait for a socket or a lock lets a thread
on another core wake, ask for the interpreter, and take it: the hand-overs, and what each core has to fetch anew, are a
fifth of a busy host's CPU. What runs in C beside Python loses the other cores; what a process starts keeps them, if it
is started within :func:`all_cores`. Linux only; elsewhere nothing is done.
"""

import os
import random
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

# Seconds between two looks at how busy cores are.
LOOK_SECONDS = 1.0
# How much busier a core must be than another, in parts of its time, for a process to leave it; and how much of a core a
# process must use to be worth the look.
_WORTH_MOVING, _WORTH_LOOKING = 0.1, 0.05
# From how much on a core has no time left.
_FULL = 0.95
# Of two processes that find each other on one core, both should not leave.
_CHANCE = 0.5

# Where the kernel tells how long each core has worked, in ticks (proc(5)).
STAT = Path("/proc/stat")
_TICKS = os.sysconf("SC_CLK_TCK")


# How many threads are just starting something; who moves waits, or looks again later.
_starting = 0
_changing = threading.Condition()


class OneCore:
    """The core that a process is on: :attr:`here`. ``cores``: those it may use; there are at least two."""

    def __init__(self, cores: Collection[int]) -> None:
        self._cores = frozenset(cores)
        self._siblings = {core: _siblings_of(core) & self._cores for core in cores}
        self.here = random.choice(sorted(cores))  # noqa: S311 -- no secret

    def begin(self) -> None:
        """Put all threads on it; raises OSError where the system does not let a process choose."""
        _place_threads({self.here})

    def watch(self) -> None:
        """Look, until somebody else decides where this process is."""
        never = threading.Event()
        try:
            ticks, used, at = _ticks(), time.process_time(), time.monotonic()
            while not never.wait(LOOK_SECONDS):
                used_before, used, at_before, at = used, time.process_time(), at, time.monotonic()
                own = (used - used_before) / (at - at_before)
                if own < _WORTH_LOOKING:
                    ticks = {}
                    continue
                ticks_before, ticks = ticks, _ticks()
                passed = _TICKS * (at - at_before)
                both = ticks.keys() & ticks_before.keys()
                busy = {core: (ticks[core] - ticks_before[core]) / passed for core in both}
                core = better_core(self.here, own=own, busy=busy, siblings=self._siblings)
                if not self._go_to(core):
                    return
        except (OSError, ValueError):  # what cannot be watched is left to the system
            with suppress(OSError):
                _place_threads(self._cores)

    @contextmanager
    def left(self) -> Iterator[None]:
        """What this thread starts inside may use all cores, unless somebody else has decided where it is."""
        if os.sched_getaffinity(0) != {self.here}:
            yield
            return
        with suppress(OSError):  # the system allows none of them any more
            os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, {self.here})

    def _go_to(self, core: int) -> bool:
        """Go to a core, perhaps; False if somebody else has decided where this process is."""
        with _changing:
            if _starting:
                return True
            if os.sched_getaffinity(os.getpid()) != {self.here}:
                return False
            if core != self.here and random.random() < _CHANCE:  # noqa: S311 -- no secret
                _place_threads({core})
                self.here = core
            return True


def _place_threads(cores: Collection[int]) -> None:
    placed: set[str] = set()
    # A thread that is made meanwhile is where its maker was.
    while new := set(os.listdir("/proc/self/task")) - placed:
        for thread in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)
        placed |= new


def better_core(here: int, *, own: float, busy: Mapping[int, float], siblings: Mapping[int, Collection[int]]) -> int:
    """The core on which a process meets least of others' work: the one it is on, unless another is clearly better. Or
    one that has time left, if the one it is on has none and others are on it: they may be bound to it as well, while
    those on the other one are moved by the system.

    ``own``: what the process uses of a core. ``busy``: how much of each core is used. ``siblings``: which share their
    hardware with a core: what is done there costs it about half.
    """
    others = {core: max(used - own, 0) if core == here else used for core, used in busy.items() if core in siblings}
    if here not in others:
        return here
    met = {core: used + sum(others.get(each, 0) for each in siblings[core]) / 2 for core, used in others.items()}
    best = min(met, key=met.__getitem__)
    if met[best] < met[here] - _WORTH_MOVING:
        return best
    idlest = min(others, key=busy.__getitem__)
    is_shared = busy[here] > _FULL and others[here] > _WORTH_MOVING
    return idlest if is_shared and busy[idlest] < _FULL - _WORTH_MOVING else here


def _ticks() -> dict[int, int]:
    lines = [line.split() for line in STAT.read_text().splitlines() if line.startswith("cpu")]
    found = {}
    for name, *counted in lines:
        if name != "cpu":
            user, nice, system, _idle, _wait, interrupts, soft, stolen, *_ = map(int, counted)
            found[int(name[3:])] = user + nice + system + interrupts + soft + stolen
    return found


def _siblings_of(core: int) -> frozenset[int]:
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        spans = [part.split("-") for part in text.strip().split(",")]
        return frozenset(each for span in spans for each in range(int(span[0]), int(span[-1]) + 1)) - {core}
    except (OSError, ValueError):
        return frozenset()


# Of this process, if it keeps to one.
current: OneCore | None = None


def keep_to_one_core() -> None:
    """Begin, unless there is but one core that this process may use."""
    global current
    if current or not hasattr(os, "sched_setaffinity") or len(cores := os.sched_getaffinity(0)) < 2:
        return
    one = OneCore(cores)
    with _changing:
        _changing.wait_for(lambda: not _starting)  # or what is just being started would keep to it
        try:
            one.begin()
        except OSError:
            return
        current = one
    threading.Thread(target=one.watch, name="one-core", daemon=True).start()


@contextmanager
def all_cores() -> Iterator[None]:
    """What this thread starts inside may use all cores that this process may."""
    global _starting
    with _changing:
        _starting += 1
    try:
        with current.left() if current else nullcontext():
            yield
    finally:
        with _changing:
            _starting -= 1
            _changing.notify_all()
