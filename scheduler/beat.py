"""Beat's scheduler: django-celery-beat's, which also shows that it lives."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django_celery_beat.schedulers import DatabaseScheduler


class HouseScheduler(DatabaseScheduler):
    """Reads the jobs from the database; touches ``WORKER_ALIVE_FILE`` each time it has looked, every 5 s at least."""

    # Seconds until it stores when jobs were last run, which the console shows.
    sync_every = 30

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Ring what is due; returns the seconds until it is to be called again."""
        seconds: float = super().tick(*args, **kwargs)
        if settings.WORKER_ALIVE_FILE:
            Path(settings.WORKER_ALIVE_FILE).touch()
        return seconds
