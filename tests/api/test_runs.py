"""Turns without waiting: made, listed, cancelled; and what becomes of a message while its conversation is busy."""

import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.support.api_client import chat, eventually, problem, start, turns_of
from tests.support.hosts import Host
from tests.support.scripts import script
from tests.support.sse import streaming

SLOW = script({"sleep": 60})


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[httpx2.Client]:
    with host.client() as client:
        yield client


def run(client: httpx2.Client, conversation_id: str, message: str, **body: str) -> httpx2.Response:
    return client.post(f"/conversations/{conversation_id}/turns", json={"message": message, **body})


def status(client: httpx2.Client, answer: httpx2.Response) -> str:
    return str(client.get(f"/turns/{answer.json()['turnId']}").json()["status"])


def test_a_run_is_accepted_at_once_and_found_at_its_location(client):
    answer = run(client, start(client), "Hello")
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v1/turns/{answer.json()['turnId']}"
    assert eventually(lambda: status(client, answer) == "succeeded")


def test_a_chat_may_prefer_not_to_wait(client):
    conversation_id = start(client)
    answer = chat(client, conversation_id, SLOW, headers={"Prefer": "wait=10, respond-async"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "respond-async")
    client.delete(f"/conversations/{conversation_id}")


def test_runs_are_idempotent_as_chats_are(client):
    conversation_id, key = start(client), {"Idempotency-Key": "run-1"}
    url = f"/conversations/{conversation_id}/turns"
    answers = [client.post(url, json={"message": "Hello"}, headers=key).json()["turnId"] for _ in range(2)]
    assert len(set(answers)) == 1
    problem(client.post(url, json={"message": "Other"}, headers=key), 409, "idempotency_conflict")


def test_turns_are_listed_the_newest_first_page_by_page(client):
    conversation_id = start(client)
    made = [run(client, conversation_id, f"Message {number}").json()["turnId"] for number in range(5)]
    eventually(lambda: status(client, run(client, conversation_id, "last")) is not None)
    page = client.get(f"/conversations/{conversation_id}/turns", params={"limit": 4}).json()
    rest = client.get(page["next"]).json()
    listed = [turn["turnId"] for turn in page["results"] + rest["results"]]
    assert listed[1:] == made[::-1]
    assert client.get(f"/turns/{made[0]}").json().keys() == rest["results"][0].keys()


def test_a_listed_turn_has_its_answer_and_its_calls(client):
    conversation_id = start(client)
    chat(client, conversation_id, script({"call": [{"name": "time"}]}, {"say": "Done."}))
    (turn,) = client.get(f"/conversations/{conversation_id}/turns").json()["results"]
    assert turn["assistantMessage"] == "Done."
    assert [(call["toolName"], call["status"]) for call in turn["toolCalls"]] == [("time", "SUCCESS")]
    assert turn == client.get(f"/turns/{turn['turnId']}").json()


@pytest.fixture(scope="module")
def patient_tool(host: Host) -> Iterator[None]:
    """A tool whose calls go on as long as a test wants, allowed."""
    host.allow("wait_for")
    yield
    host.forbid("wait_for")


@pytest.mark.parametrize(
    ("step", "midst"),
    [
        ({"say": "word " * 2000, "pace": 0.1}, "message.delta"),
        ({"sleep": 60}, "turn.started"),
        ({"call": [{"name": "wait_for", "arguments": {"path": "PATH/never", "come": "PATH/come"}}]}, "tool.started"),
    ],
    ids=["in mid answer", "while the model is silent", "in mid tool"],
)
def test_a_run_is_cancelled_within_two_seconds(client, patient_tool, marks, step, midst):
    message = script(step).replace("PATH", str(marks))

    def seconds() -> float:
        turn_id = run(client, start(client), message).json()["turnId"]
        with streaming(client, "GET", f"/turns/{turn_id}/events") as told:
            assert any(event.kind == midst for event in told)
            began = time.monotonic()
            client.post(f"/turns/{turn_id}/cancel")
            assert list(told)[-1].kind == "turn.cancelled"
        return time.monotonic() - began

    # A machine with other work may hold up a few; what takes longer each time is not its fault.
    assert any(seconds() <= 2 for _ in range(5))


def test_by_default_a_message_waits_behind_what_is_open(client):
    conversation_id = start(client)
    first, second = run(client, conversation_id, SLOW), run(client, conversation_id, "Hello")
    assert status(client, second) == "queued"
    client.post(f"/turns/{first.json()['turnId']}/cancel")
    assert eventually(lambda: status(client, second) == "succeeded")


def test_a_message_that_would_rather_not_wait_is_refused_and_nothing_is_stored(host, client):
    conversation_id = start(client)
    first = run(client, conversation_id, SLOW)
    told = problem(run(client, conversation_id, "Hello", onBusy="reject"), 409, "conversation_busy")
    assert told["turnId"] == first.json()["turnId"]
    assert len(turns_of(host, conversation_id)) == 1
    client.post(f"/turns/{told['turnId']}/cancel")
    eventually(lambda: status(client, first) == "cancelled")
    assert run(client, conversation_id, "Hello", onBusy="reject").status_code == 202


def test_a_message_may_interrupt_what_is_open(client):
    conversation_id = start(client)
    open_ones = [run(client, conversation_id, SLOW) for _ in range(3)]
    eventually(lambda: status(client, open_ones[0]) == "running")
    answer = client.post(f"/conversations/{conversation_id}/chat", json={"message": "Stop", "onBusy": "interrupt"})
    assert answer.json()["assistantMessage"] == "You said: Stop"
    assert [status(client, each) for each in open_ones] == ["cancelled"] * 3


def test_what_is_repeated_interrupts_nothing(client):
    conversation_id = start(client)
    url, key = f"/conversations/{conversation_id}/turns", {"Idempotency-Key": "interrupt-1"}
    body = {"message": SLOW, "onBusy": "interrupt"}
    first = client.post(url, json=body, headers=key)
    assert client.post(url, json=body, headers=key).json()["turnId"] == first.json()["turnId"]
    assert status(client, first) in ("queued", "running")
    client.delete(f"/conversations/{conversation_id}")


def test_another_word_is_refused(client):
    told = problem(run(client, start(client), "Hello", onBusy="rollback"), 400, "invalid_request")
    assert "onBusy" in told["detail"]
