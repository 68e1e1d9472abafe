"""Messages for later: at their time they make a turn; or they wake nobody, and ride along with the next turn.

One that makes a turn is tried again if the turn fails, five times in all. Whoever sweeps looks for those that are due;
each try has an idempotency key of its own, so that however many sweep, one turn comes of it.
"""

import logging
from datetime import datetime

from django.db import transaction
from django.db.models import F, OuterRef, Subquery

from conversations import inbox
from conversations.errors import IdempotencyConflict
from conversations.models import Conversation, LaterMessage, LaterState, Turn, TurnStatus
from nanohost.lib.clock import Now, from_now
from nanohost.lib.errors import NotFound, Problem

logger = logging.getLogger(__name__)

# Seconds until another try, doubled each time, and how many there are.
RETRY_FIRST, MOST_TRIES = 5.0, 5

# Found by one sweep.
MOST_FOUND = 100

Kind = LaterMessage.Kind


def put(
    conversation: Conversation,
    *,
    kind: Kind,
    content: str,
    run_after: datetime | None = None,
    model: str = "",
    idempotency_key: str | None = None,
    request_id: str,
) -> LaterMessage:
    """Store a message for later. The same idempotency key in the same conversation gets the message it made before.

    Raises :class:`IdempotencyConflict` if that is another one, and :class:`NotFound` if the conversation is gone.
    """
    with transaction.atomic():
        aside = 0 if kind == Kind.WAKE else 1
        # Under the conversation's lock, so that two with one key come one after the other.
        if not Conversation.objects.filter(pk=conversation.pk).update(set_aside=F("set_aside") + aside):
            raise NotFound
        if idempotency_key:
            earlier = LaterMessage.objects.filter(conversation=conversation, idempotency_key=idempotency_key).first()
            if earlier:
                Conversation.objects.filter(pk=conversation.pk).update(set_aside=F("set_aside") - aside)
                asked = (earlier.kind, earlier.content, earlier.run_after, earlier.model)
                # Its time has moved on if its turn has failed.
                if asked != (kind, content, earlier.run_after if earlier.tries else run_after, model):
                    raise IdempotencyConflict("This Idempotency-Key was used for another message.")
                return earlier
        return LaterMessage.objects.create(
            conversation=conversation,
            kind=kind,
            content=content,
            model=model,
            run_after=run_after,
            idempotency_key=idempotency_key,
            request_id=request_id,
        )


def fire_due() -> None:
    """Make the turns of messages whose time has come, and see what became of those that were made."""
    _settle()
    due = LaterMessage.objects.filter(kind=Kind.WAKE, state=LaterState.WAITING, run_after__lte=Now())
    for message in due.select_related("conversation__agent").order_by("run_after")[:MOST_FOUND]:
        mine = LaterMessage.objects.filter(pk=message.pk, state=LaterState.WAITING, tries=message.tries)
        try:
            turn = _receive(message)
        except Problem as problem:  # such as a model that is no longer offered
            logger.warning("a message for later makes no turn: %s", problem.code)
            mine.update(state=LaterState.FAILED)
            continue
        except Exception:
            logger.exception("a message for later could not be said, and is due again: %s", message.pk)
            continue
        mine.update(state=LaterState.FIRED, tries=F("tries") + 1, turn_id=turn.pk)


def _receive(message: LaterMessage) -> Turn:
    return inbox.receive(
        conversation=message.conversation,
        content=message.content,
        model=message.model,
        # With blanks, which no client's key has.
        idempotency_key=f"later {message.pk} {message.tries}",
        request_id=message.request_id,
    )


def _settle() -> None:
    turn = Turn.objects.filter(pk=OuterRef("turn_id"), ended_at__isnull=False)
    fired = LaterMessage.objects.filter(state=LaterState.FIRED).annotate(outcome=Subquery(turn.values("status")))
    for message in fired.exclude(outcome=None)[:MOST_FOUND]:
        mine = LaterMessage.objects.filter(pk=message.pk, state=LaterState.FIRED, turn_id=message.turn_id)
        if message.outcome != TurnStatus.FAILED:
            mine.update(state=LaterState.DONE)
        elif message.tries < MOST_TRIES:
            mine.update(state=LaterState.WAITING, run_after=from_now(RETRY_FIRST * 2.0 ** (message.tries - 1)))
        else:
            mine.update(state=LaterState.FAILED)
