"""Deferred messages: at their time they make a turn; or they wake nobody, and ride along with the next turn.

One that makes a turn is tried again if the turn fails, five times in all. Whoever sweeps looks for those that are due;
each makes its turn in the transaction that marks it, under the conversation's lock: however many sweep, one turn comes
of it, and none once it is cancelled. Each try has an idempotency key of its own besides.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet, Subquery

from conversations.attachments import store
from conversations.attachments.parts import SentFile
from conversations.engine import inbox, spawned, turn_control
from conversations.engine.incoming import Incoming
from conversations.errors import RESTORED, IdempotencyConflict
from conversations.models import OPEN_DEFERRED, Conversation, DeferredMessage, DeferredState, Turn
from conversations.options import NOTHING as NO_COMMAND
from conversations.statuses import TurnStatus
from nanohost.accounts.models import ApiKey
from nanohost.lib.clock import Now, from_now
from nanohost.lib.errors import NotFound, Problem
from nanohost.lib.lease import backoff
from nanohost.lib.statements import Rows

logger = logging.getLogger(__name__)

# Seconds until another try, doubled each time, and how many there are.
RETRY_FIRST, RETRY_LONGEST, MAX_TRIES = 5.0, 60.0, 5

# Found by one sweep.
MAX_FOUND = 100

Kind = DeferredMessage.Kind


def put(
    conversation: Conversation,
    *,
    kind: Kind,
    content: str,
    files: Sequence[SentFile] = (),
    run_after: datetime | None = None,
    model: str = "",
    idempotency_key: str | None = None,
    request_id: str,
    key: ApiKey | None = None,
) -> DeferredMessage:
    """Store a deferred message. The same idempotency key in the same conversation gets the message it made before.
    ``files``: what comes with it; they are fetched, read and stored now, and stay until it is deleted.

    Raises :class:`IdempotencyConflict` if that is another one, :class:`ModelNotAllowed`, :class:`NotFound` if the
    conversation is gone, and what :meth:`Incoming.with_files_stored` raises.
    """
    incoming = Incoming(content, files=files, model=model, options=None if kind == Kind.WAKE else NO_COMMAND)
    files_hash = incoming.digest()
    asked = (kind, content, run_after, model, files_hash)
    if earlier := _earlier(conversation, idempotency_key, asked):
        return earlier
    inbox.refuse_other_models(conversation.agent, model, key)
    incoming = incoming.with_files_stored(conversation.owner_id, key)
    with transaction.atomic():
        aside = 0 if kind == Kind.WAKE else 1
        # Under the conversation's lock, so that two with one key come one after the other.
        if not Conversation.objects.filter(pk=conversation.pk).update(set_aside=F("set_aside") + aside):
            raise NotFound
        if earlier := _earlier(conversation, idempotency_key, asked):
            Conversation.objects.filter(pk=conversation.pk).update(set_aside=F("set_aside") - aside)
            return earlier
        message = DeferredMessage.objects.create(
            conversation=conversation,
            kind=kind,
            content=content,
            attachments=list(incoming.attachments) or None,
            files_hash=files_hash,
            model=model,
            run_after=run_after,
            idempotency_key=idempotency_key,
            request_id=request_id,
            api_key_id=key.pk if key else None,
        )
        store.hold(incoming.attachments)
        store.refer(conversation.pk, message.pk, incoming.attachments)
        return message


def _earlier(
    conversation: Conversation, idempotency_key: str | None, asked: tuple[Kind, str, datetime | None, str, str]
) -> DeferredMessage | None:
    """The message that this idempotency key has made before; raises :class:`IdempotencyConflict`."""
    if not idempotency_key:
        return None
    earlier = DeferredMessage.objects.filter(conversation=conversation, idempotency_key=idempotency_key).first()
    if earlier:
        kind, content, run_after, model, files_hash = asked
        # Its time has moved on if its turn has failed.
        run_after = earlier.run_after if earlier.tries else run_after
        was = (earlier.kind, earlier.content, earlier.run_after, earlier.model, earlier.files_hash)
        if was != (kind, content, run_after, model, files_hash):
            raise IdempotencyConflict("This Idempotency-Key was used for another message.")
    return earlier


_due = Rows(
    lambda: (
        DeferredMessage.objects.filter(kind=Kind.WAKE, state=DeferredState.WAITING, run_after__lte=Now())
        .select_related("conversation__agent")
        .order_by("run_after")[:MAX_FOUND]
    )
)


def fire_due() -> None:
    """Make the turns of messages whose time has come, and see what became of those that were made."""
    _settle()
    for message in _due():
        _try(message)


def fire(message_id: UUID) -> None:
    """Make the turn of a message that is due since it was stored. Whoever sweeps does so if this one dies before."""
    due = DeferredMessage.objects.filter(pk=message_id, kind=Kind.WAKE, state=DeferredState.WAITING)
    if message := due.select_related("conversation__agent").first():
        _try(message)


def _try(message: DeferredMessage) -> None:
    try:
        _fire(message)
    except Problem as problem:  # such as a model that is no longer offered
        logger.warning("a deferred message makes no turn: %s", problem.code)
        _as_it_was_found(message).update(state=DeferredState.FAILED)
    except Exception:
        logger.exception("a deferred message could not be said, and is due again: %s", message.pk)


def _as_it_was_found(message: DeferredMessage) -> "QuerySet[DeferredMessage]":
    return DeferredMessage.objects.filter(pk=message.pk, state=DeferredState.WAITING, tries=message.tries)


def _fire(message: DeferredMessage) -> None:
    with transaction.atomic():
        _lock(message)
        if _as_it_was_found(message).update(state=DeferredState.FIRED, tries=F("tries") + 1):
            DeferredMessage.objects.filter(pk=message.pk).update(turn_id=_receive(message).pk)


def _lock(message: DeferredMessage) -> None:
    """Take the conversation's lock: it is the first that everybody takes."""
    row = Conversation.objects.select_for_update().filter(pk=message.conversation_id)
    row.values_list("pk", flat=True).first()


def cancel(message: DeferredMessage) -> bool:
    """Have it said no more: no further turn is made of it, and one that is open is cancelled with it. One that has
    ended, or was answered, stays as it is: False."""
    answered = Turn.objects.filter(pk=OuterRef("turn_id"), status__in=(TurnStatus.SUCCEEDED, TurnStatus.CANCELLED))
    open_one = DeferredMessage.objects.filter(~Exists(answered), pk=message.pk, state__in=OPEN_DEFERRED)
    with transaction.atomic():
        _lock(message)
        if not open_one.update(state=DeferredState.CANCELLED):
            return False
        if message.kind != Kind.WAKE:
            Conversation.objects.filter(pk=message.conversation_id).update(set_aside=F("set_aside") - 1)
    for turn in Turn.objects.filter(pk__in=DeferredMessage.objects.filter(pk=message.pk).values("turn_id")):
        turn_control.cancel_turn(turn)
    return True


def _receive(message: DeferredMessage) -> Turn:
    return inbox.receive(
        Incoming(
            message.content,
            attachments=message.attachments or (),
            tainted_by=message.tainted_by or "",
            model=message.model,
        ),
        conversation=message.conversation,
        # With blanks, which no client's key has.
        idempotency_key=f"later {message.pk} {message.tries}",
        request_id=message.request_id,
        key=ApiKey.objects.filter(pk=message.api_key_id).first() if message.api_key_id else None,
    )


def _fired() -> Any:
    turn = Turn.objects.filter(pk=OuterRef("turn_id"), ended_at__isnull=False)
    fired = DeferredMessage.objects.filter(state=DeferredState.FIRED).annotate(
        outcome=Subquery(turn.values("status")), code=Subquery(turn.values("error_code"))
    )
    return fired.exclude(outcome=None)[:MAX_FOUND]


_of_ended_turns = Rows[Any](_fired)


def _settle() -> None:
    for message in _of_ended_turns():
        mine = DeferredMessage.objects.filter(pk=message.pk, state=DeferredState.FIRED, turn_id=message.turn_id)
        if message.outcome != TurnStatus.FAILED:
            mine.update(state=DeferredState.DONE)
        elif message.tries < MAX_TRIES and message.code != RESTORED:
            wait = backoff(message.tries - 1, first=RETRY_FIRST, longest=RETRY_LONGEST)
            mine.update(state=DeferredState.WAITING, run_after=from_now(wait))
        else:
            mine.update(state=DeferredState.FAILED)


# Those who end turns are below this module.
spawned.tell_at_once(fire)
