"""The loop, pure: from a turn's messages to its next step. No Django, no clock, no storage: it can be replayed.

Messages are plain dicts in the OpenAI chat format, from the turn's user message on. A turn that was interrupted goes
on from what was stored: a history that ends in unanswered tool calls is resumed by answering them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

ChatMessage = dict[str, Any]


class Limit(StrEnum):
    """What a turn can run into; the values are what the API shows."""

    TOOL_ROUNDS = "tool_rounds"
    TIME = "time"
    TOKENS = "tokens"


@dataclass(frozen=True, kw_only=True)
class CallModel:
    """Ask the model. At a limit it is asked once more, without tools, for its best answer."""

    limit: Limit | None = None


@dataclass(frozen=True, kw_only=True)
class RunTools:
    """Answer these tool calls. At a limit they are refused instead, so that the model can be asked a last time."""

    calls: tuple[dict[str, Any], ...]
    limit: Limit | None = None


@dataclass(frozen=True, kw_only=True)
class AskCaller:
    """Have whoever asked run these tool calls, of tools of their own, and wait for what those give."""

    calls: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The turn is done; ``reply`` says which limit was met, if one was."""

    reply: str


Step = CallModel | RunTools | AskCaller | Finish


def next_step(
    messages: Sequence[ChatMessage],
    *,
    max_rounds: int,
    limit: Limit | None = None,
    callers_tools: Collection[str] = (),
) -> Step:
    """What a turn does next.

    ``messages``: the turn's own, oldest first, at least its user message. ``max_rounds``: rounds of tool calls that
    may run. ``limit``: another limit the turn has met, as its host measures time and tokens. ``callers_tools``: names
    of tools that whoever asked runs. Of calls that a model asks for together, theirs come last; and their rounds are
    theirs to bound, since each goes on with a request of theirs.
    """
    rounds = sum(1 for message in messages if _own_calls(message.get("tool_calls") or (), callers_tools))
    met = Limit.TOOL_ROUNDS if rounds > max_rounds else limit
    if unanswered := unanswered_calls(messages):
        if own := _own_calls(unanswered, callers_tools):
            return RunTools(calls=own, limit=met)
        return AskCaller(calls=unanswered)
    last = messages[-1]
    if last["role"] != "assistant":
        return CallModel(limit=met)
    return Finish(reply=_with_notice(last["content"], met, max_rounds))


def _own_calls(calls: Sequence[dict[str, Any]], callers_tools: Collection[str]) -> tuple[dict[str, Any], ...]:
    return tuple(call for call in calls if call["function"]["name"] not in callers_tools)


def is_heard_anew(messages: Sequence[ChatMessage], callers_tools: Collection[str]) -> bool:
    """Whether the last word is the caller's: what its user said, or what a tool of its own gave."""
    last = messages[-1]
    if last["role"] != "tool":
        return bool(last["role"] == "user")
    named = {call["id"]: call["function"]["name"] for each in messages for call in each.get("tool_calls") or ()}
    return named.get(last["tool_call_id"]) in callers_tools


def unanswered_calls(messages: Sequence[ChatMessage]) -> tuple[dict[str, Any], ...]:
    """The tool calls that no later message answers."""
    waiting: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            waiting = [call for call in waiting if call["id"] != message["tool_call_id"]]
        # In order: some models use an id again that an earlier round has had answered.
        waiting += message.get("tool_calls") or ()
    return tuple(waiting)


_NOTICES = {
    Limit.TOOL_ROUNDS: "Stopped at the limit of {max_rounds} tool rounds; this is the best answer so far.",
    Limit.TIME: "Stopped at the turn's time limit; this is the best answer so far.",
    Limit.TOKENS: "Stopped at the turn's token limit; this is the best answer so far.",
}


def _with_notice(reply: str, limit: Limit | None, max_rounds: int) -> str:
    return f"{reply}\n\n[{_NOTICES[limit].format(max_rounds=max_rounds)}]".strip() if limit else reply
