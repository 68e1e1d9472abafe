"""Beat's scheduler on real rows: what it runs, and when its clock was wrong."""

import time
from datetime import timedelta

import pytest
from celery import current_app
from django.db import connection
from django.urls import reverse
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from scheduler.beat import SystemScheduler
from scheduler.system_jobs import sync_system_jobs
from tests.support.wait import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

AHEAD = timedelta(minutes=10)


class Noting(SystemScheduler):
    """Notes what it would run."""

    read_again = 0.0

    def __init__(self) -> None:
        self.notified: list[str] = []
        super().__init__(app=current_app._get_current_object(), max_interval=1)
        self._finalize.cancel()  # which stores at the end of the process, where the rows are gone

    def apply_entry(self, entry, producer=None):
        self.notified.append(entry.name)


@pytest.fixture
def jobs():
    sync_system_jobs()
    PeriodicTask.objects.filter(name="tick").update(
        interval=IntervalSchedule.objects.create(every=1, period=IntervalSchedule.SECONDS)
    )
    return PeriodicTask.objects


def notifies_of_tick(beat: Noting) -> None:
    beat.notified.clear()

    def notified() -> bool:
        beat.tick()
        return "tick" in beat.notified

    wait_until(notified, seconds=20)


def test_a_job_that_last_ran_in_the_future_is_due_by_the_clock_as_it_is(jobs, caplog):
    jobs.update(last_run_at=timezone.now() + AHEAD)
    beat = Noting()
    notifies_of_tick(beat)
    assert "set back" in caplog.text
    assert all(job.last_run_at <= timezone.now() for job in jobs.filter(enabled=True))


def test_so_is_one_of_a_beat_that_runs_while_its_clock_is_set_back(jobs):
    beat = Noting()
    notifies_of_tick(beat)
    # As if all that it has seen had been seen by a clock that was ahead.
    for entry in beat._schedule.values():
        entry.model.last_run_at += AHEAD
    beat._heap = [event._replace(time=event.time + AHEAD.total_seconds()) for event in beat._heap]
    for event in beat._heap:
        event.entry.last_run_at += AHEAD
    notifies_of_tick(beat)
    began = time.time()
    assert all(event.time <= began + 3600 for event in beat._heap if event.entry.name != "daily_summary")


def test_what_ran_in_the_past_is_left_alone(jobs):
    before = timezone.now() - timedelta(seconds=30)
    jobs.filter(name="retention").update(last_run_at=before)
    beat = Noting()
    notifies_of_tick(beat)
    beat.sync()
    assert jobs.get(name="retention").last_run_at == before
    assert "retention" not in beat.notified


@pytest.mark.parametrize(
    ("last_run", "words"), [(AHEAD, " min in the future, by a clock"), (-AHEAD, "late by 10"), (timedelta(0), "")]
)
def test_the_overview_says_which_job_is_late(admin_client, jobs, last_run, words):
    jobs.update(last_run_at=timezone.now())
    jobs.filter(name="tick").update(last_run_at=timezone.now() + last_run)
    page = admin_client.get(reverse("admin:index")).content.decode()
    assert ('data-condition="jobs_late"' in page) == bool(words)
    assert words in page


def test_while_its_jobs_cannot_be_read_those_that_are_known_go_on(jobs, caplog):
    beat = Noting()
    notifies_of_tick(beat)
    table, away = PeriodicTask._meta.db_table, "jobs_that_are_away"
    jobs.get(name="retention").save()  # so they are read again
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {away}")
        try:
            notifies_of_tick(beat)
        finally:
            cursor.execute(f"ALTER TABLE {away} RENAME TO {table}")
    assert "the jobs could not be read" in caplog.text
    jobs.filter(name="tick").update(enabled=False)
    wait_until(lambda: beat.tick() and "tick" not in beat.schedule)
