"""History, cleaned on a copy before every model call: a named, ordered pipeline of pure functions.

Whatever was stored (a window cut in mid-group, a turn that was cancelled, a result that came late), what is sent is
a history that the chat format allows. Messages are plain dicts in the OpenAI chat format; none is ever changed.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agent.fixed import Fixed
from agent.loop import ChatMessage

History = list[ChatMessage]

INTERRUPTED = "This tool call was interrupted; its result is not known."


def fit_window(messages: Sequence[ChatMessage], *, window: int) -> History:
    """At most the last ``window`` messages, cut only where a user speaks; the newest user message always stays."""
    if len(messages) <= window:
        return list(messages)
    user_turns = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not user_turns:
        return []
    start = next((index for index in user_turns if index >= len(messages) - window), user_turns[-1])
    return list(messages[start:])


def keep_what_fits(messages: Sequence[ChatMessage], *, budget: int, cost: Callable[[ChatMessage], int]) -> History:
    """The last messages that cost ``budget`` together, cut only where a user speaks; the newest turn always stays."""
    start, spent = len(messages), 0
    for index in range(len(messages) - 1, -1, -1):
        spent += cost(messages[index])
        if messages[index]["role"] == "user":
            if spent > budget and start < len(messages):
                break
            start = index
    return list(messages[start:])


def drop_leading_non_user(messages: Sequence[ChatMessage]) -> History:
    """A conversation starts with its user."""
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), len(messages))
    return list(messages[first:])


def mend_calls(messages: Sequence[ChatMessage]) -> History:
    """Tool calls are put as the chat format wants them: a model's slip is kept in the transcript, but sent on it would
    have the provider refuse every later prompt. A call that repeats an id of its message is dropped."""
    return [_with_mended_calls(message) if "tool_calls" in message else message for message in messages]


def _with_mended_calls(message: ChatMessage) -> ChatMessage:
    return message.kept("mended", _mend) if isinstance(message, Fixed) else _mend(message)


def _mend(message: ChatMessage) -> ChatMessage:
    mended = _mended(message["tool_calls"] or ())
    if mended and mended == message["tool_calls"]:
        return message
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return Fixed(others | {"tool_calls": mended} if mended else others)


def _mended(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    by_id: dict[str, dict[str, Any]] = {}
    for call in calls:
        function = call["function"]
        fit = {"name": _fit_name(function["name"]), "arguments": _fit_arguments(function["arguments"])}
        by_id.setdefault(call["id"], call if fit == function else call | {"function": fit})
    return list(by_id.values())


def _fit_name(name: str) -> str:
    """OpenAI's pattern for names: ``^[a-zA-Z0-9_-]{1,64}$``."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"


def _fit_arguments(arguments: str) -> str:
    """The arguments if they are a JSON object, else ``{}``: many servers parse them, and fail at what is none."""
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    return arguments if is_object else "{}"


def drop_old_thoughts(messages: Sequence[ChatMessage]) -> History:
    """What a model has thought goes back to it in the turn in which it did, between its calls; later it is left out:
    providers ignore it then, or refuse it."""
    begin = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    return [
        _without_thoughts(message) if at < begin and "thoughts" in message else message
        for at, message in enumerate(messages)
    ]


def _without_thoughts(message: ChatMessage) -> ChatMessage:
    def plain(of: ChatMessage) -> ChatMessage:
        return Fixed({name: value for name, value in of.items() if name != "thoughts"})

    return message.kept("plain", plain) if isinstance(message, Fixed) else plain(message)


def drop_orphaned_results(messages: Sequence[ChatMessage]) -> History:
    """A tool's result whose call is not in view, or that answers a call a second time, is dropped."""
    open_calls: set[str] = set()
    kept: History = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                continue
            open_calls.discard(message["tool_call_id"])
        else:
            open_calls = {call["id"] for call in message.get("tool_calls") or ()}
        kept.append(message)
    return kept


def answer_missing_results(messages: Sequence[ChatMessage]) -> History:
    """A call without a result gets a plain "interrupted", directly behind its group's results."""
    kept: History = []
    missing: dict[str, None] = {}

    def answer() -> None:
        kept.extend({"role": "tool", "tool_call_id": call_id, "content": INTERRUPTED} for call_id in missing)
        missing.clear()

    for message in messages:
        if message["role"] == "tool":
            missing.pop(message["tool_call_id"], None)
        else:
            answer()
            missing.update({call["id"]: None for call in message.get("tool_calls") or ()})
        kept.append(message)
    answer()
    return kept


def drop_blank_assistants(messages: Sequence[ChatMessage]) -> History:
    """An assistant message that says nothing and asks for nothing is dropped."""
    return [
        message
        for message in messages
        if message["role"] != "assistant" or message.get("tool_calls") or (message.get("content") or "").strip()
    ]


def clean(messages: Sequence[ChatMessage], *, window: int) -> History:
    """The history as the model is sent it: the pipeline, in its order."""
    # Most histories have no calls: there is nothing to be done about them.
    has_calls = any(message["role"] == "tool" or "tool_calls" in message for message in messages)
    pipeline: tuple[Callable[[Sequence[ChatMessage]], History], ...] = (
        drop_leading_non_user,
        *((drop_old_thoughts, mend_calls, drop_orphaned_results, answer_missing_results) if has_calls else ()),
        drop_blank_assistants,
        partial(fit_window, window=window),
    )
    history = list(messages)
    for step in pipeline:
        history = step(history)
    return history
