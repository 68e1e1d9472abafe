"""Pinned messages: what people want in every prompt of a conversation, word by word, also once it is summarised.

A conversation's row names them, so that a prompt that has none costs no further read. What a prompt had of them is
kept with its answer: see :mod:`conversations.engine.model_request`.
"""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from agent.prompt import PINNED_SHARE, Pinned, sent_at
from agent.tokens import estimated
from conversations import taint
from conversations.attachments.prompts import texts_of, with_texts
from conversations.errors import CannotBePinned, TooManyPins
from conversations.models import Conversation, Message
from nanohost.lib.errors import NotFound

# Together they are in each prompt, and paid for with each call of a model.
MAX_PINS, MAX_PINNED_CHARS = 20, 8000


def pin(conversation_id: UUID, message_id: UUID, *, by: str) -> Message:
    """Have a message in every prompt from now on; one that is pinned stays so. Raises :class:`NotFound`,
    :class:`CannotBePinned` and :class:`TooManyPins`. ``by``: who wants it."""
    with transaction.atomic():
        conversation, message = _found(conversation_id, message_id)
        if message.seq in seqs_of(conversation.pins):
            return message
        if not is_said(message):
            raise CannotBePinned("Only messages of a user or the assistant can be pinned, once their turn has begun.")
        if not message.content.strip():
            raise CannotBePinned("There are no words in this message.")
        pins = [*conversation.pins, {"seq": message.seq, "by": by[:150], "at": timezone.now().isoformat()}]
        _check(conversation, seqs_of(pins))
        # What was said when the conversation was tainted, before it began anew, may have been made of that.
        by_what = taint.in_message(conversation, message.seq or 0) if conversation.tainted_at_seq is None else ""
        _store(conversation, pins, **(taint.pinning(message.seq or 0, by_what) if by_what else {}))
    return message


def is_said(message: Message) -> bool:
    """Whether a user or the assistant has said it, in a turn that has begun."""
    is_normal = message.kind == Message.Kind.SAID and message.type == Message.Type.NORMAL
    return is_normal and message.seq is not None and message.role in (Message.Role.USER, Message.Role.ASSISTANT)


def unpin(conversation_id: UUID, message_id: UUID) -> bool:
    """Have a message in prompts as others are; False if it was not pinned. Raises :class:`NotFound`."""
    with transaction.atomic():
        conversation, message = _found(conversation_id, message_id)
        left = [each for each in conversation.pins if each["seq"] != message.seq]
        if len(left) == len(conversation.pins):
            return False
        _store(conversation, left)
    return True


def _found(conversation_id: UUID, message_id: UUID) -> tuple[Conversation, Message]:
    """Both; the conversation, first in the order of locks, is nobody else's until the transaction ends."""
    conversation = Conversation.objects.select_for_update(of=("self",)).select_related("agent")
    found = conversation.filter(pk=conversation_id).first()
    message = Message.objects.filter(pk=message_id, conversation_id=conversation_id).first() if found else None
    if found is None or message is None:
        raise NotFound("There is no message with that id in this conversation.")
    return found, message


def _store(conversation: Conversation, pins: list[dict[str, Any]], **changes: Any) -> None:
    in_order = sorted(pins, key=lambda each: int(each["seq"]))
    Conversation.objects.filter(pk=conversation.pk).update(pins=in_order, **changes)


def _check(conversation: Conversation, seqs: Sequence[int]) -> None:
    if len(seqs) > MAX_PINS:
        raise TooManyPins(f"{MAX_PINS} messages are the most; take another's pin off first.")
    texts = Message.objects.filter(conversation=conversation, seq__in=seqs).values_list("content", flat=True)
    chars, tokens = sum(map(len, texts)), sum(map(estimated, texts))
    if chars > MAX_PINNED_CHARS:
        raise TooManyPins(f"Together they would have {chars} characters; {MAX_PINNED_CHARS} are the most.")
    room = int(PINNED_SHARE * conversation.agent.prompt_tokens())
    if tokens > room:
        raise TooManyPins(
            f"Together they would take some {tokens} tokens; of this agent's context window, {room} are for them."
        )


def seqs_of(pins: Iterable[dict[str, Any]]) -> list[int]:
    """The numbers of pinned messages, in their order."""
    return [int(each["seq"]) for each in pins]


def for_prompt(conversation_id: UUID, seqs: Sequence[int], *, first_seq: int) -> list[Pinned]:
    """Pinned messages as a prompt is to have them. ``first_seq``: where its history begins."""
    if not seqs:
        return []
    rows = Message.objects.transcript().filter(conversation_id=conversation_id, seq__in=seqs)
    zone, found = (
        timezone.get_current_timezone(),
        list(rows.only("seq", "role", "content", "created_at", "attachments")),
    )
    texts = texts_of(row.attachments for row in found if row.attachments)
    # As the history has them, by which they are found there.
    content = {
        row.pk: str(with_texts(row.as_chat(), texts)["content"]) if row.attachments else row.content for row in found
    }
    return [
        Pinned(
            seq=row.seq or 0,
            role=row.role,
            content=sent_at(content[row.pk], row.created_at.astimezone(zone)) if row.role == "user" else row.content,
            in_history=0 < first_seq <= (row.seq or 0),
        )
        for row in found
    ]
