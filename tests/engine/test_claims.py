"""A worker's hold on a turn: who gets it, what it allows, and when it is over."""

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction

from agent.llm.base import Completion, tool_call
from agent.loop import unanswered_calls
from conversations import events
from conversations.engine import deferred, history, inbox, lease, snapshot, steps, turn_control
from conversations.engine.lease import Claim
from conversations.errors import FenceLost
from conversations.events.hub import Hub
from conversations.models import Compaction, Conversation, Message, Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import from_now
from tests.faults import doorbell as broker
from tests.support.scripts import script
from tests.support.wait import wait_until
from tests.support.working import advance, settle
from tools.models import CallStatus, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)

ANSWER = Completion(content="Hello.")
ASKS_FOR_TIME = Completion(tool_calls=(tool_call("call_1", "time", "{}"),))


def claim(turn: Turn, worker: str = "worker-1") -> Claim:
    held = lease.claim(turn.pk, worker=worker)
    assert held is not None
    return held


def expire(turn: Turn) -> None:
    """The worker is gone: its lease runs out."""
    Turn.objects.filter(pk=turn.pk).update(lease_until=from_now(-1))


# --- what is read of it -------------------------------------------------------------------------------------------


def test_of_a_turn_are_counted_its_answers_its_calls_and_its_rounds_of_some_tools(say):
    held = claim(say("Hello"))
    empty = snapshot.load(held)
    assert (empty.answers, empty.calls, empty.rounds_of({"time"}), empty.retrying_for) == (0, 0, 0, 0.0)
    assert (empty.first_seq, empty.last_seq) == (1, 1)

    def asks(*names):
        calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in names]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    results = [{"role": "tool", "tool_call_id": "time", "content": "noon"}] * 2
    own = [*empty.own, asks("time", "echo"), *results, asks("echo"), *results, {"role": "assistant", "content": "Hi"}]
    full = replace(empty, own=own)
    assert (full.answers, full.calls) == (3, 3)
    assert (full.rounds_of({"time"}), full.rounds_of({"echo", "time"}), full.rounds_of({"other"})) == (1, 2, 0)


def test_a_turn_that_began_with_a_command_is_one_also_once_it_has_an_answer(say):
    held = claim(say("/help"))
    assert snapshot.load(held).command == "/help"
    Message.objects.create(conversation_id=held.conversation_id, turn_id=held.turn_id, seq=2, role="assistant")
    assert snapshot.load(held).command == "/help"
    assert snapshot.load(held).transcript == [{"role": "assistant", "content": ""}]


# --- who gets it -------------------------------------------------------------------------------------------------


def test_a_claim_numbers_the_message_and_sets_the_lease(say):
    turn = say("Hello")
    held = claim(turn)
    turn.refresh_from_db()
    assert (turn.status, turn.fence, turn.worker, turn.attempts) == (TurnStatus.RUNNING, 1, "worker-1", 0)
    assert Message.objects.get(turn=turn).seq == 1
    assert held.fence == 1
    assert turn.lease_until < turn.deadline


def test_a_held_turn_is_not_claimed_again(say):
    turn = say("Hello")
    claim(turn)
    assert lease.claim(turn.pk, worker="worker-2") is None


@pytest.mark.production(reason="two transactions at once")
def test_an_heir_that_waits_for_the_storing_of_calls_sees_them(say, tool_settings):
    """The former worker was late: its lease had run out, but nobody had claimed yet."""
    tool_settings("time")
    turn = say("What time is it?")
    late = claim(turn)
    expire(turn)
    heirs: list[Claim | None] = []
    heirs_pid = queue.Queue[int]()

    def inherit() -> None:
        try:
            heirs_pid.put(pid_of_connection())
            heirs.append(lease.claim(turn.pk, worker="worker-2"))
        finally:
            connections.close_all()

    heir = threading.Thread(target=inherit)
    with transaction.atomic():
        steps.store_calls(late, ASKS_FOR_TIME, limit=None)
        heir.start()
        pid = heirs_pid.get(timeout=20)
        wait_until(lambda: is_kept_waiting(pid))
    heir.join()
    assert heirs == [None]
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for, turn.fence) == (TurnStatus.WAITING, WaitingFor.TOOLS, 1)


def pid_of_connection() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def is_kept_waiting(pid: int) -> bool:
    """Whether that connection waits for a lock of ours."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid() = ANY(pg_blocking_pids(%s))", [pid])
        return bool(cursor.fetchone()[0])


def test_an_unknown_turn_is_not_claimed(db):
    assert lease.claim(UUID(int=0), worker="worker-1") is None


def test_a_turns_messages_get_their_numbers_one_after_the_other(say, conversation):
    for content in ("first", "second"):
        deferred.put(conversation, kind=deferred.Kind.CONTEXT, content=content, request_id="request-1")
    turn = say("third")
    claim(turn)
    assert list(turn.messages.order_by("seq").values_list("seq", "content")) == [
        *((1, "first"), (2, "second"), (3, "third"))
    ]


def test_a_claim_with_an_inbox_that_was_read_too_early_is_no_claim(say, monkeypatch):
    turn = say("Hello")
    read_early = lease._inbox(turn_id=turn.pk)
    steps.release(claim(turn))
    monkeypatch.setattr(lease, "_inbox", lambda **_: read_early)
    assert lease.claim(turn.pk, worker="worker-2") is None
    turn.refresh_from_db()
    assert (turn.fence, turn.status, turn.messages.get().seq) == (1, TurnStatus.WAITING, 1)


def test_a_claim_holds_while_its_fence_is_the_rows_own(say):
    turn = say("Hello")
    Turn.objects.update(fence=1000)
    held = claim(turn)
    assert lease.still_held([held]) == {turn.pk: False}
    for fence in (held.fence - 1, held.fence + 1):
        assert lease.still_held([replace(held, fence=fence)]) == {}
    Turn.objects.update(cancel_requested=True)
    assert lease.still_held([held]) == {turn.pk: True}
    with pytest.raises(FenceLost):
        snapshot.load(held)


def test_a_turn_before_its_time_is_not_claimed(say):
    turn = say("Hello")
    Turn.objects.update(run_after=from_now(60))
    assert lease.claim(turn.pk, worker="worker-1") is None
    Turn.objects.update(run_after=from_now(-1))
    claim(turn)


def test_a_turn_is_not_claimed_while_an_earlier_one_is_open(say):
    first, second = say("one"), say("two")
    assert lease.claim(second.pk, worker="worker-1") is None
    steps.finish(claim(first), ANSWER, reply="Hello.")
    claim(second)


def test_a_turn_is_not_claimed_while_a_call_of_it_is_open(say, tool_settings):
    tool_settings("time")
    turn = say("What time is it?")
    assert steps.store_calls(claim(turn), ASKS_FOR_TIME, limit=None)
    assert lease.claim(turn.pk, worker="worker-2") is None
    ToolCall.objects.update(status=CallStatus.SUCCESS)
    claim(turn)


def test_the_database_admits_one_active_turn_a_conversation(say):
    first, second = say("one"), say("two")
    claim(first)
    with pytest.raises(IntegrityError), transaction.atomic():
        Turn.objects.filter(pk=second.pk).update(status=TurnStatus.WAITING)


def test_a_claim_that_the_unique_index_refuses_is_no_claim_and_leaves_no_gap(say):
    """As if the earlier turn had become active between our look and our write."""
    first, second = say("one"), say("two")
    Turn.objects.filter(pk=first.pk).update(status=TurnStatus.RUNNING, number=99, lease_until=from_now(30))
    assert lease.claim(second.pk, worker="worker-1") is None
    assert Message.objects.get(turn=second).seq is None
    second.conversation.refresh_from_db()
    assert second.conversation.next_seq == 1


def test_of_many_workers_one_gets_the_turn(say):
    turn = say("Hello")
    won: list[Claim | None] = []

    def try_it(number: int) -> None:
        won.append(lease.claim(turn.pk, worker=f"worker-{number}"))
        connections.close_all()

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 10
    assert sum(1 for held in won if held) == 1


# --- leases and fences -------------------------------------------------------------------------------------------


def test_after_an_expired_lease_another_worker_takes_over_and_it_counts(say):
    turn = say("Hello")
    claim(turn)
    expire(turn)
    taken_over = claim(turn, "worker-2")
    assert (taken_over.fence, taken_over.attempts) == (2, 1)


def test_keeping_renews_the_lease_but_never_past_the_deadline(say):
    turn = say("Hello")
    held = claim(turn)
    expire(turn)
    Turn.objects.update(deadline=from_now(3))
    lease.renew([held], worker="worker-1")
    turn.refresh_from_db()
    assert turn.lease_until == turn.deadline


def test_keeping_renews_nothing_of_another_worker(say):
    turn = say("Hello")
    stale = claim(turn)
    expire(turn)
    claim(turn, "worker-2")
    expire(turn)
    lease.renew([stale], worker="worker-1")
    claim(turn, "worker-3")


@pytest.mark.parametrize(
    "write",
    [
        lambda stale: snapshot.load(stale),
        lambda stale: steps.store_calls(stale, ASKS_FOR_TIME, limit=None),
        lambda stale: steps.finish(stale, ANSWER, reply="Hello."),
        lambda stale: steps.fail(stale, code="turn_error"),
        lambda stale: steps.wait_for_retry(stale, seconds=1),
        lambda stale: steps.release(stale),
    ],
    ids=["read", "store_calls", "finish", "fail", "wait_for_retry", "release"],
)
def test_a_stale_claim_changes_nothing(say, write):
    turn = say("Hello")
    stale = claim(turn)
    expire(turn)
    claim(turn, "worker-2")
    before = Turn.objects.values().get(), turn.conversation.messages.count()
    with pytest.raises(FenceLost):
        write(stale)
    assert (Turn.objects.values().get(), turn.conversation.messages.count()) == before
    turn.conversation.refresh_from_db()
    assert turn.conversation.next_seq == 2, "the numbers were rolled back, too"
    assert not ToolCall.objects.exists()


def test_still_held_tells_what_was_lost_and_what_is_to_be_cancelled(say, conversation, owner):
    other = inbox.start_conversation(owner_id=owner.pk, metadata={})
    kept, lost = claim(say("one")), claim(say("two", conversation=other))
    turn_control.cancel_turn(Turn.objects.get(pk=kept.turn_id))
    Turn.objects.filter(pk=lost.turn_id).update(fence=9)
    assert lease.still_held([kept, lost]) == {kept.turn_id: True}


# --- attempts ----------------------------------------------------------------------------------------------------


def test_a_turn_that_kills_its_workers_fails_at_its_bound_with_the_reason(say, settings):
    settings.TURN_MAX_ATTEMPTS = 2
    turn = say("Hello")
    for _ in range(3):
        claim(turn)
        expire(turn)
    turn = advance(turn)
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "turn_crashed")
    assert "died" in turn.error_detail


def test_a_stored_step_resets_what_went_wrong_before(say, tool_settings):
    turn = say("What time is it?")
    failed = steps.Failed(times=3, code="llm_unavailable", detail="HTTP 503")
    steps.wait_for_retry(claim(turn), seconds=-1, failed=failed)
    claim(turn)
    expire(turn)
    steps.store_calls(claim(turn, "worker-2"), Completion(tool_calls=(tool_call("c", "nonsense", "{}"),)), limit=None)
    turn.refresh_from_db()
    assert (turn.attempts, turn.retries, turn.retry_code, turn.retry_detail) == (0, 0, "", "")
    assert turn.retrying_since is None


@pytest.mark.parametrize("asked", ["nonsense", "time"])
def test_a_round_is_stored_once_though_the_answer_to_its_commit_was_lost(say, tool_settings, monkeypatch, asked):
    tool_settings("time")
    turn = say("What time is it?")
    held, real = claim(turn), transaction.Atomic.__exit__

    def lose(self, *exception):
        real(self, *exception)
        if not connection.in_atomic_block:
            monkeypatch.undo()
            raise OperationalError("the connection is lost")

    def store():
        return steps.store_calls(held, Completion(tool_calls=(tool_call("c", asked, "{}"),)), limit=None)

    monkeypatch.setattr(transaction.Atomic, "__exit__", lose)
    with pytest.raises(OperationalError):
        store()
    if asked == "time":
        with pytest.raises(FenceLost):
            store()
    else:
        assert store() is False
    assert ToolCall.objects.filter(turn_id=turn.pk).count() == 1
    assert Message.objects.filter(turn=turn, role="assistant").count() == 1


@pytest.mark.parametrize("before", [0, 1, 300])
def test_what_the_database_refuses_for_another_reason_is_no_round_that_was_stored(say, before):
    """As if somebody had taken a number of the transcript without the conversation's lock."""
    turn = say("Hello")
    held = claim(turn)
    ids = {"turn_id": turn.pk, "conversation_id": turn.conversation_id}
    ToolCall.objects.bulk_create(ToolCall(call_id=f"call_{n}", position=n, **ids) for n in range(before))
    turn.conversation.messages.create(seq=2, role="user", content="Out of turn")
    with pytest.raises(IntegrityError):
        steps.store_calls(held, Completion(tool_calls=(tool_call("c", "nonsense", "{}"),)), limit=None, before=before)
    assert ToolCall.objects.count() == before


def test_releasing_costs_no_attempt_and_keeps_the_turn_active(say):
    first, second = say("one"), say("two")
    steps.release(claim(first))
    first.refresh_from_db()
    assert (first.status, first.waiting_for, first.attempts) == (TurnStatus.WAITING, WaitingFor.RETRY, 0)
    assert lease.claim(second.pk, worker="worker-2") is None
    assert claim(first, "worker-2").attempts == 0


def test_a_turn_that_is_to_be_cancelled_is_released_all_the_same(say):
    turn = say("Hello")
    held = claim(turn)
    Turn.objects.update(cancel_requested=True)
    steps.release(held)
    turn.refresh_from_db()
    assert (turn.status, turn.cancel_requested) == (TurnStatus.WAITING, True)


# --- what a step leaves behind -----------------------------------------------------------------------------------


async def nothing_has_ended(turn_ids: list[UUID]) -> set[UUID]:
    return set(turn_ids)


def told_of(turn: Turn) -> list[tuple[str, dict[str, Any]]]:
    """The turn's events by now."""

    async def load() -> list[tuple[str, dict[str, Any]]]:
        hub = Hub(nothing_has_ended)
        await hub.attach()
        with hub.subscribed(turn.pk) as subscription:
            await hub.load(turn.pk, subscription)
        await hub.detach()
        return [(event.kind, event.data) for event, _ in subscription.events]

    events.transport().flush(timeout=20)
    return asyncio.run(load())


@pytest.fixture
def own_transport():
    events.transport.cache_clear()
    yield
    events.transport.cache_clear()


def test_a_call_that_waits_is_notified_and_a_refused_one_told_of(say, tool_settings, own_transport):
    tool_settings("time")
    turn = say("What time is it?")
    held = claim(turn)
    broker.purge()
    calls = (tool_call("c1", "nonsense", "{}"), tool_call("c2", "time", "{}"), tool_call("c3", "nonsense", "{}"))
    assert steps.store_calls(held, Completion(tool_calls=calls), limit=None) is True
    rows = list(ToolCall.objects.order_by("position"))
    assert [(row.position, row.call_id, row.ended) for row in rows] == [
        (0, "c1", True),
        (1, "c2", False),
        (2, "c3", True),
    ]
    assert list(broker.notifications()) == [("call", rows[1].pk)]
    assert [(kind, data["callId"], data["status"]) for kind, data in told_of(turn)] == [
        *(("tool.finished", "c1", CallStatus.REJECTED), ("tool.finished", "c3", CallStatus.REJECTED))
    ]


def test_a_round_that_is_refused_is_not_waited_for_nor_notified(say):
    turn = say("What time is it?")
    held = claim(turn)
    broker.purge()
    assert steps.store_calls(held, Completion(tool_calls=(tool_call("c", "nonsense", "{}"),)), limit=None) is False
    assert list(broker.notifications()) == []
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for) == (TurnStatus.RUNNING, "")


@pytest.mark.parametrize(("left", "notified"), [(0, {"turn"}), (1, {"call"})])
def test_a_turn_whose_calls_a_rate_limit_has_all_refused_is_notified(say, tool_settings, left, notified):
    tool_settings("time")
    ToolSetting.objects.filter(name="time").update(calls_per_minute_conversation=1 + left)
    turn = say("What time is it?")
    held = claim(turn)
    steps.store_calls(held, ASKS_FOR_TIME, limit=None)
    ToolCall.objects.update(status=CallStatus.SUCCESS)
    held = claim(turn)
    broker.purge()
    twice = Completion(tool_calls=(tool_call("c2", "time", "{}"), tool_call("c3", "time", "{}")))
    assert steps.store_calls(held, twice, limit=None, before=1) is True
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for) == (TurnStatus.WAITING, WaitingFor.TOOLS)
    assert {kind for kind, _ in broker.notifications()} == notified


REFUSED = Completion(tool_calls=(tool_call("c1", "nonsense", "{}"), tool_call("c2", "nonsense", "{}")))
ENDINGS = {
    "finish": lambda held: steps.finish(held, ANSWER, reply="Hello."),
    "fail": lambda held: steps.fail(held, code="turn_error"),
    "fail in a round": lambda held: (
        steps.store_calls(held, REFUSED, limit=None),
        steps.fail(held, code="turn_error"),
    ),
    "cancel": lambda held: (Turn.objects.update(cancel_requested=True), steps.cancel_if_asked(held)),
}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("rounds", [0, 2])
def test_the_numbers_of_a_transcript_have_no_gap_and_are_all_that_is_taken(say, rounds, end):
    turn = say("Hello")
    held = claim(turn)
    steps.wait_for_retry(held, seconds=-1)
    held = claim(turn)
    steps.reschedule(held, seconds=-1)
    held = claim(turn)
    for _ in range(rounds):
        steps.store_calls(held, REFUSED, limit=None, before=snapshot.load(held).calls)
        steps.store_results(held, snapshot.load(held))
        steps.release(held)
        held = claim(turn)
    end(held)
    turn.refresh_from_db()
    assert turn.ended
    assert not unanswered_calls([message.as_chat() for message in turn.messages.order_by("seq")])
    seqs = list(turn.messages.order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))
    assert Conversation.objects.get().next_seq == len(seqs) + 1


def test_a_held_turn_is_cancelled_if_somebody_asked_and_then_ends_in_no_other_way(say):
    turn = say("Hello")
    held = claim(turn)
    assert steps.cancel_if_asked(held) is False
    Turn.objects.update(cancel_requested=True)
    for end in (ENDINGS["finish"], ENDINGS["fail"], ENDINGS["fail in a round"]):
        with pytest.raises(FenceLost):
            end(held)
    assert steps.cancel_if_asked(held) is True
    turn.refresh_from_db()
    assert (turn.status, turn.error_code) == (TurnStatus.CANCELLED, "turn_cancelled")
    assert steps.cancel_if_asked(held) is False


def heard_of(turn: Turn, end: Callable[[], None]) -> Any:
    """The answer that is told with the turn's end."""

    def end_it() -> None:
        try:
            end()
        finally:
            connections.close_all()

    async def hear() -> Any:
        hub = Hub(nothing_has_ended)
        await hub.attach()
        async with asyncio.timeout(20):
            while not getattr(events.transport(), "is_connected", True):  # Redis: until it is connected
                await asyncio.sleep(0.005)
            with hub.subscribed(turn.pk) as subscription:
                await asyncio.to_thread(end_it)
                while not subscription.ended:
                    await subscription.changed()
        await hub.detach()
        return subscription.success

    return asyncio.run(hear())


@pytest.mark.parametrize(("given", "told"), [({}, 2), ({"has_called": True}, 2), ({"has_called": False}, 0)])
def test_with_the_end_of_a_turn_its_answer_and_its_calls_are_told(say, own_transport, given, told):
    turn = say("Hello")
    held = claim(turn)
    steps.store_calls(held, REFUSED, limit=None)
    steps.store_results(held, snapshot.load(held))
    success = heard_of(turn, lambda: steps.finish(held, ANSWER, reply="Hello.", **given))
    assert success["reply"] == "Hello."
    assert len(success["calls"]) == told


@pytest.mark.parametrize("keep_tokens", [None, 0, 100])
def test_a_turn_that_ends_has_its_conversation_compacted_if_told(say, keep_tokens):
    turn = say("Hello")
    steps.finish(claim(turn), ANSWER, reply="Hello.", compact_to=keep_tokens)
    asked = list(Compaction.objects.values_list("turn_id", "keep_tokens"))
    assert asked == ([] if keep_tokens is None else [(turn.pk, keep_tokens)])


@pytest.mark.parametrize(("sent", "kept"), [({"a": 2}, {"a": 2}), (None, {"a": 1})])
def test_of_what_a_model_was_sent_the_last_record_is_kept(say, sent, kept):
    turn = say("Hello")
    steps.wait_for_retry(claim(turn), seconds=-1, sent={"a": 1})
    steps.fail(claim(turn), code="turn_error", sent=sent)
    turn.refresh_from_db()
    assert turn.sent == kept


@pytest.mark.parametrize(("took_ms", "counted"), [(0, 0), (1, 1), (1000, 1)])
def test_an_answer_that_took_no_time_was_not_asked_of_a_model(say, took_ms, counted):
    turn = say("Hello")
    steps.finish(claim(turn), replace(ANSWER, took_ms=took_ms), reply="Hello.")
    turn.refresh_from_db()
    assert (turn.model_calls, turn.model_ms) == (counted, took_ms)


def test_a_failure_that_is_tried_again_is_the_first_unless_told_and_its_detail_has_a_bound(say):
    turn = say("Hello")
    steps.wait_for_retry(claim(turn), seconds=-1, failed=steps.Failed(detail="x" * 200))
    turn.refresh_from_db()
    assert (turn.retries, turn.retry_detail) == (1, "x" * 200)
    since = turn.retrying_since
    steps.wait_for_retry(claim(turn), seconds=-1, failed=steps.Failed(times=2, detail="x" * 201))
    turn.refresh_from_db()
    assert (turn.retries, turn.retry_detail, turn.retrying_since) == (2, "x" * 199 + "…", since)
    steps.wait_for_retry(claim(turn), seconds=-1)
    turn.refresh_from_db()
    assert (turn.retries, turn.retrying_since > since) == (1, True)


@pytest.mark.parametrize("end", [ENDINGS["fail"], ENDINGS["finish"]], ids=["fail", "finish"])
def test_one_turn_is_notified_when_another_ends(say, end):
    turn, following, _ = say("one"), say("two"), say("three")
    held = claim(turn)
    broker.purge()
    end(held)
    assert list(broker.notifications()) == [("turn", following.pk)]


@pytest.mark.parametrize("length", [127, 128, 129])
def test_of_the_name_of_a_tool_so_much_is_told_as_the_row_has_room_for(say, length):
    turn = say("Hello")
    held = claim(turn)
    steps.store_calls(held, Completion(tool_calls=(tool_call("c", "n" * length, "{}"),)), limit=None)
    steps.store_results(held, snapshot.load(held))
    assert turn.messages.get(role="tool").tool_name == "n" * min(length, 128)


# --- what a model may send ---------------------------------------------------------------------------------------


def test_calls_with_repeated_or_missing_ids_get_ids_of_their_own(say, tool_settings):
    tool_settings("time")
    turn = say("What time is it?")
    calls = tuple(tool_call(call_id, "time", "{}") for call_id in ("same", "same", ""))
    steps.store_calls(claim(turn), Completion(tool_calls=calls), limit=None)
    ids = list(ToolCall.objects.filter(turn_id=turn.pk).order_by("position").values_list("call_id", flat=True))
    assert ids[0] == "same"
    assert len(set(ids)) == 3
    stored = Message.objects.get(turn=turn, role="assistant").tool_calls
    assert [call["id"] for call in stored] == ids


def test_ids_repeated_in_a_later_round_do_not_collide(say, tool_settings, conversation):
    tool_settings("time")
    turn = say("What time is it?")
    for _ in range(2):
        held = claim(turn)
        steps.store_calls(held, ASKS_FOR_TIME, limit=None, before=snapshot.load(held).calls)
        ToolCall.objects.update(status=CallStatus.SUCCESS, result="noon")
        held = claim(turn)
        steps.store_results(held, snapshot.load(held))
        expire(turn)
    assert ToolCall.objects.filter(turn_id=turn.pk).count() == 2
    assert settle([turn])[0].status == TurnStatus.SUCCEEDED


def test_an_interrupted_turn_goes_on_from_what_was_stored(say, tool_settings, effects):
    tool_settings("append_line", grants=["FS_WRITE"])
    call = {"name": "append_line", "arguments": {"path": str(effects), "line": "once"}}
    turn = say(script({"call": [call]}, {"say": "Done."}))
    advance(turn)
    ToolCall.objects.update(status=CallStatus.SUCCESS, result="appended once")
    held = claim(turn)
    steps.store_results(held, snapshot.load(held))
    expire(turn)  # the worker died after the results were stored
    assert advance(turn, worker="worker-2").status == TurnStatus.SUCCEEDED
    assert ToolCall.objects.count() == 1


# --- what the model sees ---------------------------------------------------------------------------------------------


def test_of_a_turn_that_fills_the_prompt_alone_all_is_read(say, monkeypatch, settings):
    monkeypatch.setattr(history, "MAX_MESSAGES", 4)
    settings.MEMORY_WINDOW = 37  # a statement of its own, which has this bound
    settle([say("Hello"), say("Hello again")])
    turn = say("Go on")
    held = claim(turn)
    # Four there are of five, and the first of them is not its own.
    assert [message["role"] for message in snapshot.load(held).transcript] == ["assistant", "user", "assistant", "user"]
    for number in range(3):
        refused = Completion(tool_calls=(tool_call(f"c{number}", "nonsense", "{}"),))
        steps.store_calls(held, refused, limit=None, before=number)
        steps.store_results(held, snapshot.load(held))
        if number == 0:
            roles = [message["role"] for message in snapshot.load(held).transcript]
            assert roles == ["assistant", "user", "assistant", "tool"]
    view = snapshot.load(held)
    assert len(view.own) == len(view.transcript) == 7
    assert view.calls == 3


@pytest.mark.parametrize(("consolidated", "window", "first"), [(0, 50, 1), (2, 1, 3), (2, 2, 3), (2, 4, 2), (3, 50, 1)])
def test_what_a_summary_covers_is_seen_only_within_the_window(say, conversation, settings, consolidated, window, first):
    settle([say("one"), say("two")])
    summary = {"role": "system", "type": Message.Type.SUMMARY, "kind": Message.Kind.ROLLING}
    conversation.messages.create(content="before", seq=1000, **summary)
    Conversation.objects.update(consolidated_through=consolidated, summary_seq=1000 if consolidated else None)
    settings.MEMORY_WINDOW = window
    view = snapshot.load(claim(say("three")))
    assert (view.first_seq, view.last_seq, view.unconsolidated) == (first, 5, 5 - consolidated)
    assert view.summary == ("before" if consolidated else "")


def test_an_agent_may_have_a_window_of_its_own(say):
    """With room for twice as many before older ones are summarised."""
    settle([say("one"), say("two")])
    Conversation.objects.update(consolidated_through=4)
    held = claim(say("three"))
    assert snapshot.load(held).first_seq == 1
    held.agent.memory_window = 2
    assert snapshot.load(held).first_seq == 4
    assert (held.agent.window(), held.agent.compact_after()) == (2, 4)


@pytest.mark.parametrize(
    ("summarise_from", "bound", "is_left"),
    [(0, 500, False), (5, 500, False), (6, 500, True), (6, 8, False), (6, 11, False), (6, 12, True)],
)
def test_what_a_summary_was_undone_of_is_left_long_for_a_while(say, monkeypatch, summarise_from, bound, is_left):
    settle([say("one"), say("two")])
    Conversation.objects.update(summarise_from_seq=summarise_from)
    turn = say("three")
    monkeypatch.setattr(history, "MAX_MESSAGES", bound)
    assert snapshot.load(claim(turn)).is_left_long is is_left


@pytest.mark.parametrize("role", Message.Role.values)
def test_only_what_a_user_says_has_its_time(role):
    said = {"role": role, "content": "Hello"}
    seen = history.for_model(UTC, datetime(2026, 1, 2, 3, 4, tzinfo=UTC), said)
    assert seen["role"] == role
    assert ("2026" in seen["content"]) is (role == "user")
    assert seen["content"].startswith("Hello")
