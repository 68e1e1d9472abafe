"""The tick, on rows of the tests' own clock: what fires, what is made up for, what fails, and what the ledger says."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from conversations.engine import turn_control
from conversations.models import Conversation, Message, Turn
from conversations.statuses import TurnStatus
from scheduler import runs, series
from scheduler.models import Schedule, ScheduleRun
from scheduler.ticking import fire, tick
from tests.support.working import advance

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=seconds) for seconds in (1, 60, 3600, 86_400))


@pytest.fixture
def schedule(owner, agent):
    """Make one: ``schedule(cron="0 * * * *")``; at noon, unless ``now`` is given."""

    def make(**wishes):
        wishes = {"now": NOW, "prompt": "What is new?", "zone": "Europe/Berlin", **wishes}
        return series.create(owner_id=owner.pk, **wishes)

    return make


def ledger(schedule):
    """Its times since noon in minutes, and what became of each."""
    rows = ScheduleRun.objects.filter(schedule=schedule).order_by("slot")
    return [((run.slot - NOW) // MINUTE, run.state) for run in rows]


def last_run(schedule):
    return ScheduleRun.objects.filter(schedule=schedule).latest("slot")


def end_turn(run, status, **fields):
    """As its worker ends it."""
    Turn.objects.filter(pk=run.turn_id).update(status=status, ended_at=NOW, **fields)


def fail_turn(run):
    end_turn(run, TurnStatus.FAILED, error_code="llm_auth")


# --- firing -------------------------------------------------------------------------------------------------------


def test_what_is_due_makes_one_turn_and_one_row_and_moves_on(schedule):
    made = schedule(every_seconds=600)
    assert tick(now=NOW + 10 * MINUTE - SECOND) == 0
    assert tick(now=NOW + 10 * MINUTE + SECOND) == 1
    run, turn = last_run(made), Turn.objects.get()
    assert (run.slot, run.state, run.turn_id, run.lag_ms, run.attempts) == (
        NOW + 10 * MINUTE,
        "fired",
        turn.pk,
        1000,
        1,
    )
    assert (turn.messages.get().content, turn.status) == ("What is new?", TurnStatus.QUEUED)
    made.refresh_from_db()
    assert (made.next_at, made.runs) == (NOW + 20 * MINUTE, 1)


def test_a_second_tick_finds_nothing(schedule):
    schedule(every_seconds=600)
    assert [tick(now=NOW + 11 * MINUTE) for _ in range(3)] == [1, 0, 0]
    assert Turn.objects.count() == 1


def test_who_comes_second_with_an_earlier_look_fires_nothing(schedule):
    seen = Schedule.objects.get(pk=schedule(every_seconds=600, missed="all").pk)
    assert [fire(seen, now=NOW + 11 * MINUTE) for _ in range(2)] == [1, 0]
    assert Schedule.objects.get().runs == 1


@pytest.mark.parametrize("change", [{"prompt": "Something else."}, {"every_seconds": 1200}])
def test_what_was_changed_since_it_was_looked_at_is_not_fired_as_it_was(schedule, change):
    seen = Schedule.objects.get(pk=schedule(every_seconds=600).pk)
    series.update(seen, now=NOW + 9 * MINUTE, **change)
    assert fire(seen, now=NOW + 11 * MINUTE) == 0
    assert not Turn.objects.exists()


def test_a_time_that_stands_in_the_ledger_is_not_fired_again_whatever_the_clock_says(schedule):
    made = schedule(every_seconds=600)
    tick(now=NOW + 11 * MINUTE)
    Schedule.objects.filter(pk=made.pk).update(next_at=NOW + 10 * MINUTE)
    runs.open_runs(made).update(ended_at=NOW)
    assert tick(now=NOW + 11 * MINUTE) == 0
    made.refresh_from_db()
    assert (Turn.objects.count(), made.state, made.next_at) == (1, "active", NOW + 20 * MINUTE)


def test_it_goes_by_the_databases_clock(schedule):
    made = schedule(every_seconds=600)
    Schedule.objects.filter(pk=made.pk).update(next_at=datetime(2026, 1, 1, tzinfo=UTC), phase=NOW - DAY)
    assert tick() == 1
    assert 0 <= last_run_of(made, "fired").lag_ms < 1_200_000


def test_it_speaks_in_its_conversation_or_in_a_new_one_each_time(schedule, conversation):
    bound, free = schedule(every_seconds=60, conversation_id=conversation.pk), schedule(every_seconds=60, missed="all")
    for minutes in (1, 2):
        tick(now=NOW + minutes * MINUTE)
        runs.open_runs(bound).update(ended_at=NOW)
    spoken = [set(ScheduleRun.objects.filter(schedule=each).values_list("conversation_id")) for each in (bound, free)]
    assert spoken[0] == {(conversation.pk,)}
    assert len(spoken[1]) == 2
    assert Conversation.objects.filter(metadata__scheduleId=str(free.pk)).count() == 2


def test_a_scheduled_turn_waits_behind_its_users(schedule, conversation, say):
    before = say("hello")
    made = schedule(every_seconds=60, conversation_id=conversation.pk)
    tick(now=NOW + MINUTE)
    after = say("and you?")
    numbers = Turn.objects.filter(pk__in=[before.pk, last_run(made).turn_id, after.pk]).order_by("number")
    assert [turn.pk for turn in numbers] == [before.pk, last_run(made).turn_id, after.pk]
    assert Turn.objects.claimable().get() == before


def test_one_that_cannot_be_fired_keeps_no_other_from_it(schedule, caplog):
    poison, other = schedule(every_seconds=60), schedule(every_seconds=120)
    Schedule.objects.filter(pk=poison.pk).update(missed="?")
    assert tick(now=NOW + 2 * MINUTE) == 1
    assert (ledger(poison), ledger(other)) == ([], [(2, "fired")])
    assert "could not be fired" in caplog.text


def test_a_tick_that_has_no_time_leaves_what_is_due_to_the_next(schedule):
    made = schedule(every_seconds=60)
    assert [tick(now=NOW + MINUTE, seconds=seconds) for seconds in (0, 3)] == [0, 1]
    assert ledger(made) == [(1, "fired")]


@pytest.mark.django_db(transaction=True)
def test_a_tick_that_dies_in_between_has_done_nothing(owner, agent):
    made = series.create(owner_id=owner.pk, prompt="x", every_seconds=60, missed="all", now=NOW)
    with connection.execute_wrapper(die_at('INSERT INTO "scheduler_schedulerun"')), pytest.raises(SystemExit):
        tick(now=NOW + 2 * MINUTE)
    assert (Schedule.objects.get().next_at, Turn.objects.count(), ledger(made)) == (NOW + MINUTE, 0, [])
    assert tick(now=NOW + 2 * MINUTE) == 2


def die_at(statement):
    """As a worker that is killed there."""

    def wrapper(execute, sql, *rest):
        if sql.startswith(statement):
            raise SystemExit
        return execute(sql, *rest)

    return wrapper


# --- times that were missed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"missed": "skip"}, [(60, "missed"), (120, "missed"), (180, "missed")]),
        ({"missed": "once"}, [(60, "missed"), (120, "missed"), (180, "fired")]),
        ({"missed": "all"}, [(60, "fired"), (120, "fired"), (180, "fired")]),
        ({"missed": "all", "missed_most": 2}, [(60, "missed"), (120, "fired"), (180, "fired")]),
    ],
)
def test_after_an_outage_its_rule_says_what_is_made_up_for(schedule, rule, expected):
    made = schedule(cron="0 * * * *", **rule)
    tick(now=NOW + 3 * HOUR + 10 * MINUTE)
    assert ledger(made) == expected
    made.refresh_from_db()
    assert made.next_at == NOW + 4 * HOUR


@pytest.mark.parametrize("rule", ["skip", "once", "all"])
@pytest.mark.parametrize(("late", "is_missed"), [(300 * SECOND, False), (301 * SECOND, True)])
def test_a_time_is_missed_past_the_grace_only(schedule, rule, late, is_missed):
    made = schedule(cron="0 * * * *", missed=rule)
    tick(now=NOW + HOUR + late)
    assert ledger(made) == [(60, "missed" if is_missed and rule == "skip" else "fired")]


@pytest.mark.parametrize(("rule", "expected"), [("skip", "missed"), ("once", "fired"), ("all", "fired")])
def test_a_single_time_that_passed_while_nobody_looked_is_made_up_for_by_the_same_rule(schedule, rule, expected):
    made = schedule(at="2026-05-04T15:00", missed=rule)
    tick(now=NOW + DAY)
    assert ledger(made) == [(60, expected)]
    made.refresh_from_db()
    assert (made.state, made.next_at) == ("ended", None)


def test_after_a_long_outage_the_ledger_has_the_last_times_and_says_so(schedule):
    made = schedule(cron="* * * * *")
    tick(now=NOW + 365 * DAY)
    rows = ScheduleRun.objects.filter(schedule=made)
    assert rows.count() < 30
    assert rows.filter(state="fired").count() == 1
    assert "the last few have a row" in rows.filter(state="missed").first().error


def test_an_interval_keeps_its_beat_over_an_outage(schedule):
    made = schedule(every_seconds=420)
    tick(now=NOW + 50 * MINUTE)
    made.refresh_from_db()
    assert made.next_at == NOW + 56 * MINUTE


def test_a_run_that_has_not_ended_lets_the_next_pass(schedule):
    made = schedule(every_seconds=60)
    for minutes in (1, 2):
        tick(now=NOW + minutes * MINUTE)
    end_turn(last_run_of(made, "fired"), TurnStatus.SUCCEEDED)
    tick(now=NOW + 3 * MINUTE)
    assert ledger(made) == [(1, "fired"), (2, "skipped"), (3, "fired")]


def last_run_of(schedule, state):
    return ScheduleRun.objects.filter(schedule=schedule, state=state).latest("slot")


# --- ends ---------------------------------------------------------------------------------------------------------


def test_it_ends_when_it_has_run_so_often(schedule):
    made = schedule(every_seconds=60, max_runs=2, missed="all")
    tick(now=NOW + 5 * MINUTE)
    made.refresh_from_db()
    assert ledger(made) == [(1, "fired"), (2, "fired")]
    assert (made.state, made.runs) == ("ended", 2)


def test_it_ends_at_its_end(schedule):
    made = schedule(every_seconds=60, ends_at="2026-05-04T12:02:30Z", missed="all")
    tick(now=NOW + 5 * MINUTE)
    made.refresh_from_db()
    assert ledger(made) == [(1, "fired"), (2, "fired")]
    assert made.state == "ended"


# --- outcomes -----------------------------------------------------------------------------------------------------


def test_a_run_has_ended_when_its_turn_has(schedule):
    made = schedule(every_seconds=60)
    tick(now=NOW + MINUTE)
    assert last_run(made).ended_at is None
    end_turn(last_run(made), TurnStatus.SUCCEEDED)
    tick(now=NOW + MINUTE + SECOND)
    assert (last_run(made).state, last_run(made).ended_at) == ("fired", NOW + MINUTE + SECOND)


def test_a_failed_run_is_tried_again_later_and_later(schedule):
    made = schedule(every_seconds=3600)
    now = NOW + HOUR
    tick(now=now)
    turns = []
    for wait in (MINUTE, 5 * MINUTE):
        fail_turn(last_run(made))
        tick(now=now)
        assert (last_run(made).state, last_run(made).error) == ("due", "llm_auth")
        assert tick(now=now + wait - SECOND) == 0
        now += wait
        assert tick(now=now) == 1
        turns.append(last_run(made).turn_id)
    fail_turn(last_run(made))
    tick(now=now)
    assert (last_run(made).state, last_run(made).attempts, last_run(made).ended_at) == ("failed", 3, now)
    assert len(set(turns)) == 2
    assert Turn.objects.values("conversation").distinct().count() == 1


@pytest.mark.parametrize("wishes", [{"at": "2026-05-04T15:00"}, {"every_seconds": 3600, "max_runs": 1}])
def test_the_last_run_of_a_schedule_is_tried_again_as_well_and_its_owner_is_told(schedule, conversation, wishes):
    made = schedule(**wishes, conversation_id=conversation.pk, description="Tea")
    now = NOW + HOUR
    for wait in (timedelta(), MINUTE, 5 * MINUTE):
        assert tick(now=now + wait) == 1
        now += wait
        fail_turn(last_run(made))
        tick(now=now)
    assert (last_run(made).state, last_run(made).attempts) == ("failed", 3)
    made.refresh_from_db()
    told = Message.objects.filter(conversation=conversation, role="system").get()
    assert (made.state, made.paused_because) == ("ended", "")
    assert told.content == (
        "The schedule “Tea” has ended, and its last run failed with llm_auth. Run it again by hand."
    )


def test_a_run_by_hand_that_fails_after_its_schedule_was_cancelled_is_not_tried_again(schedule):
    made = schedule(every_seconds=3600)
    series.run_now(made, now=NOW)
    series.cancel(made, now=NOW)
    fail_turn(last_run(made))
    tick(now=NOW)
    assert last_run(made).state == "failed"


def test_who_comes_second_with_an_earlier_look_tries_nothing_again(schedule):
    made = schedule(every_seconds=3600)
    tick(now=NOW + HOUR)
    fail_turn(last_run(made))
    tick(now=NOW + HOUR)
    looks = [runs.due_again(now=NOW + HOUR + MINUTE).get() for _ in range(2)]
    assert [runs.retry(seen, now=NOW + HOUR + MINUTE) for seen in looks] == [True, False]
    assert Turn.objects.count() == 2


def fail_runs(made, times):
    """Have it run and fail so often, each time until it is given up; returns when that was."""
    for _ in range(times):
        made.refresh_from_db()
        now = made.next_at
        for wait in (timedelta(), MINUTE, 5 * MINUTE):
            now += wait
            tick(now=now)
            fail_turn(last_run(made))
            tick(now=now)
    return now


def test_after_so_many_failures_in_a_row_it_is_paused_and_its_owner_is_told(schedule, conversation, settings):
    settings.SCHEDULE_MAX_FAILURES = 2
    made = schedule(every_seconds=7200, conversation_id=conversation.pk, description="News")
    fail_runs(made, 2)
    made.refresh_from_db()
    assert (made.state, made.failures) == ("paused", 2)
    assert made.paused_because == "It failed 2 times in a row, the last time with llm_auth."
    told = Message.objects.filter(conversation=conversation, role="system").get()
    assert told.content == f"The schedule “News” is paused. {made.paused_because} Resume it when the cause is gone."
    assert told.seq


def test_one_success_ends_the_row_of_failures(schedule):
    made = schedule(every_seconds=7200)
    now = fail_runs(made, 1)
    made.refresh_from_db()
    assert made.failures == 1
    tick(now=now + 2 * HOUR)
    end_turn(last_run(made), TurnStatus.SUCCEEDED)
    tick(now=now + 2 * HOUR)
    made.refresh_from_db()
    assert made.failures == 0


def test_its_owner_is_told_between_turns_and_nothing_is_lost_meanwhile(schedule, conversation, say, settings):
    settings.SCHEDULE_MAX_FAILURES = 1
    made = schedule(every_seconds=7200, conversation_id=conversation.pk)
    active = say("hello")
    Turn.objects.filter(pk=active.pk).update(status=TurnStatus.WAITING)
    now = fail_runs(made, 1)
    assert last_run(made).ended_at is None
    Turn.objects.filter(pk=active.pk).update(status=TurnStatus.SUCCEEDED)
    tick(now=now)
    made.refresh_from_db()
    assert (made.state, last_run(made).state) == ("paused", "failed")
    assert Message.objects.filter(role="system").count() == 1


def test_a_turn_that_was_cancelled_is_no_failure(schedule):
    made = schedule(every_seconds=3600)
    tick(now=NOW + HOUR)
    turn_control.cancel_turn(Turn.objects.get())
    tick(now=NOW + HOUR)
    made.refresh_from_db()
    assert (last_run(made).state, last_run(made).error, made.failures) == ("fired", "turn_cancelled", 0)
    assert last_run(made).ended_at


def test_a_conversation_that_is_gone_pauses_its_schedule(schedule, conversation):
    made = schedule(every_seconds=3600, conversation_id=conversation.pk)
    tick(now=NOW + HOUR)
    turn_control.delete_conversation(conversation.pk)
    tick(now=NOW + 2 * HOUR)
    made.refresh_from_db()
    assert (made.state, made.paused_because) == ("paused", "Its conversation was deleted.")
    assert [(run.state, run.error) for run in ScheduleRun.objects.order_by("slot")] == [
        ("fired", "The conversation was deleted."),
        ("failed", "Its conversation was deleted."),
    ]


def test_a_conversation_that_goes_before_another_attempt_pauses_it_too(schedule, conversation):
    made = schedule(every_seconds=3600, conversation_id=conversation.pk)
    tick(now=NOW + HOUR)
    fail_turn(last_run(made))
    tick(now=NOW + HOUR)
    turn_control.delete_conversation(conversation.pk)
    tick(now=NOW + HOUR + MINUTE)
    made.refresh_from_db()
    assert (made.state, last_run(made).state, last_run(made).attempts) == ("paused", "failed", 1)


def test_an_owner_who_is_not_active_has_no_runs(schedule, owner):
    made = schedule(every_seconds=3600)
    type(owner).objects.update(is_active=False)
    assert tick(now=NOW + HOUR) == 0
    made.refresh_from_db()
    assert (made.state, ledger(made)) == ("paused", [(60, "skipped")])


def test_a_zone_that_is_gone_pauses_its_schedule(schedule):
    made = schedule(cron="0 * * * *")
    Schedule.objects.update(zone="Europe/Atlantis")
    tick(now=NOW + HOUR)
    made.refresh_from_db()
    assert made.paused_because.startswith("There is no zone named 'Europe/Atlantis'")


# --- what is old --------------------------------------------------------------------------------------------------


def test_the_ledger_is_kept_for_ninety_days_after_a_run_has_ended(schedule):
    made = schedule(every_seconds=60)
    today = datetime.now(UTC)
    for days, ended in ((91, True), (89, True), (92, False)):
        at = today - days * DAY
        ScheduleRun.objects.create(schedule=made, slot=at, state="fired", ended_at=at if ended else None)
    series.cancel(schedule(every_seconds=60, now=today - 91 * DAY), now=today - 91 * DAY)
    assert runs.forget_old() == 2
    assert [(today - run.slot).days for run in ScheduleRun.objects.order_by("slot")] == [92, 89]
    assert Schedule.objects.get() == made


# --- several at once ----------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_many_ticks_at_once_make_one_turn_a_time(owner, agent):
    """As four beats and two workers that stumble over each other would: a thousand times, a thousand runs."""
    schedules, times = 100, 10
    for _ in range(schedules):
        series.create(owner_id=owner.pk, prompt="x", every_seconds=60, missed="all", now=NOW)
    barrier, broken = threading.Barrier(6), []

    def look():
        barrier.wait()
        try:
            while Schedule.objects.filter(next_at__lte=NOW + times * MINUTE).exists():
                tick(now=NOW + times * MINUTE)
        except Exception as error:
            broken.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert ScheduleRun.objects.filter(state="fired").count() == Turn.objects.count() == schedules * times
    assert set(ScheduleRun.objects.values_list("turn_id", flat=True)) == set(Turn.objects.values_list("pk", flat=True))


@pytest.mark.django_db(transaction=True)
def test_several_who_see_an_outcome_try_again_once(owner, agent):
    made = series.create(owner_id=owner.pk, prompt="x", every_seconds=60, now=NOW)
    tick(now=NOW + MINUTE)
    fail_turn(last_run(made))
    barrier = threading.Barrier(4)

    def look():
        barrier.wait()
        for seconds in (60, 60, 120, 120):
            tick(now=NOW + seconds * SECOND)
        connection.close()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ScheduleRun.objects.filter(state="fired", attempts=2).count() == 1
    assert Turn.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_scheduled_turn_is_answered_like_any_other(owner, agent):
    made = series.create(owner_id=owner.pk, prompt="Hello", every_seconds=60, now=NOW)
    tick(now=NOW + MINUTE)
    assert advance(last_run(made).turn_id).status == TurnStatus.SUCCEEDED
    tick(now=NOW + MINUTE)
    answer = Message.objects.filter(conversation=last_run(made).conversation_id, role="assistant").get()
    assert answer.content == "You said: Hello"
    assert last_run(made).ended_at
