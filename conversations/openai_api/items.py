"""Items: a transcript as OpenAI's Responses and Conversations APIs show it, made of its messages.

A message of an assistant may be several: what its model thought, what it says, and each call of a tool. A call of the
host's own tools is an ``mcp_call``, with what the tool gave in it; one of the caller's is a ``function_call``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from conversations.attachments.parts import file_id_of
from conversations.models import Message, calls_in
from conversations.openai_api import ids
from tools.models import CallStatus, ToolCall

Item = dict[str, Any]

SERVER_LABEL = "nanohost"
COMPLETED, IN_PROGRESS, INCOMPLETE, FAILED = "completed", "in_progress", "incomplete", "failed"
COMMENTARY, FINAL_ANSWER = "commentary", "final_answer"

# Of a call that came with a request as an item of this kind: told by its id.
_BROUGHT = f"{ids.HOSTS_CALL}_"

# Behind a message that has such calls, so many may say what those gave.
_OUTPUTS = 128

Calls = Mapping[tuple[UUID, str], ToolCall]


def said(rows: QuerySet[Message]) -> QuerySet[Message]:
    """Those of the messages that are items: neither summaries nor words to the host and its own."""
    return rows.filter(seq__isnull=False, kind=Message.Kind.SAID, type=Message.Type.NORMAL)


def calls_of(messages: Iterable[Message]) -> Calls:
    """The calls of the host's tools that messages ask for or answer, by turn and id."""
    turns = {each.turn_id for each in messages if each.turn_id and (each.tool_calls or each.tool_call_id)}
    if not turns:
        return {}
    return {(row.turn_id, row.call_id): row for row in ToolCall.objects.filter(turn_id__in=turns)}


def items_of(messages: Sequence[Message], *, without_callers: bool = False) -> list[Item]:
    """The items of messages, which follow one another. ``without_callers``: but for calls of the caller's tools, which
    it is not to run yet."""
    calls, outputs = calls_of(messages), _outputs_of(messages)
    found = [item for message in messages for item in _items(message, calls, outputs)]
    return [item for item in found if item["type"] != "function_call"] if without_callers else found


def _outputs_of(messages: Sequence[Message]) -> Mapping[str, str]:
    """What was given for calls of tools that a host has run, and that came with a request."""
    asking = [each for each in messages if any(call[0].startswith(_BROUGHT) for call in calls_in(each.tool_calls))]
    if not asking:
        return {}
    seqs = [each.seq for each in asking if each.seq is not None]
    behind = Message.objects.filter(conversation=asking[0].conversation_id, role=Message.Role.TOOL)
    behind = behind.filter(seq__range=(min(seqs), max(seqs) + _OUTPUTS), tool_call_id__startswith=_BROUGHT)
    return dict(behind.values_list("tool_call_id", "content"))


def _items(message: Message, calls: Calls, outputs: Mapping[str, str]) -> list[Item]:
    if message.role == Message.Role.TOOL:
        return _output(message, calls)
    if message.role != Message.Role.ASSISTANT:
        item = said_item(ids.shown(ids.MESSAGE, message.pk), message.role, message.content)
        return [
            item | {"content": [*item["content"], *map(_file, message.attachments)]} if message.attachments else item
        ]
    found = []
    if message.reasoning:
        found.append(reasoning_item(ids.shown(ids.REASONING, message.pk), message.reasoning))
    if message.content.strip():
        phase = COMMENTARY if message.tool_calls else FINAL_ANSWER
        found.append(answer_item(ids.shown(ids.MESSAGE, message.pk), message.content, phase=phase))
    for place, (call_id, name, arguments) in enumerate(calls_in(message.tool_calls)):
        if message.turn_id and (call := calls.get((message.turn_id, call_id))):
            found.append(hosts_call(call))
        elif call_id.startswith(_BROUGHT):
            item_id = ids.shown(ids.HOSTS_CALL, message.pk, place)
            found.append(_hosts(item_id, name, arguments, output=outputs.get(call_id)))
        else:
            item_id = ids.shown(ids.FUNCTION_CALL, message.pk, place)
            found.append(function_call(item_id, call_id, name, arguments))
    return found


def _file(reference: Mapping[str, Any]) -> dict[str, Any]:
    """A file that came with a message, by an id that may be sent again."""
    file_id = file_id_of(UUID(reference["id"]))
    if reference["type"].startswith("image/"):
        return {"type": "input_image", "detail": "auto", "file_id": file_id}
    return {"type": "input_file", "file_id": file_id, "filename": reference["name"]}


def _output(message: Message, calls: Calls) -> list[Item]:
    """What a tool gave: of the host's, the call has it."""
    call_id = message.tool_call_id
    if call_id.startswith(_BROUGHT) or (message.turn_id and (message.turn_id, call_id) in calls):
        return []
    item_id = ids.shown(ids.FUNCTION_OUTPUT, message.pk)
    given = {"type": "function_call_output", "call_id": call_id, "output": message.content, "status": COMPLETED}
    return [{"id": item_id, **given}]


def as_pairs(items: Sequence[Item]) -> list[Item]:
    """The same, with calls of the host's tools as calls of functions, each with its output: for clients that show no
    others."""
    return [each for item in items for each in (pair_of(item) if item["type"] == "mcp_call" else [item])]


def pair_of(call: Item) -> list[Item]:
    """A call of the host's as a call of a function and, once it has ended, what that gave."""
    named = {"call_id": call["id"], "name": call["name"], "arguments": call["arguments"], "status": COMPLETED}
    asking: Item = {"id": call["id"].replace(ids.HOSTS_CALL, ids.FUNCTION_CALL, 1), "type": "function_call", **named}
    if call["status"] == IN_PROGRESS:
        return [asking]
    text = call["output"] if call["error"] is None else call["error"]["content"][0]["text"]
    return [asking, output_item(call["id"], text)]


def output_item(call_item_id: str, text: str) -> Item:
    """What a tool of the host's gave, apart from its call."""
    output_id = call_item_id.replace(ids.HOSTS_CALL, ids.FUNCTION_OUTPUT, 1)
    output = [{"type": "input_text", "text": text or ""}]
    given = {"call_id": call_item_id, "output": output, "status": COMPLETED}
    return {"id": output_id, "type": "function_call_output", **given}


# --- of each kind ------------------------------------------------------------------------------------------------


def said_item(item_id: str, role: str, text: str) -> Item:
    """What somebody else than the agent said."""
    content = [{"type": "input_text", "text": text}]
    return {"id": item_id, "type": "message", "role": role, "status": COMPLETED, "content": content}


def answer_item(item_id: str, text: str | None, *, phase: str | None = None, status: str = COMPLETED) -> Item:
    """What the agent said; without a text, one that is about to be."""
    content = [] if text is None else [output_text(text)]
    item = {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}
    return item | ({"phase": phase} if phase else {})


def output_text(text: str) -> dict[str, Any]:
    """A part of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def reasoning_item(item_id: str, text: str | None, *, status: str = COMPLETED) -> Item:
    """What a model thought."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}


def function_call(item_id: str, call_id: str, name: str, arguments: str, *, status: str = COMPLETED) -> Item:
    """A call of a tool of the caller's."""
    call = {"call_id": call_id, "name": name, "arguments": arguments, "status": status}
    return {"id": item_id, "type": "function_call", **call}


def hosts_call(call: ToolCall) -> Item:
    """A call of a tool of the host's."""
    result = call.result if call.ended else None
    return told_call(ids.shown(ids.HOSTS_CALL, call.pk), call.tool_name, call.arguments, call.status, result)


def told_call(item_id: str, name: str, arguments: str, status: str, result: str | None) -> Item:
    """The same, from what is told of it. ``result``: None of one that has not ended."""
    if result is None:
        return _hosts(item_id, name, arguments, status=IN_PROGRESS)
    if status == CallStatus.SUCCESS:
        return _hosts(item_id, name, arguments, output=result)
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": result}]}
    return _hosts(item_id, name, arguments, status=FAILED, error=error)


def _hosts(
    item_id: str,
    name: str,
    arguments: str,
    *,
    output: str | None = None,
    status: str = COMPLETED,
    error: dict[str, Any] | None = None,
) -> Item:
    call = {"server_label": SERVER_LABEL, "name": name, "arguments": arguments}
    outcome = {"status": status, "output": output, "error": error, "approval_request_id": None}
    return {"id": item_id, "type": "mcp_call", **call, **outcome}
