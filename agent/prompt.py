"""What the model is sent."""

from collections.abc import Sequence

from agent.history import clean
from agent.loop import ChatMessage, Limit

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant. Use the tools you are offered when they help; a result with status REJECTED names"
    " the rule that refused the call: tell the user so plainly instead of trying again."
)

_LAST_CALL = {
    Limit.TOOL_ROUNDS: "The limit of tool rounds of this turn is reached.",
    Limit.TIME: "The time limit of this turn is reached.",
    Limit.TOKENS: "The token limit of this turn is reached.",
}


def build_prompt(
    *, system_prompt: str, transcript: Sequence[ChatMessage], window: int, limit: Limit | None = None
) -> list[ChatMessage]:
    """The system prompt and the cleaned history; at a limit, a last word that asks for the best answer now."""
    prompt = [{"role": "system", "content": system_prompt or DEFAULT_SYSTEM_PROMPT}, *clean(transcript, window=window)]
    if limit:
        prompt.append({"role": "system", "content": f"{_LAST_CALL[limit]} Give your best answer now, without tools."})
    return prompt
