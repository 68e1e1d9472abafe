"""What comes in by channels: taken in once, from those who may write, as messages of a chat's conversation."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from conversations.channel_models import Channel, ChannelEvent, Chat, Sender, SenderState
from conversations.channels import accounts
from conversations.channels.base import Event, InDoubt, NotTakenNow, Permanent, Request, Retry, SecretNotSet
from conversations.channels.registry import platform_of
from conversations.deliveries import outbox
from conversations.engine import deferred, feedback, inbox, outgoing
from conversations.engine.channels import waking
from conversations.engine.consent import chat_approvals, questions
from conversations.engine.incoming import Incoming
from conversations.errors import QuestionClosed
from conversations.models import Conversation, DeferredMessage
from nanohost.lib.clock import from_now
from nanohost.lib.errors import NotFound, Problem
from nanohost.lib.ids import request_id as new_request_id
from nanohost.lib.redaction import redact_head
from nanohost.lib.text import storable

logger = logging.getLogger(__name__)

# So many rows are deleted in one go.
MANY = 500

TOO_MANY = HTTPStatus.TOO_MANY_REQUESTS


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What became of events: how many were taken in, were known already, and were refused."""

    taken: int = 0
    known: int = 0
    refused: int = 0


def active(name: str) -> Channel:
    """The channel of this name; raises :class:`NotFound` unless it is switched on."""
    channel = Channel.objects.select_related("agent").filter(name=name, is_active=True).first()
    if channel is None:
        raise NotFound("There is no channel with that name, or it is switched off.")
    return channel


def take_request(channel: Channel, request: Request, *, request_id: str) -> Taken | Mapping[str, Any]:
    """Take in what a request of the platform's tells, or what it is to be answered if it only asks whether somebody is
    there; raises what :meth:`Platform.parse` raises, and what :func:`inbox.receive` does of a message that the host
    cannot take."""
    platform = accounts.platform(channel)
    if (answer := platform.answer(request)) is not None:
        return answer
    return take(channel, platform.parse(request), request_id=request_id)


def take(channel: Channel, events: Sequence[Event], *, request_id: str) -> Taken:
    """Take in each of these once, however often it is told. Raises what the host cannot do for now; a message that it
    never takes is a problem for whoever reads the answer, and is told of in the chat where nobody does."""
    counts = {"taken": 0, "known": 0, "refused": 0}
    for event in events:
        counts[_take(channel, event, request_id)] += 1
        if event.acknowledge:
            _acknowledge(event.acknowledge)
    if counts["taken"]:
        accounts.went_well(channel.pk, inwards=True)
    return Taken(**counts)


def _acknowledge(acknowledge: Callable[[], None]) -> None:
    if not connection.in_atomic_block:
        connection.close()  # nobody holds one while a platform is slow
    with suppress(Retry, Permanent, InDoubt, SecretNotSet):
        acknowledge()


def _take(channel: Channel, event: Event, request_id: str) -> str:
    known = ChannelEvent.objects.filter(channel=channel, external_id=event.external_id)
    if known.exists():
        return "known"
    may_write, is_stranger, owner_id = accounts.sender_of(channel, event)
    if channel.approvals and may_write:
        with transaction.atomic():  # with what is decided, the event is known
            if chat_approvals.take(channel, event):
                _remember(channel, event)
                return "taken"
    if not event.is_called:
        if not may_write:  # who only talks in a group that an agent is in has asked for nothing
            return "refused"
        key = accounts.key_of(channel.name, event.chat_id, event.thread)
        there = Chat.objects.filter(owner_id=owner_id, key=key).first()
        answers = there and questions.asked_in(channel, event, there)
        if not answers and not waking.is_woken(channel, event, there):
            if event.kind != "message":
                return "refused"
            return _overhear(channel, event, None if is_stranger else there, request_id)
    with transaction.atomic():  # a code opens once: with it, the event is known
        if accounts.pair(channel, event):
            _remember(channel, event)
            return "taken"
        if not may_write:
            accounts.refuse(channel, event)
            _remember(channel, event)
            return "refused"
    if event.kind in ("edit", "reaction") and is_stranger:  # a note has no mark of untrusted text
        _remember(channel, event)
        return "taken"
    chat = accounts.chat_of(channel, event, owner_id=owner_id)
    conversation, _ = inbox.conversation_of(
        owner_id=chat.owner_id, key=chat.key, agent=None, metadata={"channel": channel.name}, with_agent=channel.agent
    )
    if answered := questions.asked_in(channel, event, chat):
        return _answer(channel, event, *answered, is_stranger, request_id)
    if event.kind == "choice":  # of something that waits no longer, or for somebody else
        _remember(channel, event)
        return "taken"
    if event.kind != "message":
        _note(channel, conversation, event, request_id)
        return "taken"
    try:
        is_new = _receive(channel, conversation, _with_files(event), is_stranger, request_id)
    except Problem as error:
        if error.status >= 500 or error.status == TOO_MANY or _reads_answers(channel):
            raise
        _refuse_in_chat(channel, chat, event, conversation, error)
        return "refused"
    return "taken" if is_new else "known"


def _overhear(channel: Channel, event: Event, chat: Chat | None, request_id: str) -> str:
    """Of what wakes nobody, nothing is remembered unless it is kept: there may be a lot."""
    key = f"channel {_digest(channel, event)}"
    with transaction.atomic():
        if not waking.overhear(channel, event, chat, key=key, request_id=request_id):
            return "refused"
        _remember(channel, event)
    return "taken"


def take_held(sender: Sender) -> bool:
    """Take in the message with which somebody has asked to be let in, who was let in since; False if there is none."""
    with transaction.atomic():
        row = Sender.objects.select_for_update(of=("self",)).select_related("channel__agent").get(pk=sender.pk)
        if row.held is None or row.state != SenderState.ALLOWED or not row.channel.is_active:
            return False
        Sender.objects.filter(pk=row.pk).update(held=None)
        event = Event(**row.held)
        ChannelEvent.objects.filter(channel=row.channel, external_id=event.external_id).delete()
        take(row.channel, [event], request_id=new_request_id(""))
    return True


def _answer(channel: Channel, event: Event, question_id: UUID, said: str, is_stranger: bool, request_id: str) -> str:
    """Take what somebody says as the answer to a question: with it, the event is known."""
    by = storable(event.sender_name) or event.sender_id
    source = f"the channel {channel.name}" if is_stranger else ""
    try:
        with transaction.atomic():
            if not _remember(channel, event):
                return "known"
            questions.answer(question_id, said, by=f"{by} by {channel.name}", tainted_by=source)
    except QuestionClosed:  # somebody was faster: what was written is a message as any other
        if event.kind == "message":
            return _take(channel, event, request_id)
        _remember(channel, event)
    return "taken"


def _with_files(event: Event) -> Event:
    """The event with the files that lie at the platform; raises :class:`NotTakenNow` if they are not available
    now. Of one that never will be, the message says so."""
    if event.fetch is None:
        return event
    if not connection.in_atomic_block:
        connection.close()  # nobody holds one while a platform is slow
    try:
        return replace(event, files=event.fetch(), fetch=None)
    except Permanent as error:
        words = f"(A file could not be fetched: {redact_head(str(error), 200)}.)"
        return replace(event, text=f"{event.text}\n\n{words}".strip(), fetch=None)
    except Retry as error:
        raise NotTakenNow(headers={"Retry-After": str(max(1, round(error.after)))}) from error


def _reads_answers(channel: Channel) -> bool:
    return platform_of(channel.kind).capabilities.reads_answers


def _refuse_in_chat(channel: Channel, chat: Chat, event: Event, conversation: Conversation, error: Problem) -> None:
    with transaction.atomic():
        _remember(channel, event)
        outgoing.not_taken(chat, error.code, conversation_id=conversation.pk, in_reply_to=event.message_id)


def _receive(channel: Channel, conversation: Conversation, event: Event, is_stranger: bool, request_id: str) -> bool:
    """Store the message with its turn, and that the event is known, in one transaction; False if it was known."""
    is_new = False

    def also(turn_id: UUID, _: int) -> None:
        nonlocal is_new
        _remember(channel, event, turn_id=turn_id)
        is_new = True

    incoming = Incoming(event.text, files=event.files, tainted_by=f"the channel {channel.name}" if is_stranger else "")
    digest = _digest(channel, event)
    inbox.receive(
        incoming,
        conversation=conversation,
        request_id=request_id,
        idempotency_key=f"channel {digest}",
        body_hash=digest,
        also=also,
    )
    return is_new


def _digest(channel: Channel, event: Event) -> str:
    """By which its message is known again. In keys it stands behind a blank, which no client's key has."""
    return hashlib.sha256(f"{channel.pk} {event.external_id}".encode()).hexdigest()


def _remember(channel: Channel, event: Event, *, turn_id: UUID | None = None) -> bool:
    """Write down that an event is known; False if it was."""
    row: dict[str, Any] = {"message_id": event.message_id or event.external_id, "turn_id": turn_id}
    if turn_id:  # of two who take it in at once, the database lets one
        row["sender_id"] = event.sender_id
        ChannelEvent.objects.create(channel=channel, external_id=event.external_id, **row)
        return True
    _, is_new = ChannelEvent.objects.get_or_create(channel=channel, external_id=event.external_id, defaults=row)
    return is_new


def _note(channel: Channel, conversation: Conversation, event: Event, request_id: str) -> None:
    """An edit or a reaction wakes nobody: the agent's next turn has it."""
    did = (
        f"changed the message {event.message_id} to" if event.kind == "edit" else f"reacted to {event.message_id} with"
    )
    with transaction.atomic():
        deferred.put(
            conversation,
            kind=DeferredMessage.Kind.NOTE,
            content=f"{event.sender_name or event.sender_id} {did}: {event.text}",
            idempotency_key=f"channel {_digest(channel, event)}",
            request_id=request_id,
        )
        if event.kind == "reaction":
            feedback.react(channel, event)
        _remember(channel, event)


def forget_old() -> int:
    """Delete what is known of events that happened long ago; returns how many. No platform tells of them again."""
    old = ChannelEvent.objects.filter(created_at__lt=from_now(-outbox.KEPT_FOR.total_seconds()))
    gone = 0
    while found := list(old.values_list("pk", flat=True)[:MANY]):
        gone += ChannelEvent.objects.filter(pk__in=found).delete()[0]
    return gone
