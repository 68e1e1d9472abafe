"""What each guarantee rests on, one test each: a fence, a lease, an index, a notification after the commit, a sweeper,
…"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from agent.llm.base import Completion
from conversations.engine import doorbell, inbox, lease, snapshot, steps, turn_control
from conversations.engine.sweeper import find
from conversations.engine.worker import Runtime
from conversations.errors import FenceLost
from conversations.kinds import TOOLS, TURNS, Kind
from conversations.models import Conversation, Message, Turn
from conversations.statuses import TurnStatus
from nanohost.lib.clock import from_now
from tests.faults import doorbell as broker
from tests.faults.interleave import coming_between
from tests.support import servers
from tests.support.api_client import chat, start
from tests.support.hosts import Host
from tests.support.scripts import script
from tests.support.threads import in_threads
from tests.support.wait import wait_until
from tests.support.working import advance, run_call
from tools import calls
from tools.models import CallStatus, ToolCall
from tools.sandbox import children

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _quiet_doorbell(say) -> Iterator[None]:
    broker.purge()
    yield
    broker.purge()


def expire(turn: Turn) -> None:
    Turn.objects.filter(pk=turn.pk).update(lease_until=from_now(-1), notified_at=None)


# --- the fence ---------------------------------------------------------------------------------------------------


def test_a_worker_that_was_taken_over_writes_nothing(say):
    turn = say("Hello")
    zombie = lease.claim(turn.pk, worker="zombie")
    expire(turn)
    heir = lease.claim(turn.pk, worker="heir")
    completion = Completion(content="late")
    for write in (
        lambda: steps.finish(zombie, completion, reply="late"),
        lambda: steps.store_calls(zombie, completion, limit=None),
        lambda: steps.fail(zombie, code="turn_error"),
        lambda: steps.wait_for_retry(zombie, seconds=1),
        lambda: steps.release(zombie),
        lambda: snapshot.load(zombie),
    ):
        with pytest.raises(FenceLost):
            write()
    steps.finish(heir, completion, reply="in time")
    assert list(Message.objects.transcript().values_list("content", flat=True)) == ["Hello", "in time"]


def test_a_message_keeps_its_place_when_two_workers_claim_at_once(say):
    """One reads the inbox; before its transaction begins, another takes the turn and lets it go again."""
    turn = say("Hello")

    def take_and_let_go() -> None:
        steps.release(lease.claim(turn.pk, worker="quick"))

    with coming_between(1, take_and_let_go):
        lease.claim(turn.pk, worker="slow")
    assert list(Message.objects.transcript().values_list("seq", flat=True)) == [1]
    assert Conversation.objects.get(pk=turn.conversation_id).next_seq == 2


def test_a_worker_that_claims_a_call_never_holds_anothers_claim(say, tool_settings):
    """Between taking a call and reading it, its lease runs out and another worker takes it."""
    tool_settings("look_around")
    advance(say('{"script": [{"call": [{"name": "look_around", "arguments": {"path": "/nowhere"}}]}]}'))
    call = ToolCall.objects.get()
    others = []

    def take_over() -> None:
        ToolCall.objects.filter(status=CallStatus.RUNNING).update(lease_until=from_now(-1))
        others.append(calls.claim(call.pk, worker="quick"))

    for at in (0, 1, 2):
        with coming_between(at, take_over):
            mine = calls.claim(call.pk, worker="slow")
        assert mine is None or mine.worker == "slow", f"taken over at {at}"
        ToolCall.objects.update(status=CallStatus.QUEUED, attempts=0, lease_until=None)


def test_a_call_whose_lease_runs_out_while_it_is_looked_at_is_not_taken_for_one_that_kills_workers(say, tool_settings):
    tool_settings("look_around")
    advance(say('{"script": [{"call": [{"name": "look_around", "arguments": {"path": "/nowhere"}}]}]}'))
    call = ToolCall.objects.get()
    for at in (0, 1, 2):
        assert calls.claim(call.pk, worker="first")
        with coming_between(at, lambda: ToolCall.objects.update(lease_until=from_now(-1))):
            calls.claim(call.pk, worker="second")
        call.refresh_from_db()
        assert (call.status, call.rule) == (CallStatus.RUNNING, ""), f"its lease has run out at {at}"
        ToolCall.objects.update(status=CallStatus.QUEUED, attempts=0, lease_until=None)


# --- the lease ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_worker_whose_clock_is_wrong_takes_leases_of_the_right_length(say, tool_settings, monkeypatch, hours):
    tool_settings("time")
    waiting, turn = advance(say("What time is it?")), say("Hello")
    right_now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: right_now() + timedelta(hours=hours))
    calls.claim(ToolCall.objects.get(turn_id=waiting.pk).pk, worker="wrong")
    Turn.objects.filter(pk=waiting.pk).update(status=TurnStatus.SUCCEEDED)
    lease.claim(turn.pk, worker="wrong")
    monkeypatch.undo()
    right_length = {"lease_until__gt": from_now(0), "lease_until__lte": from_now(settings.TURN_LEASE_SECONDS)}
    assert ToolCall.objects.filter(**right_length).count() == 1
    assert Turn.objects.filter(**right_length).count() == 1


# --- the unique index --------------------------------------------------------------------------------------------


def test_the_database_admits_one_active_turn_a_conversation(say):
    first, second = say("one"), say("two")
    assert lease.claim(first.pk, worker="worker-1")
    with pytest.raises(IntegrityError), transaction.atomic():
        Turn.objects.filter(pk=second.pk).update(status=TurnStatus.RUNNING)


def test_a_claim_that_the_index_refuses_is_no_claim(say):
    """A later turn is active, which claims alone cannot bring about."""
    first, second = say("one"), say("two")
    Turn.objects.filter(pk=second.pk).update(status=TurnStatus.RUNNING, lease_until=from_now(60))
    assert lease.claim(first.pk, worker="worker-1") is None
    assert Message.objects.transcript().count() == 0


# --- the notification --------------------------------------------------------------------------------------------


def test_nobody_hears_a_notification_before_its_commit(say):
    turn = say("Hello")
    broker.purge()
    heard: list[object] = []

    def listen() -> None:
        heard.extend(broker.notifications())
        connection.close()

    with transaction.atomic():
        doorbell.notify(TURNS, turn.pk)
        listener = threading.Thread(target=listen)
        listener.start()
        listener.join()
        assert heard == []
    assert list(broker.notifications()) == [("turn", turn.pk)]


def test_a_notification_whose_transaction_fails_is_never_heard(say):
    turn = say("Hello")
    broker.purge()
    with transaction.atomic():
        doorbell.notify(TURNS, turn.pk)
        transaction.set_rollback(True)
    assert list(broker.notifications()) == []


# --- the sweeper -------------------------------------------------------------------------------------------------


def a_worker_sweeps(*kinds: Kind) -> None:
    """A worker of a process of its own starts, whom nobody notifies, and finds what there is."""
    runtime = Runtime(kinds)
    runtime.start()
    try:
        found = ToolCall.objects.open() if kinds == (TOOLS,) else Turn.objects.open()
        wait_until(lambda: not found.all().exists())
    finally:
        runtime.stop()


def test_the_sweeper_takes_a_turn_whose_worker_is_gone(say):
    turn = say("Hello")
    assert lease.claim(turn.pk, worker="gone")
    broker.purge()
    expire(turn)
    a_worker_sweeps(TURNS, TOOLS)


def test_the_sweeper_takes_a_turn_when_every_notification_was_lost(say):
    say("Hello")
    broker.purge()
    Turn.objects.update(notified_at=from_now(-60))
    a_worker_sweeps(TURNS, TOOLS)


def test_the_sweeper_takes_a_call_when_every_notification_was_lost(say, tool_settings):
    tool_settings("time")
    advance(say("What time is it?"))
    broker.purge()
    ToolCall.objects.update(notified_at=from_now(-60))
    # What a call's end notifies of, the next sweep would find only after it has counted as told for a while.
    a_worker_sweeps(TOOLS)


@contextmanager
def locked(rows: QuerySet[Any]) -> Iterator[None]:
    """Another worker is in the midst of a transaction on these rows."""
    is_locked, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            assert rows.select_for_update().exists()
            is_locked.set()
            go_on.wait(60)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_locked.wait(20)
    try:
        yield
    finally:
        go_on.set()
        holder.join()


@pytest.mark.production(reason="on SQLite, transactions that write run one after the other")
def test_a_sweep_passes_over_what_another_worker_holds(say, tool_settings, owner):
    tool_settings("time")
    turns = [
        say("What time is it?", conversation=inbox.start_conversation(owner_id=owner.pk, metadata={})) for _ in range(4)
    ]
    for turn in turns[2:]:
        advance(turn)
    held_call, free_call = ToolCall.objects.order_by("created_at")
    Turn.objects.update(notified_at=None)
    ToolCall.objects.update(notified_at=None)
    held = locked(Turn.objects.filter(pk=turns[0].pk)), locked(ToolCall.objects.filter(pk=held_call.pk))
    with held[0], held[1], transaction.atomic(), connection.cursor() as database:
        database.execute("SET LOCAL lock_timeout = '2s'")  # before the others' transactions are ended for idleness
        assert find(TURNS) == [turns[1].pk]
        assert find(TOOLS) == [free_call.pk]


# --- calls that end side by side ---------------------------------------------------------------------------------


def test_calls_that_end_side_by_side_notify_their_turn(say, tool_settings, marks: Path):
    """Without the sweeper's help: whoever ends last, its turn is notified after that."""
    tool_settings("meet")
    for number in range(10):
        place = marks / f"{number}"
        place.mkdir()
        meetings = ", ".join(
            f'{{"name": "meet", "arguments": {{"directory": "{place}", "name": "{name}", "number": 4}}}}'
            for name in "abcd"
        )
        turn = advance(say(f'{{"script": [{{"call": [{meetings}]}}, {{"say": "met"}}]}}'))
        broker.purge()
        in_threads([lambda call=call: run_call(call) for call in ToolCall.objects.filter(turn_id=turn.pk)])
        for kind, row_id in broker.notifications():
            assert kind == "turn"
            advance(row_id)
        turn.refresh_from_db()
        assert turn.status == TurnStatus.SUCCEEDED, f"in round {number} nobody notified of the turn"


# --- connections -------------------------------------------------------------------------------------------------


def connections_in_use() -> int:
    """How many connections of this process's pool somebody has, this thread aside."""
    connection.close()
    pool = connection.pool.get_stats()
    return pool["pool_size"] - pool["pool_available"]


@pytest.mark.production(reason="SQLite has no pool")
def test_no_connection_is_held_while_a_tool_runs(say, tool_settings, effects, monkeypatch):
    monkeypatch.setattr(children, "ASK_SECONDS", 60)
    tool_settings("look_around")
    arguments = {"path": str(effects), "seconds": 2}
    advance(say(script({"call": [{"name": "look_around", "arguments": arguments}]}, {"say": "seen"})))
    call = ToolCall.objects.get()
    running = threading.Thread(target=in_threads, args=([lambda: run_call(call)],))
    running.start()
    wait_until(effects.exists)
    in_use = connections_in_use()
    running.join()
    call.refresh_from_db()
    assert (call.status, in_use) == (CallStatus.SUCCESS, 0)


@pytest.mark.production(reason="SQLite has no pool")
def test_no_connection_is_held_while_a_model_is_silent(say):
    turn = say(script({"sleep": 60}))
    runtime = Runtime([TURNS])
    runtime.start()
    try:
        runtime.take(TURNS, turn.pk)
        wait_until(lambda: Turn.objects.filter(status=TurnStatus.RUNNING).exists())
        wait_until(lambda: connections_in_use() == 0)
    finally:
        runtime.stop()


# --- the broker --------------------------------------------------------------------------------------------------


@pytest.mark.production(reason="what a worker has not acknowledged is Redis's to give back")
def test_a_notification_is_acknowledged_when_it_is_heard_and_not_when_its_work_is_done(tmp_path: Path):
    """A full worker keeps none: it would come back an hour after the worker's death."""
    host = Host(tmp_path, WORKER_MAX_TURNS="1", CHAT_WAIT_SECONDS="0.1").start()
    prefix = f"{servers.database_of(tmp_path)}:"
    try:
        with host.client() as client:
            for _ in range(2):
                assert chat(client, start(client), script({"sleep": 60})).status_code == 202
        wait_until(lambda: host.sql("SELECT 1 FROM conversations_turn WHERE status = 'running'"))
        with servers.broker() as redis:
            wait_until(lambda: redis.llen(f"{prefix}turns") + redis.hlen(f"{prefix}unacked") == 0)
    finally:
        host.kill()


def test_a_deleted_conversation_takes_no_late_write(say):
    turn = say("Hello")
    claim = lease.claim(turn.pk, worker="worker-1")
    turn_control.delete_conversation(turn.conversation_id)
    with pytest.raises(FenceLost):
        steps.finish(claim, Completion(content="late"), reply="late")
    assert not Message.objects.exists()
