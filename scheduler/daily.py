"""The daily summary: which day is to be summarised when beat runs it."""

from datetime import date, datetime, time, timedelta

from django.conf import settings
from django.utils import timezone

from conversations.engine.compacting import daily
from scheduler.models import CheckIn


def summarise_day(*, now: datetime) -> int:
    """Have a summary made of each conversation in which something was said; returns of how many.

    What is asked for twice is made once: a conversation has one summary a day. Where agents are asked at
    check-ins nobody reads, and what it costs is capped elsewhere.
    """
    day, since, until = covered(now)
    asked = CheckIn.objects.filter(created_at__gte=since - timedelta(days=1))
    leaving_out = {each for each in asked.values_list("conversation_id", flat=True) if each}
    return daily.request(day=day, since=since, until=until, leaving_out=leaving_out)


def covered(now: datetime) -> tuple[date, datetime, datetime]:
    """The day that a summary made at ``now`` is of, and the time it covers: by the local clock, also on the days that
    have 23 or 25 hours."""
    today = timezone.localdate(now)
    if settings.SCHEDULER_DAILY_SUMMARY_COVERS == "last-24h":
        return today, now - timedelta(hours=24), now
    yesterday = today - timedelta(days=1)
    return yesterday, _midnight(yesterday), _midnight(today)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, tzinfo=timezone.get_default_timezone())
