"""What is older than its agent keeps it is deleted: a few rows at a time, each batch with its record in the audit log.

A run goes from agent to agent and from kind to kind, and remembers nothing that its batches do not store: it may be cut
short anywhere, and several may run at once, since each locks what it deletes and looks again at what is left.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, Self
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import Exists, F, OuterRef, Q

from agent import models as kinds
from agent.models import Agent, AgentVersion, DeletedAgent
from conversations.engine import retention as of_conversations
from conversations.models import Turn
from memory import retention as of_memory
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.accounts import audit, holds
from nanohost.accounts.holds import Holds
from nanohost.lib import clock
from nanohost.lib.clock import Now, from_now
from nanohost.lib.erasing import Erased, Pace
from scheduler.models import RetentionRun
from tools import retention as of_calls

# Owners that are looked at in one statement.
PAGE = 200

# What a batch pays for looking at something, in rows: each costs some statements, however little of it goes.
LOOK = 5

# What was sent lately may have been sent by a version of the agent that was replaced while its turn ran.
SLACK = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What an agent keeps for so long, and no longer; or what one that was deleted has left behind."""

    agent: Agent | DeletedAgent
    kind: str
    days: int
    before: datetime

    @property
    def is_of_deleted(self) -> bool:
        """Whether its agent is gone."""
        return isinstance(self.agent, DeletedAgent)

    @property
    def places(self) -> "Sequence[Place]":
        """Where to look for what is old."""
        return (LEFT_BEHIND if self.is_of_deleted else PLACES).get(self.kind, ())


@dataclass(kw_only=True)
class Count:
    """What would go by a rule: rows by table, and of how many things nothing does, because they are held."""

    rule: Rule
    rows: Counter[str] = field(default_factory=Counter)
    held: int = 0
    is_whole: bool = True


def rules(*, now: datetime, agent: str = "") -> list[Rule]:
    """All there are, of all agents or of one, in the order in which they are followed; those of deleted ones last. One
    that was made again says itself how long what is of its name is kept."""
    whose = {"name": agent} if agent else {}
    agents = Agent.objects.filter(**whose).exclude(retention={}).order_by("pk")
    made_again = Agent.objects.filter(name=OuterRef("name"))
    deleted = DeletedAgent.objects.filter(~Exists(made_again), **whose).exclude(retention={}).order_by("pk")
    every: list[Agent | DeletedAgent] = [*agents, *deleted]
    found = [
        Rule(agent=each, kind=kind, days=each.retention[kind], before=now - timedelta(days=each.retention[kind]))
        for each in every
        for kind in kinds.RETAINED
        if kind in each.retention
    ]
    return [rule for rule in found if rule.places]


# --- where things are --------------------------------------------------------------------------------------------


class Place(Protocol):
    """Where a rule finds what is old: things, such as conversations, page by page in an order of their own."""

    def pages(self, rule: Rule, after: Any) -> Iterator[tuple[list[Any], Any]]:
        """Those things that may have something old, each page with what the next one comes ``after``, as JSON has it;
        None: the first."""

    def is_held(self, rule: Rule, thing: Any, placed: Holds) -> bool:
        """Whether a legal hold keeps it."""

    def count(self, rule: Rule, thing: Any) -> Counter[str]:
        """How many rows of it would go, by table."""

    def erase(self, rule: Rule, thing: Any, rows: int, erased: Erased) -> bool:
        """Delete so many rows of it at most, in the caller's transaction; True if there are more."""


@dataclass(frozen=True, kw_only=True)
class _Conversations:
    """Of each conversation, something from its beginning on."""

    what: str
    counts: Callable[..., Counter[str]]
    erases: Callable[..., bool]

    def pages(self, rule: Rule, after: Any) -> Iterator[tuple[list[Any], Any]]:
        last = UUID(after) if after else None
        while found := of_conversations.page(rule.agent.pk, self.what, before=rule.before, after=last):
            last = found[-1].id
            yield [each for each in found if each.has_aged], str(last)

    def is_held(self, rule: Rule, thing: Any, placed: Holds) -> bool:
        return bool(placed.on(owner_id=thing.owner_id, agent=rule.agent.name, conversation_id=thing.id))

    def count(self, rule: Rule, thing: Any) -> Counter[str]:
        return self.counts(thing.id, before=rule.before)

    def erase(self, rule: Rule, thing: Any, rows: int, erased: Erased) -> bool:
        return self.erases(thing.id, before=rule.before, rows=rows, erased=erased)


class _Calls:
    """The rows of tool calls, which outlive their conversations. Those of open turns are left alone."""

    def pages(self, rule: Rule, after: Any) -> Iterator[tuple[list[Any], Any]]:
        last = (datetime.fromisoformat(after[0]), UUID(after[1])) if after else None
        while found := of_calls.page(rule.agent.name, before=rule.before, after=last):
            last = found[-1].created_at, found[-1].id
            opened = Turn.objects.open().filter(pk__in={each.turn_id for each in found})
            leave = set(opened.values_list("pk", flat=True))
            yield [each for each in found if each.turn_id not in leave], [last[0].isoformat(), str(last[1])]

    def is_held(self, rule: Rule, thing: Any, placed: Holds) -> bool:
        whose = {"owner_id": thing.owner_id, "conversation_id": thing.conversation_id}
        return bool(placed.on(agent=rule.agent.name, **whose))

    def count(self, rule: Rule, thing: Any) -> Counter[str]:
        return Counter({of_calls.TABLE: 1})

    def erase(self, rule: Rule, thing: Any, rows: int, erased: Erased) -> bool:
        of_calls.erase([thing.id], erased=erased)
        return False


@dataclass(frozen=True, kw_only=True)
class _Owners:
    """Of each owner, what an agent remembers of them."""

    has: Callable[[str, datetime], Q]
    counts: Callable[..., Counter[str]]
    erases: Callable[..., bool]

    def pages(self, rule: Rule, after: Any) -> Iterator[tuple[list[Any], Any]]:
        users, last = get_user_model().objects.order_by("pk"), after or 0
        while some := list(users.filter(pk__gt=last).values_list("pk", flat=True)[:PAGE]):
            last = some[-1]
            found = users.filter(self.has(rule.agent.name, rule.before), pk__in=some)
            yield list(found.values_list("pk", flat=True)), last

    def is_held(self, rule: Rule, thing: Any, placed: Holds) -> bool:
        return bool(placed.on_memory(owner_id=thing, agent=rule.agent.name))

    def count(self, rule: Rule, thing: Any) -> Counter[str]:
        return self.counts(thing, rule.agent.name, before=rule.before)

    def erase(self, rule: Rule, thing: Any, rows: int, erased: Erased) -> bool:
        return self.erases(thing, rule.agent.name, before=rule.before, rows=rows, erased=erased)


def _has_memory(agent: str, before: datetime) -> Q:
    whose: dict[str, Any] = {"owner_id": OuterRef("pk"), "agent": agent}
    versions, heads = MemoryVersion.objects.filter(created_at__lt=before), Memory.objects.filter(notes_on__lt=before)
    notes = HistoryEntry.objects.filter(kind=HistoryEntry.Kind.NOTE, happened_at__lt=before)
    return Q(Exists(versions.filter(**whose))) | Q(Exists(heads.filter(**whose))) | Q(Exists(notes.filter(**whose)))


def _has_history(agent: str, before: datetime) -> Q:
    return Q(Exists(HistoryEntry.objects.filter(owner_id=OuterRef("pk"), agent=agent, happened_at__lt=before)))


class _Known(_Owners):
    """What a deleted agent knew last, once it was deleted so long ago."""

    def pages(self, rule: Rule, after: Any) -> Iterator[tuple[list[Any], Any]]:
        if isinstance(rule.agent, DeletedAgent) and rule.agent.deleted_at < rule.before:
            yield from super().pages(rule, after)


def _has_known(agent: str, before: datetime) -> Q:
    whose: dict[str, Any] = {"owner_id": OuterRef("pk"), "agent": agent}
    versions = MemoryVersion.objects.filter(**whose, created_at__lt=before)
    return Q(Exists(Memory.objects.filter(**whose, updated_at__lt=before))) | Q(Exists(versions))


class _Versions:
    """Versions of the agent itself that were replaced, with which prompts could be built again. While anything of
    anybody's is held, they stay: it may need them."""

    def pages(self, rule: Rule, after: Any) -> Iterator[tuple[list[Any], Any]]:
        if after is None:
            yield [rule.agent.pk], rule.agent.pk

    def is_held(self, rule: Rule, thing: Any, placed: Holds) -> bool:
        return bool(placed.holds)

    def count(self, rule: Rule, thing: Any) -> Counter[str]:
        return +Counter({AgentVersion._meta.db_table: self._replaced(rule).count()})

    def erase(self, rule: Rule, thing: Any, rows: int, erased: Erased) -> bool:
        found = list(self._replaced(rule).select_for_update().order_by("number")[:rows])
        for each in found:
            erased.add(AgentVersion, each.pk, each.profile)
        AgentVersion.objects.filter(pk__in=[each.pk for each in found]).delete()
        return len(found) == rows

    def _replaced(self, rule: Rule) -> Any:
        versions = AgentVersion.objects.filter(agent=rule.agent.pk)
        made = versions.filter(created_at__lt=rule.before - SLACK).order_by("-number")
        last = made.values_list("number", flat=True).first() or 0
        return versions.filter(number__lt=last)


PLACES: dict[str, Sequence[Place]] = {
    kinds.MESSAGES: [
        _Conversations(
            what=of_conversations.MESSAGES,
            counts=of_conversations.count_messages,
            erases=of_conversations.erase_messages,
        )
    ],
    kinds.SENT: [
        _Conversations(
            what=of_conversations.SENT, counts=of_conversations.count_sent, erases=of_conversations.erase_sent
        ),
        _Versions(),
    ],
    kinds.RESULTS: [
        _Calls(),
        _Conversations(
            what=of_conversations.RESULTS, counts=of_conversations.count_results, erases=of_conversations.erase_results
        ),
    ],
    kinds.MEMORY: [_Owners(has=_has_memory, counts=of_memory.count_memory, erases=of_memory.erase_memory)],
    kinds.HISTORY: [_Owners(has=_has_history, counts=of_memory.count_history, erases=of_memory.erase_history)],
}

# Agents are deleted after their conversations; what is left of one knows its name.
LEFT_BEHIND: dict[str, Sequence[Place]] = {
    kinds.RESULTS: [_Calls()],
    kinds.MEMORY: [
        *PLACES[kinds.MEMORY],
        _Known(has=_has_known, counts=of_memory.count_known, erases=of_memory.erase_known),
    ],
    kinds.HISTORY: PLACES[kinds.HISTORY],
}


# --- counting, and deleting --------------------------------------------------------------------------------------


def count(rule: Rule, *, until: float | None = None) -> Count:
    """What would go by a rule now. ``until``: on the monotonic clock, when to stop counting."""
    counted, placed = Count(rule=rule), holds.placed()
    for place in rule.places:
        for page, _ in place.pages(rule, None):
            for thing in page:
                if until is not None and time.monotonic() > until:
                    counted.is_whole = False
                    return counted
                if rows := place.count(rule, thing):
                    if place.is_held(rule, thing, placed):
                        counted.held += 1
                    else:
                        counted.rows += rows
    return counted


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a run has come: whether to those of deleted agents, the agent's number, the kind's, the place's, and what
    there the next page comes after."""

    agent: int
    kind: int
    place: int
    after: Any = None
    of_deleted: bool = False

    @classmethod
    def at(cls, rule: Rule, place: int) -> Self:
        """At the beginning of a place of a rule."""
        kind = kinds.RETAINED.index(rule.kind)
        return cls(of_deleted=rule.is_of_deleted, agent=rule.agent.pk, kind=kind, place=place)

    @property
    def order(self) -> tuple[bool, int, int, int]:
        """What places are gone through by."""
        return self.of_deleted, self.agent, self.kind, self.place


BEGINNING = Position(agent=0, kind=0, place=0)


def erase(rule: Rule, *, pace: Pace | None = None, at: Position = BEGINNING) -> Iterator[tuple[Counter[str], Position]]:
    """Delete what is to go by a rule, batch by batch: what each has deleted, by table, and how far the run has come. To
    be cut short anywhere."""
    pace = pace or Pace()
    for number, place in enumerate(rule.places):
        mine = Position.at(rule, number)
        if mine.order < at.order:
            continue
        after = at.after if mine.order == at.order else None
        for page, last in place.pages(rule, after):
            left = deque(page)
            while left:
                done, erased = pace.transact(partial(_erase_some, rule, place, left))
                for _ in range(done):
                    left.popleft()
                yield erased.counts, replace(mine, after=after)
            after = last
            yield Counter(), replace(mine, after=after)


def _erase_some(rule: Rule, place: Place, things: Sequence[Any], rows: int) -> tuple[int, Erased]:
    """Delete so many rows at most, in the caller's transaction; with how many of the things it is done."""
    placed, erased, done, looked = holds.placed_until_the_end(), Erased(), 0, 0
    for thing in things:
        left = rows - erased.rows - looked
        if done and left <= 0:
            break
        looked += LOOK
        if not place.is_held(rule, thing, placed) and place.erase(rule, thing, max(left, 1), erased):
            break
        done += 1
    if erased.rows:
        said = {"kind": rule.kind, "days": rule.days, "before": rule.before.isoformat(), **erased.told()}
        audit.record("retention.erased", about=rule.agent, after=said)
    return done, erased


def run(
    *, now: datetime, agent: str = "", at: Position = BEGINNING, seconds: float | None = None
) -> tuple[Counter[tuple[str, str]], Position | None]:
    """Delete all that is to go, or as much as there is time for. Returns how many rows, by agent and kind; and where to
    go on, None at the end."""
    until, erased = None if seconds is None else time.monotonic() + seconds, Counter[tuple[str, str]]()
    for rule in rules(now=now, agent=agent):
        for counts, position in erase(rule, at=at):
            erased[rule.agent.name, rule.kind] += counts.total()
            # A run that has come nowhere would come nowhere next time, too.
            if until is not None and time.monotonic() > until and (counts or position != at):
                return +erased, position
    return +erased, None


# --- day by day --------------------------------------------------------------------------------------------------

# A worker hears no notification while it is at it: so it goes on for so long, and again a minute later.
RUN_SECONDS = 2.0
# How long a run that nobody goes on with is left to whoever began it.
LEASE_SECONDS = 120.0
EVERY = timedelta(days=1)


def go_on() -> int:
    """Begin the day's run, or go on with it for a while; returns how many rows were deleted. Of several who do so at
    once, one does."""
    if not any(model.objects.exclude(retention={}).exists() for model in (Agent, DeletedAgent)):
        return 0
    RetentionRun.objects.bulk_create([RetentionRun(pk=RetentionRun.ONLY)], ignore_conflicts=True)
    row = RetentionRun.objects.filter(pk=RetentionRun.ONLY)
    free = Q(lease_until=None) | Q(lease_until__lt=Now())
    due = Q(position__isnull=False) | Q(began_at=None) | Q(began_at__lt=from_now(-EVERY.total_seconds()))
    if row.filter(free, due).update(lease_until=from_now(LEASE_SECONDS), fence=F("fence") + 1) != 1:
        return 0
    mine = row.get()
    if mine.position is None:
        row.filter(fence=mine.fence).update(began_at=Now())
        mine.began_at = clock.read()
    at = Position(**mine.position) if mine.position else BEGINNING
    erased, position = run(now=mine.began_at or clock.read(), at=at, seconds=RUN_SECONDS)
    row.filter(fence=mine.fence).update(position=position and asdict(position), lease_until=None)
    return erased.total()
