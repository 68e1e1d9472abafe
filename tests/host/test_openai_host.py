"""A running host that asks a real OpenAI-compatible server on loopback: whole turns, and what must never leak."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.exits import everything_stored, everything_the_admin_shows
from tests.support.hosts import Host
from tests.support.openai_server import OpenAIServer, Reply, as_json, completion, failure
from tests.support.wait import wait_until

CANARY = "sk-canary-51f0a9c2b7"
WORD = "rhododendron"


@pytest.fixture(scope="module")
def running() -> Iterator[OpenAIServer]:
    server = OpenAIServer(key=CANARY).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def openai_host(running: OpenAIServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    options = {"LLM_BASE_URL": running.url, "OPENAI_API_KEY": CANARY, "LLM_RETRY_SECONDS": "3", "LOG_LEVEL": "DEBUG"}
    options["LLM_REST_SECONDS"] = "0"  # each test meets its own failure
    host = Host(tmp_path_factory.mktemp("openai-host"), **options).start()
    yield host
    host.kill()


@pytest.fixture
def server(running: OpenAIServer) -> OpenAIServer:
    running.forget()
    running.key = CANARY
    return running


def chat(host: Host, message: Any) -> httpx2.Response:
    """Say something in a new conversation; ``message`` may be a script."""
    said = message if isinstance(message, str) else json.dumps({"script": message})
    with host.client() as client:
        conversation = client.post("/conversations", json={}).json()["conversationId"]
        return client.post(f"/conversations/{conversation}/chat", json={"message": said})


# --- whole turns -------------------------------------------------------------------------------------------------


def test_a_turn_with_a_tool_round(openai_host, server):
    answer = chat(openai_host, "What time is it?")
    assert answer.status_code == 200
    assert [(call["toolName"], call["status"]) for call in answer.json()["toolCalls"]] == [("time", "SUCCESS")]
    assert answer.json()["assistantMessage"].startswith("The tool says: ")
    assert answer.json()["usage"]["totalTokens"] > 0
    first, second = server.requests
    assert (first.broken, second.broken) == ("", "")
    assert first.body["tools"][0]["function"]["name"] == "time"
    assert [message["role"] for message in second.body["messages"]] == ["system", "user", "assistant", "tool"]


def test_a_rate_limit_is_waited_for_in_the_database(openai_host, server):
    server.answer(failure(429, headers={"Retry-After": "1"}))
    seen = []

    def look(_: Any) -> None:
        seen.append(open_turns(openai_host))

    with openai_host.client() as client:
        conversation = client.post("/conversations", json={}).json()["conversationId"]
        server.on_request = look
        began = time.monotonic()
        answer = client.post(f"/conversations/{conversation}/chat", json={"message": "Hello"})
    assert answer.json()["assistantMessage"] == "You said: Hello"
    assert 1 <= time.monotonic() - began < 10
    assert seen == [[("running", "", 0)], [("running", "", 1)]]


def test_between_two_tries_the_turn_waits(openai_host, server):
    server.answer(failure(429, headers={"Retry-After": "2"}))
    with openai_host.client() as client:
        conversation = client.post("/conversations", json={}).json()["conversationId"]
        asking = httpx2.Request(
            "POST",
            f"{client.base_url}conversations/{conversation}/chat",
            headers=client.headers,
            json={"message": "Hi"},
        )
        with httpx2.Client(timeout=0.5) as impatient, pytest.raises(httpx2.ReadTimeout):
            impatient.send(asking)
        # The client has gone away; the turn goes on.
        assert open_turns(openai_host) == [("waiting", "retry", 1)]
        server.wait_until(lambda: len(server.requests) == 2)
        until_no_turn_is_open(openai_host)


def test_an_unavailable_provider_is_asked_again(openai_host, server):
    server.answer(failure(500), Reply(hang_up=True))
    answer = chat(openai_host, "Hello")
    assert answer.json()["assistantMessage"] == "You said: Hello"
    assert len(server.requests) == 3


def test_past_the_last_retry_the_turn_fails_with_its_code(openai_host, server):
    server.answer(*[failure(503, headers={"Retry-After": "0.1"})] * 9)
    answer = chat(openai_host, "Hello")
    assert (answer.status_code, answer.json()["code"]) == (502, "llm_unavailable")
    assert 2 <= len(server.requests) <= 5


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (failure(401, "invalid_api_key"), 502, "llm_auth"),
        (failure(429, "insufficient_quota"), 502, "llm_auth"),
        (failure(404, "model_not_found"), 502, "llm_request_refused"),
        (failure(400, "context_length_exceeded"), 422, "llm_context_too_long"),
        (completion("Half", finish_reason="content_filter"), 422, "llm_content_filter"),
    ],
)
def test_a_permanent_error_is_a_problem_at_once(openai_host, server, reply, status, code):
    server.answer(reply)
    answer = chat(openai_host, "Hello")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert len(server.requests) == 1


# --- what must never leak ----------------------------------------------------------------------------------------

QUOTED = f"Incorrect API key provided: {CANARY}. Authorization: Bearer {CANARY}"


def test_the_key_leaks_nowhere(openai_host, server):
    answers = []
    for replies in (
        [failure(401, "invalid_api_key", message=QUOTED)],
        [failure(400, CANARY, message=QUOTED)],
        [completion(f"Your key is {CANARY}", finish_reason="content_filter")],
        [as_json({"error": QUOTED}, 500)] * 9,
        [Reply(status=500, body=QUOTED.encode(), headers={"X-Key": CANARY})] * 9,
        [Reply(status=307, headers={"Location": f"http://127.0.0.1:9/{CANARY}"})],
    ):
        server.answer(*replies)
        answers.append(chat(openai_host, "Hello"))
        server.forget()
        server.key = CANARY
    assert {answer.status_code for answer in answers} == {422, 502}
    server.key = "sk-another"
    answers.append(chat(openai_host, "Hello"))
    assert all(CANARY not in answer.text for answer in answers)
    assert CANARY not in openai_host.log_text()
    assert CANARY not in everything_stored(openai_host)
    assert CANARY not in everything_the_admin_shows(openai_host)


@pytest.mark.embedded(reason="what a worker tells of a server that is not there is the same in one process")
def test_the_key_does_not_leak_when_nobody_listens(tmp_path):
    host = Host(tmp_path, LLM_BASE_URL=f"http://{CANARY}@127.0.0.1:9/v1", OPENAI_API_KEY=CANARY, LLM_RETRY_SECONDS="1")
    host.start()
    try:
        answer = chat(host, "Hello")
        assert answer.json()["code"] == "llm_unavailable"
        assert CANARY not in answer.text + host.log_text() + everything_stored(host)
    finally:
        host.kill()


def test_content_is_not_logged(openai_host, server):
    assert WORD in chat(openai_host, f"Tell me of the {WORD}.").text
    assert WORD not in openai_host.log_text()


def test_a_model_call_is_logged_with_its_sizes(openai_host, server):
    answer = chat(openai_host, "Hello there").json()
    (line,) = [
        line for line in openai_host.log_lines() if line["event"] == "model call" and line["turn"] == answer["turnId"]
    ]
    assert line["conversation"] == answer["conversationId"]
    assert line["requestId"]
    assert (line["provider"], line["messages"], line["answerChars"]) == ("custom", 2, len("You said: Hello there"))
    assert line["promptTokens"] == answer["usage"]["promptTokens"] > 0
    assert line["latencyMs"] > 0


def open_turns(host: Host) -> list[tuple[str, str, int]]:
    open_ones = host.sql("SELECT status, waiting_for, retries FROM conversations_turn WHERE ended_at IS NULL")
    return [(turn["status"], turn["waiting_for"], turn["retries"]) for turn in open_ones]


def until_no_turn_is_open(host: Host) -> None:
    wait_until(lambda: not open_turns(host))
