"""The days and months of budgets, in the host's own time."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.db import models


class Every(models.TextChoices):
    """How often a budget begins anew."""

    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, kw_only=True)
class Period:
    """A day or a month. ``start``: its first day. ``begins``, ``ends``: its moments, the second of them not in it."""

    start: date
    begins: datetime
    ends: datetime


def period_of(every: Every, now: datetime, zone: str) -> Period:
    """The one that a moment is in. A day has 23 or 25 hours where the clocks are changed; one that has no midnight
    begins with its first moment."""
    latest = _latest.get((every, zone))
    if latest is None or not latest.begins <= now < latest.ends:
        latest = _latest[every, zone] = _period_of(every, now, zone)
    return latest


# Most moments that are asked for are in the same one: it is asked for several times a turn.
_latest: dict[tuple[Every, str], Period] = {}


def _period_of(every: Every, now: datetime, zone: str) -> Period:
    today = now.astimezone(ZoneInfo(zone)).date()
    start = today.replace(day=1) if every == Every.MONTH else today
    after = (start + timedelta(days=31)).replace(day=1) if every == Every.MONTH else start + timedelta(days=1)
    return Period(start=start, begins=_midnight(start, zone), ends=_midnight(after, zone))


def _midnight(day: date, zone: str) -> datetime:
    """The first moment of a day. Of two midnights it is the first; in the place of one that is left out, the zone's
    offset before the change gives the moment of the change."""
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)
