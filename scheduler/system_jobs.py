"""The system jobs: rows of django-celery-beat, which ops see and toggle in the admin."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from nanohost.lib.text import duration

# Beat stores when a job last ran every 30 s.
LATE = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class SystemJob:
    """A job of the house. ``times``: how often, or a cron expression in TIME_ZONE, of five fields or, with the second
    first, six. Beat may run it twice or not at all: a job's effect must not depend on it."""

    name: str
    task: str
    times: timedelta | str
    description: str
    enabled: bool = True


SYSTEM_JOBS = (
    SystemJob(
        name="tick",
        task="scheduler.tasks.tick",
        times=timedelta(seconds=5),
        description="Fires the schedules that are due. Without it none runs.",
    ),
    SystemJob(
        name="daily_summary",
        task="scheduler.tasks.daily_summary",
        times=settings.SCHEDULER_DAILY_SUMMARY_CRON,
        description="Summarises, for people, what was said in each conversation on the day before.",
        enabled=settings.SCHEDULER_DAILY_SUMMARY_ENABLED,
    ),
    SystemJob(
        name="heartbeat",
        task="scheduler.tasks.heartbeat",
        times=timedelta(minutes=1),
        description="As often as its page or HEARTBEAT_MINUTES says, asks each agent to do what its HEARTBEAT says.",
    ),
    SystemJob(
        name="retention",
        task="scheduler.tasks.retention",
        times=timedelta(minutes=60),
        description="Forgets workers last heard of more than a week ago, runs of schedules that ended 90 days ago,"
        " and webhooks' deliveries of 30 days ago; deletes files that no message refers to.",
    ),
    SystemJob(
        name="data_retention",
        task="scheduler.tasks.data_retention",
        times=timedelta(minutes=1),
        description="Once a day, in pieces, deletes what is older than its agent's page says; and conversations of one"
        " request of /v1 each after TRANSIENT_DAYS.",
    ),
    SystemJob(
        name="evaluations",
        task="scheduler.tasks.evaluations",
        times=timedelta(minutes=1),
        description="Runs sets of cases by the clock and for changes of agents, makes changes live that have passed,"
        " and stores reports that no worker lived to store.",
    ),
)


def sync_system_jobs(jobs: Iterable[SystemJob] = SYSTEM_JOBS) -> None:
    """Give each system job its row. What people set (interval, enabled) is left as it is."""
    kept = set(PeriodicTask.objects.values_list("name", flat=True))
    for job in jobs:
        if job.name not in kept:
            PeriodicTask.objects.create(
                name=job.name, task=job.task, description=job.description, enabled=job.enabled, **_times(job.times)
            )


def next_run(job: PeriodicTask) -> datetime | None:
    """When beat runs a job next; a time that has passed, if it should have. None: the job is off."""
    if not job.enabled:
        return None
    schedule = job.schedule
    since = (job.last_run_at or job.date_changed).astimezone(schedule.tz)
    due: datetime = timezone.now() + schedule.remaining_estimate(since)
    due = (due + timedelta(seconds=0.5)).replace(microsecond=0)  # two clocks were read, one after the other
    return max(due, job.start_time) if job.start_time else due


def late_jobs(*, now: datetime) -> dict[str, str]:
    """The jobs that are on and should have run by now, each with what is wrong, in plain words."""
    jobs = PeriodicTask.objects.filter(enabled=True).select_related("interval", "crontab", "solar", "clocked")
    return {job.name: wrong for job in jobs.order_by("name") if (wrong := _what_is_wrong(job, now))}


def _what_is_wrong(job: PeriodicTask, now: datetime) -> str:
    if job.last_run_at and job.last_run_at - now > LATE:
        ahead = duration((job.last_run_at - now).total_seconds())
        return f"it last ran {ahead} in the future, by a clock that was ahead. Beat puts that right: is it running?"
    due = next_run(job)
    return f"late by {duration((now - due).total_seconds())}" if due and now - due > LATE else ""


def _times(times: timedelta | str) -> dict[str, Any]:
    """The row django-celery-beat keeps them in. Nothing keeps people from making one twice; any of them will do."""
    if isinstance(times, timedelta):
        every: dict[str, Any] = {"every": times // timedelta(seconds=1), "period": IntervalSchedule.SECONDS}
        if not times % timedelta(minutes=1):
            every = {"every": times // timedelta(minutes=1), "period": IntervalSchedule.MINUTES}
        return {
            "interval": IntervalSchedule.objects.filter(**every).first() or IntervalSchedule.objects.create(**every)
        }
    *second, minute, hour, day, month, weekday = times.split()
    if second not in ([], ["0"]):
        raise ValueError(f"{times!r}: beat's crontab knows no seconds but 0")
    cron: dict[str, Any] = {"minute": minute, "hour": hour, "day_of_month": day, "month_of_year": month}
    cron |= {"day_of_week": weekday, "timezone": settings.TIME_ZONE}
    return {"crontab": CrontabSchedule.objects.filter(**cron).first() or CrontabSchedule.objects.create(**cron)}
