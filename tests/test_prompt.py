"""What the model is sent."""

import pytest
from hypothesis import given

from agent.loop import Limit
from agent.prompt import DEFAULT_SYSTEM_PROMPT, build_prompt, is_last_word
from tests.openai_server import check_messages
from tests.test_history import transcripts, windows

pytestmark = pytest.mark.shapeless(reason="pure functions")

ASKED = {"role": "user", "content": "Hello"}


def test_the_system_prompt_comes_first():
    prompt = build_prompt(system_prompt="You are a gardener.", transcript=[ASKED], window=20)
    assert prompt == [{"role": "system", "content": "You are a gardener."}, ASKED]


def test_an_agent_without_a_system_prompt_has_the_default_one():
    prompt = build_prompt(system_prompt="", transcript=[ASKED], window=20)
    assert prompt[0] == {"role": "system", "content": DEFAULT_SYSTEM_PROMPT}


@pytest.mark.parametrize(
    ("limit", "word"), [(Limit.TOOL_ROUNDS, "tool rounds"), (Limit.TIME, "time limit"), (Limit.TOKENS, "token limit")]
)
def test_at_a_limit_the_system_prompt_asks_for_the_best_answer(limit, word):
    prompt = build_prompt(system_prompt="You are a gardener.", transcript=[ASKED], window=20, limit=limit)
    assert prompt[0]["content"].startswith("You are a gardener.\n\n")
    assert word in prompt[0]["content"]
    assert is_last_word(prompt)
    assert [message["role"] for message in prompt] == ["system", "user"]


def test_without_a_limit_it_does_not():
    assert not is_last_word(build_prompt(system_prompt="", transcript=[ASKED], window=20))


def test_the_prompt_stays_equal_at_its_start():
    """Providers cache prompts by their beginning."""
    first = build_prompt(system_prompt="", transcript=[ASKED], window=20)
    answered = [ASKED, {"role": "assistant", "content": "Hi."}, ASKED]
    assert build_prompt(system_prompt="", transcript=answered, window=20)[: len(first)] == first


@given(transcripts, windows)
def test_every_prompt_is_one_the_chat_format_allows(stored, window):
    prompt = build_prompt(system_prompt="", transcript=stored, window=window, limit=Limit.TIME)
    check_messages(prompt)
    assert [message["role"] for message in prompt].count("system") == 1
