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
    kept = set(PeriodicTask.objects.values_list("name", flat=True))
    for job in HOUSE_JOBS:
        if job.name not in kept:
            every = {"every": job.minutes, "period": IntervalSchedule.MINUTES}
            # Nothing keeps people from making the same interval twice; any of them will do.
            interval = IntervalSchedule.objects.filter(**every).first() or IntervalSchedule.objects.create(**every)
            PeriodicTask.objects.create(name=job.name, task=job.task, interval=interval, description=job.description)
