"""How figures are written, and what stands on every page."""

from typing import Any

from django import template

from conversations import intake

register = template.Library()


@register.filter
def duration(seconds: float | None) -> str:
    """Seconds as people say them: 0.4 s, 12 s, 5 min, 3.2 h, 4 days."""
    if seconds is None:
        return "–"
    for most, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < most:
            amount = seconds / size
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


@register.filter
def unlocalized(number: float) -> str:
    """A number as SVG reads it, whatever the language."""
    return f"{number:g}"


@register.inclusion_tag("console/intake_banner.html", takes_context=True)
def intake_banner(context: dict[str, Any]) -> dict[str, Any]:
    """That the intake is paused, for staff."""
    user = getattr(context.get("request"), "user", None)
    is_staff = user is not None and user.is_active and user.is_staff
    return {"pause": intake.current_pause() if is_staff else None}
