"""How money is written: counted in millionths of the currency, shown as a decimal number."""

from decimal import Decimal

from agent.spending.models import MICRO


def as_money(millionths: int | None) -> str | None:
    """All six places, for programs; None where it is not known."""
    return None if millionths is None else f"{Decimal(millionths) / MICRO:.6f}"


def told_money(millionths: int | None, currency: str) -> str:
    """For people: no more places than say something, two at least."""
    if millionths is None:
        return "unknown"
    whole, _, rest = f"{Decimal(millionths) / MICRO:,.6f}".partition(".")
    return f"{whole}.{rest.rstrip('0').ljust(2, '0')} {currency}"
