"""Rate limits: how many calls of a tool a conversation, and an owner, may ask for in any 60 seconds.

What counts are the calls asked for in that time that were not refused, in whatever state they are, by the database's
clock. A call takes its place when it is asked for, under a lock on its tool's setting, so that two workers who ask at
the same moment do not both get the last place. When it starts, it is held against the limits again: they may have been
lowered since.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db.models import DurationField, ExpressionWrapper, F, Subquery
from django.db.models.query import QuerySet

from nanohost.lib.clock import Now, from_now
from tools.models import CallStatus, ToolCall, ToolCallQuerySet, ToolSetting

WINDOW_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Limit:
    """So many calls a minute. ``of``: "conversation" or "owner"."""

    of: str
    calls: int

    @property
    def rule(self) -> str:
        """What a refusal names."""
        return f"rate:{self.of}"

    def counted(self, call: ToolCall) -> ToolCallQuerySet:
        """Every call that takes one of the places this call may take."""
        rows = ToolCall.objects.filter(tool_name=call.tool_name).exclude(status=CallStatus.REJECTED)
        return rows.filter(**{f"{self.of}_id": self.whose(call)})

    def whose(self, call: ToolCall) -> UUID | int | None:
        """Whose places the call may take: the id of its conversation, or of its owner."""
        return call.conversation_id if self.of == "conversation" else call.owner_id

    def message(self, tool_name: str, *, free_in: float) -> str:
        """What a refusal tells the model; ``free_in`` in seconds."""
        each = "call" if self.calls == 1 else "calls"
        seconds = max(1, math.ceil(free_in))
        return (
            f"The tool {tool_name} is limited to {self.calls} {each} a minute for one {self.of}; all are used up."
            f" In {seconds} s, one is free again."
        )


def limits_of(setting: ToolSetting) -> list[Limit]:
    """The limits that an admin has set."""
    both = (("conversation", setting.calls_per_minute_conversation), ("owner", setting.calls_per_minute_owner))
    return [Limit(of=of, calls=calls) for of, calls in both if calls is not None]


def exceeding(requested: Sequence[ToolCall]) -> Iterator[tuple[ToolCall, Limit, float]]:
    """Which of these unsaved calls are too many, by which limit, and in how many seconds one more is free.

    In the caller's transaction, which then stores the calls: until it ends, nobody else takes a place. Tools without a
    limit cost no statement.
    """
    asked = defaultdict(list)
    for call in requested:
        if call.rate_limited and not call.ended:
            asked[call.tool_name].append(call)
    if not asked:
        return
    # In one order, so that two who ask for the same tools do not wait for each other.
    for setting in ToolSetting.objects.select_for_update().filter(name__in=asked).order_by("name"):
        yield from _exceeding(limits_of(setting), asked[setting.name])


def exceeded_by(call: ToolCall, setting: ToolSetting) -> tuple[Limit, float] | None:
    """The limit that leaves no place for a call that is not stored, and in how many seconds one is free. Nothing is
    locked: somebody else may take it meanwhile."""
    for _, limit, free_in in _exceeding(limits_of(setting), [call]):
        return limit, free_in
    return None


def _exceeding(limits: list[Limit], asked: list[ToolCall]) -> Iterator[tuple[ToolCall, Limit, float]]:
    places: dict[tuple[Limit, object], _Places] = {}
    for call in asked:
        mine = []
        for limit in limits:
            key = (limit, limit.whose(call))
            if key not in places:
                places[key] = _Places(limit.calls, limit.counted(call), most_taken=len(asked))
            mine.append((limit, places[key]))
        full = [(limit, free_in) for limit, each in mine if (free_in := each.free_in()) > 0]
        if full:
            # A call that waits for both waits for the later one.
            limit, free_in = max(full, key=lambda found: found[1])
            yield call, limit, free_in
        else:
            for _, each in mine:
                each.take()


class _Places:
    """The places of one limit. A call keeps its own for 60 s."""

    def __init__(self, calls: int, counted: ToolCallQuerySet, *, most_taken: int) -> None:
        self._calls = calls
        self._taken = 0
        # Newest first. Only those are read, of which one has to leave before one of ours can come.
        self._first = max(0, calls - most_taken)
        recent = counted.filter(created_at__gt=from_now(-WINDOW_SECONDS))
        self._ages = list(_ages(recent)[self._first : calls])

    def free_in(self) -> float:
        """Seconds until there is one; 0 if there is."""
        leaves = self._calls - 1 - self._taken  # counted from the newest that was stored
        if leaves < 0:
            return WINDOW_SECONDS
        leaves -= self._first
        return max(0.001, WINDOW_SECONDS - self._ages[leaves].total_seconds()) if leaves < len(self._ages) else 0

    def take(self) -> None:
        self._taken += 1


def exceeded_at_start(call: ToolCall, setting: ToolSetting) -> tuple[Limit, float] | None:
    """The limit, as it is now, that leaves no place for a stored call, and in how many seconds one is free.

    A call stands behind those asked for in the 60 s before it. No lock is needed: what was asked for has its order.
    """
    for limit in limits_of(setting):
        if call.owner_id is None and limit.of == "owner":
            continue  # asked for by an earlier version, which stored no owner
        # Column against column: SQLite compares a time as the text that it was stored as.
        own_time = Subquery(ToolCall.objects.filter(pk=call.pk).values("created_at"))
        since = call.created_at - timedelta(seconds=WINDOW_SECONDS)
        before = limit.counted(call).filter(created_at__gt=since, created_at__lte=own_time)
        before = before.exclude(created_at=own_time, pk__gte=call.pk)
        for age in _ages(before)[limit.calls - 1 : limit.calls]:
            return limit, WINDOW_SECONDS - age.total_seconds()
    return None


def _ages(rows: ToolCallQuerySet) -> "QuerySet[ToolCall, timedelta]":
    """How long ago each was asked for, newest first."""
    age = ExpressionWrapper(Now() - F("created_at"), output_field=DurationField())
    return rows.order_by("-created_at").annotate(age=age).values_list("age", flat=True)
