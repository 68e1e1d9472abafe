"""The array of a Chat Completions request: what was said before, what is asked now, what the caller's tools gave."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent.loop import ChatMessage
from conversations.openai_api.errors import InvalidValue
from conversations.openai_api.parts import said_by_user, text_of
from conversations.openai_api.values import as_list, as_object, as_one_of, as_text

MAX_MESSAGES = 10_000

_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """``instructions``: of the messages that are the program's and not the user's. ``messages``: the others, in the
    chat format; the last one is the user's, or what a tool gave."""

    instructions: str
    messages: list[ChatMessage]

    @property
    def asked_at(self) -> int:
        """Where the last message of the user stands."""
        return max(at for at, each in enumerate(self.messages) if each["role"] == "user")

    @property
    def outputs(self) -> dict[str, str]:
        """What the last messages say that tools gave, by their calls; empty if the last one is the user's."""
        found: dict[str, str] = {}
        for message in reversed(self.messages):
            if message["role"] != "tool":
                break
            found[message["tool_call_id"]] = message["content"]
        return found

    @property
    def new(self) -> list[ChatMessage]:
        """What follows the last answer: of a conversation that is stored, nothing else is."""
        answers = [at for at, each in enumerate(self.messages) if each["role"] == "assistant"]
        return self.messages[answers[-1] + 1 :] if answers else self.messages


def transcript_of(given: Any) -> Transcript:
    """Read the array; raises for one that no model's server would take."""
    instructions, messages = [], []
    for index, each in enumerate(as_list(given, "messages", least=1, most=MAX_MESSAGES)):
        where = f"messages[{index}]"
        message = as_object(each, where)
        role = as_one_of(message.get("role"), f"{where}.role", _ROLES)
        if role == "user":
            messages.append(said_by_user(message.get("content"), f"{where}.content"))
            continue
        said = text_of(message.get("content"), f"{where}.content")
        if role in ("system", "developer"):
            instructions.append(said)
        else:
            messages.append(_message(role, said, message, where))
    refuse_disorder(messages)
    if not messages or messages[-1]["role"] == "assistant" or not any(each["role"] == "user" for each in messages):
        raise InvalidValue("The last of the messages has to be the user's, or a tool's output.", param="messages")
    return Transcript(instructions="\n\n".join(filter(None, instructions)), messages=messages)


def _message(role: str, said: str, message: dict[str, Any], where: str) -> ChatMessage:
    told: ChatMessage = {"role": role, "content": said}
    if role == "tool":
        where = f"{where}.tool_call_id"
        return told | {"tool_call_id": as_text(message.get("tool_call_id"), where, least=1, most=128)}
    if role == "assistant" and message.get("tool_calls"):
        calls = as_list(message["tool_calls"], f"{where}.tool_calls", most=128)
        told["tool_calls"] = [_call(each, f"{where}.tool_calls[{at}]") for at, each in enumerate(calls)]
    return told


def _call(given: Any, where: str) -> dict[str, Any]:
    call = as_object(given, where)
    function = as_object(call.get("function"), f"{where}.function")
    arguments = function.get("arguments", "")
    return {
        "id": as_text(call.get("id"), f"{where}.id", least=1, most=128),
        "type": "function",
        "function": {
            "name": as_text(function.get("name"), f"{where}.function.name", least=1, most=128),
            # Some clients send them parsed.
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
        },
    }


def refuse_disorder(messages: Sequence[ChatMessage], param: str = "messages") -> None:
    """Calls are answered directly behind them, each once, and nothing is answered that was not called."""
    waiting: dict[str, None] = {}
    for message in messages:
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            if call_id not in waiting:
                raise InvalidValue(
                    f"The output for {call_id[:64]} has no call in the answer before it, or a second one has.",
                    param=param,
                )
            del waiting[call_id]
            continue
        _refuse_unanswered(waiting, param)
        calls = message.get("tool_calls") or ()
        waiting = {call["id"]: None for call in calls}
        if len(waiting) < len(calls):
            raise InvalidValue("Two calls of one answer have the same id.", param=param)
    _refuse_unanswered(waiting, param)


def _refuse_unanswered(waiting: dict[str, None], param: str) -> None:
    if waiting:
        raise InvalidValue(f"No tool output found for function call {next(iter(waiting))[:64]}.", param=param)
