"""A conversation as JSON, or as JSON lines, in the API's words.

It is written part by part: 100,000 messages need no more memory than a hundred. What comes in meanwhile may be missing.
"""

import json
from collections.abc import Iterator
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from conversations.attachments.store import told
from conversations.events.answers import usage_of
from conversations.models import Conversation, Message, Turn
from nanohost.lib.redaction import redact_known
from tools.models import ToolCall

# Rows that are read together: a range of numbers, of which none is left out. "The next so many" would be sorted out of
# all of the conversation's, once PostgreSQL plans without looking at whose they are.
BATCH = 100

Record = dict[str, Any]


def as_json_lines(conversation: Conversation) -> Iterator[bytes]:
    """A line for the conversation, then one for each turn, then one for each message; ``record`` tells which."""
    yield _line({"record": "conversation", **_conversation(conversation)})
    for kind, batches in (("turn", _turns(conversation)), ("message", _messages(conversation))):
        for batch in batches:
            yield b"".join(_line({"record": kind, **record}) for record in batch)


def as_json(conversation: Conversation) -> Iterator[bytes]:
    """One object: ``conversation``, ``turns`` and ``messages``."""
    yield b'{"conversation":' + _json(_conversation(conversation))
    for name, batches in ((b"turns", _turns(conversation)), (b"messages", _messages(conversation))):
        yield b',"%b":[' % name
        comma = b""
        for batch in batches:
            yield comma + b",\n".join(map(_json, batch))
            comma = b",\n"
        yield b"]"
    yield b"}\n"


def _line(record: Record) -> bytes:
    return _json(record) + b"\n"


def _json(record: Record) -> bytes:
    text = json.dumps(record, cls=DjangoJSONEncoder, ensure_ascii=False, separators=(",", ":"))
    return redact_known(text).encode()


def _conversation(conversation: Conversation) -> Record:
    return {
        "conversationId": conversation.pk,
        "key": conversation.key,
        "agent": conversation.agent.name,
        "owner": conversation.owner.get_username(),
        "metadata": conversation.metadata,
        "state": conversation.state,
        "stateTimes": conversation.state_times,
        "stateTainted": conversation.state_tainted,
        "taintedAtSeq": conversation.tainted_at_seq,
        "taintedBy": conversation.tainted_by,
        "startsAtSeq": conversation.starts_at_seq,
        "consolidatedThrough": conversation.consolidated_through,
        "summarySeq": conversation.summary_seq,
        "pins": conversation.pins,
        "createdAt": conversation.created_at,
        "updatedAt": conversation.updated_at,
    }


def _turns(conversation: Conversation) -> Iterator[list[Record]]:
    for first in range(1, conversation.next_turn, BATCH):
        turns = Turn.objects.filter(conversation=conversation, number__range=(first, first + BATCH - 1))
        batch = list(turns.defer("sent", "body_hash").order_by("number"))
        calls: dict[Any, list[Record]] = {turn.pk: [] for turn in batch}
        for call in ToolCall.objects.filter(turn_id__in=calls).defer("private_arguments").order_by("position"):
            calls[call.turn_id].append(_call(call))
        if batch:
            yield [_turn(turn) | {"toolCalls": calls[turn.pk]} for turn in batch]


def _turn(turn: Turn) -> Record:
    error = {"code": turn.error_code, "detail": turn.error_detail} if turn.error_code else None
    return {
        "turnId": turn.pk,
        "number": turn.number,
        "status": turn.status,
        "model": turn.model,
        "agentVersion": turn.agent_version,
        "responseFormat": turn.response_format or None,
        "invalidAnswers": [each["content"] for each in turn.invalid_answers or ()],
        "requestId": turn.request_id,
        "usage": usage_of(turn.prompt_tokens, turn.completion_tokens, turn.cached_tokens, turn.cost),
        "error": error,
        "createdAt": turn.created_at,
        "startedAt": turn.started_at,
        "endedAt": turn.ended_at,
    }


def _call(call: ToolCall) -> Record:
    return {
        "callId": call.call_id,
        "toolName": call.tool_name,
        "arguments": call.arguments,
        "status": call.status,
        "rule": call.rule,
        "result": call.result,
        "taintedBy": call.tainted_by,
        "durationMs": call.duration_ms,
        "createdAt": call.created_at,
        "endedAt": call.ended_at,
    }


def _messages(conversation: Conversation) -> Iterator[list[Record]]:
    for first in range(1, conversation.next_seq, BATCH):
        messages = Message.objects.filter(conversation=conversation, seq__range=(first, first + BATCH - 1))
        if batch := list(messages.defer("sent").order_by("seq")):
            yield [_message(message) for message in batch]
    # Without a number: those that wait for their turn, and those whose turn ended before it began.
    inbox = list(
        Message.objects.filter(conversation=conversation, seq=None).order_by("pk").values_list("pk", flat=True)
    )
    for at in range(0, len(inbox), BATCH):
        messages = Message.objects.filter(pk__in=inbox[at : at + BATCH])
        if batch := list(messages.defer("sent").order_by("pk")):
            yield [_message(message) for message in batch]


def _message(message: Message) -> Record:
    return {
        "seq": message.seq,
        "turnId": message.turn_id,
        "role": message.role.upper(),
        "type": message.type,
        "kind": message.kind,
        "content": message.content,
        "toolCalls": message.tool_calls,
        "toolCallId": message.tool_call_id,
        "toolName": message.tool_name,
        "taintedBy": message.tainted_by,
        "attachments": told(message.attachments),
        "metadata": message.metadata,
        "createdAt": message.created_at,
    }
