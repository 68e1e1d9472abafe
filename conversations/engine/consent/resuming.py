"""Resuming a turn that has waited for people: with what is left to wait for, and a full time limit."""

from uuid import UUID

from django.conf import settings

from conversations.models import Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import Now, from_now
from tools.models import Approval, ApprovalState, CallStatus, ToolCall

OF_PEOPLE = (WaitingFor.APPROVAL, WaitingFor.ANSWER)


def wait_for_answer(turn_id: UUID) -> None:
    """While somebody is asked, no time of the turn runs; in the transaction that asks."""
    Turn.objects.filter(pk=turn_id, status=TurnStatus.WAITING).update(waiting_for=WaitingFor.ANSWER, deadline=None)


def after_people(turn_id: UUID) -> None:
    """Somebody has decided or answered, in this transaction: the turn waits for what is left."""
    waiting = Turn.objects.filter(pk=turn_id, status=TurnStatus.WAITING, waiting_for__in=OF_PEOPLE)
    if not ToolCall.objects.filter(turn_id=turn_id, status=CallStatus.WAITING).exists():
        deadline = from_now(settings.TURN_TIMEOUT_SECONDS)
        waiting.update(waiting_for=WaitingFor.TOOLS, deadline=deadline, notified_at=Now())
        return
    is_asked = Approval.objects.filter(turn_id=turn_id, state=ApprovalState.PENDING).exists()
    waiting.update(waiting_for=WaitingFor.APPROVAL if is_asked else WaitingFor.ANSWER)
