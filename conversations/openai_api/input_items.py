"""Items that a request brings: as the input of a response, or for a conversation."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from agent.loop import ChatMessage
from conversations.openai_api import compaction_items
from conversations.openai_api.errors import InvalidValue, UnsupportedContent
from conversations.openai_api.parts import said_by_user, text_of
from conversations.openai_api.values import as_list, as_object, as_one_of, as_text

MAX_ITEMS = 10_000

_ROLES = ("user", "assistant", "system", "developer")
_INSTRUCTING = ("system", "developer")
_TEXTS = ("call_id", "name", "encrypted_content")


@dataclass(frozen=True, kw_only=True)
class GivenItem:
    """One item. ``id``: that it was told of by, if it has one. ``messages``: in the chat format; none of what is no
    part of a transcript. ``is_reference``: it only says its id."""

    id: str
    messages: list[ChatMessage]
    is_reference: bool = False


@dataclass(frozen=True, kw_only=True)
class Given:
    """``instructions``: of the items that are the program's, and no person's. ``items``: the others."""

    instructions: str
    items: list[GivenItem]

    def messages(self, *, known: Collection[str] = ()) -> list[ChatMessage]:
        """The items as messages, but for those of ``known`` ids: calls that are made together are one's."""
        told: list[ChatMessage] = []
        for item in self.items:
            for message in () if item.id in known else item.messages:
                last = told[-1] if told else None
                if message.get("tool_calls") and last and last["role"] == "assistant":
                    told[-1] = last | {"tool_calls": [*last.get("tool_calls", ()), *message["tool_calls"]]}
                else:
                    told.append(message)
        return told


def items_of(given: Any, param: str) -> Given:
    """Read items; a text is what a user says."""
    if isinstance(given, str):
        return Given(instructions="", items=[_item({"role": "user", "content": given}, param)])
    instructions, items = [], []
    for index, each in enumerate(as_list(given, param, most=MAX_ITEMS)):
        where = f"{param}[{index}]"
        item = as_object(each, where)
        if item.get("type", "message") == "message" and item.get("role") in _INSTRUCTING:
            instructions.append(text_of(item.get("content"), f"{where}.content"))
        else:
            items.append(_item(item, where))
        _check_the_rest(item, where)
    return Given(instructions="\n\n".join(filter(None, instructions)), items=items)


def _check_the_rest(item: dict[str, Any], where: str) -> None:
    """Refuse what only items of another type have, if it is not as it is there: it is a mistake, and was meant."""
    for name in _TEXTS:
        if (given := item.get(name)) is not None:
            as_text(given, f"{where}.{name}")
    for name in ("content", "output"):
        given = item.get(name)
        is_parts = isinstance(given, list) and all(isinstance(each, dict) and "type" in each for each in given)
        if given is not None and not isinstance(given, str) and not is_parts:
            raise InvalidValue(f"{where}.{name} has to be a text or an array of parts.", param=f"{where}.{name}")


def _item(item: dict[str, Any], where: str) -> GivenItem:
    kind = item.get("type")
    if kind is None:  # messages may lack it, and references
        kind = "message" if "role" in item else "item_reference"
    read = _KINDS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise UnsupportedContent(f"{where} is of the type {str(kind)[:64]}, which is not supported here.", param=where)
    told = item.get("id")
    item_id = "" if told is None else as_text(told, f"{where}.id", most=256)
    return GivenItem(id=item_id, messages=read(item, where), is_reference=kind == "item_reference")


def _message(item: dict[str, Any], where: str) -> list[ChatMessage]:
    role = as_one_of(item.get("role"), f"{where}.role", _ROLES)
    if role == "user":
        return [said_by_user(item.get("content"), f"{where}.content")]
    said = text_of(item.get("content"), f"{where}.content")
    return [{"role": role, "content": said}] if said.strip() else []


def _function_call(item: dict[str, Any], where: str) -> list[ChatMessage]:
    return [_asking(_call_id(item, where), item, where)]


def _function_call_output(item: dict[str, Any], where: str) -> list[ChatMessage]:
    output = item.get("output")
    if output is None:
        raise InvalidValue(f"{where}.output is missing.", param=f"{where}.output")
    return [{"role": "tool", "tool_call_id": _call_id(item, where), "content": text_of(output, f"{where}.output")}]


def _mcp_call(item: dict[str, Any], where: str) -> list[ChatMessage]:
    """A call that a host has run, with what it gave."""
    call_id = as_text(item.get("id"), f"{where}.id", least=1, most=128)
    given = item.get("output")
    if given is None:
        given = json.dumps(item["error"]) if item.get("error") else ""
    return [
        _asking(call_id, item, where),
        {"role": "tool", "tool_call_id": call_id, "content": as_text(given, f"{where}.output")},
    ]


def _compaction(item: dict[str, Any], where: str) -> list[ChatMessage]:
    return [compaction_items.message_of(item, where)]


def _nothing(item: dict[str, Any], where: str) -> list[ChatMessage]:
    return []


def _reference(item: dict[str, Any], where: str) -> list[ChatMessage]:
    as_text(item.get("id"), f"{where}.id", least=1, most=256)
    return []


def _asking(call_id: str, item: dict[str, Any], where: str) -> ChatMessage:
    arguments = item.get("arguments", "")
    function = {
        "name": as_text(item.get("name"), f"{where}.name", least=1, most=128),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
    }
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _call_id(item: dict[str, Any], where: str) -> str:
    return as_text(item.get("call_id"), f"{where}.call_id", least=1, most=128)


_KINDS: dict[str, Callable[[dict[str, Any], str], list[ChatMessage]]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "mcp_call": _mcp_call,
    "compaction": _compaction,
    # What a model thought is its own: another one is not told of it.
    "reasoning": _nothing,
    "item_reference": _reference,
}
