"""What a model call costs: pure, once the prices are known. Money is counted in millionths of the currency.

A price for a million tokens, in the currency, is the price of one token in millionths of it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, Decimal

from agent.llm.base import Usage

# What LLM_PROVIDER calls the scripted model, which costs nothing unless there is a price of this name.
SCRIPTED = "mock"

# A version of a model, behind its name: gpt-4.1-2025-04-14, claude-sonnet-4-20250514, gemini-2.5-flash-001,
# llama3:latest.
_VERSION = re.compile(r"[-@:](?:latest|\d{3,8}(?:-\d\d){0,2})")


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a million tokens cost, in the currency. ``written_prompt``: of those that the provider puts into its cache;
    None: as others."""

    model: str
    prompt: Decimal
    cached_prompt: Decimal
    completion: Decimal
    valid_from: datetime
    written_prompt: Decimal | None = None

    def cost(self, usage: Usage) -> int:
        """Of a call, rounded up."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        written = min(usage.written_tokens, usage.prompt_tokens - cached)
        fresh = usage.prompt_tokens - cached - written
        exact = fresh * self.prompt + cached * self.cached_prompt + written * self._written
        exact += usage.completion_tokens * self.completion
        return int(exact.to_integral_value(rounding=ROUND_CEILING))

    def most(self, *, prompt_tokens: int, completion_tokens: int) -> int:
        """Of a call of which no more is known than how large it may become."""
        dearest = max(self.prompt, self.cached_prompt, self._written)
        exact = prompt_tokens * dearest + completion_tokens * self.completion
        return int(exact.to_integral_value(rounding=ROUND_CEILING))

    @property
    def _written(self) -> Decimal:
        return self.prompt if self.written_prompt is None else self.written_prompt


_NOTHING = Decimal(0)


def find(prices: Iterable[Price], model: str, *, provider: str, now: datetime) -> Price | None:
    """The price of a model: that of its name, or else of the longest name that it is a version of; of several, the one
    that is valid since last. None: it is not known."""
    name = SCRIPTED if provider == SCRIPTED else model
    found = [each for each in prices if each.valid_from <= now and _is_of(name, each.model)]
    if found:
        return max(found, key=lambda each: (each.model == name, len(each.model), each.valid_from))
    if provider == SCRIPTED:
        return Price(model=SCRIPTED, prompt=_NOTHING, cached_prompt=_NOTHING, completion=_NOTHING, valid_from=now)
    return None


def _is_of(name: str, priced: str) -> bool:
    """Whether a model's name is the one that has a price, or that of a version of it. gpt-4.1-mini is no version of
    gpt-4.1: a price that is not known is better than one that is wrong."""
    return name == priced or (name.startswith(priced) and bool(_VERSION.fullmatch(name, len(priced))))
