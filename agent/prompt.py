"""What the model is sent."""

from collections.abc import Sequence

from agent.history import clean
from agent.loop import ChatMessage, Limit

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant. Use the tools you are offered when they help; a result with status REJECTED names"
    " the rule that refused the call: tell the user so plainly instead of trying again."
)

_LIMIT_MET = {
    Limit.TOOL_ROUNDS: "The limit of tool rounds of this turn is reached.",
    Limit.TIME: "The time limit of this turn is reached.",
    Limit.TOKENS: "The token limit of this turn is reached.",
}
_LAST_WORD = "Give your best answer now, without tools."


def build_prompt(
    *, system_prompt: str, transcript: Sequence[ChatMessage], window: int, limit: Limit | None = None
) -> list[ChatMessage]:
    """The system prompt and the cleaned history; at a limit, the system prompt ends in a word that asks for the best
    answer now.

    It stands there, and not behind the history, because many servers take a system message at the start only. The
    prompt's cache is lost either way: the tools, which are no longer offered, come before everything else.
    """
    system = system_prompt or DEFAULT_SYSTEM_PROMPT
    if limit:
        system = f"{system}\n\n{_LIMIT_MET[limit]} {_LAST_WORD}"
    return [{"role": "system", "content": system}, *clean(transcript, window=window)]


def is_last_word(prompt: Sequence[ChatMessage]) -> bool:
    """Whether the prompt asks for the best answer without tools."""
    return bool(prompt) and prompt[0]["role"] == "system" and str(prompt[0]["content"]).endswith(_LAST_WORD)
