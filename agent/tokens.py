"""How many tokens a prompt has: estimated offline, and corrected by what providers report.

A quarter of a text's bytes in UTF-8 is near what the usual tokenisers make of English, and not far off for others; how
far off it is for one model's, its answers tell.
"""

from collections.abc import Sequence
from typing import Any

from agent.fixed import Fixed, as_json
from agent.images import images_of, tokens_of
from agent.loop import ChatMessage

BYTES_A_TOKEN = 4

# What the chat format adds to each message: OpenAI documents 3 to 4.
_MESSAGE_TOKENS = 4

# A provider that reports less or more than so many times the estimate has miscounted.
_LEAST_RATIO, _MAX_RATIO = 0.2, 5.0

# After a refusal as too long: dense text, such as base64, has twice as many tokens as words of that length.
_REFUSED = 1.5


def estimated(text: str) -> int:
    """Tokens of a text, uncorrected."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-size // BYTES_A_TOKEN)


def estimated_message(message: ChatMessage) -> int:
    """Tokens of a message, uncorrected."""
    try:
        tokens: int = message.tokens  # type: ignore[attr-defined]  # one that is Fixed may have them
        return tokens
    except AttributeError:
        pass
    tokens = _MESSAGE_TOKENS + estimated(message.get("content") or "")
    if "attachments" in message:
        tokens += sum(map(tokens_of, images_of(message)))
    for call in message.get("tool_calls") or ():
        tokens += _MESSAGE_TOKENS + estimated(call["function"]["name"] + call["function"]["arguments"])
    if thoughts := message.get("thoughts"):  # its text stands in the blocks too, where there are any
        tokens += estimated(as_json(thoughts["blocks"]) if thoughts["blocks"] else thoughts["text"])
    if isinstance(message, Fixed):
        message.tokens = tokens
    return tokens


def estimated_tools(tools: Sequence[dict[str, Any]]) -> int:
    """Tokens of the tools a model is told of, uncorrected."""
    return estimated(as_json(tools)) if tools else 0


class Correction:
    """What a process has learned of each model: how many tokens it counts for one that is estimated."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def ratio(self, model: str) -> float:
        """Reported tokens for each estimated one; 1 for a model nothing is known of."""
        return self._ratios.get(model, 1.0)

    def learn(self, model: str, *, estimated: int, reported: int) -> None:
        """Take in what a provider reports of a prompt. The latest counts half: texts of one kind come in a row."""
        if not (estimated > 0 and reported > 0):
            return  # some report nothing
        seen = min(max(reported / estimated, _LEAST_RATIO), _MAX_RATIO)
        known = self._ratios.get(model)
        self._ratios[model] = seen if known is None else (known + seen) / 2

    def refused(self, model: str) -> None:
        """Take in that a prompt that should have fitted was refused as too long."""
        self._ratios[model] = min(self.ratio(model) * _REFUSED, _MAX_RATIO)


# What this process has learned.
correction = Correction()
