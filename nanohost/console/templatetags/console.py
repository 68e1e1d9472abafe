"""How figures are written, and what stands on every page."""

from typing import Any

from django import template
from django.utils.safestring import SafeString

from conversations.engine import intake
from conversations.models import Worker
from nanohost.lib.moments import when
from nanohost.lib.text import duration

register = template.Library()
register.filter(duration)
register.filter(when)


@register.filter
def unlocalized(number: float) -> str:
    """A number as SVG reads it, whatever the language."""
    return f"{number:g}"


@register.filter
def told(value: object) -> SafeString:
    """What somebody wrote, with the characters named that nobody sees."""
    # The theme loads this library while it is imported itself.
    from nanohost.lib.admin import shown

    return shown(str(value))


@register.inclusion_tag("console/trail.html", takes_context=True)
def trail(context: dict[str, Any]) -> dict[str, Any]:
    """Where the page stands: its door, its list, and what it is about."""
    from nanohost.console import navigation

    original = context.get("original")
    title, name = str(context.get("title") or ""), ""
    if original is not None and not isinstance(original, str):
        name = title if "adminform" in context else str(original)
    return {"parts": navigation.trail(context["request"], title=title, name=name)}


@register.inclusion_tag("console/tabs.html", takes_context=True)
def door_tabs(context: dict[str, Any]) -> dict[str, Any]:
    """The pages that stand behind the same door."""
    from nanohost.console import navigation

    return {"tabs": navigation.tabs(context["request"])}


@register.inclusion_tag("console/scripted_banner.html", takes_context=True)
def scripted_banner(context: dict[str, Any]) -> dict[str, Any]:
    """That no model is asked, for staff: each page may name one."""
    return {"scripted": Worker.objects.scripted() if _is_of_staff(context) else ""}


def _is_of_staff(context: dict[str, Any]) -> bool:
    user = getattr(context.get("request"), "user", None)
    return user is not None and user.is_active and user.is_staff


@register.inclusion_tag("console/intake_banner.html", takes_context=True)
def intake_banner(context: dict[str, Any]) -> dict[str, Any]:
    """That the intake is paused, for staff."""
    return {"pause": intake.current_pause() if _is_of_staff(context) else None}
