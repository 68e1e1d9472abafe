"""The record of system jobs: when each ran, how long, how it ended, what it did.

A job that runs every few seconds and mostly finds nothing to do would fill a table with that. So such runs in a row
share a row; only what did something, failed or was cut short has one of its own.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import Error
from django.db.models import F

from nanohost.lib import clock
from nanohost.lib.clock import Now, from_now
from scheduler.models import JobRun, JobState

KEPT_FOR = timedelta(days=14)
# No job of the house runs so long: one that has not ended by then was cut short.
LONGEST = timedelta(hours=1)


@dataclass
class Report:
    """``did``: what was done, in a few words; "" if there was nothing to do."""

    did: str = ""


@contextmanager
def recorded(job: str) -> Iterator[Report]:
    """Write down a run of a job: what is done inside, as it is reported. What it raises goes on."""
    row, former = _begin(job)
    report, began = Report(), time.monotonic()
    try:
        yield report
    except Exception as error:
        with suppress(Error):  # the database may be what failed
            _end(row, former, began, JobState.FAILED, error=type(error).__name__)
        raise
    _end(row, former, began, JobState.OK, did=report.did)


def told(number: int, one: str, many: str) -> str:
    """So many of something; "" for none."""
    return f"{number} {one if number == 1 else many}" if number else ""


def forget_old() -> int:
    """Delete the record of times long past; returns how many rows."""
    return JobRun.objects.filter(started_at__lt=from_now(-KEPT_FOR.total_seconds())).delete()[0]


def _begin(job: str) -> tuple[JobRun, datetime | None]:
    """The row of this run; and when the last one began that found nothing to do, if it is that one's."""
    now = clock.read()
    last = JobRun.objects.filter(job=job).order_by("-id").first()
    if last and JobRun.objects.filter(pk=last.pk, state=JobState.OK, did="").update(
        state=JobState.RUNNING, started_at=now
    ):
        return last, last.started_at
    cut_short = JobRun.objects.filter(job=job, state=JobState.RUNNING, started_at__lt=now - LONGEST)
    cut_short.update(state=JobState.DIED, ended_at=now)
    return JobRun.objects.create(job=job, started_at=now), None


def _end(
    row: JobRun, former: datetime | None, began: float, state: JobState, *, did: str = "", error: str = ""
) -> None:
    outcome = {"state": state, "did": did[:200], "error": error[:200], "ended_at": Now()}
    outcome["duration_ms"] = round((time.monotonic() - began) * 1000)
    mine = JobRun.objects.filter(pk=row.pk)
    if former is None:
        mine.update(**outcome)
    elif state == JobState.OK and not did:
        mine.update(times=F("times") + 1, **outcome)
    else:
        started_at = mine.values_list("started_at", flat=True).first() or former
        mine.update(state=JobState.OK, started_at=former)
        JobRun.objects.filter(pk=JobRun.objects.create(job=row.job, started_at=started_at).pk).update(**outcome)
