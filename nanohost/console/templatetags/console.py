"""How figures are written."""

from django import template

from nanohost.lib.text import duration

register = template.Library()
register.filter(duration)


@register.filter
def unlocalized(number: float) -> str:
    """A number as SVG reads it, whatever the language."""
    return f"{number:g}"
