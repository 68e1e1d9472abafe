"""Turns, run by the real runner in the test's own thread."""

import asyncio

import pytest

from agent.models import Agent
from conversations.engine import inbox
from conversations.engine.turns import DatabaseThreads, TurnRunner
from conversations.models import Conversation, Message, Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.lib.clock import from_now
from tests.support.scripts import script
from tests.support.working import advance, run_call, settle
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def transcript(conversation: Conversation) -> list[tuple[int, str, str]]:
    rows = Message.objects.transcript().filter(conversation=conversation)
    return [(row.seq or 0, row.role, row.content) for row in rows]


def test_a_turn_echoes(say, conversation):
    (turn,) = settle([say("Hello")])
    assert turn.status == TurnStatus.SUCCEEDED
    assert transcript(conversation) == [(1, "user", "Hello"), (2, "assistant", "You said: Hello")]


def test_usage_and_times_are_kept(say):
    (turn,) = settle([say("Hello")])
    assert turn.prompt_tokens > 0
    assert turn.completion_tokens > 0
    assert turn.created_at <= turn.started_at <= turn.ended_at
    assert turn.lease_until is None


def test_a_turn_runs_a_tool_and_answers(say, tool_settings, conversation):
    tool_settings("time")
    (turn,) = settle([say("What time is it?")])
    assert [role for _, role, _ in transcript(conversation)] == ["user", "assistant", "tool", "assistant"]
    call = ToolCall.objects.get(turn_id=turn.pk)
    assert (call.status, call.tool_name, call.agent) == (CallStatus.SUCCESS, "time", "default")
    assert call.result in transcript(conversation)[-1][2]


def test_while_tools_run_the_turn_waits_in_the_database(say, tool_settings):
    tool_settings("time")
    turn = advance(say("What time is it?"))
    assert (turn.status, turn.waiting_for, turn.lease_until) == (TurnStatus.WAITING, WaitingFor.TOOLS, None)
    assert advance(turn).status == TurnStatus.WAITING, "with a call open, the turn is not claimable"
    run_call(ToolCall.objects.get(turn_id=turn.pk))
    assert advance(turn).status == TurnStatus.SUCCEEDED


def test_a_refused_tool_is_answered_with_its_rule_without_waiting(say, conversation):
    turn = advance(say(script({"call": [{"name": "flood"}]}, {"say": "{results}"})))
    assert turn.status == TurnStatus.SUCCEEDED
    call = ToolCall.objects.get(turn_id=turn.pk)
    assert (call.status, call.rule) == (CallStatus.REJECTED, "not_enabled")
    assert '"rule": "not_enabled"' in transcript(conversation)[-1][2]


def test_the_calls_of_a_round_are_answered_in_their_order(say, tool_settings, conversation, effects):
    tool_settings("append_line", "time", grants=["FS_WRITE"])
    calls = [
        {"name": "append_line", "arguments": {"path": str(effects), "line": "one"}},
        {"name": "nonsense"},
        {"name": "append_line", "arguments": {"path": str(effects), "line": "two"}},
    ]
    turn = advance(say(script({"call": calls}, {"say": "Done."})))
    open_calls = list(ToolCall.objects.open().order_by("-position"))
    assert [call.position for call in open_calls] == [2, 0]
    for call in open_calls:  # they end in another order than they were asked for
        run_call(call)
    assert advance(turn).status == TurnStatus.SUCCEEDED
    results = [content for _, role, content in transcript(conversation) if role == "tool"]
    assert results[0] == "appended one"
    assert "not_registered" in results[1]
    assert results[2] == "appended two"


def test_turns_of_a_conversation_run_in_order(say, conversation):
    first, second, third = say("one"), say("two"), say("three")
    assert advance(third).status == TurnStatus.QUEUED
    assert advance(second).status == TurnStatus.QUEUED
    settle([third, second, first])
    contents = [content for _, _, content in transcript(conversation)]
    assert contents == ["one", "You said: one", "two", "You said: two", "three", "You said: three"]


def test_a_message_that_arrives_in_mid_turn_comes_after_the_turn(say, tool_settings, conversation):
    tool_settings("time")
    first = advance(say("What time is it?"))
    second = say("Are you there?")
    assert Message.objects.get(turn=second).seq is None
    run_call(ToolCall.objects.get(turn_id=first.pk))
    settle([first, second])
    assert [role for _, role, _ in transcript(conversation)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_beyond_the_rounds_calls_are_refused_and_the_reply_says_so(say, tool_settings, conversation):
    tool_settings("time")
    ask = {"call": [{"name": "time"}]}
    (turn,) = settle([say(script(ask, ask, ask, {"say": "My best."}))])
    statuses = list(ToolCall.objects.filter(turn_id=turn.pk).order_by("position").values_list("status", "rule"))
    assert statuses == [("SUCCESS", ""), ("SUCCESS", ""), ("REJECTED", "limit:tool_rounds")]
    assert transcript(conversation)[-1][2] == (
        "My best.\n\n[Stopped at the limit of 2 tool rounds; this is the best answer so far.]"
    )


def test_an_agent_may_raise_the_rounds(say, tool_settings, agent, conversation):
    tool_settings("time")
    Agent.objects.update(max_tool_rounds=3)
    ask = {"call": [{"name": "time"}]}
    settle([say(script(ask, ask, ask, {"say": "All done."}))])
    assert transcript(conversation)[-1][2] == "All done."


def test_at_the_token_limit_the_best_answer_is_asked_for(say, tool_settings, agent, conversation):
    tool_settings("time")
    Agent.objects.update(max_turn_tokens=1)
    settle([say(script({"call": [{"name": "time"}]}, {"say": "My best."}))])
    assert transcript(conversation)[-1][2].endswith(
        "[Stopped at the turn's token limit; this is the best answer so far.]"
    )


def test_near_its_deadline_the_best_answer_is_asked_for(say, tool_settings, conversation, settings):
    tool_settings("time")
    settings.TURN_TIMEOUT_SECONDS = 8
    settings.LLM_TIMEOUT_SECONDS = 7.9999  # a quarter of the turn's time is kept for the last answer
    turn = advance(say(script({"call": [{"name": "time"}]}, {"say": "My best."})))
    run_call(ToolCall.objects.get(turn_id=turn.pk))
    Turn.objects.update(deadline=turn.deadline - (turn.deadline - turn.started_at) * 0.8)
    assert advance(turn).status == TurnStatus.SUCCEEDED
    assert "time limit" in transcript(conversation)[-1][2]


def test_past_its_deadline_a_turn_fails(say, settings):
    settings.TURN_TIMEOUT_SECONDS = 0.3
    turn = advance(say(script({"sleep": 30, "say": "Too late."})))
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "turn_timeout")


def test_a_silent_model_times_out_and_is_asked_again(say, settings):
    settings.LLM_TIMEOUT_SECONDS = 0.1
    turn = advance(say(script({"sleep": 30, "say": "Too late."})))
    assert (turn.status, turn.waiting_for, turn.retries) == (TurnStatus.WAITING, WaitingFor.RETRY, 1)


@pytest.mark.parametrize("failure", ["rate_limited", "timeout", "unavailable", "bad_response"])
def test_a_transient_failure_waits_in_the_database_and_is_tried_again(say, failure, conversation):
    turn = advance(say(script({"fail": failure, "times": 1, "say": "There."})))
    assert (turn.status, turn.waiting_for, turn.retries) == (TurnStatus.WAITING, WaitingFor.RETRY, 1)
    assert turn.run_after > turn.started_at
    assert advance(turn).status == TurnStatus.WAITING
    Turn.objects.update(run_after=from_now(0))
    (turn,) = settle([turn])
    assert (turn.status, turn.retries) == (TurnStatus.SUCCEEDED, 0)


def test_a_wait_longer_than_the_turn_has_left_is_not_begun(say, settings):
    turn = advance(say(script({"fail": "rate_limited", "retryAfter": settings.TURN_TIMEOUT_SECONDS + 1})))
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "llm_rate_limited")


@pytest.mark.parametrize("failure", ["auth", "context_too_long", "content_filter"])
def test_a_permanent_failure_ends_the_turn_and_is_not_stored_as_speech(say, failure, conversation):
    turn = advance(say(script({"fail": failure})))
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, f"llm_{failure}")
    assert [role for _, role, _ in transcript(conversation)] == ["user"]


def test_after_a_failed_turn_the_next_one_runs(say):
    failed, answered = settle([say(script({"fail": "auth"})), say("Hello again")])
    assert (failed.status, answered.status) == (TurnStatus.FAILED, TurnStatus.SUCCEEDED)


def test_a_fault_of_ours_is_bounded_and_leaves_a_reason(say, settings, monkeypatch, caplog):
    """A provider's client that raises what it must not stands for any bug in our own code."""
    from agent import llm

    class Broken:
        async def complete(self, request: object, on_delta: object = None) -> None:
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(llm, "client", lambda name: Broken())
    settings.TURN_MAX_ATTEMPTS = 0
    turn = advance(say("Hello"))
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "turn_error")
    assert "a bug" not in turn.error_detail
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(("deaths", "held_at_once"), [(1, 10), (2, 8), (3, 1)])
def test_turns_whose_workers_died_time_and_again_are_held_apart(say, owner, agent, deaths, held_at_once):
    talks = [inbox.start_conversation(owner_id=owner.pk, metadata={}) for _ in range(10)]
    turns = [say(script({"sleep": 60, "say": "at last"}), conversation=talk) for talk in talks]
    Turn.objects.update(status=TurnStatus.RUNNING, lease_until=from_now(-1), attempts=deaths - 1)
    asyncio.run(hold(turns, held_at_once))
    assert set(Turn.objects.values_list("attempts", "waiting_for")) == {(deaths, WaitingFor.RETRY)}


async def hold(turns: list[Turn], count: int) -> None:
    """Have a worker take all of them, and see that it keeps so many and leaves the others waiting."""
    threads = DatabaseThreads(2)
    runner = TurnRunner(worker="worker-1", database=threads)
    taken = [asyncio.create_task(runner.advance(turn.pk)) for turn in turns]
    waiting = Turn.objects.filter(status=TurnStatus.WAITING).count
    async with asyncio.timeout(60):
        while (left := await threads(waiting)) + runner.count < len(turns):
            await asyncio.sleep(0.01)
    assert (runner.count, left) == (count, len(turns) - count)
    await runner.stop()
    await asyncio.gather(*taken)
    threads.close()
