"""Beat's scheduler: django-celery-beat's, which also shows that it lives, and survives a clock that is set back and a
database that is away."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django_celery_beat.schedulers import SCHEDULE_SYNC_MAX_INTERVAL, DatabaseScheduler

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
    # Seconds until it looks for its jobs again, after it could not read them.
    read_again = 5.0

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send the tasks that are due; returns the seconds until it is to be called again."""
        seconds: float = super().tick(*args, **kwargs)
        if self._come_back_from_the_future():
            seconds = 0.0
        if settings.WORKER_ALIVE_FILE:
            Path(settings.WORKER_ALIVE_FILE).touch()
        return seconds

    def all_as_schedule(self) -> dict[str, Any]:
        """The jobs as they are; those that are known, while the database is away."""
        try:
            found: dict[str, Any] = super().all_as_schedule()  # type: ignore[no-untyped-call]
            return found
        except (DatabaseError, InterfaceError) as error:
            if self._schedule is None:  # it has just been started, and whoever did so may do it again
                raise
            logger.warning("the jobs could not be read (%s); those that are known go on", type(error).__name__)
            # django-celery-beat would read them again after some minutes.
            self._last_full_sync = datetime.now() - timedelta(seconds=SCHEDULE_SYNC_MAX_INTERVAL - self.read_again)  # noqa: DTZ005 -- as it is set there
            known: dict[str, Any] = self._schedule
            return known

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
