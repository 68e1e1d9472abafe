"""What a model call has cost, and what is kept of it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agent import tokens
from agent.llm.base import Completion, Usage
from agent.spending.prices import Price
from nanohost.lib.redaction import redact

_NONE = Usage()


@dataclass(frozen=True)
class Share:
    """What a call may use of a budget's period; ``most``: what all may use of it together."""

    period_id: int
    is_money: bool
    amount: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """What was reserved for a call, in the order of the periods' ids. ``prompt_tokens``: as estimated."""

    call_id: UUID
    shares: tuple[Share, ...]
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What is to be paid for an answer. ``cost``: in millionths of the currency; None: that is not known. ``counted``:
    what budgets count, also where the provider has told nothing."""

    cost: int | None = 0
    kept: dict[str, Any] | None = None
    reserved: Reserved | None = None
    counted: Usage = _NONE
    counted_cost: int = 0


# Of what no model was asked for.
NOTHING = Bill()


def bill_of(completion: Completion, *, model: str, price: Price | None, reserved: Reserved | None) -> Bill:
    """The bill for an answer of a model."""
    used = completion.usage
    is_told = used.prompt_tokens > 0 or (price is not None and not price.most(prompt_tokens=1, completion_tokens=1))
    cost = price.cost(used) if price and is_told else None
    counted = used if used.prompt_tokens or reserved is None else _estimated(completion, reserved)
    kept = {
        "model": redact(model),
        "prompt": used.prompt_tokens,
        "cached": used.cached_tokens,
        **({"written": used.written_tokens} if used.written_tokens else {}),
        "completion": used.completion_tokens,
        "cost": cost,
        # Who was asked, and why.
        "provider": completion.provider,
        "why": redact(completion.why),
        **({"cut": True} if completion.is_cut else {}),
    }
    counted_cost = price.cost(counted) if price else 0
    return Bill(cost=cost, kept=kept, reserved=reserved, counted=counted, counted_cost=counted_cost)


def _estimated(completion: Completion, reserved: Reserved) -> Usage:
    """Where a provider tells nothing, a budget counts an estimate: or it would never be used up."""
    said = tokens.estimated(completion.reasoning) + tokens.estimated_message(completion.as_message())
    return Usage(prompt_tokens=reserved.prompt_tokens, completion_tokens=said)
