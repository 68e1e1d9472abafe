"""The house's own jobs: rows people toggle, which beat runs in the embedded host."""

import contextlib
import html
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from celery import current_app
from django.urls import reverse
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from conversations.engine.worker import forget_dead_workers
from conversations.models import Worker
from nanohost.console import tasks
from nanohost.lib.clock import from_now
from scheduler import tasks as house_tasks
from scheduler.daily import covered
from scheduler.job_runs import recorded
from scheduler.models import JobRun
from scheduler.system_jobs import SYSTEM_JOBS, SystemJob, sync_system_jobs
from tests.support.api_client import chat, start
from tests.support.hosts import Host
from tests.support.stepping import runs_of
from tests.support.wait import wait_until


@pytest.mark.django_db
def test_the_start_makes_the_house_s_jobs_and_nothing_else():
    sync_system_jobs()
    jobs = {job.name: (job.task, str(job.interval), job.enabled) for job in PeriodicTask.objects.all()}
    assert jobs == {
        "tick": ("scheduler.tasks.tick", "every 5 seconds", True),
        "daily_summary": ("scheduler.tasks.daily_summary", "None", False),
        "heartbeat": ("scheduler.tasks.heartbeat", "every minute", True),
        "retention": ("scheduler.tasks.retention", "every 60 minutes", True),
        "data_retention": ("scheduler.tasks.data_retention", "every minute", True),
        "evaluations": ("scheduler.tasks.evaluations", "every minute", True),
    }
    assert str(PeriodicTask.objects.get(name="daily_summary").crontab).startswith("0 9 * * *")
    assert all(PeriodicTask.objects.values_list("description", flat=True))


@pytest.mark.django_db
def test_what_people_set_outlasts_the_next_start():
    sync_system_jobs()
    daily = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.DAYS)
    PeriodicTask.objects.filter(name="retention").update(enabled=False, interval=daily)
    sync_system_jobs()
    job = PeriodicTask.objects.get(name="retention")
    assert (job.enabled, job.interval) == (False, daily)


@pytest.mark.django_db
def test_an_interval_people_made_twice_keeps_nothing_from_starting():
    for _ in range(2):
        IntervalSchedule.objects.create(every=60, period=IntervalSchedule.MINUTES)
    sync_system_jobs()
    assert PeriodicTask.objects.filter(name="retention").count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("cron", ["30 9 * * 1-5", "0 30 9 * * 1-5"])
def test_a_job_by_cron_goes_by_the_local_clock_and_may_start_disabled(cron, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    jobs = [SystemJob(name="daily", task="scheduler.tasks.retention", times=cron, description="x", enabled=False)]
    for _ in range(2):
        sync_system_jobs(jobs)
    job = PeriodicTask.objects.get()
    assert (job.enabled, str(job.crontab.timezone)) == (False, "Europe/Berlin")
    assert (job.crontab.minute, job.crontab.hour, job.crontab.day_of_week) == ("30", "9", "1-5")


@pytest.mark.django_db
def test_a_job_at_some_second_is_refused():
    jobs = [SystemJob(name="daily", task="scheduler.tasks.retention", times="7 30 9 * * *", description="x")]
    with pytest.raises(ValueError, match="knows no seconds but 0"):
        sync_system_jobs(jobs)


@pytest.mark.django_db
def test_retention_forgets_workers_not_heard_of_for_a_week():
    for name, days in (("old", 8), ("recent", 6)):
        Worker.objects.create(name=name, version="0", turns_most=1, heartbeat_at=from_now(-days * 86_400))
    assert forget_dead_workers() == 1
    assert [worker.name for worker in Worker.objects.all()] == ["recent"]


# --- in the admin --------------------------------------------------------------------------------------------------


def line_of(client, name):
    """The cells of a job in the list, by their column."""
    page = client.get(reverse("admin:django_celery_beat_periodictask_changelist")).content.decode()
    row = next(row for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL) if f">{name}</a>" in row)
    return {cell[0]: cell[1] for cell in re.findall(r'class="field-(\w+)[^>]*>(.*?)</t[dh]>', row, re.DOTALL)}


@pytest.mark.django_db
def test_the_list_shows_when_each_job_runs_next(admin_client, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    sync_system_jobs()
    now = timezone.now()
    jobs = PeriodicTask.objects
    jobs.filter(name="retention").update(last_run_at=now - timedelta(minutes=20))
    jobs.filter(name="daily_summary").update(enabled=True, last_run_at=now)
    local = now.astimezone(ZoneInfo("Europe/Berlin"))
    nine = local.replace(hour=9, minute=0, second=0, microsecond=0)
    if nine <= local:
        nine = nine + timedelta(days=1)  # of the clock on the wall
    # What is left is counted from when the page is made.
    shown = datetime.fromisoformat(re.search('datetime="([^"]*)"', line_of(admin_client, "retention")["next_run"])[1])
    assert timedelta(0) <= shown - (now + timedelta(minutes=39, seconds=59)) < timedelta(minutes=1)
    assert f'title="{nine:%Y-%m-%d %H:%M:%S %Z}"' in line_of(admin_client, "daily_summary")["next_run"]


@pytest.mark.django_db
def test_a_job_that_is_off_runs_never_and_one_that_nobody_ran_is_late(admin_client):
    sync_system_jobs()
    jobs = PeriodicTask.objects
    jobs.filter(name="retention").update(enabled=False)
    jobs.filter(name="heartbeat").update(last_run_at=timezone.now() - timedelta(hours=3, minutes=1))
    jobs.filter(name="tick").update(last_run_at=timezone.now() - timedelta(seconds=40))  # beat stores it so often
    assert line_of(admin_client, "retention")["next_run"].strip() == "–"
    assert "3 h ago</time>, late" in line_of(admin_client, "heartbeat")["next_run"]
    assert "late" not in line_of(admin_client, "tick")["next_run"]


@pytest.mark.django_db
def test_jobs_lead_to_what_they_did(admin_client):
    sync_system_jobs()
    for name, page in [("tick", "schedulerun"), ("heartbeat", "checkin"), ("daily_summary", "compaction")]:
        address = re.search('href="([^"]*)"', line_of(admin_client, name)["what_it_did"])[1]
        assert admin_client.get(address).context["cl"].model.__name__.lower() == page


@pytest.mark.django_db
def test_no_job_of_the_house_is_deleted_by_whatever_way(admin_client):
    sync_system_jobs((*SYSTEM_JOBS, *tasks.SYSTEM_JOBS))
    every = PeriodicTask.objects.count()
    own = PeriodicTask.objects.create(name="own", task="x", interval=IntervalSchedule.objects.create(every=7))

    def delete(model, row):
        page = f"admin:django_celery_beat_{model}"
        answers = [
            admin_client.post(reverse(f"{page}_delete", args=[row.pk]), {"post": "yes"}),
            admin_client.post(
                reverse(f"{page}_changelist"),
                {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"},
            ),
        ]
        return [html.unescape(answer.content.decode()) for answer in answers]

    for job in PeriodicTask.objects.exclude(pk=own.pk):
        model, times = ("interval", job.interval) if job.interval else ("crontab", job.crontab)
        for shown in (*delete("periodictask", job), *delete(f"{model}schedule", times)):
            assert "a job of the host itself: it can be switched off, but not deleted." in shown, job.name
    assert PeriodicTask.objects.count() == every + 1
    page = reverse("admin:django_celery_beat_periodictask_change", args=[PeriodicTask.objects.get(name="tick").pk])
    assert 'name="name"' not in admin_client.get(page).content.decode()
    delete("periodictask", own)
    assert PeriodicTask.objects.count() == every


# --- what they did -------------------------------------------------------------------------------------------------


def runs():
    return list(JobRun.objects.order_by("id").values_list("job", "state", "did", "times"))


@pytest.mark.django_db
def test_every_job_of_the_house_leaves_a_record(admin_client, owner, agent):
    sync_system_jobs((*SYSTEM_JOBS, *tasks.SYSTEM_JOBS))
    for job in PeriodicTask.objects.all():
        current_app.tasks[job.task]()
        assert JobRun.objects.get(job=job.name).state == "ok"
        assert ": ok, " in line_of(admin_client, job.name)["last"]
        assert "nothing to do" in line_of(admin_client, job.name)["what_it_did"]
    Worker.objects.create(name="old", version="0", turns_most=1, heartbeat_at="2020-01-01T00:00:00Z")
    JobRun.objects.create(job="x", state="ok", started_at="2020-01-01T00:00:00Z")
    house_tasks.retention()
    assert "1 worker forgotten, 1 old row" in line_of(admin_client, "retention")["what_it_did"]
    address = re.search('href="([^"]*)"', line_of(admin_client, "retention")["last"])[1]
    assert [run.job for run in admin_client.get(address).context["cl"].result_list] == ["retention"] * 2


@pytest.mark.django_db
def test_runs_that_find_nothing_to_do_share_a_row_and_others_have_their_own():
    def run(did="", error=None):
        with contextlib.suppress(ZeroDivisionError), recorded("job") as report:
            report.did = did
            if error:
                raise error

    for did in ("", "", "", "3 turns made", "", ""):
        run(did)
    run(error=ZeroDivisionError())
    run()
    assert runs() == [
        ("job", "ok", "", 3),
        ("job", "ok", "3 turns made", 1),
        ("job", "ok", "", 2),
        ("job", "failed", "", 1),
        ("job", "ok", "", 1),
    ]
    assert JobRun.objects.get(state="failed").error == "ZeroDivisionError"
    assert not JobRun.objects.filter(ended_at=None)
    in_order = JobRun.objects.order_by("id").values_list("pk", flat=True)
    assert list(in_order) == list(in_order.order_by("started_at"))


@pytest.mark.django_db
def test_one_whose_worker_died_is_told_as_such():
    with contextlib.suppress(SystemExit), recorded("job"):
        raise SystemExit
    assert runs() == [("job", "running", "", 1)]
    with recorded("job"):
        pass
    assert [state for _, state, *_ in runs()] == ["running", "ok"]
    JobRun.objects.update(started_at=timezone.now() - timedelta(hours=2), did="x")
    with recorded("job"):
        pass
    assert [state for _, state, *_ in runs()] == ["died", "ok", "ok"]


# --- the daily summary ---------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("day", [datetime(2026, 3, 28, 8), datetime(2026, 10, 24, 8), datetime(2026, 11, 20, 8)])
def test_it_runs_at_nine_by_the_local_clock_once_a_day_if_it_is_on(day, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    sync_system_jobs()
    job = PeriodicTask.objects.get(name="daily_summary")
    zone = ZoneInfo("Europe/Berlin")
    began = day.replace(tzinfo=zone).astimezone(UTC)
    assert runs_of(job, began, hours=51) == []
    job.enabled = True
    local = [moment.astimezone(zone) for moment in runs_of(job, began, hours=51)]
    assert [(moment.hour, moment.minute) for moment in local] == [(9, 0)] * 3
    assert len({moment.date() for moment in local}) == 3


@pytest.mark.parametrize(
    ("now", "hours"),
    [("2026-11-22T08:00+01:00", 24), ("2026-10-26T09:00+01:00", 25), ("2026-03-30T09:00+02:00", 23)],
)
def test_it_covers_yesterday_however_long_that_was(now, hours, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    moment = datetime.fromisoformat(now)
    day, since, until = covered(moment)
    assert day == moment.date() - timedelta(days=1)
    assert (until.astimezone(UTC) - since.astimezone(UTC)) == timedelta(hours=hours)
    assert until.astimezone(ZoneInfo("Europe/Berlin")).hour == 0


def test_or_the_last_24_hours(settings):
    settings.SCHEDULER_DAILY_SUMMARY_COVERS = "last-24h"
    moment = datetime(2026, 11, 22, 8, tzinfo=UTC)
    assert covered(moment) == (moment.date(), moment - timedelta(hours=24), moment)


# The minute that just is stands for nine o'clock: the job was last looked at before it began.
SWITCH = """
from datetime import UTC, datetime, timedelta
from conversations.models import Worker
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

now = datetime.now(UTC)
second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
this_minute, _ = CrontabSchedule.objects.get_or_create(minute=now.minute, hour=now.hour, timezone="UTC")
job = PeriodicTask.objects.get(name="daily_summary")
job.crontab, job.enabled, job.last_run_at = this_minute, %s, now - timedelta(hours=2)
job.save()
job = PeriodicTask.objects.get(name="retention")
job.interval = second
job.save()
Worker.objects.create(name="old", version="0", turns_most=1, heartbeat_at="2020-01-01T00:00:00Z")
"""


def test_switched_on_it_writes_summaries_and_switched_off_it_does_not(tmp_path):
    host = Host(tmp_path, beat=True, SCHEDULER_DAILY_SUMMARY_COVERS="last-24h").start()

    def summaries(conversation):
        with host.client() as client:
            found = client.get(f"/conversations/{conversation}/messages").json()["results"]
        return [message["content"] for message in found if message["type"] == "SUMMARY"]

    def switch(on):
        """Returns when workers were notified of the house's jobs since."""
        assert host.manage("shell", "--no-imports", "-c", SWITCH % on).stderr == ""
        wait_until(lambda: not host.sql("SELECT 1 FROM conversations_worker WHERE name = 'old'"), seconds=30)

    try:
        with host.client() as client:
            first, second = start(client), start(client)
            chat(client, first, "Roses are red.")
        switch(True)
        wait_until(lambda: summaries(first))
        switch(False)
        with host.client() as client:
            chat(client, second, "Violets are blue.")
        switch(False)
        assert (summaries(first), summaries(second)) == (["The user said: Roses are red."], [])
    finally:
        host.kill()


# --- through beat, in a running host ------------------------------------------------------------------------------

JOBS = """
from conversations.models import Worker
from django_celery_beat.models import IntervalSchedule, PeriodicTask

second = IntervalSchedule.objects.create(every=1, period="seconds")
PeriodicTask.objects.update(interval=second)
PeriodicTask.objects.create(name="disabled", task="scheduler.tasks.retention", interval=second, enabled=False)
Worker.objects.create(name="old", version="0", turns_most=1, heartbeat_at="2020-01-01T00:00:00Z")

from datetime import timedelta
from django.contrib.auth import get_user_model
from nanohost.lib import clock
from scheduler import series

while_it_was_down = clock.read() - timedelta(minutes=3)
series.create(owner_id=get_user_model().objects.get(username="admin").pk, prompt="Hello", now=while_it_was_down,
              at=(while_it_was_down + timedelta(minutes=1)).isoformat())
"""


@pytest.fixture
def house(tmp_path):
    """A host whose system jobs are due every second, as is another that is disabled, and a schedule since a while."""
    host = Host(tmp_path, beat=True)
    assert host.manage("shell", "--no-imports", "-c", JOBS).stderr == ""
    yield host.start()
    host.kill()


def test_beat_runs_the_jobs_in_the_running_host_and_none_that_is_disabled(house):
    wait_until(lambda: not house.sql("SELECT 1 FROM conversations_worker WHERE name = 'old'"), seconds=30)
    fired = "SELECT lag_ms, attempts FROM scheduler_schedulerun WHERE state = 'fired' AND ended_at IS NOT NULL"
    wait_until(lambda: house.sql(fired), seconds=30)
    assert house.sql(fired)[0]["lag_ms"] > 100_000
    house.stop()  # beat writes its counts down then
    counted = house.sql("SELECT name, total_run_count FROM django_celery_beat_periodictask")
    runs = {job["name"]: job["total_run_count"] for job in counted}
    of_the_house = {"tick", "heartbeat", "retention", "data_retention", "daily_summary", "evaluations"}
    assert runs.keys() == of_the_house | {"count", "disabled"}
    assert runs["retention"] > 0
    assert runs["disabled"] == 0
