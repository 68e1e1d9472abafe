"""Moments and numbers, as every page of the console shows them: by the host's clock, with its zone."""

from datetime import UTC, datetime, tzinfo

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

# From so many seconds on a date is shown: nobody counts weeks.
_A_MONTH = 30 * 86_400


def absolute(moment: datetime, zone: tzinfo | None = None) -> str:
    """A moment by the clock of a zone, TIME_ZONE unless told: 2026-11-24 16:59:59 CET."""
    return f"{timezone.localtime(moment, zone):%Y-%m-%d %H:%M:%S %Z}"


def relative(moment: datetime, zone: tzinfo | None = None) -> str:
    """How far away a moment is, as people say it: 2 min ago, in 3 h; the day, of what is a month away."""
    seconds = (timezone.now() - moment).total_seconds()
    away = abs(seconds)
    if away >= _A_MONTH:
        return f"{timezone.localtime(moment, zone):%Y-%m-%d}"
    if away < 1:
        return "now"
    for most, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if away < most:
            amount = f"{away / size:.0f} {unit}"
            break
    else:
        amount = f"{away / 86_400:.0f} days"
    return f"{amount} ago" if seconds > 0 else f"in {amount}"


def when(moment: datetime | None, zone: tzinfo | None = None) -> SafeString:
    """For a list: how far away it is, and the moment itself under the pointer. ``console.js`` keeps it up to date."""
    if moment is None:
        return SafeString("–")
    return format_html(
        '<time data-ago datetime="{}" title="{}">{}</time>',
        moment.astimezone(UTC).isoformat(timespec="seconds"),
        absolute(moment, zone),
        relative(moment, zone),
    )


def exactly(moment: datetime | None, zone: tzinfo | None = None) -> SafeString:
    """For a row's own page: the moment itself, and how far away it is."""
    if moment is None:
        return SafeString("–")
    iso = moment.astimezone(UTC).isoformat(timespec="seconds")
    return format_html('<time datetime="{}">{}</time> ({})', iso, absolute(moment, zone), when(moment, zone))


def number(value: float | None) -> str:
    """With separators: 12,345."""
    return "–" if value is None else f"{value:,}"
