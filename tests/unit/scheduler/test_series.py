"""Making and changing schedules: what is refused, with which sentence; and what stays as it was."""

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import pytest

from conversations.models import Turn
from nanohost.lib.errors import NotFound
from scheduler import series
from scheduler.errors import BadSchedule, ScheduleEnded
from scheduler.models import Schedule, ScheduleRun
from scheduler.ticking import tick
from tests.support.factories import AgentFactory

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def create(owner, agent):
    def make(**wishes):
        return series.create(owner_id=owner.pk, **{"now": NOW, "prompt": "What is new?", **wishes})

    return make


# --- making -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "next_at"),
    [
        ({"at": "2026-05-05T09:00", "zone": "Europe/Berlin"}, "2026-05-05T07:00:00+00:00"),
        ({"at": "2026-05-05T09:00+05:00"}, "2026-05-05T04:00:00+00:00"),
        ({"every_seconds": 90}, "2026-05-04T12:01:30+00:00"),
        ({"cron": "30 9 * * MON-FRI", "zone": "America/New_York"}, "2026-05-04T13:30:00+00:00"),
        ({"cron": "30 9 * * MON-FRI"}, "2026-05-05T09:30:00+00:00"),
    ],
)
def test_each_kind_has_its_first_time(create, wishes, next_at):
    made = Schedule.objects.get(pk=create(**wishes).pk)
    assert (made.next_at.isoformat(), made.state) == (next_at, "active")


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        ({"at": "2026-05-04T11:59"}, r"2026-05-04 11:59:00 \(UTC\) has passed; a time to come is needed\."),
        ({"at": "2026-05-04T14:00", "zone": "Europe/Berlin"}, r"14:00:00 \(Europe/Berlin\) has passed"),
        ({"at": "soon"}, "'soon' is not a time"),
        ({"at": "9999-12-31T23:59:59Z", "zone": "Pacific/Kiritimati"}, "not within the years 1970 to 9998"),
        ({"at": "0001-01-01T00:00Z", "zone": "America/New_York"}, "not within the years"),
        ({"cron": "0 0 30 2 *"}, "never matches: there is no such day"),
        ({"cron": "0 0 9 * * *"}, "seconds are not supported"),
        ({"cron": "daily"}, "has five fields"),
        ({"every_seconds": 59}, "from 60 seconds to ten years"),
        ({"every_seconds": 0}, "from 60 seconds to ten years"),
        ({"every_seconds": 10**18}, "from 60 seconds to ten years"),
        ({"cron": "0 9 * * *", "zone": "Mars/Phobos"}, "There is no zone named 'Mars/Phobos'"),
        ({}, "A schedule needs its times"),
        ({"at": "2027-05-05T09:00", "cron": "0 9 * * *"}, "Only one of a time, an interval and a cron expression"),
        ({"every_seconds": 600, "ends_at": "2026-05-04T12:05"}, "would end before it runs"),
        ({"every_seconds": 600, "ends_at": "never"}, "'never' is not a time"),
        ({"every_seconds": 600, "ends_at": "9999-12-31T23:59Z"}, "not within the years"),
        ({"every_seconds": 600, "max_runs": 0}, "runs once at least"),
        ({"every_seconds": 600, "max_runs": 10**10}, "1000000 times at most"),
        ({"every_seconds": 600, "missed": "maybe"}, "one of skip, once, all"),
        ({"every_seconds": 600, "missed_most": 101}, "From 1 to 100 times"),
        ({"every_seconds": 600, "prompt": " \n"}, "needs a prompt"),
        ({"every_seconds": 600, "prompt": "a\0b"}, "null character"),
        ({"every_seconds": 600, "description": "x" * 201}, "200 characters at most"),
        ({"every_seconds": 600, "agent": "nobody"}, "There is no agent named 'nobody'"),
        ({"every_seconds": 600, "agent": "a\0b"}, "There is no agent named"),
        ({"every_seconds": 600, "conversation_id": uuid4()}, "There is no conversation with that id"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(create, wishes, why):
    with pytest.raises(BadSchedule, match=why):
        create(**wishes)
    assert not Schedule.objects.exists()


def test_it_speaks_to_the_agent_of_its_conversation(create, conversation):
    AgentFactory(name="other")
    assert create(every_seconds=60, conversation_id=conversation.pk).agent == conversation.agent
    with pytest.raises(BadSchedule, match="In that conversation 'default' answers, and not 'other'"):
        create(every_seconds=60, conversation_id=conversation.pk, agent="other")


def test_it_does_not_speak_in_somebody_elses_conversation(conversation, outsider):
    with pytest.raises(BadSchedule, match="or it is not yours"):
        series.create(owner_id=outsider.pk, prompt="x", every_seconds=60, conversation_id=conversation.pk)


# --- changing -----------------------------------------------------------------------------------------------------


def test_a_change_of_words_leaves_its_times_alone(create):
    made = create(every_seconds=600)
    changed = series.update(made, now=NOW + 5 * MINUTE, prompt="Anything new?", missed="skip")
    assert (changed.prompt, changed.missed, changed.next_at) == ("Anything new?", "skip", NOW + 10 * MINUTE)
    assert changed.revision == made.revision + 1


def test_a_change_of_times_counts_from_now_and_leaves_what_has_fired(create):
    made = create(every_seconds=600)
    tick(now=NOW + 10 * MINUTE)
    changed = series.update(made, now=NOW + 12 * MINUTE, cron="0 * * * *")
    assert (changed.kind, changed.every_seconds, changed.next_at) == ("cron", None, NOW + HOUR)
    assert (changed.prompt, changed.runs, Turn.objects.count()) == ("What is new?", 1, 1)


def test_a_change_of_zone_moves_its_times(create):
    made = create(cron="0 9 * * *", zone="Europe/Berlin")
    assert series.update(made, now=NOW, zone="Asia/Kolkata").next_at == datetime(2026, 5, 5, 3, 30, tzinfo=UTC)


def test_a_change_that_makes_no_sense_changes_nothing(create):
    made = create(every_seconds=600)
    with pytest.raises(BadSchedule):
        series.update(made, now=NOW, prompt="other", cron="0 0 31 2 *")
    assert Schedule.objects.get().prompt == "What is new?"


@pytest.mark.parametrize(
    "change",
    [
        lambda made, now: series.update(made, now=now, every_seconds=900),
        lambda made, now: series.pause(made, now=now),
        lambda made, now: series.cancel(made, now=now),
    ],
    ids=["changed", "paused", "cancelled"],
)
def test_what_was_due_before_a_change_is_not_lost_from_sight(create, change):
    made = create(every_seconds=600)
    change(made, NOW + 11 * MINUTE)
    run = ScheduleRun.objects.get()
    assert (run.slot, run.state) == (NOW + 10 * MINUTE, "skipped")
    assert "before it ran" in run.error


def test_what_has_ended_goes_on_with_a_new_time(create):
    made = create(at="2026-05-04T12:10", max_runs=5)
    tick(now=NOW + 10 * MINUTE)
    with pytest.raises(BadSchedule, match="has passed"):
        series.update(made, now=NOW + HOUR, zone="Europe/Berlin")
    changed = series.update(made, now=NOW + HOUR, at="2026-05-04T14:00")
    assert (changed.state, changed.next_at) == ("active", NOW + 2 * HOUR)


def test_what_has_run_as_often_as_it_may_needs_a_higher_number(create):
    made = create(every_seconds=600, max_runs=1)
    tick(now=NOW + 10 * MINUTE)
    with pytest.raises(BadSchedule, match="It has run 1 times already, and is to run 1 times"):
        series.update(made, now=NOW + HOUR, every_seconds=60)
    assert series.update(made, now=NOW + HOUR, max_runs=2).state == "active"


# --- pausing, resuming, cancelling --------------------------------------------------------------------------------


def test_what_is_paused_does_not_run_and_goes_on_with_its_next_time(create):
    made = series.pause(create(every_seconds=600), now=NOW)
    assert (made.state, made.paused_because) == ("paused", "Paused by hand.")
    assert tick(now=NOW + HOUR + MINUTE) == 0
    resumed = series.resume(made, now=NOW + HOUR + MINUTE)
    assert (resumed.state, resumed.paused_because, resumed.next_at) == ("active", "", NOW + HOUR + 10 * MINUTE)
    assert not ScheduleRun.objects.exists()


def test_a_change_does_not_resume(create):
    made = series.pause(create(every_seconds=600), now=NOW)
    assert series.update(made, now=NOW, every_seconds=900).state == "paused"


def test_to_resume_forgets_failures(create):
    made = create(every_seconds=600)
    series.pause(made, now=NOW)
    Schedule.objects.update(failures=3)
    assert series.resume(made, now=NOW).failures == 0


def test_a_time_that_passed_in_a_pause_is_told_of_when_it_is_resumed(create):
    made = series.pause(create(at="2026-05-04T12:10"), now=NOW)
    with pytest.raises(BadSchedule, match="has passed; a time to come is needed"):
        series.resume(made, now=NOW + HOUR)


def test_a_schedule_whose_zone_is_gone_is_resumed_in_another(create):
    """As after an update of the zones' names: the tick has paused it, and said why."""
    made = series.pause(create(cron="0 9 * * *"), now=NOW)
    Schedule.objects.update(zone="Mars/Phobos")
    for change in (series.resume, partial(series.update, max_runs=3)):
        with pytest.raises(BadSchedule, match="There is no zone named 'Mars/Phobos'"):
            change(made, now=NOW)
    series.update(made, now=NOW, zone="Europe/Berlin")
    assert series.resume(made, now=NOW).state == "active"


def test_what_has_ended_is_neither_paused_nor_resumed(create):
    made = create(at="2026-05-04T12:10")
    tick(now=NOW + 10 * MINUTE)
    for change in (series.pause, series.resume):
        with pytest.raises(ScheduleEnded):
            change(made, now=NOW + HOUR)


@pytest.mark.parametrize("change", [series.pause, series.cancel])
def test_what_failed_is_not_tried_again_after(create, change):
    made = create(every_seconds=3600)
    tick(now=NOW + HOUR)
    Turn.objects.update(status="failed", error_code="llm_auth")
    tick(now=NOW + HOUR)
    change(made, now=NOW + HOUR)
    assert tick(now=NOW + HOUR + MINUTE) == 0
    run = ScheduleRun.objects.get()
    assert (run.state, run.error, run.ended_at) == ("failed", "llm_auth", NOW + HOUR)


def test_what_is_cancelled_runs_no_more_and_keeps_its_ledger(create):
    made = create(every_seconds=600)
    tick(now=NOW + 10 * MINUTE)
    series.cancel(made, now=NOW + 11 * MINUTE)
    assert tick(now=NOW + HOUR) == 0
    assert (Schedule.objects.get().state, ScheduleRun.objects.count()) == ("cancelled", 1)
    with pytest.raises(NotFound):
        series.resume(made)


# --- by hand, and ahead -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [lambda made: made, lambda made: series.pause(made, now=NOW)])
def test_run_now_makes_a_turn_and_leaves_its_times_and_count(create, before):
    made = before(create(every_seconds=600, max_runs=1))
    run = series.run_now(made, now=NOW + MINUTE)
    stored = Schedule.objects.get()
    assert (run.by_hand, run.slot, Turn.objects.get().pk) == (True, NOW + MINUTE, run.turn_id)
    assert (stored.next_at, stored.runs, stored.state) == (NOW + 10 * MINUTE, 0, made.state)


def test_run_now_in_a_conversation_that_is_gone_says_so(create, conversation):
    made = create(every_seconds=600, conversation_id=conversation.pk)
    conversation.delete()
    run = series.run_now(made, now=NOW)
    assert (run.state, run.error) == ("failed", "Its conversation was deleted.")


def test_the_next_times_end_where_it_does(create):
    assert len(series.upcoming(create(every_seconds=600), now=NOW)) == 10
    assert len(series.upcoming(create(every_seconds=600, max_runs=3), now=NOW)) == 3
    assert len(series.upcoming(create(every_seconds=600, ends_at="2026-05-04T13:00"), now=NOW)) == 6
    ended = create(at="2026-05-04T12:10")
    tick(now=NOW + 10 * MINUTE)
    assert series.upcoming(Schedule.objects.get(pk=ended.pk), now=NOW) == []


def test_a_draft_is_not_stored(db):
    drafted = series.draft(cron="30 2 * * *", zone="Europe/Berlin", now=datetime(2026, 10, 24, 12, 0, tzinfo=UTC))
    (first, *_) = series.upcoming(drafted, now=datetime(2026, 10, 24, 12, 0, tzinfo=UTC))
    assert first.note == "02:30 comes twice on that day: it runs the first time."
    assert not Schedule.objects.exists()
