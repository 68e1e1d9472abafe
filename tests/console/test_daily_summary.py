"""The page of the daily summary: one switch, one time, and what came of it."""

from datetime import date

import pytest
from django.urls import reverse
from django_celery_beat.models import CrontabSchedule, PeriodicTask

from conversations.models import Compaction, CompactionKind, Message
from nanohost.accounts.models import AuditEntry
from nanohost.console.roles import OPERATOR, VIEWER, sync_roles
from scheduler.system_jobs import sync_system_jobs
from tests.support.console_client import HOSTILE, client_of

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = reverse("daily_summary")


def test_it_is_switched_and_timed_by_whoever_may_switch_jobs(conversation):
    sync_system_jobs()
    sync_roles()
    viewer, operator = client_of(VIEWER), client_of(OPERATOR)
    job = PeriodicTask.objects.get(name="daily_summary")
    other = PeriodicTask.objects.create(name="other", task="x", crontab=job.crontab)
    assert viewer.post(PAGE, {"is_on": "on", "at": "07:30"}).status_code == 403
    assert operator.post(PAGE, {"is_on": "on", "at": "25:99"}).status_code == 400
    assert operator.post(PAGE, {"is_on": "on", "at": "07:30"}).status_code == 302
    job.refresh_from_db()
    assert (job.enabled, job.crontab.hour, job.crontab.minute) == (True, "7", "30")
    other.refresh_from_db()
    assert other.crontab.hour == "9"  # whose row it was as well
    assert AuditEntry.objects.filter(action="job.changed", actor="user of operator").exists()
    assert "<strong>On</strong>, at 07:30 (UTC)" in viewer.get(PAGE).content.decode()
    job.crontab = CrontabSchedule.objects.create(minute="0", hour="9", day_of_week="1-5")
    job.save()
    assert "set by hand" in operator.get(PAGE).content.decode()
    operator.post(PAGE, {})  # off, and no other times
    job.refresh_from_db()
    assert (job.enabled, job.crontab.day_of_week) == (False, "1-5")


def test_the_latest_summaries_stand_below(conversation, admin_client):
    sync_system_jobs()
    assert "None yet." in admin_client.get(PAGE).content.decode()
    said = {"conversation": conversation, "keep_tokens": 0, "cost": 0}
    Message.objects.create(
        conversation=conversation, seq=7, role="user", type="SUMMARY", kind="daily", content=f"They met. {HOSTILE}"
    )
    Compaction.objects.create(kind=CompactionKind.DAILY, day=date(2026, 3, 4), summary_seq=7, status="done", **said)
    Compaction.objects.create(kind=CompactionKind.ROLLING, status="done", **said)
    page = admin_client.get(PAGE).content.decode()
    assert page.count("<article>") == 1
    assert "2026-03-04" in page
    assert "They met. &lt;script&gt;" in page
