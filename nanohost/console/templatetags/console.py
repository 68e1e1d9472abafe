"""How figures are written."""

from django import template

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
