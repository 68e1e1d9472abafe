"""Reservations that a process makes ahead: many in one transaction, each for one model call to come.

A reservation is a transaction, and so costs a turn more than all else that a budget asks of it. Where calls follow each
other closely, the process that reserves for one reserves for some of the next as well. Each is a row like any other,
with its own call id and lease, and is settled or released like any other; only who takes it is decided here, without
the database. Those that nobody takes end with their lease, and are few beside what the budget has left.
"""

import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from uuid import UUID

from agent.spending.bills import Share
from agent.spending.book import Limit

# Seconds for which one may wait for its call; its lease is longer by as much as any call's is.
SECONDS = 30.0
# So many calls within so many seconds, and there will be more: then there are made as many ahead, up to the last.
MIN_CALLS, WITHIN_SECONDS, MAX_AHEAD = 4, 10.0, 32
# All those of one transaction may take this part of what a budget has left, and each is larger than the call that they
# are made with by that part of it: prompts grow.
PART_OF_THE_REST, GROWTH = 50, 4

# What budgets apply, and in which of their periods.
Scope = tuple[tuple[Limit, date], ...]


@dataclass(frozen=True, kw_only=True)
class Made:
    """A reservation that has no call yet. ``until``: on this process's monotonic clock."""

    call_id: UUID
    shares: tuple[Share, ...]
    until: float

    def fits(self, *, tokens: int, money: int) -> bool:
        """Whether it is enough for a call that may use so much."""
        return all(share.amount >= (money if share.is_money else tokens) for share in self.shares)


@dataclass
class _Known:
    """Of one scope: what is there to be taken, and when calls came lately, of which there is one at least."""

    made: list[Made] = field(default_factory=list)
    calls: deque[float] = field(default_factory=partial(deque, maxlen=MAX_AHEAD))


class Stock:
    """What this process has made ahead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Scope, _Known] = {}

    def take(self, scope: Scope, *, tokens: int, money: int) -> Made | None:
        """One that is large enough for a call that may use so much; None if there is none."""
        with self._lock:
            now = time.monotonic()
            if scope not in self._known:  # others may be of periods that are over, or of budgets that were changed
                self._known = {key: known for key, known in self._known.items() if known.calls[-1] > now - SECONDS}
            known = self._known.setdefault(scope, _Known())
            known.calls.append(now)
            while known.calls[0] <= now - WITHIN_SECONDS:
                known.calls.popleft()
            while known.made and known.made[0].until <= now:  # the oldest stands first
                known.made.pop(0)
            for place, made in enumerate(known.made):
                if made.fits(tokens=tokens, money=money):
                    return known.made.pop(place)
        return None

    def wanted(self, scope: Scope, *, tokens: int, money: int) -> tuple[int, list[UUID]]:
        """How many to make ahead, with one for a call that none was large enough for; and the call ids of those that
        are too small for it, which nobody will take: prompts grow, and what comes next will be as large."""
        with self._lock:
            known = self._known.get(scope)
            if known is None:
                return 0, []
            outgrown = [each.call_id for each in known.made if not each.fits(tokens=tokens, money=money)]
            known.made = [each for each in known.made if each.call_id not in outgrown]
            if known.made or len(known.calls) < MIN_CALLS:
                return 0, outgrown
            return len(known.calls), outgrown

    def add(self, scope: Scope, made: Sequence[Made]) -> None:
        """From now on these may be taken."""
        with self._lock:
            if scope in self._known:
                self._known[scope].made += made

    def withdraw(self, period_ids: Collection[int]) -> list[UUID]:
        """The call ids of all that nobody has taken of these periods: nobody will."""
        withdrawn: list[UUID] = []
        with self._lock:
            for known in self._known.values():
                gone = [each for each in known.made if any(share.period_id in period_ids for share in each.shares)]
                known.made = [each for each in known.made if each not in gone]
                withdrawn += [each.call_id for each in gone]
        return withdrawn

    def forget(self) -> None:
        """Start anew, with what is made from now on."""
        with self._lock:
            self._known.clear()


stock = Stock()
