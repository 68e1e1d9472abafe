"""What each guarantee rests on, one test each: a fence, an index, a ring after the commit, a sweeper, a ring a call."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import IntegrityError, connection, transaction

from agent.llm.base import Completion
from conversations import claims, doorbell, endings
from conversations.errors import FenceLost
from conversations.models import Conversation, Message, Turn, TurnStatus
from conversations.sweeper import sweep
from nanohost.lib.clock import from_now
from tests.faults import doorbell as broker
from tests.faults.interleave import coming_between
from tests.work import advance, run_call
from tools import calls
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _quiet_doorbell(say) -> Iterator[None]:
    broker.purge()
    yield
    broker.purge()


def expire(turn: Turn) -> None:
    Turn.objects.filter(pk=turn.pk).update(lease_until=from_now(-1), rung_at=None)


# --- the fence ---------------------------------------------------------------------------------------------------


def test_a_worker_that_was_taken_over_writes_nothing(say):
    turn = say("Hello")
    zombie = claims.claim(turn.pk, worker="zombie")
    expire(turn)
    heir = claims.claim(turn.pk, worker="heir")
    completion = Completion(content="late")
    for write in (
        lambda: claims.finish(zombie, completion, reply="late"),
        lambda: claims.store_calls(zombie, completion, limit=None),
        lambda: claims.fail(zombie, code="turn_error"),
        lambda: claims.wait_for_retry(zombie, seconds=1),
        lambda: claims.hand_back(zombie),
        lambda: claims.read(zombie),
    ):
        with pytest.raises(FenceLost):
            write()
    claims.finish(heir, completion, reply="in time")
    assert list(Message.objects.transcript().values_list("content", flat=True)) == ["Hello", "in time"]


def test_a_message_keeps_its_place_when_two_workers_claim_at_once(say):
    """One reads the inbox; before its transaction begins, another takes the turn and lets it go again."""
    turn = say("Hello")

    def take_and_let_go() -> None:
        claims.hand_back(claims.claim(turn.pk, worker="quick"))

    with coming_between(1, take_and_let_go):
        claims.claim(turn.pk, worker="slow")
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


# --- the unique index --------------------------------------------------------------------------------------------


def test_the_database_admits_one_active_turn_a_conversation(say):
    first, second = say("one"), say("two")
    assert claims.claim(first.pk, worker="worker-1")
    with pytest.raises(IntegrityError), transaction.atomic():
        Turn.objects.filter(pk=second.pk).update(status=TurnStatus.RUNNING)


def test_a_claim_that_the_index_refuses_is_no_claim(say):
    """A later turn is active, which claims alone cannot bring about."""
    first, second = say("one"), say("two")
    Turn.objects.filter(pk=second.pk).update(status=TurnStatus.RUNNING, lease_until=from_now(60))
    assert claims.claim(first.pk, worker="worker-1") is None
    assert Message.objects.transcript().count() == 0


# --- the ring ----------------------------------------------------------------------------------------------------


def test_nobody_hears_a_ring_before_its_commit(say):
    turn = say("Hello")
    broker.purge()
    heard: list[object] = []

    def listen() -> None:
        heard.extend(broker.rings())
        connection.close()

    with transaction.atomic():
        doorbell.ring_for_turn(turn.pk)
        listener = threading.Thread(target=listen)
        listener.start()
        listener.join()
        assert heard == []
    assert list(broker.rings()) == [("turn", turn.pk)]


def test_a_ring_whose_transaction_fails_is_never_heard(say):
    turn = say("Hello")
    broker.purge()
    with transaction.atomic():
        doorbell.ring_for_turn(turn.pk)
        transaction.set_rollback(True)
    assert list(broker.rings()) == []


# --- the sweeper -------------------------------------------------------------------------------------------------


def test_the_sweeper_rings_for_a_turn_whose_worker_is_gone(say):
    turn = say("Hello")
    assert claims.claim(turn.pk, worker="gone")
    broker.purge()
    expire(turn)
    sweep()
    assert ("turn", turn.pk) in list(broker.rings())


def test_the_sweeper_rings_when_every_ring_was_lost(say):
    turn = say("Hello")
    broker.purge()
    Turn.objects.update(rung_at=from_now(-60))
    sweep()
    assert list(broker.rings()) == [("turn", turn.pk)]


# --- calls that end side by side ---------------------------------------------------------------------------------


def test_calls_that_end_side_by_side_ring_for_their_turn(say, tool_settings, tmp_path: Path):
    """Without the sweeper's help: whoever ends last, its turn is rung for after that."""
    tool_settings("meet")
    for number in range(10):
        place = tmp_path / f"{number}"
        place.mkdir()
        meetings = ", ".join(
            f'{{"name": "meet", "arguments": {{"directory": "{place}", "name": "{name}", "number": 4}}}}'
            for name in "abcd"
        )
        turn = advance(say(f'{{"script": [{{"call": [{meetings}]}}, {{"say": "met"}}]}}'))
        broker.purge()
        in_threads([lambda call=call: run_call(call) for call in ToolCall.objects.filter(turn_id=turn.pk)])
        for kind, row_id in broker.rings():
            assert kind == "turn"
            advance(row_id)
        turn.refresh_from_db()
        assert turn.status == TurnStatus.SUCCEEDED, f"in round {number} nobody rang for the turn"


def in_threads(deeds: list) -> None:
    def do(deed) -> None:
        try:
            deed()
        finally:
            connection.close()

    threads = [threading.Thread(target=do, args=(deed,)) for deed in deeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_deleted_conversation_takes_no_late_write(say):
    turn = say("Hello")
    claim = claims.claim(turn.pk, worker="worker-1")
    endings.delete_conversation(turn.conversation_id)
    with pytest.raises(FenceLost):
        claims.finish(claim, Completion(content="late"), reply="late")
    assert not Message.objects.exists()
