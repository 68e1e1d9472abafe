"""The client of Anthropic's API, by the real package, against a strict server of it on loopback."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agent import errors, llm
from agent.llm.anthropic import AnthropicClient
from agent.llm.base import Completion, Delta, ModelRequest, Usage, tool_call
from tests.support.dialects import Dialects, events_of, message, refused, stream, text, thinking, tool_use
from tests.support.openai_server import Reply, as_json

pytestmark = pytest.mark.shapeless(reason="a client of models knows no database")

KEY = "sk-ant-canary-0123456789"
PROMPT = "the user's secret words"
ASKED = ModelRequest(model="claude-opus-4-5", messages=[{"role": "user", "content": PROMPT}])
TIME = {"type": "function", "function": {"name": "time", "description": "Now.", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def running() -> Iterator[Dialects]:
    server = Dialects().start()
    yield server
    server.stop()


@pytest.fixture
def server(running: Dialects, settings: Any) -> Dialects:
    running.forget()
    running.key = settings.ANTHROPIC_API_KEY = KEY
    settings.LLM_BASE_URLS = {"anthropic": running.url_of("anthropic")}
    return running


def ask(*requests: ModelRequest, told: list[Delta] | None = None) -> list[Completion]:
    async def asking() -> list[Completion]:
        client = AnthropicClient(llm.accesses()["anthropic"])
        try:
            on_delta = None if told is None else told.append
            return [await client.complete(request, on_delta) for request in requests]
        finally:
            await client.close()

    return asyncio.run(asking())


# --- what is sent ------------------------------------------------------------------------------------------------


def test_the_stable_beginning_is_marked_for_the_cache(server):
    server.answer(message(text("Fine.")))
    system = {"role": "system", "content": "You are patient."}
    ask(ModelRequest(model="claude-opus-4-5", messages=[system, *ASKED.messages], tools=[TIME, _named("date")]))
    body, mark = server.requests[0].body, {"type": "ephemeral"}
    assert body["system"] == [{"type": "text", "text": "You are patient.", "cache_control": mark}]
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, mark]
    assert body["messages"] == [{"role": "user", "content": [text(PROMPT) | {"cache_control": mark}]}]
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": TIME["function"] | {"name": name}}


def test_calls_and_results_and_thoughts_are_told_in_its_own_words(server):
    server.answer(message(text("Fine.")))
    asks = {"role": "assistant", "content": "", "tool_calls": [tool_call("call:1", "time", '{"zone": "UTC"}')]}
    asks["thoughts"] = {"by": "anthropic", "text": "Hm.", "blocks": [thinking("Hm.")]}
    result = {"role": "tool", "tool_call_id": "call:1", "content": ""}
    ask(ModelRequest(model="claude-opus-4-5", messages=[*ASKED.messages, asks, result], tools=[TIME], effort="low"))
    _, said, answered = server.requests[0].body["messages"]
    assert said["content"] == [thinking("Hm."), tool_use("time", {"zone": "UTC"}, "call_1")]
    assert answered["content"][0] | {"cache_control": 0} == {
        "type": "tool_result",
        "tool_use_id": "call_1",
        "content": "(empty)",
        "cache_control": 0,
    }
    assert server.requests[0].body["thinking"] == {"type": "enabled", "budget_tokens": 2000}


def test_another_provider_s_thoughts_are_not_sent_and_it_goes_on_without_thinking(server):
    server.answer(message(text("Fine.")))
    asks = {"role": "assistant", "content": "Hm.", "tool_calls": [tool_call("call_1", "time", "{}")]}
    asks["thoughts"] = {"by": "deepseek", "text": "Secret.", "blocks": []}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}
    ask(ModelRequest(model="claude-opus-4-5", messages=[*ASKED.messages, asks, result], tools=[TIME], effort="high"))
    assert "thinking" not in server.requests[0].body
    assert "Secret" not in str(server.requests[0].body)


@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-opus-4-6-20260101", "claude-sonnet-5"])
def test_newer_models_are_told_how_hard_to_try(server, model):
    server.answer(message(text("Fine.")))
    ask(ModelRequest(model=model, messages=ASKED.messages, effort="high"))
    assert server.requests[0].body["thinking"] == {"type": "adaptive"}
    assert server.requests[0].body["output_config"] == {"effort": "high"}


def test_a_tool_that_has_to_be_called_is_named_and_nothing_is_thought(server):
    server.answer(message(tool_use("time", {})))
    ask(ModelRequest(model="m", messages=ASKED.messages, tools=[TIME], tool_choice="time", effort="low"))
    assert server.requests[0].body["tool_choice"] == {"type": "tool", "name": "time"}


# --- what is answered --------------------------------------------------------------------------------------------

USED = {"input_tokens": 12, "output_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 8}
COUNTED = Usage(prompt_tokens=110, completion_tokens=5, cached_tokens=90, written_tokens=8)


def test_an_answer_and_its_pieces(server):
    blocks = (thinking("Two and two."), text("It is four."), tool_use("time", {"zone": "UTC"}, "toolu_7"))
    server.answer(message(*blocks, usage=USED, stop_reason="tool_use"))
    told: list[Delta] = []
    (answer,) = ask(ASKED, told=told)
    assert answer == Completion(
        content="It is four.",
        reasoning="Two and two.",
        thoughts=(thinking("Two and two."),),
        tool_calls=(tool_call("toolu_7", "time", '{"zone": "UTC"}'),),
        model="model-1",
        usage=COUNTED,
    )
    assert "".join(each.content for each in told) == "It is four."
    assert "".join(each.reasoning for each in told) == "Two and two."


def test_what_it_hides_of_its_thoughts_is_kept_for_it_alone(server):
    hidden = {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}
    server.answer(message(hidden, text("Four.")))
    (answer,) = ask(ASKED)
    assert (answer.thoughts, answer.reasoning, answer.content) == ((hidden,), "", "Four.")


def test_connections_are_reused(server):
    server.answer(*[message(text("Fine."))] * 3)
    ask(ASKED, ASKED, ASKED)
    assert len({request.connection for request in server.requests}) == 1


def test_a_server_that_does_not_stream_is_understood(server):
    whole = {
        "type": "message",
        "model": "model-1",
        "content": [text("Fine.")],
        "stop_reason": "end_turn",
        "usage": USED,
    }
    server.answer(as_json(whole))
    told: list[Delta] = []
    assert ask(ASKED, told=told) == [Completion(content="Fine.", model="model-1", usage=COUNTED)]
    assert told == [Delta(content="Fine.")]


# --- what goes wrong ---------------------------------------------------------------------------------------------

WORDS = f"Words of the provider about {KEY} and {PROMPT}"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (refused("anthropic", 401, WORDS), errors.LlmAuthError),
        (refused("anthropic", 403, WORDS), errors.LlmAuthError),
        (refused("anthropic", 404, WORDS), errors.LlmRequestRefused),
        (refused("anthropic", 400, WORDS), errors.LlmRequestRefused),
        (refused("anthropic", 400, "prompt is too long: 210000 tokens > 200000 maximum"), errors.LlmContextTooLong),
        (refused("anthropic", 413, WORDS), errors.LlmContextTooLong),
        (refused("anthropic", 429, WORDS), errors.LlmRateLimited),
        (refused("anthropic", 500, WORDS), errors.LlmUnavailable),
        (refused("anthropic", 529, WORDS), errors.LlmUnavailable),
        (Reply(status=502, body=f"<html>{WORDS}</html>".encode()), errors.LlmUnavailable),
        (Reply(hang_up=True), errors.LlmUnavailable),
        (message(text("No."), stop_reason="refusal"), errors.LlmContentFiltered),
        (stream(*events_of(text("Fi"))[:4]), errors.LlmUnavailable),
        (stream({"type": "error", "error": {"type": "overloaded_error", "message": WORDS}}), errors.LlmUnavailable),
        (stream({"type": "error", "error": {"type": "rate_limit_error", "message": WORDS}}), errors.LlmRateLimited),
        (as_json({"type": "error", "error": {"type": "authentication_error", "message": WORDS}}), errors.LlmAuthError),
    ],
)
def test_errors_have_their_names_and_none_of_its_words(server, reply, error):
    server.answer(reply)
    with pytest.raises(error) as raised:
        ask(ASKED)
    told = repr(raised.value) + raised.value.detail
    assert not [word for word in ("canary", "secret", "Words") if word in told]


def test_how_long_it_asks_to_wait_is_kept(server):
    server.answer(refused("anthropic", 429, headers={"Retry-After": "7"}))
    with pytest.raises(errors.LlmRateLimited) as raised:
        ask(ASKED)
    assert raised.value.retry_after == 7


START = events_of()[0]
HOSTILE = {
    "html": Reply(body=b"<html>", headers={"Content-Type": "text/html"}),
    "cut JSON": Reply(body=b'{"type": "message", ', headers={"Content-Type": "application/json"}),
    "no UTF-8": stream(START, b"data: \xff\xfe\n\n"),
    "deep JSON": stream(b"data: " + b"[" * 100_000 + b"\n\n"),
    "nothing": Reply(body=b""),
    "no type": stream({"type": "message_start"}),
    "a list": stream(b"data: []\n\n"),
    "a piece of nothing": stream(START, {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta"}}),
    "text that is none": stream(
        START,
        {"type": "content_block_start", "index": 0, "content_block": text("")},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 7}},
    ),
    "odd places": stream(
        START,
        {"type": "content_block_start", "index": 0, "content_block": text("a")},
        {"type": "content_block_start", "index": "x", "content_block": text("b")},
        *events_of()[-2:],
    ),
    "300 calls": message(*[tool_use("time", {}, f"toolu_{number}") for number in range(300)]),
    "a call without a name": stream(
        START, {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use"}}, *events_of()[-2:]
    ),
}


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_has_a_name(server, reply):
    server.answer(reply)
    with pytest.raises(errors.LlmBadResponse):
        ask(ASKED)


@pytest.mark.parametrize("count", [-5, 1e99, "many", None, True, 10**12])
def test_a_count_that_is_none_counts_as_nothing(server, count):
    server.answer(message(text("Fine."), usage={"input_tokens": count, "output_tokens": count}))
    assert ask(ASKED)[0].usage == Usage()


def test_one_id_twice_is_left_to_whoever_stores_it(server):
    server.answer(message(tool_use("time", {}, "toolu_1"), tool_use("time", {}, "toolu_1")))
    assert [call["id"] for call in ask(ASKED)[0].tool_calls] == ["toolu_1", "toolu_1"]
