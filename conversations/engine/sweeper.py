"""The sweeper: finds what nobody was told of, or whose worker is gone. It runs in every worker, and at every start.

What it finds, its own worker takes, without the doorbell: with a broker that is away, work goes on, a sweep later. It
changes nothing but ``rung_at``, except that it ends the open calls of turns whose time is up; so any number of
sweepers may run, and what two of them find is claimed once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from conversations.engine import doorbell
from conversations.models import Compaction, CompactionStatus, Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import Now, from_now
from tools import calls, gate
from tools.models import CallStatus, ToolCall

# What somebody was told of is left to them for so long, and no longer than what somebody holds; and a sweep finds so
# many rows at most.
TOLD_FOR = timedelta(seconds=min(10.0, settings.TURN_LEASE_SECONDS))
MOST_FOUND = 200

# A sweep tells of what is due every few seconds: what was told of before then, nobody had room for.
OVERLOOKED_AFTER = timedelta(seconds=30)


def due_turns(*, wanted: int = MOST_FOUND, held: Collection[UUID] = ()) -> Sequence[UUID]:
    """Turns that are due and that nobody was told of lately, marked as told; no more than a worker has room for.

    While all workers are full, rings wait at the broker, and what is found would only have to wait as well. What the
    asking worker holds, though its lease ran out, is left for others to find.
    """
    _end_overdue_calls()
    not_told = Q(rung_at=None) | Q(rung_at__lt=from_now(-TOLD_FOR.total_seconds()))
    # An expired lease is found at once: its worker was told, and is gone.
    expired = Q(status=TurnStatus.RUNNING, lease_until__lt=Now())
    due = Turn.objects.claimable().filter(not_told | expired & (Q(rung_at=None) | Q(rung_at__lt=from_now(-1))))
    if held:
        due = due.exclude(pk__in=held)
    with transaction.atomic():
        # Another sweeper's rows are passed over, which also keeps two from waiting for each other.
        rows = due.order_by("rung_at").select_for_update(skip_locked=True)
        found = list(rows.values_list("pk", flat=True)[: min(wanted, MOST_FOUND)])
        Turn.objects.filter(pk__in=found).update(rung_at=Now())
    return found


def due_calls(*, wanted: int = MOST_FOUND) -> Sequence[UUID]:
    """Open calls that nobody runs and nobody was told of lately, marked as told."""
    return calls.due(told_for=TOLD_FOR, limit=min(wanted, MOST_FOUND))


def due_compactions(*, wanted: int) -> Sequence[UUID]:
    """Compactions that are due and nobody was told of lately, marked as told."""
    not_told = Q(rung_at=None) | Q(rung_at__lt=from_now(-TOLD_FOR.total_seconds()))
    expired = Q(status=CompactionStatus.RUNNING, lease_until__lt=Now())
    with transaction.atomic():
        rows = Compaction.objects.due().filter(not_told | expired).order_by("rung_at")
        found = list(rows.select_for_update(skip_locked=True).values_list("pk", flat=True)[:wanted])
        Compaction.objects.filter(pk__in=found).update(rung_at=Now())
    return found


@dataclass(frozen=True, kw_only=True)
class Overlooked:
    """What is due and was rung for long ago; ``MOST_FOUND`` of each at most."""

    turns: Sequence[UUID]
    calls: Sequence[UUID]
    compactions: Sequence[UUID]


def overlooked() -> Overlooked:
    """What nobody came for within ``OVERLOOKED_AFTER``: there is no worker for it, or all of them are full."""
    then = from_now(-OVERLOOKED_AFTER.total_seconds())
    long_ago = Q(rung_at__lt=then) | Q(rung_at=None, created_at__lt=then)
    turns = Turn.objects.claimable().filter(long_ago).exclude(status=TurnStatus.RUNNING, lease_until__gte=then)
    waits = Q(status=CallStatus.QUEUED) | Q(status=CallStatus.RUNNING, lease_until__lt=then)
    calls = ToolCall.objects.filter(waits & long_ago)
    compactions = Compaction.objects.due().filter(long_ago)
    return Overlooked(turns=_first(turns), calls=_first(calls), compactions=_first(compactions))


def _first(rows: QuerySet[Any]) -> list[UUID]:
    # In the order of the index that they are found by.
    return list(rows.order_by("rung_at").values_list("pk", flat=True)[:MOST_FOUND])


def ring_again() -> int:
    """Ring for what was overlooked; returns for how much."""
    with transaction.atomic():
        found = overlooked()
        for model, ids, ring in (
            (Turn, found.turns, doorbell.ring_for_turn),
            (ToolCall, found.calls, doorbell.ring_for_call),
            (Compaction, found.compactions, doorbell.ring_for_compaction),
        ):
            model._default_manager.filter(pk__in=ids).update(rung_at=Now())
            for row_id in ids:
                ring(row_id)
    return len(found.turns) + len(found.calls) + len(found.compactions)


def _end_overdue_calls() -> None:
    """End the open calls of turns whose time for tools is up: the model is then asked for its best answer without."""
    waiting = Turn.objects.filter(
        status=TurnStatus.WAITING, waiting_for=WaitingFor.TOOLS, deadline__lt=from_now(time_for_last_answer())
    )
    for turn_id in list(waiting.values_list("pk", flat=True)[:MOST_FOUND]):
        gate.end_open([turn_id], rule="turn_time", reason="the turn's time was up")


def time_for_last_answer() -> float:
    """Seconds before a turn's deadline from which on the model is asked for its best answer without tools."""
    return min(settings.LLM_TIMEOUT_SECONDS, settings.TURN_TIMEOUT_SECONDS / 4)
