"""Every provider of the table, asked for each thing, over the real packages, against a strict server of its dialect."""

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent import errors, llm
from agent.answer_schemas import AnswerFormat
from agent.llm.base import Completion, Delta, ModelRequest, tool_call
from agent.llm.capabilities import takes_schema
from agent.llm.providers import PROVIDERS, Dialect, Thinking
from tests.support import dialects
from tests.support.dialects import TAKES_FORMS, Dialects, refused
from tests.support.files import picture
from tests.support.openai_server import Reply, as_json, call, completion

pytestmark = pytest.mark.shapeless(reason="a client of models knows no database")

KEY = "sk-canary-0123456789"
USER = {"role": "user", "content": "What time is it?"}
TIME = {"type": "function", "function": {"name": "time", "description": "Now.", "parameters": {"type": "object"}}}
BOTH_WAYS = (False, True)


@pytest.fixture(scope="module")
def running() -> Iterator[Dialects]:
    server = Dialects().start()
    yield server
    server.stop()


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(running: Dialects, settings: Any, provider: str) -> Dialects:
    running.forget()
    running.key = KEY
    settings.LLM_PROVIDER, settings.LLM_BASE_URLS = "auto", {provider: running.url_of(provider)}
    setattr(settings, PROVIDERS[provider].key, KEY)
    return running


def ask(
    provider: str,
    *messages: Any,
    model: str = "model-1",
    streamed: bool = False,
    told: list[Delta] | None = None,
    **more: Any,
) -> Completion:
    """Ask as a turn does: through the choice of a provider."""

    async def asking() -> Completion:
        llm.forget_clients()
        request = ModelRequest(model=f"{provider}/{model}", messages=list(messages or [USER]), **more)
        deltas: list[Delta] = [] if told is None else told
        try:
            return await llm.ask(request, seconds=30, on_delta=deltas.append if streamed else None)
        finally:
            await llm.close_clients()

    return asyncio.run(asking())


def said(provider: str, words: str, *, thought: str = "", calls: Any = ()) -> Reply:
    """An answer in a provider's own dialect."""
    match PROVIDERS[provider].dialect:
        case Dialect.ANTHROPIC:
            blocks = [dialects.thinking(thought)] if thought else []
            blocks += [dialects.text(words)] if words else []
            blocks += [dialects.tool_use(name, {}, call_id) for name, call_id in calls]
            return dialects.message(*blocks)
        case Dialect.RESPONSES:
            return dialects.response(words, thought=thought, calls=calls)
    made = [call(name, "{}", call_id) for name, call_id in calls] or None
    return completion(words or None, thought=thought, tool_calls=made)


both_ways = pytest.mark.parametrize("streamed", BOTH_WAYS, ids=["whole", "streamed"])


@both_ways
def test_text(server, provider, streamed):
    server.answer(said(provider, "It is noon."))
    told: list[Delta] = []
    answer = ask(provider, streamed=streamed, told=told)
    assert (answer.content, answer.provider, answer.usage.prompt_tokens) == ("It is noon.", provider, 12)
    assert "".join(each.content for each in told) == ("It is noon." if streamed else "")
    (request,) = server.requests
    assert (request.broken, request.body["model"]) == ("", "model-1")


@both_ways
def test_pictures(server, provider, streamed):
    """Each provider is sent them in its own form, and of the reference nothing but them."""
    data = base64.b64encode(picture()).decode()
    image = {"id": "1", "name": "a.png", "type": "image/png", "size": 9, "sha256": "abc", "path": "secret/path"}
    document = image | {"name": "b.pdf", "type": "application/pdf"}
    server.answer(said(provider, "A red one."))
    asks = USER | {"attachments": [image | {"width": 32, "height": 24}, document]}
    assert ask(provider, asks, streamed=streamed, pictures={"abc": data}).content == "A red one."
    (request,) = server.requests
    assert request.broken == ""
    sent = str(request.body)
    assert (sent.count(data), "What time is it?" in sent, "secret/path" in sent) == (1, True, False)


@both_ways
def test_tools(server, provider, streamed):
    server.answer(said(provider, "", calls=[("time", "call_1"), ("time", "call_2")]), said(provider, "Noon."))
    answer = ask(provider, streamed=streamed, tools=[TIME])
    assert answer.tool_calls == (tool_call("call_1", "time", "{}"), tool_call("call_2", "time", "{}"))
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "noon"} for each in answer.tool_calls]
    assert ask(provider, USER, answer.as_message(), *results, streamed=streamed, tools=[TIME]).content == "Noon."


@both_ways
def test_a_tool_that_has_to_be_called(server, provider, streamed):
    server.answer(said(provider, "", calls=[("time", "call_1")]))
    assert ask(provider, streamed=streamed, tools=[TIME], tool_choice="time", max_tokens=2000).tool_calls
    assert server.requests[0].broken == ""


@both_ways
def test_any_tool_that_has_to_be_called(server, provider, streamed):
    server.answer(said(provider, "", calls=[("time", "call_1")]))
    assert ask(provider, streamed=streamed, tools=[TIME], must_call=True, max_tokens=2000).tool_calls
    assert server.requests[0].broken == ""
    assert server.requests[0].body["tool_choice"]
    server.answer(said(provider, "Noon."))
    ask(provider, streamed=streamed, must_call=True, max_tokens=2000)
    assert server.requests[1].broken == "", "where no tool is offered, none has to be called"


PARAMETERS = {
    "temperature": 1.5,
    "top_p": 0.5,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "seed": 7,
    "stop": ["END"],
    "verbosity": "low",
    "parallel_tool_calls": False,
}


@both_ways
def test_parameters_are_passed_on_as_far_as_a_provider_has_the_like(server, provider, streamed):
    server.answer(said(provider, "Noon."), said(provider, "Noon."), said(provider, "Noon."))
    ask(provider, streamed=streamed, tools=[TIME], parameters=PARAMETERS)
    ask(provider, streamed=streamed, parameters=PARAMETERS)
    ask(provider, streamed=streamed, parameters={"top_p": 0.5}, effort="high", max_tokens=4000)
    assert [request.broken for request in server.requests] == [""] * 3
    body, without_tools, _ = (request.body for request in server.requests)
    match PROVIDERS[provider].dialect:
        case Dialect.ANTHROPIC:
            assert (body["temperature"], body["stop_sequences"]) == (1, ["END"])
            assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
        case Dialect.RESPONSES:
            assert not set(PARAMETERS) & set(body)
        case _:
            assert {name: body[name] for name in PARAMETERS} == PARAMETERS
            assert "parallel_tool_calls" not in without_tools


@both_ways
def test_an_answer_that_was_cut_says_so(server, provider, streamed):
    for is_cut in (False, True):
        server.answer(cut(provider, "Noon.", is_cut))
        assert ask(provider, streamed=streamed, max_tokens=2000).is_cut is is_cut


def cut(provider: str, words: str, is_cut: bool) -> Reply:
    """An answer, whole or not."""
    match PROVIDERS[provider].dialect:
        case Dialect.ANTHROPIC:
            return dialects.message(dialects.text(words), stop_reason="max_tokens" if is_cut else "end_turn")
        case Dialect.RESPONSES:
            return dialects.response(words, incomplete="max_output_tokens" if is_cut else "")
    return completion(words, finish_reason="length" if is_cut else "stop")


@both_ways
def test_thoughts_are_apart_from_the_answer(server, provider, streamed):
    server.answer(said(provider, "Noon.", thought="Let me see."))
    told: list[Delta] = []
    answer = ask(provider, streamed=streamed, told=told, effort="low", max_tokens=4000)
    assert (answer.content, answer.reasoning) == ("Noon.", "Let me see.")
    assert "".join(each.reasoning for each in told) == ("Let me see." if streamed else "")
    assert server.requests[0].broken == ""


def test_headers_of_the_user_are_sent_besides_its_own(server, provider, settings):
    settings.LLM_HEADERS = {"custom": {"X-Other": "no"}, provider: {"X-Own": "canary", "Editor-Version": "mine/2"}}
    server.answer(said(provider, "Noon."))
    ask(provider)
    headers = {name.lower(): value for name, value in server.requests[0].headers.items()}
    assert (headers["x-own"], headers["editor-version"]) == ("canary", "mine/2")
    assert "x-other" not in headers
    assert server.requests[0].broken == ""


def test_a_temperature_is_told_to_those_who_take_one(server, provider):
    server.answer(said(provider, "Noon."))
    server.answer(said(provider, "Noon."))
    ask(provider, temperature=1.5)
    ask(provider)
    told, untold = server.requests
    expected = {Dialect.ANTHROPIC: 1.0, Dialect.RESPONSES: None}.get(PROVIDERS[provider].dialect, 1.5)
    assert (told.broken, told.body.get("temperature"), "temperature" in untold.body) == ("", expected, False)


def test_a_model_that_takes_one_temperature_alone_is_told_that():
    moonshot = PROVIDERS["moonshot"]
    assert moonshot.temperature("kimi-k2.5", 0.1) == moonshot.temperature("Kimi-K2.5-preview", 0.1) == 1.0
    assert (moonshot.temperature("kimi-k2", 0.1), moonshot.temperature("kimi-k2.5", None)) == (0.1, None)


def test_how_much_it_thinks_is_said_in_its_own_word(server, provider):
    server.answer(said(provider, "Noon."))
    ask(provider, effort="high", max_tokens=4000)
    words = {Thinking.EFFORT: "reasoning_effort", Thinking.TYPE: "thinking", Thinking.ENABLE: "enable_thinking"}
    expected = words.get(PROVIDERS[provider].thinking, "reasoning_split")
    expected = {Dialect.ANTHROPIC: "thinking", Dialect.RESPONSES: "reasoning"}.get(
        PROVIDERS[provider].dialect, expected
    )
    assert expected in server.requests[0].body


SCHEMA = {
    "type": "object",
    "properties": {"thought": {"type": "string"}, "city": {"type": "string"}},
    "required": ["thought", "city"],
    "additionalProperties": False,
}
FORM = AnswerFormat(name="weather", schema=SCHEMA, strict=True)
NEW_MODELS = {"anthropic": "claude-opus-4-5", "openai_codex": "gpt-5-codex"}


def form_in(provider: str, body: dict[str, Any]) -> Any:
    """The schema, where this provider looks for it."""
    match PROVIDERS[provider].dialect:
        case Dialect.ANTHROPIC:
            return body.get("output_config", {}).get("format", {}).get("schema")
        case Dialect.RESPONSES:
            return body.get("text", {}).get("format", {}).get("schema")
    return body.get("response_format", {}).get("json_schema", {}).get("schema")


@both_ways
@pytest.mark.parametrize("with_tools", [False, True])
def test_a_schema_goes_to_whoever_takes_one(server, provider, streamed, with_tools):
    """Its properties in their order, beside the tools."""
    model = NEW_MODELS.get(provider, "model-1")
    if not takes_schema(PROVIDERS[provider], model, FORM, with_tools=with_tools):
        assert provider not in TAKES_FORMS | set(NEW_MODELS) or (with_tools and provider in ("groq", "gemini"))
        return
    server.answer(said(provider, '{"thought": "Cold.", "city": "Oslo"}'))
    tools = [TIME] if with_tools else []
    answer = ask(provider, model=model, streamed=streamed, answer=FORM, tools=tools, effort="low", max_tokens=4000)
    assert answer.content == '{"thought": "Cold.", "city": "Oslo"}'
    (request,) = server.requests
    assert request.broken == ""
    assert json.dumps(form_in(provider, request.body)) == json.dumps(SCHEMA)


@both_ways
def test_any_json_object_can_be_asked_for(server, provider, streamed):
    if not takes_schema(PROVIDERS[provider], NEW_MODELS.get(provider, "model-1"), AnswerFormat(), with_tools=False):
        assert provider not in TAKES_FORMS
        return
    server.answer(said(provider, "{}"))
    asks = {"role": "user", "content": "Answer in JSON."}
    assert ask(provider, asks, streamed=streamed, answer=AnswerFormat()).content == "{}"
    assert server.requests[0].broken == ""


def test_thoughts_go_back_to_who_wants_them_and_to_nobody_else(server, provider):
    """In a round of tools. What another has thought goes nowhere."""
    row = PROVIDERS[provider]
    blocks = {
        Dialect.ANTHROPIC: [dialects.thinking("A plan.")],
        Dialect.RESPONSES: [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "QSBwbGFuLg=="}],
    }.get(row.dialect, [{"type": "reasoning.text", "text": "A plan."}])
    for by in (provider, "another"):
        server.answer(said(provider, "Noon."))
        asks = {"role": "assistant", "content": "", "tool_calls": [tool_call("call_1", "time", "{}")]}
        asks["thoughts"] = {"by": by, "text": "A plan.", "blocks": blocks}
        ask(provider, USER, asks, {"role": "tool", "tool_call_id": "call_1", "content": "noon"}, tools=[TIME])
    own, others = (str(request.body) for request in server.requests)
    assert ("A plan." in own or "QSBwbGFuLg" in own) == row.wants_thoughts
    assert "A plan." not in others
    assert "QSBwbGFuLg" not in others


@both_ways
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, errors.LlmRequestRefused),
        (401, errors.LlmAuthError),
        (429, errors.LlmRateLimited),
        (500, errors.LlmUnavailable),
        (503, errors.LlmUnavailable),
    ],
)
def test_an_error_has_its_name_and_none_of_the_provider_s_words(server, provider, streamed, status, error):
    server.answer(refused(provider, status, f"Words about {KEY}", headers={"Retry-After": "7"}))
    with pytest.raises(error) as raised:
        ask(provider, streamed=streamed)
    assert "Words" not in repr(raised.value) + raised.value.detail
    assert raised.value.retry_after == (None if status in (400, 401) else 7)
    assert raised.value.transient is (status not in (400, 401))


def test_a_wrong_key_is_refused(server, provider, settings):
    setattr(settings, PROVIDERS[provider].key, "sk-another")
    with pytest.raises(errors.LlmAuthError):
        ask(provider)


HOSTILE = {
    "html": Reply(body=b"<html>Down</html>", headers={"Content-Type": "text/html"}),
    "cut JSON": Reply(body=b'{"choices": [', headers={"Content-Type": "application/json"}),
    "no UTF-8": Reply(body=b"data: \xff\xfe\n\n", headers={"Content-Type": "text/event-stream"}),
    "a list": as_json([]),
    "nothing": Reply(body=b"", headers={"Content-Type": "application/json"}),
    "deep": Reply(body=b"[" * 100_000),
}


@both_ways
@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_has_a_name(server, provider, streamed, reply):
    server.answer(reply)
    with pytest.raises((errors.LlmBadResponse, errors.LlmUnavailable)):
        ask(provider, streamed=streamed)


@both_ways
def test_300_calls_at_once_have_a_name(server, provider, streamed):
    server.answer(said(provider, "", calls=[("time", f"call_{number}") for number in range(300)]))
    with pytest.raises(errors.LlmBadResponse):
        ask(provider, streamed=streamed, tools=[TIME])
