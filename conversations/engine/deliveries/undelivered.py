"""What becomes of deliveries: stored, and of what was lost on the way to a chat its agent is left a note."""

from uuid import UUID

from django.db import transaction

from conversations.deliveries import outbox
from conversations.deliveries.outbox import Hold, Outcome
from conversations.engine import deferred
from conversations.models import Conversation, DeferredMessage, Delivery
from nanohost.lib.errors import Problem
from tools.registry import ORIGIN


def settle(hold: Hold, outcome: Outcome) -> None:
    """Store what an attempt has come to; and of what was lost on the way to a chat, leave the agent a note."""
    with transaction.atomic():
        conversation_id = hold.delivery.conversation_id
        if conversation_id and outcome.error:
            # Before the delivery's lock, as by all who end turns.
            list(Conversation.objects.select_for_update().filter(pk=conversation_id).values_list("pk"))
        is_missed = hold.delivery.kind != outbox.REWORDED
        if outbox.settle(hold, outcome) and conversation_id and is_missed:
            _leave_note(conversation_id, hold.delivery, outcome)


def leave_in_doubt(hold: Hold) -> None:
    """Let go of what may be on its way, and which nobody could tell from a second one."""
    settle(hold, Outcome(error="The host was stopped while it was sent: it may have arrived.", in_doubt=True))


def _leave_note(conversation_id: UUID, delivery: Delivery, outcome: Outcome) -> None:
    """It wakes nobody: the agent's next turn has it."""
    conversation = Conversation.objects.select_related("agent").filter(pk=conversation_id).first()
    if conversation is None:
        return
    begins = " ".join(str(delivery.data.get("text", "")).split())[:60]
    became = "may not have arrived" if outcome.in_doubt else "could not be delivered"
    # Not what the platform says of it, which is a stranger's text.
    status = f" (status {outcome.status})" if outcome.status else ""
    try:
        deferred.put(
            conversation,
            kind=DeferredMessage.Kind.NOTE,
            content=f"A message to {delivery.recipient or ORIGIN} {became}{status}. It began: {begins}",
            idempotency_key=f"lost {delivery.pk} {delivery.fence}",
            request_id="",
        )
    except Problem:  # the conversation is gone
        return
