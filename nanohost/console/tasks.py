"""What beat rings for the console."""

from datetime import timedelta

from celery import shared_task

from nanohost.console.figures import refresh
from scheduler.house import HouseJob


@shared_task
def count() -> None:
    """Count what happened, also when nobody looks. Not for long: a worker hears no ring meanwhile."""
    refresh(seconds=1)


HOUSE_JOBS = (
    HouseJob(
        name="count",
        task="nanohost.console.tasks.count",
        times=timedelta(minutes=1),
        description="Counts what happened in each hour, for the overview and for Prometheus.",
    ),
)
