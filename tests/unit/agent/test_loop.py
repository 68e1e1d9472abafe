"""The loop, pure: what a turn does next, told from its messages alone."""

import copy
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.loop import CallModel, Finish, Limit, RunTools, next_step, unanswered_calls
from tests.support.hosts import ROOT

pytestmark = pytest.mark.shapeless(reason="pure functions")

ASKED = {"role": "user", "content": "What time is it?"}
ANSWERED = {"role": "assistant", "content": "Noon."}


def call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "time", "arguments": "{}"}}


def calls(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [call(each) for each in ids]}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "noon"}


def test_a_fresh_turn_asks_the_model():
    assert next_step([ASKED], max_rounds=2) == CallModel()


def test_calls_are_run():
    assert next_step([ASKED, calls("1", "2")], max_rounds=2) == RunTools(calls=(call("1"), call("2")))


def test_of_a_round_that_is_answered_in_part_the_rest_is_run():
    assert next_step([ASKED, calls("1", "2"), result("1")], max_rounds=2) == RunTools(calls=(call("2"),))


def test_after_its_results_the_model_is_asked_again():
    assert next_step([ASKED, calls("1", "2"), result("2"), result("1")], max_rounds=2) == CallModel()


def test_an_id_of_an_earlier_round_that_is_used_again_is_another_call():
    earlier = [ASKED, calls("1"), result("1")]
    assert next_step([*earlier, calls("1")], max_rounds=2) == RunTools(calls=(call("1"),))


def test_an_answer_ends_the_turn():
    assert next_step([ASKED, ANSWERED], max_rounds=2) == Finish(reply="Noon.")


def test_as_many_rounds_run_as_are_allowed():
    two_rounds = [ASKED, calls("1"), result("1"), calls("2")]
    assert next_step(two_rounds, max_rounds=2) == RunTools(calls=(call("2"),))
    assert next_step([*two_rounds, result("2")], max_rounds=2) == CallModel()


def test_calls_of_a_round_too_many_are_refused_and_the_model_asked_a_last_time():
    one_too_many = [ASKED, calls("1"), result("1"), calls("2")]
    assert next_step(one_too_many, max_rounds=1) == RunTools(calls=(call("2"),), limit=Limit.TOOL_ROUNDS)
    assert next_step([*one_too_many, result("2")], max_rounds=1) == CallModel(limit=Limit.TOOL_ROUNDS)


def test_with_no_rounds_at_all_the_first_calls_are_refused():
    assert next_step([ASKED], max_rounds=0) == CallModel()
    assert next_step([ASKED, calls("1")], max_rounds=0) == RunTools(calls=(call("1"),), limit=Limit.TOOL_ROUNDS)


@pytest.mark.parametrize("limit", [Limit.TIME, Limit.TOKENS])
def test_at_another_limit_the_model_is_asked_a_last_time(limit):
    assert next_step([ASKED], max_rounds=2, limit=limit) == CallModel(limit=limit)
    assert next_step([ASKED, calls("1")], max_rounds=2, limit=limit) == RunTools(calls=(call("1"),), limit=limit)


@pytest.mark.parametrize(
    ("limit", "notice"),
    [(Limit.TIME, "time limit"), (Limit.TOKENS, "token limit"), (Limit.TOOL_ROUNDS, "limit of 2 tool rounds")],
)
def test_the_reply_says_which_limit_was_met(limit, notice):
    step = next_step([ASKED, ANSWERED], max_rounds=2, limit=limit)
    assert step.reply.startswith("Noon.\n\n[Stopped at the ")
    assert notice in step.reply


def test_at_a_limit_an_empty_answer_is_the_notice_alone():
    step = next_step([ASKED, {"role": "assistant", "content": ""}], max_rounds=2, limit=Limit.TIME)
    assert step.reply.startswith("[Stopped at")


def test_the_rounds_limit_is_told_before_another():
    rounds = [ASKED, calls("1"), result("1"), calls("2"), result("2")]
    assert next_step(rounds, max_rounds=1, limit=Limit.TIME) == CallModel(limit=Limit.TOOL_ROUNDS)


@given(st.lists(st.integers(1, 3), max_size=5), st.integers(0, 6), st.data())
def test_a_turn_played_with_any_model_ends_in_bounded_steps(model, max_rounds, data):
    """A model that calls so many tools in each of its rounds, and then answers; results come in any order."""
    messages, model = [ASKED], list(model)
    for number in range(40):
        before = copy.deepcopy(messages)
        step = next_step(messages, max_rounds=max_rounds)
        assert messages == before
        if isinstance(step, Finish):
            break
        if isinstance(step, CallModel):
            width = 0 if step.limit or not model else model.pop(0)
            messages.append(calls(*[f"{number}-{index}" for index in range(width)]) if width else ANSWERED)
        else:
            assert step.calls == unanswered_calls(messages)
            answered = data.draw(st.permutations(step.calls))[: data.draw(st.integers(1, len(step.calls)))]
            messages += [result(each["id"]) for each in answered]
    else:
        raise AssertionError("the turn does not end")
    rounds = sum(1 for message in messages if message.get("tool_calls"))
    assert rounds <= max_rounds + 1
    assert ("Stopped" in step.reply) == (rounds > max_rounds)


def test_the_loop_the_history_and_the_prompt_need_no_django():
    script = "import agent.loop, agent.history, agent.prompt, sys; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, env={}, check=False).returncode == 0
