"""Changing a transcript by hand, as OpenAI's Conversations API lets its clients do: appending, and deleting.

Neither falls into the midst of a turn, where it would come between a call and its result.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from django.db import transaction
from django.db.models import F

from agent.loop import ChatMessage
from conversations.attachments import intake, store
from conversations.engine import transcript
from conversations.engine.incoming import message_of, refer_all
from conversations.engine.turn_control import holds_on
from conversations.errors import TurnUnderWay
from conversations.models import Conversation, Message, Turn
from conversations.statuses import ACTIVE
from nanohost.accounts import audit, holds
from nanohost.accounts.models import ApiKey
from nanohost.lib.errors import NotFound


@contextmanager
def _at_rest(conversation: Conversation) -> Iterator[Conversation]:
    """Locks a conversation in whose midst no turn is; raises :class:`TurnUnderWay`, and :class:`NotFound` if it was
    deleted meanwhile."""
    with transaction.atomic():
        row = Conversation.objects.select_for_update().filter(pk=conversation.pk).first()
        if row is None:
            raise NotFound()
        if found := Turn.objects.filter(conversation=row, status__in=ACTIVE).first():
            raise TurnUnderWay(turnId=str(found.pk))
        yield row


def append(conversation: Conversation, messages: Sequence[ChatMessage], key: ApiKey) -> list[Message]:
    """Append messages in the chat format, with the ``files`` that were sent with them by this key; raises what
    :func:`_at_rest` does, and what :func:`conversations.attachments.intake.take_in` does."""
    messages = intake.with_references(conversation.owner_id, messages, key)
    with _at_rest(conversation):
        rows = [message_of(each, conversation, seq=None) for each in messages]
        store.hold([file for row in rows for file in row.attachments or ()])
        first = transcript.take_seqs(conversation.pk, len(rows), marks=[row.tainted_by or "" for row in rows])
        for seq, row in enumerate(rows, start=first):
            row.seq = seq
        made = list(Message.objects.bulk_create(rows))
        refer_all(made)
        return made


def delete(conversation: Conversation, message: Message, without: Callable[[Message], Message | None]) -> None:
    """Delete what ``without`` leaves out of a message; None: all of it. Raises what :func:`_at_rest` does, and
    :class:`nanohost.accounts.errors.UnderLegalHold`."""
    with transaction.atomic():
        # Before the conversation's lock, as by all who delete.
        placed = holds.placed_until_the_end()
        with _at_rest(conversation):
            holds.refuse(holds_on(conversation, placed))
            _delete(conversation, message, without)


def _delete(conversation: Conversation, message: Message, without: Callable[[Message], Message | None]) -> None:
    row = Message.objects.select_for_update().filter(pk=message.pk, conversation=conversation).first()
    if row is None:
        return
    before = {"seq": row.seq, "role": row.role}
    if left := without(row):
        left.save(update_fields=["content", "reasoning", "thoughts", "tool_calls"])
    else:
        store.forget([row.pk])
        row.delete()
    # Prompts that keep what was said look anew.
    Conversation.objects.filter(pk=conversation.pk).update(deletions=F("deletions") + 1)
    audit.record("message.deleted", about=conversation, name=str(conversation.pk), before=before)
