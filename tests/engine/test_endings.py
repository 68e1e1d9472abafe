"""Cancelling turns and deleting conversations, in every state."""

import asyncio

import pytest

from conversations.engine import lease, steps, turn_control
from conversations.engine.turns import DatabaseThreads, TurnRunner
from conversations.errors import FenceLost
from conversations.events import answers
from conversations.models import Conversation, Message, Turn
from conversations.statuses import TurnStatus
from nanohost.lib.clock import from_now
from tests.faults import doorbell
from tests.support.scripts import script
from tests.support.working import advance, run_call, settle
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_queued_turn_is_cancelled_at_once_and_its_message_never_enters_the_transcript(say):
    first, second = say("one"), say("two")
    turn_control.cancel_turn(first)
    settle([first, second])
    first.refresh_from_db()
    assert (first.status, first.error_code) == (TurnStatus.CANCELLED, "turn_cancelled")
    contents = Message.objects.transcript().values_list("content", flat=True)
    assert list(contents) == ["two", "You said: two"]


def test_a_turn_that_waits_for_tools_ends_with_its_calls(say, tool_settings, effects):
    tool_settings("append_line", "time", grants=["FS_WRITE"])
    calls = [{"name": "time"}, {"name": "append_line", "arguments": {"path": str(effects), "line": "never"}}]
    turn = advance(say(script({"call": calls})))
    turn_control.cancel_turn(turn)
    turn.refresh_from_db()
    assert turn.status == TurnStatus.CANCELLED
    assert set(ToolCall.objects.values_list("status", "rule")) == {(CallStatus.FAILED, "cancelled")}
    for call in ToolCall.objects.all():
        run_call(call)  # a notification that comes late
    assert not effects.exists()


def test_a_started_call_with_side_effects_becomes_unknown_and_the_next_model_is_told(say, tool_settings, effects):
    tool_settings("append_line", grants=["FS_WRITE"])
    call = {"name": "append_line", "arguments": {"path": str(effects), "line": "perhaps"}}
    turn = advance(say(script({"call": [call]})))
    ToolCall.objects.update(status=CallStatus.RUNNING, fence=1, lease_until=from_now(30))
    turn_control.cancel_turn(turn)
    assert ToolCall.objects.get().status == CallStatus.UNKNOWN
    assert Message.objects.get(role="tool").content.startswith("UNKNOWN")


def test_a_turn_that_waits_for_a_retry_is_cancelled(say):
    turn = advance(say(script({"fail": "unavailable"})))
    turn_control.cancel_turn(turn)
    turn.refresh_from_db()
    assert turn.status == TurnStatus.CANCELLED


def test_an_ended_turn_stays_as_it_ended(say):
    (turn,) = settle([say("Hello")])
    turn_control.cancel_turn(turn)
    turn.refresh_from_db()
    assert (turn.status, turn.cancel_requested) == (TurnStatus.SUCCEEDED, False)


def test_whoever_cancels_too_late_is_told_so(say):
    turn = say("Hello")
    settled = advance(turn)
    assert turn_control.cancel_turn(settled) is False
    assert turn_control.cancel_turn(say("Hello")) is True


def test_a_running_turn_ends_while_its_model_is_silent(say):
    turn = say(script({"sleep": 60, "say": "Too late."}))

    async def cancel_in_mid_call() -> None:
        threads = DatabaseThreads(2)
        runner = TurnRunner(worker="worker-1", database=threads)
        task = asyncio.create_task(runner.advance(turn.pk))
        while not runner.count:
            await asyncio.sleep(0.01)
        await threads(turn_control.cancel_turn, turn)
        await runner.watch()
        await task
        threads.close()

    asyncio.run(cancel_in_mid_call())
    turn.refresh_from_db()
    assert (turn.status, turn.error_code) == (TurnStatus.CANCELLED, "turn_cancelled")


def test_a_cancel_between_steps_wins_over_the_answer(say):
    turn = say("Hello")
    held = lease.claim(turn.pk, worker="worker-1")
    turn_control.cancel_turn(turn)
    from agent.llm.base import Completion

    with pytest.raises(FenceLost):
        steps.finish(held, Completion(content="Hi"), reply="Hi")
    assert steps.cancel_if_asked(held)
    turn.refresh_from_db()
    assert turn.status == TurnStatus.CANCELLED
    assert not Message.objects.filter(role="assistant").exists()


def test_a_running_turn_whose_worker_is_gone_is_cancelled_by_the_next(say):
    turn = say("Hello")
    lease.claim(turn.pk, worker="worker-1")
    turn_control.cancel_turn(turn)
    Turn.objects.update(lease_until=from_now(-1))
    assert advance(turn, worker="worker-2").status == TurnStatus.CANCELLED


def test_a_turn_that_was_to_be_cancelled_does_not_end_as_failed(say):
    turn = say("Hello")
    held = lease.claim(turn.pk, worker="worker-1")
    turn_control.cancel_turn(turn)
    with pytest.raises(FenceLost):
        steps.fail(held, code="turn_timeout")
    assert steps.cancel_if_asked(held)
    turn.refresh_from_db()
    assert turn.status == TurnStatus.CANCELLED


def test_after_a_cancelled_turn_the_next_one_runs(say):
    first, second = say(script({"fail": "unavailable"})), say("two")
    turn_control.cancel_turn(advance(first))
    assert advance(second).status == TurnStatus.SUCCEEDED


def test_deleting_takes_messages_and_turns_and_leaves_the_audit(say, tool_settings, conversation):
    tool_settings("time")
    settle([say("What time is it?")])
    turn_control.delete_conversation(conversation.pk)
    assert not Conversation.objects.exists()
    assert not Turn.objects.exists()
    assert not Message.objects.exists()
    assert ToolCall.objects.get().conversation_id == conversation.pk


def test_writes_that_come_after_the_deletion_are_no_ops(say, conversation):
    held = lease.claim(say("Hello").pk, worker="worker-1")
    turn_control.delete_conversation(conversation.pk)
    with pytest.raises(FenceLost):
        steps.fail(held, code="turn_error")
    assert lease.still_held([held]) == {}
    assert not steps.cancel_if_asked(held)


def test_open_calls_of_a_deleted_conversation_end(say, tool_settings, conversation):
    tool_settings("time")
    advance(say("What time is it?"))
    turn_control.delete_conversation(conversation.pk)
    assert ToolCall.objects.get().rule == "deleted"


# --- by hand: failed, requeued ------------------------------------------------------------------------------------


def lose_its_worker(turn):
    Turn.objects.filter(pk=turn.pk).update(lease_until=from_now(-1))


def test_a_turn_whose_worker_is_gone_is_cancelled_at_once(say):
    turn = say("Hello")
    claim = lease.claim(turn.pk, worker="worker")
    lose_its_worker(turn)
    turn_control.cancel_turn(turn)
    turn.refresh_from_db()
    assert (turn.status, turn.lease_until) == (TurnStatus.CANCELLED, None)
    with pytest.raises(FenceLost):  # it was not gone after all
        steps.fail(claim, code="turn_error")


def test_a_turn_is_failed_wherever_it_is_and_its_client_is_told_why(say):
    queued, running, waiting = say("one"), say("two"), say("three")
    assert turn_control.fail_turn(queued, reason="The model is withdrawn.")
    claim = lease.claim(running.pk, worker="worker")
    assert turn_control.fail_turn(running, reason="The model is withdrawn.")
    with pytest.raises(FenceLost):
        steps.release(claim)
    steps.wait_for_retry(lease.claim(waiting.pk, worker="worker"), seconds=60)
    assert turn_control.fail_turn(waiting, reason="The model is withdrawn.")
    for turn in Turn.objects.all():
        assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "turn_failed_by_operator")
        problem = answers.current(turn.pk, request_id="r")
        assert (problem.status, problem.body["detail"]) == (500, "The model is withdrawn.")
        assert answers.turns_as_json([turn])[0]["error"]["message"] == "The model is withdrawn."
    assert not turn_control.fail_turn(queued, reason="again")


def test_a_started_call_with_side_effects_becomes_unknown_when_its_turn_is_failed(say, tool_settings, effects):
    tool_settings("append_line", grants=["FS_WRITE"])
    call = {"name": "append_line", "arguments": {"path": str(effects), "line": "perhaps"}}
    turn = advance(say(script({"call": [call]})))
    ToolCall.objects.update(status=CallStatus.RUNNING, fence=1, lease_until=from_now(30))
    turn_control.fail_turn(turn, reason="x")
    assert ToolCall.objects.get().status == CallStatus.UNKNOWN


def test_a_turn_that_is_requeued_is_taken_from_its_worker(say):
    turn = say("Hello")
    claim = lease.claim(turn.pk, worker="worker-1")
    Turn.objects.update(attempts=2, deadline=from_now(-1))
    assert turn_control.requeue_turn(turn)
    for write in (steps.release, lambda claim: steps.fail(claim, code="turn_error")):
        with pytest.raises(FenceLost):
            write(claim)
    again = lease.claim(turn.pk, worker="worker-2")
    assert again.attempts == 2, "what has cost workers is still run apart"
    assert again.seconds_left() > 1, "it has its time anew"
    steps.release(again)
    assert settle([turn])[0].status == TurnStatus.SUCCEEDED


def test_a_process_that_holds_a_turn_lets_it_go_and_takes_it_again_when_it_is_requeued(say):
    """The notification may come back to whoever holds it, which is the only worker there is in an embedded host."""
    turn = say(script({"sleep": 0.5, "say": "So."}))

    async def requeue_in_mid_call() -> None:
        threads = DatabaseThreads(2)
        runner = TurnRunner(worker="worker-1", database=threads)
        task = asyncio.create_task(runner.advance(turn.pk))
        while not runner.count:
            await asyncio.sleep(0.01)
        assert await threads(turn_control.requeue_turn, turn)
        await runner.advance(turn.pk)  # the notification
        for _ in range(2):  # once, its own last step may just have been stored
            await runner.watch()
        await task
        threads.close()

    asyncio.run(requeue_in_mid_call())
    turn.refresh_from_db()
    assert (turn.status, turn.fence, turn.attempts) == (TurnStatus.SUCCEEDED, 3, 0)
    assert turn.messages.filter(role="assistant").count() == 1


def test_a_requeued_turn_runs_no_call_again_whose_effects_are_unknown(say, tool_settings, effects):
    tool_settings("append_line", grants=["FS_WRITE"])
    call = {"name": "append_line", "arguments": {"path": str(effects), "line": "once"}}
    turn = advance(say(script({"call": [call]}, {"say": "So."})))
    ToolCall.objects.update(status=CallStatus.RUNNING, fence=1, lease_until=from_now(-1))  # its worker died in it
    assert turn_control.requeue_turn(turn)
    assert run_call(ToolCall.objects.get()).status == CallStatus.UNKNOWN
    assert settle([turn])[0].status == TurnStatus.SUCCEEDED
    assert not effects.exists()


def test_a_retry_that_is_requeued_is_not_waited_for(say):
    turn = advance(say(script({"fail": "unavailable"})))
    assert lease.claim(turn.pk, worker="worker") is None
    assert turn_control.requeue_turn(turn)
    turn.refresh_from_db()
    assert turn.retries == 0
    assert lease.claim(turn.pk, worker="worker")


def test_a_queued_turn_that_is_requeued_is_notified_and_keeps_its_place(say):
    first, second = say("one"), say("two")
    doorbell.purge()
    assert turn_control.requeue_turn(second)
    assert list(doorbell.notifications()) == [("turn", second.pk)]
    assert lease.claim(second.pk, worker="worker") is None
    assert lease.claim(first.pk, worker="worker").fence == 1


def test_a_turn_that_waits_for_tools_is_notified_with_its_calls(say, tool_settings):
    tool_settings("time")
    turn = advance(say("What time is it?"))
    doorbell.purge()
    assert turn_control.requeue_turn(turn)
    assert set(doorbell.notifications()) == {("turn", turn.pk), ("call", ToolCall.objects.get().pk)}


def test_an_ended_turn_is_not_requeued(say):
    (turn,) = settle([say("Hello")])
    assert not turn_control.requeue_turn(turn)
    assert advance(turn).status == TurnStatus.SUCCEEDED
