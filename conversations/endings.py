"""Ending what somebody else holds: cancelling turns, deleting conversations."""

from uuid import UUID

from django.db import transaction
from django.db.models import F

from conversations import events
from conversations.claims import close_round, ring_for_next
from conversations.models import OPEN, Conversation, Turn, TurnStatus
from nanohost.lib.clock import Now
from tools import gate


def cancel_turn(turn: Turn) -> None:
    """Cancel a turn, wherever it is; one that has ended stays as it ended.

    A queued or waiting turn is ended here, with its open calls. A running one is flagged: its worker looks at the flag
    between steps, and every second while a model is silent.
    """
    while not _cancel_at_rest(turn) and not _flag_running(turn):
        # Neither at rest nor running: it has ended, or it has just changed from one to the other.
        if not Turn.objects.open().filter(pk=turn.pk).exists():
            return


def _cancel_at_rest(turn: Turn) -> bool:
    with transaction.atomic():
        # Conversation, turn, call: the order in which locks are taken everywhere.
        Conversation.objects.filter(pk=turn.conversation_id).update(updated_at=Now())
        at_rest = Turn.objects.filter(pk=turn.pk, status__in=(TurnStatus.QUEUED, TurnStatus.WAITING))
        cancelled = at_rest.update(
            status=TurnStatus.CANCELLED,
            waiting_for="",
            error_code="turn_cancelled",
            cancel_requested=True,
            fence=F("fence") + 1,
            ended_at=Now(),
        )
        if cancelled:
            close_round(turn.conversation_id, turn.pk, rule="cancelled", reason="the turn was cancelled")
            events.publish_end_after_commit(turn.pk)
            ring_for_next(turn.conversation_id)
    return bool(cancelled)


def _flag_running(turn: Turn) -> bool:
    return bool(Turn.objects.filter(pk=turn.pk, status=TurnStatus.RUNNING).update(cancel_requested=True))


def delete_conversation(conversation_id: UUID) -> None:
    """Delete a conversation with its turns and messages. Tool calls stay: they are the audit.

    Whoever still works on one of its turns finds the row gone at the next write, which then changes nothing.
    """
    with transaction.atomic():
        conversation = Conversation.objects.select_for_update().filter(pk=conversation_id).first()
        if conversation is None:
            return
        open_turns = Turn.objects.filter(conversation_id=conversation_id, status__in=OPEN)
        ended = list(open_turns.values_list("pk", flat=True))
        gate.end_open(ended, rule="deleted", reason="the conversation was deleted")
        for turn_id in ended:
            events.publish_end_after_commit(turn_id)
        conversation.delete()
