"""Answers that are none, in turns, of each dialect: a turn ends by a name, or waits to be asked again by one."""

import itertools
from typing import Any

import pytest

from agent import llm
from agent.llm.providers import PROVIDERS
from conversations.errors import PASSING, TurnProblem
from conversations.models import Message
from conversations.statuses import TurnStatus, WaitingFor
from tests.support import dialects
from tests.support.dialects import Dialects
from tests.support.openai_server import Reply, as_json, call, completion
from tests.support.working import advance, settle
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "sk-test-0123456789abcdef"
DIALECTS = ("groq", "azure", "anthropic", "openai_codex", "custom")


@pytest.fixture(params=DIALECTS)
def provider(request) -> str:
    return str(request.param)


@pytest.fixture
def server(settings, provider) -> Any:
    running = Dialects(key=KEY).start()
    settings.LLM_PROVIDER, settings.LLM_MODEL_DEFAULT = "auto", f"{provider}/model-1"
    settings.LLM_BASE_URLS = {provider: running.url_of(provider)}
    setattr(settings, PROVIDERS[provider].key, KEY)
    yield running
    running.stop()
    llm.forget_clients()


def asks(provider: str, *ids: str, usage: Any = None) -> Reply:
    """An answer that calls ``time`` by each of these ids; without any, it says something."""
    if provider == "anthropic":
        blocks = [dialects.tool_use("time", {}, each) for each in ids] or [dialects.text("Fine.")]
        return dialects.message(*blocks, usage=usage)
    if provider == "openai_codex":
        return dialects.response("" if ids else "Fine.", calls=[("time", each) for each in ids], usage=usage)
    calls = [call("time", "{}", each) for each in ids]
    return completion(None if ids else "Fine.", tool_calls=calls or None, usage=usage)


HOSTILE = {
    "html": Reply(body=b"<html>Down</html>", headers={"Content-Type": "text/html"}),
    "cut JSON": Reply(body=b'{"choices": [{"mess', headers={"Content-Type": "application/json"}),
    "no UTF-8": Reply(body=b"data: \xff\xfe\n\n", headers={"Content-Type": "text/event-stream"}),
    "a number": as_json(7),
    "nothing": Reply(body=b""),
    "reset": Reply(hang_up=True),
    "endless": Reply(body=itertools.repeat(b"data: " + b"x" * 65536), headers={"Content-Type": "text/event-stream"}),
}


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_turn_waits_by_a_name_and_goes_on_when_there_is_an_answer(server, provider, say, reply):
    server.answer(reply)
    turn = advance(say("Hello"))
    assert (turn.status, turn.waiting_for) == (TurnStatus.WAITING, WaitingFor.RETRY)
    assert turn.retry_code in set(PASSING) - {"turn_error"}
    turn.run_after = None
    turn.save()
    server.answer(asks(provider))
    assert advance(turn).status == TurnStatus.SUCCEEDED


def test_300_calls_in_one_answer_have_a_name(server, provider, say, tool_settings, settings):
    tool_settings("time")
    settings.TURN_MAX_ATTEMPTS = 0
    server.answer(asks(provider, *[f"call_{number}" for number in range(300)]))
    (turn,) = settle([say("Hello")])
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "llm_bad_response")
    assert turn.error_code in TurnProblem.codes


def test_one_id_twice_is_two_calls_with_an_answer_each(server, provider, say, tool_settings):
    tool_settings("time")
    server.answer(asks(provider, "call_1", "call_1"), asks(provider))
    (turn,) = settle([say("Hello")])
    assert turn.status == TurnStatus.SUCCEEDED
    assert ToolCall.objects.filter(turn_id=turn.pk, status="SUCCESS").count() == 2
    assert server.requests[-1].broken == ""


@pytest.mark.parametrize("count", [-5, 10**30, "many"])
def test_a_usage_that_is_none_counts_as_nothing(server, provider, say, count):
    names = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens")
    server.answer(asks(provider, usage=dict.fromkeys(names, count)))
    (turn,) = settle([say("Hello")])
    assert (turn.status, turn.prompt_tokens, turn.completion_tokens) == (TurnStatus.SUCCEEDED, 0, 0)
    assert Message.objects.get(turn=turn, role="assistant").content == "Fine."
