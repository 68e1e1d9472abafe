"""The sweeper: rings for what nobody was told of, or whose worker is gone. It runs in every worker, and at every start.

It changes nothing but ``rung_at``, except that it ends the open calls of turns whose time is up; so any number of
sweepers may run, and a ring too many finds nothing to claim.
"""

from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Q

from conversations import doorbell
from conversations.models import Turn, TurnStatus, WaitingFor
from nanohost.lib.clock import Now, from_now
from tools import calls, gate

# A ring is repeated after this time at the earliest, and a sweep rings for so many rows at most.
RING_AGAIN = timedelta(seconds=10)
MOST_RINGS = 200


def sweep(*, turns_wanted: int = MOST_RINGS, calls_wanted: int = MOST_RINGS) -> int:
    """Ring for what is due and was not rung for lately; returns how often it rang.

    A worker asks for as many as it has room for: while it is full, earlier rings wait at the broker, and more of them
    would only have to be looked at later.
    """
    _end_overdue_calls()
    turns = _turns_due_for_a_ring(min(turns_wanted, MOST_RINGS))
    for turn_id in turns:
        doorbell.ring_for_turn(turn_id)
    open_calls = calls.due_for_a_ring(older_than=RING_AGAIN, limit=min(calls_wanted, MOST_RINGS))
    for call_id in open_calls:
        doorbell.ring_for_call(call_id)
    return len(turns) + len(open_calls)


def _turns_due_for_a_ring(limit: int) -> list[UUID]:
    not_told = Q(rung_at=None) | Q(rung_at__lt=from_now(-RING_AGAIN.total_seconds()))
    # An expired lease is rung for at once: its worker was told, and is gone.
    expired = Q(status=TurnStatus.RUNNING, lease_until__lt=Now())
    claimable = Turn.objects.claimable().filter(not_told | expired & (Q(rung_at=None) | Q(rung_at__lt=from_now(-1))))
    due = list(claimable.order_by("rung_at").values_list("pk", flat=True)[:limit])
    Turn.objects.filter(pk__in=due).update(rung_at=Now())
    return due


def _end_overdue_calls() -> None:
    """End the open calls of turns whose time for tools is up: the model is then asked for its best answer without."""
    waiting = Turn.objects.filter(
        status=TurnStatus.WAITING, waiting_for=WaitingFor.TOOLS, deadline__lt=from_now(time_for_last_answer())
    )
    overdue = list(waiting.values_list("pk", flat=True)[:MOST_RINGS])
    gate.end_open(overdue, rule="turn_time", reason="the turn's time was up")


def time_for_last_answer() -> float:
    """Seconds before a turn's deadline from which on the model is asked for its best answer without tools."""
    return min(settings.LLM_TIMEOUT_SECONDS, settings.TURN_TIMEOUT_SECONDS / 4)
