"""Runs of schedules that have failed for good are told to webhooks, in the transaction that stores it."""

from datetime import UTC, datetime, timedelta

import pytest

from conversations.announced import SCHEDULE_FAILED
from conversations.deliveries import endpoints
from conversations.engine import turn_control
from conversations.models import Conversation, Delivery, Turn
from conversations.statuses import TurnStatus
from scheduler import series
from scheduler.models import ScheduleRun
from scheduler.ticking import tick

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def schedule(owner, agent, conversation):
    """Each hour; somebody is told of what fails."""
    endpoints.make(name="the shop", url="https://example.org/", kinds=[SCHEDULE_FAILED])
    return series.create(
        owner_id=owner.pk, prompt="Secret plans", every_seconds=3600, now=NOW, conversation_id=conversation.pk
    )


def fail_turns() -> None:
    Turn.objects.exclude(status=TurnStatus.FAILED).update(status=TurnStatus.FAILED, ended_at=NOW, error_code="llm_auth")


def told() -> list[dict]:
    return [row.data for row in Delivery.objects.order_by("created_at")]


def test_a_run_is_told_when_it_is_not_tried_again_any_more(schedule):
    now = NOW + HOUR
    for wait in (MINUTE, 5 * MINUTE, timedelta()):
        tick(now=now)
        fail_turns()
        tick(now=now)
        assert bool(told()) == (not wait)
        now += wait
    run = ScheduleRun.objects.get()
    (said,) = told()
    assert (said["scheduleId"], said["runId"], said["turnId"]) == (str(schedule.pk), str(run.pk), str(run.turn_id))
    assert (said["error"], said["attempts"], said["slot"]) == ("llm_auth", 3, (NOW + HOUR).isoformat())
    assert "Secret" not in str(said)
    assert Delivery.objects.get().owner_id == schedule.owner_id


def test_a_run_that_cannot_begin_is_told(schedule):
    turn_control.delete_conversation(schedule.conversation_id)
    assert not Conversation.objects.exists()
    tick(now=NOW + HOUR)
    assert [said["error"] for said in told()] == ["Its conversation was deleted."]


def test_a_run_whose_next_try_cannot_begin_is_told(schedule):
    tick(now=NOW + HOUR)
    fail_turns()
    tick(now=NOW + HOUR)
    turn_control.delete_conversation(schedule.conversation_id)
    tick(now=NOW + HOUR + MINUTE)
    assert [said["error"] for said in told()] == ["Its conversation was deleted."]


def test_a_run_that_is_not_tried_again_since_its_schedule_is_paused_is_told(schedule):
    tick(now=NOW + HOUR)
    fail_turns()
    tick(now=NOW + HOUR)
    assert told() == []
    series.pause(schedule)
    assert [said["error"] for said in told()] == ["llm_auth"]
