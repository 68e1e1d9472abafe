"""The client of OpenAI's API, against a real server on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import openai
import pytest
from django.conf import settings
from django.utils import timezone

from agent import errors, llm
from agent.llm.base import Completion, ModelRequest, OnDelta, Usage
from agent.llm.connections import MAX_RESPONSE_BYTES
from agent.llm.openai import OpenAIClient
from conversations.engine.turns import DatabaseThreads, TurnRunner
from conversations.models import Turn
from conversations.statuses import TurnStatus, WaitingFor
from tests.support.openai_answers import KEY, NO_COMPLETIONS, PROMPT, STATUSES
from tests.support.openai_server import OpenAIServer, Reply, as_json, call, completion, endless, failure
from tests.support.working import advance, run_call
from tools.models import ToolCall

pytestmark = pytest.mark.shapeless(reason="a client of models knows no database; the tests of turns run on both")

ASKED = ModelRequest(model="model-1", messages=[{"role": "user", "content": PROMPT}])


@pytest.fixture(scope="module")
def running() -> Iterator[OpenAIServer]:
    server = OpenAIServer().start()
    yield server
    server.stop()


@pytest.fixture
def server(running: OpenAIServer, settings: Any) -> OpenAIServer:
    """The server, which the settings point to."""
    running.forget()
    settings.LLM_PROVIDER, settings.LLM_BASE_URL, settings.OPENAI_API_KEY = "openai", running.url, KEY
    return running


async def asking(*requests: ModelRequest, on_delta: OnDelta | None = None) -> list[Completion]:
    client = OpenAIClient(llm.accesses()["openai"])
    try:
        return [await client.complete(request, on_delta) for request in requests]
    finally:
        await client.close()


def ask(request: ModelRequest = ASKED, *, streamed: bool = False) -> Completion:
    return asyncio.run(asking(request, on_delta=[].append if streamed else None))[0]


both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


# --- what is sent ------------------------------------------------------------------------------------------------


def test_a_request_holds_model_and_messages_and_nothing_else(server):
    ask()
    (request,) = server.requests
    assert request.body == {"model": "model-1", "messages": ASKED.messages}
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_each_request_is_what_the_package_itself_sends(server):
    async def by_package() -> None:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=server.url, timeout=settings.LLM_TIMEOUT_SECONDS) as client:
            await client.chat.completions.create(model=ASKED.model, messages=ASKED.messages)

    asyncio.run(by_package())
    asyncio.run(asking(ASKED, ASKED))
    asyncio.run(asking(ASKED, ASKED, on_delta=[].append))
    package, *ours = server.requests
    # It accepts compressed answers, which we do not; and it asks to keep the connection, which HTTP/1.1 does anyway.
    left_out = {"accept-encoding", "connection", "content-length"}
    wanted = {name: value for name, value in package.headers.items() if name not in left_out}
    for request in ours:
        assert {name: value for name, value in request.headers.items() if name not in left_out} == wanted
        assert request.headers["accept-encoding"] == "identity"
        assert request.body["messages"] == package.body["messages"]


def test_tools_are_sent_where_there_are_any(server):
    tool = {"type": "function", "function": {"name": "time", "description": "", "parameters": {"type": "object"}}}
    ask(ModelRequest(model="model-1", messages=ASKED.messages, tools=[tool]))
    assert server.requests[0].body == {"model": "model-1", "messages": ASKED.messages, "tools": [tool]}


def test_connections_are_reused(server):
    asyncio.run(asking(ASKED, ASKED, ASKED))
    assert len({request.connection for request in server.requests}) == 1


def test_a_process_has_one_client(server, one_client):
    assert llm.client("openai") is llm.client("openai")
    assert isinstance(llm.client("openai"), OpenAIClient)


def test_as_many_calls_run_side_by_side_as_there_are_turns(server):
    """None is answered before all have come: with fewer connections, none ever would be."""

    async def once_all_have_come() -> AsyncIterator[bytes]:
        while len(server.requests) < 150:
            await asyncio.sleep(0.01)
        yield completion().body

    async def together() -> None:
        client = OpenAIClient(llm.accesses()["openai"])
        await client.complete(ASKED)
        await asyncio.gather(*[client.complete(ASKED) for _ in range(149)])
        await client.close()

    server.answer(completion(), *[replace(completion(), body=once_all_have_come()) for _ in range(149)])
    asyncio.run(together())
    assert len({request.connection for request in server.requests}) == 149


def test_a_redirect_is_not_followed(server, second_server):
    server.answer(Reply(status=307, headers={"Location": f"{second_server.url}/chat/completions"}))
    with pytest.raises(errors.LlmRequestRefused):
        ask()
    assert second_server.requests == []


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "OPENAI_BASE_URL"])
def test_the_environment_does_not_say_where_requests_go(server, second_server, monkeypatch, name):
    monkeypatch.setenv(name, second_server.url)
    assert ask().content == f"You said: {PROMPT}"
    assert second_server.requests == []


def test_without_an_address_it_is_openais(server, settings, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    settings.LLM_BASE_URL = ""
    assert str(OpenAIClient(llm.accesses()["openai"])._package.base_url) == "https://api.openai.com/v1/"


# --- what is answered --------------------------------------------------------------------------------------------


@both_ways
def test_text_and_usage(server, streamed):
    server.answer(completion("Good morning."))
    usage = Usage(prompt_tokens=12, completion_tokens=5)
    assert ask(streamed=streamed) == Completion(content="Good morning.", model="model-1", usage=usage)


@both_ways
def test_tool_calls(server, streamed):
    server.answer(completion(None, tool_calls=[call("time", '{"timezone": "UTC"}')]))
    answer = ask(streamed=streamed)
    assert answer.tool_calls == (call("time", '{"timezone": "UTC"}'),)
    assert answer.as_message()["tool_calls"] == [call("time", '{"timezone": "UTC"}')]


@both_ways
@pytest.mark.parametrize(
    ("arguments", "read_as"),
    [("", "{}"), (None, "{}"), ({"timezone": "UTC"}, '{"timezone": "UTC"}'), ("no JSON", "no JSON")],
)
def test_arguments_in_the_forms_servers_send(server, arguments, read_as, streamed):
    server.answer(completion(None, tool_calls=[call("time", arguments)]))
    assert ask(streamed=streamed).tool_calls[0]["function"]["arguments"] == read_as


def test_calls_without_an_id_are_left_for_the_turn_to_name(server):
    nameless = {"function": {"name": "time", "arguments": "{}"}}
    server.answer(completion(None, tool_calls=[nameless, nameless | {"id": None}, nameless | {"id": 7}]))
    assert [called["id"] for called in ask().tool_calls] == ["", "", "7"]


@both_ways
def test_what_no_database_stores_is_replaced(server, streamed):
    server.answer(completion("a\x00b\ud800c", tool_calls=[call("t\x00", '{"x": "\ud800"}')]))
    answer = ask(streamed=streamed)
    assert answer.content == "a\ufffdb\ufffdc"
    assert answer.tool_calls[0]["function"] == {"name": "t\ufffd", "arguments": '{"x": "\ufffd"}'}


@both_ways
def test_a_refusal_is_what_the_assistant_said(server, streamed):
    server.answer(as_json({"choices": [{"message": {"content": None, "refusal": "I cannot help with that."}}]}))
    assert ask(streamed=streamed).content == "I cannot help with that."


SENSELESS = [None, {}, [], "", 0, [1], "many", 7, True]
SENSELESS += [{"prompt_tokens": value} for value in (-1, 10**30, "many", None, [], 1.5, True)]


@pytest.mark.parametrize("usage", SENSELESS, ids=str)
def test_a_usage_that_makes_no_sense_counts_as_nothing(server, usage):
    server.answer(as_json({"choices": [{"message": {"content": "Hello."}}], "usage": usage}))
    answer = ask()
    assert (answer.content, answer.usage) == ("Hello.", Usage())
    assert type(answer.usage.prompt_tokens) is int


@both_ways
def test_json_is_read_whatever_its_content_type_says(server, streamed):
    said = completion("Hello.")
    server.answer(Reply(body=said.body, headers={"Content-Type": "text/plain"}))
    assert ask(streamed=streamed).content == "Hello."


# --- failures ----------------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(("reply", "kind"), [*STATUSES, *((reply, errors.LlmBadResponse) for reply in NO_COMPLETIONS)])
def test_each_failure_has_its_class_and_nothing_of_the_providers_words(server, reply, kind, streamed):
    server.answer(reply)
    with pytest.raises(errors.LlmError) as raised:
        ask(streamed=streamed)
    assert type(raised.value) is kind
    told = repr(raised.value) + raised.value.detail
    assert not [word for word in ("canary", "secret", "Words") if word in told]


@both_ways
def test_nobody_listens(settings, streamed):
    settings.LLM_PROVIDER, settings.LLM_BASE_URL = "openai", "http://127.0.0.1:9/v1"
    with pytest.raises(errors.LlmUnavailable):
        ask(streamed=streamed)


@both_ways
def test_a_model_that_is_silent(server, settings, streamed):
    settings.LLM_TIMEOUT_SECONDS = 0.3
    server.answer(completion(before=30))
    with pytest.raises(errors.LlmTimeout):
        ask(streamed=streamed)


@both_ways
def test_an_answer_cut_by_the_content_filter(server, streamed):
    server.answer(completion("Half an ans", finish_reason="content_filter"))
    with pytest.raises(errors.LlmContentFiltered):
        ask(streamed=streamed)


@both_ways
@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ("2", 2.0),
        ("1.5", 1.5),
        ("0.99", None),
        ("0.01", None),
        ("0", None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after(server, status, given, understood, streamed):
    server.answer(failure(status, headers={"Retry-After": given}))
    with pytest.raises(errors.LlmError) as raised:
        ask(streamed=streamed)
    assert raised.value.retry_after == understood


# --- bounds ------------------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    "reply",
    [
        completion("x" * 50_000_000),
        endless(b"x" * 10_000),
        failure(500, message="x" * 50_000_000),
    ],
)
def test_a_huge_answer_is_not_read_to_its_end(server, reply, streamed):
    server.answer(reply)
    with pytest.raises(errors.LlmBadResponse, match="larger"):
        ask(streamed=streamed)
    server.wait_until(lambda: server.requests[0].disconnected_at)
    # What lies in the sockets' buffers comes on top, and on some machines they are large.
    assert server.requests[0].bytes_sent < MAX_RESPONSE_BYTES + 32_000_000 < 50_000_000


@both_ways
def test_cancelling_closes_the_socket(server, streamed):
    server.answer(completion(before=30))

    async def cancel() -> None:
        client = OpenAIClient(llm.accesses()["openai"])
        asking = asyncio.create_task(client.complete(ASKED, [].append if streamed else None))
        await asyncio.to_thread(server.wait_until, lambda: server.requests)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.to_thread(server.wait_until, lambda: server.requests[0].disconnected_at)
        assert server.requests[0].bytes_sent == 0  # not because it has answered
        await client.close()

    asyncio.run(cancel())


@pytest.fixture
def second_server() -> Iterator[OpenAIServer]:
    server = OpenAIServer().start()
    yield server
    server.stop()


# --- in a turn ---------------------------------------------------------------------------------------------------


@pytest.fixture
def one_client() -> Iterator[Callable[[], None]]:
    """A client of the test's own: its connections belong to one event loop, and ``advance`` starts a loop a look."""
    llm.forget_clients()
    yield llm.forget_clients
    llm.forget_clients()


@pytest.mark.django_db(transaction=True)
def test_a_slow_drip_is_bounded_by_the_turns_timeout(server, one_client, say, settings):
    settings.LLM_TIMEOUT_SECONDS = 1.0
    # Each read is in time; the whole would take a minute.
    server.answer(endless(before=0, between=0.1))
    turn = advance(say("Hello"))  # which returns: the answer never would
    assert (turn.status, turn.waiting_for, turn.retries) == (TurnStatus.WAITING, WaitingFor.RETRY, 1)
    server.wait_until(lambda: server.requests[0].disconnected_at)


@pytest.mark.django_db(transaction=True)
def test_a_call_that_a_shutdown_cuts_short_is_closed_and_logged_as_such(server, one_client, say, caplog):
    server.answer(completion(before=30))
    turn = say("Hello")

    async def stop_in_mid_call() -> None:
        threads = DatabaseThreads(1)
        runner = TurnRunner(worker="worker-1", database=threads)
        advancing = asyncio.create_task(runner.advance(turn.pk))
        await asyncio.to_thread(server.wait_until, lambda: server.requests)
        await runner.stop()
        await advancing
        threads.close()

    asyncio.run(stop_in_mid_call())
    server.wait_until(lambda: server.requests[0].disconnected_at)
    assert [record.error for record in caplog.records if record.name == "nanohost.model"] == ["interrupted"]
    assert Turn.objects.get(pk=turn.pk).waiting_for == WaitingFor.RETRY


@pytest.mark.django_db(transaction=True)
def test_a_turn_waits_as_long_as_the_provider_asks(server, one_client, say):
    server.answer(failure(429, headers={"Retry-After": "40"}))
    began = timezone.now()
    turn = advance(say("Hello"))
    assert turn.waiting_for == WaitingFor.RETRY
    # As long, and a tenth longer at most, from when it was told.
    assert began + timedelta(seconds=40) <= turn.run_after <= timezone.now() + timedelta(seconds=44)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "called",
    [
        [call("time", call_id="same"), call("time", call_id="same")],
        [call("time", call_id=""), call("time", call_id="")],
        [call("my tool!", "no JSON"), call("", "[1]", call_id="call_2")],
    ],
)
def test_a_turn_goes_on_after_calls_that_are_no_calls(server, one_client, say, tool_settings, called):
    tool_settings("time")
    server.answer(completion(None, tool_calls=called))
    assert run(say("Hello"), one_client).status == TurnStatus.SUCCEEDED
    assert [request.broken for request in server.requests] == ["", ""]


@pytest.mark.django_db(transaction=True)
def test_calls_of_one_id_get_an_answer_each(server, one_client, say, tool_settings):
    tool_settings("time")
    berlin, tokyo = (call("time", json.dumps({"timezone": zone}), "same") for zone in ("Europe/Berlin", "Asia/Tokyo"))
    server.answer(completion(None, tool_calls=[berlin, tokyo]))
    run(say("Hello"), one_client)
    results = [message["content"] for message in server.requests[1].body["messages"] if message["role"] == "tool"]
    assert ["Europe/Berlin" in results[0], "Asia/Tokyo" in results[1]] == [True, True]


def run(turn: Turn, new_client: Callable[[], None]) -> Turn:
    """Work until the turn has ended."""
    for _ in range(10):
        new_client()
        if (seen := advance(turn)).ended:
            return seen
        for open_call in ToolCall.objects.open().filter(turn_id=turn.pk):
            run_call(open_call)
    raise AssertionError(f"not ended: {seen.status}")
