"""A chat that waits for somebody's consent, on a running host: what its client and its readers are told."""

from collections.abc import Iterator
from uuid import UUID

import httpx2
import pytest

from tests.support.api_client import eventually, key_of
from tests.support.hosts import Host
from tests.support.scripts import script
from tests.support.sse import streaming

ASK = script({"call": [{"name": "time", "arguments": {"timezone": "UTC"}}]}, {"say": "{results}"})


@pytest.fixture(scope="module")
def client(impatient: Host) -> Iterator[httpx2.Client]:
    scopes = ["chat", "read", "approve"]
    with impatient.client(key_of(impatient, "of approvals", scopes)) as client:
        yield client


@pytest.fixture(scope="module")
def careful(impatient: Host) -> Iterator[str]:
    """An agent that is no one's but these tests', whose calls all need consent."""
    (named,) = impatient.sql("SELECT * FROM agent_agent WHERE name = 'default'")
    columns = ", ".join(name for name in named if name not in ("id", "name", "approvals"))
    copy = f"INSERT INTO agent_agent (name, approvals, {columns}) SELECT 'careful', ?, {columns} FROM agent_agent"
    impatient.sql(f"{copy} WHERE name = 'default'", '{"*": "always"}')
    yield "careful"
    # Its conversations go with it.
    for table, of in (("message", "conversation_id"), ("turn", "conversation_id"), ("conversation", "id")):
        whose = "SELECT c.id FROM conversations_conversation c JOIN agent_agent a ON a.id = c.agent_id"
        impatient.sql(f"DELETE FROM conversations_{table} WHERE {of} IN ({whose} WHERE a.name = 'careful')")
    impatient.sql("DELETE FROM agent_agent WHERE name = 'careful'")


def test_a_chat_is_answered_202_and_goes_on_when_somebody_has_decided(client, careful):
    conversation_id = client.post("/conversations", json={"agent": careful}).json()["conversationId"]
    waiting = client.post(f"/conversations/{conversation_id}/chat", json={"message": ASK})
    assert waiting.status_code == 202, waiting.text
    (approval,) = eventually(lambda: client.get("/approvals?state=pending").json()["results"])
    with streaming(client, "GET", f"/turns/{waiting.json()['turnId']}/events") as told:
        events = []
        for event in told:
            events.append(event)
            if event.kind == "approval.requested":
                decision = {"decision": "approve", "arguments": {"timezone": "Europe/Berlin"}}
                answer = client.post(f"/approvals/{approval['approvalId']}/decide", json=decision)
                assert answer.status_code == 200, answer.text
    kinds = [event.kind for event in events if event.kind != "message.delta"]
    assert kinds == [
        *("turn.queued", "turn.started", "approval.requested", "approval.decided"),
        *("tool.started", "tool.finished", "turn.completed"),
    ]
    asked, decided = events[2].data, events[3].data
    assert asked["approvalId"] == decided["approvalId"] == approval["approvalId"]
    assert (asked["toolName"], asked["rule"], asked["arguments"]) == ("time", "consent:always", '{"timezone": "UTC"}')
    assert (decided["state"], decided["reason"]) == ("approved", "")
    assert "Europe/Berlin" in events[-1].data["assistantMessage"]
    with streaming(client, "GET", f"/turns/{waiting.json()['turnId']}/events") as again:
        assert [event.kind for event in again if event.kind.startswith("approval")] == kinds[2:4]


def test_no_time_of_the_turn_runs_out_meanwhile(impatient, client, careful):
    conversation_id = client.post("/conversations", json={"agent": careful}).json()["conversationId"]
    turn_id = client.post(f"/conversations/{conversation_id}/turns", json={"message": ASK}).json()["turnId"]
    (approval,) = eventually(lambda: client.get("/approvals?state=pending").json()["results"])
    (row,) = impatient.sql("SELECT status, deadline FROM conversations_turn WHERE id = ?", UUID(turn_id))
    assert (row["status"], row["deadline"]) == ("waiting", None)
    client.post(f"/approvals/{approval['approvalId']}/decide", json={"decision": "deny", "reason": "No."})
    eventually(lambda: client.get(f"/turns/{turn_id}").json()["endedAt"])
    ended = client.get(f"/turns/{turn_id}").json()
    assert ended["status"] == "succeeded"
    assert ended["toolCalls"][0]["status"] == "REJECTED"


def test_who_follows_a_turn_is_told_that_nobody_has_to_decide_any_more(client, careful):
    conversation_id = client.post("/conversations", json={"agent": careful}).json()["conversationId"]
    turn_id = client.post(f"/conversations/{conversation_id}/turns", json={"message": ASK}).json()["turnId"]
    with streaming(client, "GET", f"/turns/{turn_id}/events") as told:
        events = []
        for event in told:
            events.append(event)
            if event.kind == "approval.requested":
                assert client.post(f"/turns/{turn_id}/cancel").status_code == 200
    asked, decided, ended = [event for event in events if event.kind != "message.delta"][-3:]
    assert (asked.kind, decided.kind, ended.kind) == ("approval.requested", "approval.decided", "turn.cancelled")
    assert (decided.data["state"], decided.data["approvalId"]) == ("withdrawn", asked.data["approvalId"])
