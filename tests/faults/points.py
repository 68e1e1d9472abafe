"""Where a host is killed: a catalogue, and a seeded draw from it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of :mod:`tests.faults.kill`, or one inside a tool, which then kills the host itself."""

    stage: str
    place: str
    moment: str
    nth: int = 1

    @property
    def inside_tool(self) -> bool:
        return self.place in ("leave_mark", "look")

    def __str__(self) -> str:
        return f"{self.place}:{self.moment}:{self.nth}"


TRANSACTION, STATEMENT = ("before", "inside", "after"), ("before", "after")

# Stage of a turn, place, moments, and how often a host comes by while it answers one round of questions.
CATALOGUE = (
    ("message", "inbox.receive", TRANSACTION, 6),
    ("claim", "lease.claim", TRANSACTION, 2),
    ("model", "model", ("before", "during", "after"), 12),
    ("intent", "steps.store_calls", TRANSACTION, 4),
    ("start", "calls.claim", TRANSACTION, 6),
    ("effect", "leave_mark", ("before", "beside", "after"), 1),
    ("effect", "look", ("during",), 1),
    ("result", "calls.end", ("inside",), 6),
    ("result", "onward.storing", TRANSACTION, 6),
    ("retry", "steps.wait_for_retry", TRANSACTION, 1),
    ("finish", "steps.finish", TRANSACTION, 6),
    ("cancel", "turn_control.cancel_turn", TRANSACTION, 1),
    ("notification", "notification", STATEMENT, 20),
)


def every_point(rng: random.Random) -> list[Point]:
    """Each place and moment once, with a drawn turn in its counting, in a drawn order."""
    points = [
        Point(stage=stage, place=place, moment=moment, nth=rng.randint(1, often))
        for stage, place, moments, often in CATALOGUE
        for moment in moments
    ]
    rng.shuffle(points)
    return points


def draw(rng: random.Random) -> Iterator[Point]:
    """Points without end; each place and moment comes once before any comes again."""
    while True:
        yield from every_point(rng)
