"""History, cleaned on a copy before every model call: a named, ordered pipeline of pure functions.

Whatever was stored (a window cut in mid-group, a turn that was cancelled, a result that came late), what is sent is
a history that the chat format allows. Messages are plain dicts in the OpenAI chat format; none is ever changed.
"""

from collections.abc import Callable, Sequence
from functools import partial

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


def drop_leading_non_user(messages: Sequence[ChatMessage]) -> History:
    """A conversation starts with its user."""
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), len(messages))
    return list(messages[first:])


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
    pipeline: tuple[Callable[[Sequence[ChatMessage]], History], ...] = (
        drop_leading_non_user,
        drop_orphaned_results,
        answer_missing_results,
        drop_blank_assistants,
        partial(fit_window, window=window),
    )
    history = list(messages)
    for step in pipeline:
        history = step(history)
    return history
