"""The daily summary as people see it: a switch and a time. Behind it is the system job ``daily_summary``."""

from dataclasses import dataclass
from datetime import time

from django.conf import settings
from django.db import transaction
from django_celery_beat.models import CrontabSchedule, PeriodicTask

JOB = "daily_summary"


@dataclass(frozen=True, kw_only=True)
class DailySummary:
    """Whether it is on, and when it is made, by the clock of ``zone``; None: not once a day, by somebody's hand."""

    is_on: bool
    at: time | None
    zone: str


def current() -> DailySummary | None:
    """How it is set; None before the host was prepared."""
    job = PeriodicTask.objects.select_related("crontab").filter(name=JOB).first()
    if job is None:
        return None
    cron = job.crontab
    zone = str(cron.timezone) if cron else settings.TIME_ZONE
    return DailySummary(is_on=job.enabled, at=_time_of(cron), zone=zone)


def _time_of(cron: CrontabSchedule | None) -> time | None:
    if cron is None or (cron.day_of_month, cron.month_of_year, cron.day_of_week) != ("*", "*", "*"):
        return None
    try:
        return time(int(cron.hour), int(cron.minute))
    except ValueError:
        return None


def change(*, is_on: bool, at: time | None) -> None:
    """Switch it, and have it made once a day at a time by TIME_ZONE; None leaves its times as they are. Beat and the
    audit log are told."""
    with transaction.atomic():
        job = PeriodicTask.objects.select_for_update().get(name=JOB)
        job.enabled = is_on
        if at is not None:
            # Other jobs may have the row that it had.
            times = {"minute": str(at.minute), "hour": str(at.hour), "timezone": settings.TIME_ZONE}
            times |= {"day_of_month": "*", "month_of_year": "*", "day_of_week": "*"}
            found = CrontabSchedule.objects.filter(**times).first()
            job.crontab = found or CrontabSchedule.objects.create(**times)
            job.interval = job.solar = job.clocked = None
        job.save()
