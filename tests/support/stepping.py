"""Beat's scheduler under a clock that is stepped."""

from datetime import datetime, timedelta

from django_celery_beat.models import PeriodicTask


def runs_of(job: PeriodicTask, began: datetime, *, hours: int) -> list[datetime]:
    """When beat's scheduler runs a job while its clock is stepped, minute by minute."""
    schedule, last, found = job.schedule, began, []
    for minute in range(hours * 60):
        now = began + timedelta(minutes=minute)
        schedule.nowfun = lambda now=now: now
        if job.enabled and schedule.is_due(last)[0]:
            found.append(now)
            last = now
    return found
