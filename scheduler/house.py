"""The house's own jobs: rows of django-celery-beat, which ops see and toggle in the admin."""

from dataclasses import dataclass

from django_celery_beat.models import IntervalSchedule, PeriodicTask


@dataclass(frozen=True, kw_only=True)
class HouseJob:
    """A job of the house, every so many ``minutes``."""

    name: str
    task: str
    minutes: int
    description: str


HOUSE_JOBS = (
    HouseJob(
        name="retention",
        task="scheduler.tasks.retention",
        minutes=60,
        description="Forgets workers that ended, or were last heard of, more than a week ago.",
    ),
)


def sync_house_jobs() -> None:
    """Give each house job its row. What people set (interval, enabled) is left as it is."""
    for job in HOUSE_JOBS:
        interval, _ = IntervalSchedule.objects.get_or_create(every=job.minutes, period=IntervalSchedule.MINUTES)
        PeriodicTask.objects.get_or_create(
            name=job.name, defaults={"task": job.task, "interval": interval, "description": job.description}
        )
