"""The console's Celery tasks that beat runs."""

from datetime import timedelta

from celery import shared_task

from nanohost.console.figures import refresh
from scheduler.job_runs import recorded, told
from scheduler.system_jobs import SystemJob


@shared_task
def count() -> None:
    """Count what happened, also when nobody looks. Not for long: a worker receives no notification meanwhile."""
    with recorded("count") as report:
        # This hour is counted each time.
        report.did = told(max(0, refresh(seconds=1) - 1), "earlier hour counted", "earlier hours counted")


SYSTEM_JOBS = (
    SystemJob(
        name="count",
        task="nanohost.console.tasks.count",
        times=timedelta(minutes=1),
        description="Counts what happened in each hour, for the overview and for Prometheus.",
    ),
)
