"""The sweeper: whatever nobody was told of, or whose worker is gone, is found; and no more than that."""

from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.engine import inbox, lease
from conversations.engine.deadlines import end_overdue_calls
from conversations.engine.sweeper import find, notify_again, overlooked
from conversations.kinds import KINDS, TOOLS, TURNS
from conversations.models import Turn
from conversations.statuses import TurnStatus
from nanohost.lib.clock import from_now
from tests.faults import doorbell
from tests.support.scripts import script
from tests.support.working import advance, settle
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def sweep() -> list[UUID]:
    """What a sweep with plenty of room finds."""
    end_overdue_calls()
    return [*find(TURNS), *find(TOOLS)]


def long_ago() -> None:
    """As if nobody had been told for a minute."""
    Turn.objects.update(notified_at=from_now(-60))
    ToolCall.objects.update(notified_at=from_now(-60))


def test_receiving_notifications_after_the_commit(say):
    doorbell.purge()
    turn = say("Hello")
    assert list(doorbell.notifications()) == [("turn", turn.pk)]


def test_a_lost_notification_is_made_up_for(say):
    turn = say("Hello")
    assert sweep() == [], "it was notified just now"
    long_ago()
    assert sweep() == [turn.pk]
    assert sweep() == [], "found, and marked"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.queue)
def test_a_sweep_that_finds_nothing_asks_once_and_opens_no_transaction(say, kind):
    say("Hello")
    find(kind)
    with CaptureQueriesContext(connection) as asked:
        assert find(kind) == []
    assert [query["sql"].split()[0] for query in asked.captured_queries] == ["SELECT"]


def test_only_the_first_open_turn_of_a_conversation_is_found(say):
    first = say("one")
    say("two")
    long_ago()
    assert sweep() == [first.pk]


def test_an_expired_lease_is_found_at_once(say):
    turn = say("Hello")
    lease.claim(turn.pk, worker="worker-1")
    Turn.objects.update(lease_until=from_now(-1), notified_at=from_now(-2))
    assert sweep() == [turn.pk]


def test_an_expired_lease_is_not_found_by_the_worker_that_still_holds_the_turn(say):
    """It would mark it as told, and so hide it from those who could take it."""
    turn = say("Hello")
    lease.claim(turn.pk, worker="worker-1")
    Turn.objects.update(lease_until=from_now(-1), notified_at=from_now(-2))
    assert find(TURNS, held=[turn.pk]) == []
    assert find(TURNS) == [turn.pk]


def test_a_held_turn_is_left_alone(say):
    lease.claim(say("Hello").pk, worker="worker-1")
    long_ago()
    assert len(sweep()) == 0


def test_a_waiting_turn_with_no_open_call_is_found(say, tool_settings):
    tool_settings("time")
    turn = advance(say("What time is it?"))
    ToolCall.objects.update(status=CallStatus.SUCCESS)  # and its worker died before it notified
    long_ago()
    assert sweep() == [turn.pk]


def test_an_open_call_that_nobody_runs_is_found(say, tool_settings):
    tool_settings("time")
    advance(say("What time is it?"))
    long_ago()
    assert sweep() == [ToolCall.objects.get().pk]


def test_a_call_whose_worker_is_gone_is_found(say, tool_settings):
    tool_settings("time")
    advance(say("What time is it?"))
    long_ago()
    ToolCall.objects.update(status=CallStatus.RUNNING, lease_until=from_now(30))
    assert len(sweep()) == 0
    ToolCall.objects.update(lease_until=from_now(-1))
    assert len(sweep()) == 1


def test_a_retry_is_found_when_its_time_has_come(say):
    advance(say(script({"fail": "unavailable"})))
    long_ago()
    assert len(sweep()) == 0
    Turn.objects.update(run_after=from_now(-1))
    assert len(sweep()) == 1


def test_ended_turns_are_left_alone(say):
    settle([say("Hello")])
    long_ago()
    assert len(sweep()) == 0


def test_when_the_turns_time_is_up_its_open_calls_end_and_the_model_gives_its_best_answer(say, tool_settings):
    tool_settings("time")
    turn = advance(say("What time is it?"))
    Turn.objects.update(deadline=from_now(20))
    sweep()
    assert ToolCall.objects.get().rule == "turn_time"
    turn = advance(turn)
    assert turn.status == TurnStatus.SUCCEEDED
    assert "time limit" in turn.messages.get(role="assistant", tool_calls__isnull=True).content


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL scans small tables, whatever their indexes")
def test_a_sweep_reads_by_index_and_never_scans(db):
    """History grows without bound; what a sweep reads must not. Parameters stay bound: literals make other plans."""
    statements = []

    def note(execute, sql, params, many, context):
        statements.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        sweep()
    reads = [(sql, params) for sql, params in statements if sql.startswith("SELECT")]
    assert {table for table in ("conversations_turn", "tools_toolcall") for sql, _ in reads if table in sql} == {
        "conversations_turn",
        "tools_toolcall",
    }
    for sql, params in reads:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            plan = [str(step[-1]) for step in cursor.fetchall()]
        assert not [step for step in plan if step.startswith("SCAN")], (sql, plan)


def test_a_sweep_finds_a_bounded_number(say, monkeypatch):
    from conversations.engine import sweeper

    monkeypatch.setattr(sweeper, "MAX_FOUND", 1)

    for number in range(3):
        conversation = inbox.start_conversation(owner_id=say("x").owner_id, metadata={})
        say(str(number), conversation=conversation)
    long_ago()
    assert len(sweep()) == 1


# --- what nobody came for ----------------------------------------------------------------------------------------


def test_what_was_notified_long_ago_is_overlooked_and_notified_again(say, tool_settings):
    tool_settings("time")
    waiting = advance(say("What time is it?"))
    conversation = inbox.start_conversation(owner_id=waiting.owner_id, metadata={})
    queued = say("Hello", conversation=conversation)
    say("behind it", conversation=conversation)
    assert notify_again() == 0, "just notified"
    long_ago()
    assert overlooked()[TURNS] == [queued.pk], "neither one that waits for its turn, nor one that waits for its call"
    assert overlooked()[TOOLS] == [ToolCall.objects.get().pk]
    doorbell.purge()
    assert notify_again() == 2
    assert set(doorbell.notifications()) == {("turn", queued.pk), ("call", ToolCall.objects.get().pk)}
    assert notify_again() == 0


def test_a_lease_that_has_just_run_out_is_left_to_the_sweep(say):
    turn = say("Hello")
    lease.claim(turn.pk, worker="worker-1")
    long_ago()
    Turn.objects.update(lease_until=from_now(-5))
    assert overlooked()[TURNS] == []
    Turn.objects.update(lease_until=from_now(-60))
    assert overlooked()[TURNS] == [turn.pk]
