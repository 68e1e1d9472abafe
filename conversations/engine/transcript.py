"""Appending to a transcript: numbers are taken under the conversation's lock, and given to messages that then stay."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import BigIntegerField, Case, F, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from agent.llm.providers import PROVIDERS
from agent.loop import ChatMessage
from agent.prompt import shorten
from conversations.errors import FenceLost
from conversations.models import Conversation, Message, Turn
from nanohost.lib.clock import Now
from nanohost.lib.ids import new_id
from nanohost.lib.statements import Given, Insert, Update

# Of what a model thought; more than this nobody reads.
MAX_REASONING_CHARS = 200_000

_TAKEN: dict[str, Any] = {
    "next_seq": F("next_seq") + Given("count", BigIntegerField()),
    "cost": F("cost") + Given("cost", BigIntegerField()),
    "updated_at": Now(),
}
_take = Update(
    lambda: Conversation.objects.filter(pk=Given("conversation_id")), lambda: _TAKEN, returning=("next_seq",)
)
_take_tainting = Update(
    lambda: Conversation.objects.filter(pk=Given("conversation_id")),
    lambda: {
        **_TAKEN,
        # With the first untrusted text; what enters after it changes nothing.
        "tainted_at_seq": Coalesce("tainted_at_seq", F("next_seq") + Given("offset", BigIntegerField())),
        "tainted_by": Case(When(tainted_at_seq=None, then=Given("tainted_by")), default=F("tainted_by")),
    },
    returning=("next_seq",),
)


def take_seqs(conversation_id: UUID, count: int, *, cost: int | None = 0, marks: Sequence[str] = ()) -> int:
    """Take ``count`` numbers under the conversation's lock and return the first; FenceLost if it was deleted. ``cost``:
    of what is stored with it, in millionths of the currency; None: that is not known.

    ``marks``: of each message, from where untrusted text in it came. With the first of those, it is tainted.
    """
    of_conversation: dict[str, Any] = {"conversation_id": conversation_id, "count": count, "cost": cost}
    if offset_and_source := next(((at, by) for at, by in enumerate(marks) if by), None):
        offset, source = offset_and_source
        taken = _take_tainting(**of_conversation, offset=offset, tainted_by=source)
    else:
        taken = _take(**of_conversation)
    if not taken:
        raise FenceLost
    ((next_seq,),) = taken
    return int(next_seq) - count


def _to_send_back(thoughts: dict[str, Any]) -> dict[str, Any] | None:
    """What the provider is sent back of them while the turn goes on. Who has called no tool has ended its turn."""
    row = PROVIDERS.get(thoughts["by"])
    if row is None or not row.wants_thoughts:
        return None
    if row.sends_back == "reasoning_content":
        return thoughts | {"blocks": []}
    return thoughts | {"text": ""} if thoughts["blocks"] else None


_insert_message = Insert(
    Message,
    *("id", "conversation_id", "turn_id", "seq", "role", "content"),
    *("reasoning", "thoughts", "tool_calls", "tool_call_id", "tool_name", "tainted_by"),
    *("created_at", "kind", "sent", "usage"),
    type=Message.Type.NORMAL,
)


def append(
    conversation_id: UUID,
    turn_id: UUID,
    seq: int,
    messages: Sequence[ChatMessage],
    kind: str = Message.Kind.SAID,
    sent: dict[str, Any] | None = None,
    usage: dict[str, Any] | None = None,
    marks: Sequence[str] = (),
    number: int | None = None,
) -> None:
    """Store messages in the OpenAI chat format, with numbers that were taken for them. ``sent``: of a model's answer,
    the record of what it was sent. ``usage``: and of what it has used. ``marks``: as their numbers were taken with.
    ``number``: of a model's answer, which one of the turn it is."""
    for offset, message in enumerate(messages):
        thoughts = message.get("thoughts") or {}
        _insert_message(
            id=new_id() if number is None else Message.id_in(turn_id, number + offset),
            conversation_id=conversation_id,
            turn_id=turn_id,
            seq=seq + offset,
            role=message["role"],
            content=message["content"],
            reasoning=shorten(thoughts.get("text", ""), MAX_REASONING_CHARS),
            thoughts=_to_send_back(thoughts) if thoughts and message.get("tool_calls") else None,
            tool_calls=message.get("tool_calls"),
            tool_call_id=message.get("tool_call_id", ""),
            tool_name=message.get("name", ""),
            tainted_by=(marks[offset] or None) if marks else None,
            created_at=timezone.now(),
            kind=kind,
            sent=sent,
            usage=usage,
        )


def answer_of(turn: Turn) -> str:
    """What a turn has answered; empty if it has said nothing."""
    said = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT, seq__isnull=False)
    return said.order_by("-seq").values_list("content", flat=True).first() or ""
