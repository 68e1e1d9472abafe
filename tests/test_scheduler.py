"""The house's own jobs: rows people toggle, which beat runs in the embedded host."""

import pytest
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from conversations.models import Worker
from conversations.worker import forget_dead_workers
from nanohost.lib.clock import from_now
from scheduler.house import sync_house_jobs
from tests.host import Host
from tests.wait import wait_until


@pytest.mark.django_db
def test_the_start_makes_the_house_s_jobs_and_nothing_else():
    sync_house_jobs()
    (job,) = PeriodicTask.objects.all()
    assert (job.name, job.task, job.enabled) == ("retention", "scheduler.tasks.retention", True)
    assert job.description


@pytest.mark.django_db
def test_what_people_set_outlasts_the_next_start():
    sync_house_jobs()
    daily = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.DAYS)
    PeriodicTask.objects.filter(name="retention").update(enabled=False, interval=daily)
    sync_house_jobs()
    (job,) = PeriodicTask.objects.all()
    assert (job.enabled, job.interval) == (False, daily)


@pytest.mark.django_db
def test_an_interval_people_made_twice_keeps_nothing_from_starting():
    for _ in range(2):
        IntervalSchedule.objects.create(every=60, period=IntervalSchedule.MINUTES)
    sync_house_jobs()
    assert PeriodicTask.objects.count() == 1


@pytest.mark.django_db
def test_retention_forgets_workers_not_heard_of_for_a_week():
    for name, days in (("old", 8), ("recent", 6)):
        Worker.objects.create(name=name, version="0", turns_most=1, heartbeat_at=from_now(-days * 86_400))
    assert forget_dead_workers() == 1
    assert [worker.name for worker in Worker.objects.all()] == ["recent"]


# --- through beat, in a running host ------------------------------------------------------------------------------

JOBS = """
from conversations.models import Worker
from django_celery_beat.models import IntervalSchedule, PeriodicTask

second = IntervalSchedule.objects.create(every=1, period="seconds")
PeriodicTask.objects.update(interval=second)
PeriodicTask.objects.create(name="disabled", task="scheduler.tasks.retention", interval=second, enabled=False)
Worker.objects.create(name="old", version="0", turns_most=1, heartbeat_at="2020-01-01T00:00:00Z")
"""


@pytest.fixture
def house(tmp_path):
    """A host whose house job is due every second, as is another that is disabled."""
    host = Host(tmp_path, beat=True)
    assert host.manage("shell", "--no-imports", "-c", JOBS).stderr == ""
    yield host.start()
    host.kill()


def test_beat_runs_the_job_in_the_running_host_and_none_that_is_disabled(house):
    wait_until(lambda: not house.sql("SELECT 1 FROM conversations_worker WHERE name = 'old'"), seconds=30)
    house.stop()  # beat writes its counts down then
    counted = house.sql("SELECT name, total_run_count FROM django_celery_beat_periodictask")
    runs = {job["name"]: job["total_run_count"] for job in counted}
    assert runs.keys() == {"retention", "disabled"}
    assert runs["retention"] > 0
    assert runs["disabled"] == 0
