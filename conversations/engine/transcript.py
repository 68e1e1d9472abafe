"""Appending to a transcript: numbers are taken under the conversation's lock, and given to messages that then stay."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import BigIntegerField, F
from django.utils import timezone

from agent.loop import ChatMessage
from conversations.errors import FenceLost
from conversations.models import Conversation, Message
from nanohost.lib.clock import Now
from nanohost.lib.ids import new_id
from nanohost.lib.statements import Given, Insert, Update

_take = Update(
    lambda: Conversation.objects.filter(pk=Given("conversation_id")),
    lambda: {"next_seq": F("next_seq") + Given("count", BigIntegerField()), "updated_at": Now()},
    returning=("next_seq",),
)


def take_seqs(conversation_id: UUID, count: int) -> int:
    """Take ``count`` numbers under the conversation's lock and return the first; FenceLost if it was deleted."""
    taken = _take(conversation_id=conversation_id, count=count)
    if not taken:
        raise FenceLost
    ((next_seq,),) = taken
    return int(next_seq) - count


_insert_message = Insert(
    Message,
    *("id", "conversation_id", "turn_id", "seq", "role", "content"),
    *("tool_calls", "tool_call_id", "tool_name", "created_at", "kind", "sent"),
    type=Message.Type.NORMAL,
)


def append(
    conversation_id: UUID,
    turn_id: UUID,
    seq: int,
    messages: Sequence[ChatMessage],
    kind: str = Message.Kind.SAID,
    sent: dict[str, Any] | None = None,
) -> None:
    """Store messages in the OpenAI chat format, with numbers that were taken for them. ``sent``: of a model's answer,
    the record of what it was sent."""
    for offset, message in enumerate(messages):
        _insert_message(
            id=new_id(),
            conversation_id=conversation_id,
            turn_id=turn_id,
            seq=seq + offset,
            role=message["role"],
            content=message["content"],
            tool_calls=message.get("tool_calls"),
            tool_call_id=message.get("tool_call_id", ""),
            tool_name=message.get("name", ""),
            created_at=timezone.now(),
            kind=kind,
            sent=sent,
        )
