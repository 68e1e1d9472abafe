"""Beat's scheduler: django-celery-beat's, which also shows that it lives, and survives a clock that is set back."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django_celery_beat.schedulers import DatabaseScheduler

logger = logging.getLogger(__name__)

# Clocks are set right by fractions of a second all the time.
_SLIGHTLY = timedelta(seconds=1)


class SystemScheduler(DatabaseScheduler):
    """Reads the jobs from the database; touches ``WORKER_ALIVE_FILE`` each time it has looked, every 5 s at least.

    A job that last ran in the future did so by a clock that was ahead, this process's own or a former one's. Celery
    would let it run again once the clock has caught up; here it counts as run just now.
    """

    # Seconds until it stores when jobs were last run, which the console shows.
    sync_every = 30

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send the tasks that are due; returns the seconds until it is to be called again."""
        seconds: float = super().tick(*args, **kwargs)
        if self._come_back_from_the_future():
            seconds = 0.0
        if settings.WORKER_ALIVE_FILE:
            Path(settings.WORKER_ALIVE_FILE).touch()
        return seconds

    def _come_back_from_the_future(self) -> bool:
        """Whether there were jobs that last ran in the future. When each is due is then found out anew."""
        now = datetime.now(UTC)
        entries = list((self._schedule or {}).values())
        ahead = [entry for entry in entries if entry.model.last_run_at > now + _SLIGHTLY]
        if not ahead:
            return False
        names = ", ".join(sorted(entry.name for entry in ahead))
        most = max(entry.model.last_run_at for entry in ahead) - now
        logger.warning(
            "the clock was set back by %.0f s; these jobs are due by it as it is now: %s", most.total_seconds(), names
        )
        for entry in ahead:
            entry.model.last_run_at = now
            self._dirty.add(entry.name)
        for entry in entries:  # those on the heap have gone on from them
            entry.last_run_at = entry.model.last_run_at
        self._heap = None  # type: ignore[assignment]  # made anew at the next look
        self.sync()  # type: ignore[no-untyped-call]
        return True
