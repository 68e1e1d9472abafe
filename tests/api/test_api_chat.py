"""The API over HTTP, as its clients use it, on a running host."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from tests.support.api_client import chat, connect, eventually, problem, rows, start, turns_of
from tests.support.hosts import Host
from tests.support.scripts import script
from tools.sandbox import modes

AN_ID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def toolbox(host: Host) -> Iterator[None]:
    """The reading tools of the tests, allowed."""
    host.allow("look_around")
    yield
    host.forbid("look_around")


def in_background(work: Any, *args: Any) -> Any:
    """A future of a call made in a thread."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work, *args)
    pool.shutdown(wait=False)
    return future


def running_turn(host: Host, conversation_id: str, status: str = "running") -> str:
    """The id of the conversation's newest turn once it has that status."""

    def newest() -> str:
        turns = turns_of(host, conversation_id)
        return str(turns[-1]["id"]) if turns and turns[-1]["status"] == status else ""

    return eventually(newest)


# --- conversations -----------------------------------------------------------------------------------------------


def test_a_conversation_is_created_and_shown(api):
    created = api.post("/conversations", json={"metadata": {"ticket": 7}})
    assert created.status_code == 201
    assert list(created.json()) == ["conversationId", "key"]
    conversation_id = created.json()["conversationId"]
    assert created.headers["location"] == f"/api/v1/conversations/{conversation_id}"
    shown = api.get(f"/conversations/{conversation_id}").json()
    assert list(shown) == [
        "conversationId", "key", "agent", "title", "pinned", "archived", "branchOf", "metadata", "tainted", "cost",
        "currency", "createdAt", "updatedAt",
    ]  # fmt: skip
    assert (shown["agent"], shown["metadata"]) == ("default", {"ticket": 7})
    assert re.fullmatch(AN_ID, shown["conversationId"])
    assert re.fullmatch(TIME, shown["createdAt"])


def test_conversations_are_listed_in_pages_newest_first(api):
    made = [start(api) for _ in range(6)]
    found, link = [], "/conversations?limit=2"
    for _ in range(3):
        page = api.get(link).json()
        assert list(page) == ["next", "previous", "results"]
        assert len(page["results"]) == 2
        found += [row["conversationId"] for row in page["results"]]
        link = page["next"]
    assert found == made[::-1]


def test_a_page_leads_back_to_the_one_before(api):
    for _ in range(3):
        start(api)
    first = api.get("/conversations?limit=1").json()
    second = api.get(first["next"]).json()
    assert api.get(second["previous"]).json()["results"] == first["results"]
    assert first["previous"] is None


def test_messages_are_listed_in_pages_in_order(api, conversation_id):
    for number in range(3):
        chat(api, conversation_id, f"number {number}")
    found, link = [], f"/conversations/{conversation_id}/messages?limit=4"
    while link:
        page = api.get(link).json()
        found += page["results"]
        link = page["next"]
    assert [message["seq"] for message in found] == [1, 2, 3, 4, 5, 6]
    assert [message["role"] for message in found] == ["USER", "ASSISTANT"] * 3


def test_a_page_never_has_more_than_200(api, conversation_id):
    assert len(api.get("/conversations?limit=99999999999999999999").json()["results"]) <= 200


MADE_UP_CURSORS = {
    "no base64": "x",
    "no UTF-8": "%ff",
    "no ASCII": "é",
    "a position that is none": "cD1ub3Bl",
    "an offset below 0": "bz0tMQ==",
    "a large offset": "bz05OTk5OTk5OTk5OTk5OTk5",
    "a large position": "cD05OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5",
    "a null character": "cD0lMDA=",
    "not a number, backwards": "cj0xJnA9TmFO",
    "long": "a" * 5000,
}


@pytest.mark.parametrize("cursor", MADE_UP_CURSORS.values(), ids=MADE_UP_CURSORS.keys())
def test_a_made_up_cursor_is_refused_or_leads_nowhere(api, conversation_id, cursor):
    for path in ("/conversations", f"/conversations/{conversation_id}/messages"):
        answer = api.get(f"{path}?cursor={cursor}")
        if answer.status_code != 200:
            problem(answer, 400, "invalid_request")


@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "1.5", "%D9%A5", "1e3", "9" * 5000])
def test_a_senseless_limit_is_refused(api, limit):
    if limit == "9" * 5000:
        assert api.get(f"/conversations?limit={limit}").status_code == 200  # a whole number, if a long one
    else:
        problem(api.get(f"/conversations?limit={limit}"), 400, "invalid_request")


# --- chat --------------------------------------------------------------------------------------------------------


def test_chat_answers(api, conversation_id):
    answer = chat(api, conversation_id, "Hello")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    said = answer.json()
    assert list(said) == ["conversationId", "turnId", "assistantMessage", "toolCalls", "usage"]
    assert (said["conversationId"], said["assistantMessage"]) == (conversation_id, "You said: Hello")
    assert said["toolCalls"] == []
    assert list(said["usage"]) == [
        *("promptTokens", "completionTokens", "totalTokens", "cachedTokens", "cost", "currency")
    ]
    assert (said["usage"]["cost"], said["usage"]["currency"]) == ("0.000000", "USD"), "the scripted model is free"
    assert said["usage"]["totalTokens"] == said["usage"]["promptTokens"] + said["usage"]["completionTokens"] > 0


def test_chat_shows_its_tool_calls(api, conversation_id):
    (call,) = chat(api, conversation_id, "What time is it?").json()["toolCalls"]
    assert list(call) == ["toolName", "status", "result"]
    assert (call["toolName"], call["status"]) == ("time", "SUCCESS")
    steps = script({"call": [{"name": "fetch", "arguments": {"url": "http://x"}}]}, {"say": "No."})
    (call,) = chat(api, conversation_id, steps).json()["toolCalls"]
    assert call["status"] == "REJECTED"
    assert "not_enabled" in call["result"]


def test_messages_are_as_the_specification_names_them(api, conversation_id):
    turn_id = chat(api, conversation_id, "What time is it?").json()["turnId"]
    messages = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    assert list(messages[0]) == [
        "id", "conversationId", "seq", "role", "type", "kind", "pinned", "content", "reasoning", "attachments",
        "toolCalls", "toolName", "toolCallId", "turnId", "feedback", "createdAt",
    ]  # fmt: skip
    assert [message["role"] for message in messages] == ["USER", "ASSISTANT", "TOOL", "ASSISTANT"]
    assert {message["type"] for message in messages} == {"NORMAL"}
    assert {message["turnId"] for message in messages} == {turn_id}
    assert [message["toolName"] for message in messages] == [None, None, "time", None]
    assert [message["toolCallId"] is None for message in messages] == [True, True, False, True]
    assert [message["toolCalls"] is None for message in messages] == [True, False, True, True]


def test_the_transcript_shows_what_an_assistant_asks_for(api, conversation_id):
    asked = [{"name": "time", "arguments": {"timezone": "Asia/Tokyo"}}, {"name": "fetch", "arguments": {"url": "x"}}]
    chat(api, conversation_id, script({"call": asked}, {"say": "So be it."}))
    _, asking, *results, _ = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    assert asking["role"] == "ASSISTANT"
    assert [list(call) for call in asking["toolCalls"]] == [["toolCallId", "toolName", "arguments", "status"]] * 2
    assert [call["status"] for call in asking["toolCalls"]] == ["SUCCESS", "REJECTED"]
    shown = [{"name": call["toolName"], "arguments": json.loads(call["arguments"])} for call in asking["toolCalls"]]
    assert shown == asked
    assert [each["toolCallId"] for each in results] == [call["toolCallId"] for call in asking["toolCalls"]]


def test_a_turn_is_shown(api, conversation_id):
    answer = chat(api, conversation_id, "What time is it?").json()
    turn = api.get(f"/turns/{answer['turnId']}").json()
    assert list(turn) == [
        "turnId", "conversationId", "status", "assistantMessage", "toolCalls", "usage", "error", "retry",
        "model", "fallback", "createdAt", "startedAt", "endedAt",
    ]  # fmt: skip
    assert (turn["status"], turn["error"]) == ("succeeded", None)
    for same in ("turnId", "conversationId", "assistantMessage", "toolCalls", "usage"):
        assert turn[same] == answer[same]
    assert turn["createdAt"] <= turn["startedAt"] <= turn["endedAt"]


def test_tools_are_listed_with_the_rule_that_forbids_them(api):
    tools = {tool["name"]: tool for tool in api.get("/tools").json()}
    assert list(tools["time"]) == ["name", "description", "schema", "permissions", "allowed", "forbiddenBy"]
    assert (tools["time"]["allowed"], tools["time"]["forbiddenBy"]) == (True, None)
    assert tools["time"]["schema"]["type"] == "object"
    assert (tools["fetch"]["allowed"], tools["fetch"]["forbiddenBy"]) == (False, "not_enabled")
    assert tools["fetch"]["permissions"] == ["NET_HTTP"]


@pytest.mark.parametrize("accept", ["*/*", "text/html", "garbage", "", "application/json;q=0", None])
def test_any_accept_but_a_streams_is_answered_in_json(host, conversation_id, accept):
    with host.client() as client:
        del client.headers["accept"]
        headers = {} if accept is None else {"Accept": accept}
        answer = chat(client, conversation_id, "Hello", headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


# --- waiting -----------------------------------------------------------------------------------------------------


def test_past_the_waiting_time_the_turn_is_pointed_at_and_goes_on(impatient):
    with impatient.client() as api:
        conversation_id = start(api)
        answer = chat(api, conversation_id, script({"sleep": 1.5, "say": "at last"}))
        assert answer.status_code == 202
        assert list(answer.json()) == ["turnId", "conversationId", "status"]
        assert answer.json()["status"] in ("queued", "running")
        turn_id = answer.json()["turnId"]
        assert answer.headers["location"] == f"/api/v1/turns/{turn_id}"
        ended = eventually(lambda: (t := api.get(f"/turns/{turn_id}").json())["endedAt"] and t)
        assert (ended["status"], ended["assistantMessage"]) == ("succeeded", "at last")


def test_a_chat_gets_its_202_in_time_while_the_model_is_waited_for(impatient):
    with impatient.client() as api:
        steps = script({"fail": "rate_limited", "times": 1, "retryAfter": 1.2, "say": "at last"})
        answer = chat(api, start(api), steps)
        assert (answer.status_code, answer.json()["status"]) == (202, "waiting")
        told = api.get(answer.headers["location"].removeprefix("/api/v1")).json()
        assert (told["retry"]["code"], told["retry"]["tries"]) == ("llm_rate_limited", 1)
        assert told["retry"]["since"] < told["retry"]["nextTryAt"]
        turn_id = answer.json()["turnId"]
        ended = eventually(lambda: (t := api.get(f"/turns/{turn_id}").json())["endedAt"] and t)
        assert (ended["status"], ended["assistantMessage"], ended["retry"]) == ("succeeded", "at last", None)


def test_a_client_that_goes_away_does_not_stop_the_turn(host, api, conversation_id):
    with pytest.raises(httpx2.ReadTimeout):
        chat(api, conversation_id, script({"sleep": 1, "say": "nobody hears"}), timeout=0.3)
    turn_id = running_turn(host, conversation_id, "succeeded")
    assert api.get(f"/turns/{turn_id}").json()["assistantMessage"] == "nobody hears"


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fail", "status", "code"),
    [
        ("auth", 502, "llm_auth"),
        ("context_too_long", 422, "llm_context_too_long"),
        ("content_filter", 422, "llm_content_filter"),
    ],
)
def test_a_lasting_failure_of_the_model_is_told_at_once(api, conversation_id, fail, status, code):
    told = problem(chat(api, conversation_id, script({"fail": fail})), status, code)
    assert told["conversationId"] == conversation_id
    turn = api.get(f"/turns/{told['turnId']}").json()
    assert (turn["status"], turn["assistantMessage"]) == ("failed", None)
    assert turn["error"] == {"code": code, "message": told["title"]}


@pytest.mark.parametrize(
    ("fail", "status", "code"),
    [
        ("rate_limited", 503, "llm_rate_limited"),
        ("timeout", 504, "llm_timeout"),
        ("unavailable", 502, "llm_unavailable"),
        ("bad_response", 502, "llm_bad_response"),
    ],
)
def test_a_passing_failure_is_told_when_retries_are_used_up(impatient, fail, status, code):
    with impatient.client() as api:
        conversation_id = start(api)
        steps, key = script({"fail": fail, "retryAfter": 0.01}), {"Idempotency-Key": f"key-{conversation_id}"}
        turn_id = chat(api, conversation_id, steps, headers=key).json()["turnId"]
        turn = eventually(lambda: (t := api.get(f"/turns/{turn_id}").json())["endedAt"] and t)
        assert turn["error"]["code"] == code
        problem(chat(api, conversation_id, steps, headers=key), status, code)


def test_a_turn_past_its_time_fails(impatient):
    with impatient.client() as api:
        answer = chat(api, start(api), script({"sleep": 60}), headers={"Idempotency-Key": "past-its-time"})
        turn_id = answer.json()["turnId"]
        turn = eventually(lambda: (t := api.get(f"/turns/{turn_id}").json())["endedAt"] and t)
        assert (turn["status"], turn["error"]["code"]) == ("failed", "turn_timeout")
        again = chat(api, turn["conversationId"], script({"sleep": 60}), headers={"Idempotency-Key": "past-its-time"})
        problem(again, 504, "turn_timeout")


# --- cancelling --------------------------------------------------------------------------------------------------


def test_a_running_turn_is_cancelled_in_mid_model_call(host, api, conversation_id):
    asked = in_background(chat, api, conversation_id, script({"sleep": 60}))
    turn_id = running_turn(host, conversation_id)
    assert api.post(f"/turns/{turn_id}/cancel").status_code == 200
    problem(asked.result(10), 409, "turn_cancelled")
    turn = api.get(f"/turns/{turn_id}").json()
    assert (turn["status"], turn["error"]["code"]) == ("cancelled", "turn_cancelled")


def test_a_queued_turn_is_cancelled_behind_a_running_one(host, api, conversation_id):
    first = in_background(chat, api, conversation_id, script({"sleep": 60}))
    first_id = running_turn(host, conversation_id)
    second = in_background(chat, api, conversation_id, "behind")
    second_id = running_turn(host, conversation_id, "queued")
    cancelled = api.post(f"/turns/{second_id}/cancel").json()
    assert (cancelled["status"], cancelled["startedAt"]) == ("cancelled", None)
    problem(second.result(10), 409, "turn_cancelled")
    assert api.get(f"/turns/{first_id}").json()["status"] == "running"
    api.post(f"/turns/{first_id}/cancel")
    problem(first.result(10), 409, "turn_cancelled")


def test_a_turn_that_waits_for_tools_is_cancelled_with_its_calls(host, api, conversation_id, toolbox, marks: Path):
    steps = script({"call": [{"name": "look_around", "arguments": {"path": f"{marks}/looks", "seconds": 2.5}}]})
    asked = in_background(chat, api, conversation_id, steps)
    turn_id = running_turn(host, conversation_id, "waiting")
    cancelled = api.post(f"/turns/{turn_id}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["toolCalls"][0]["status"] in ("FAILED", "REJECTED", "UNKNOWN")
    problem(asked.result(10), 409, "turn_cancelled")


def test_cancelling_an_ended_turn_changes_nothing(api, conversation_id):
    turn_id = chat(api, conversation_id, "Hello").json()["turnId"]
    before = api.get(f"/turns/{turn_id}").json()
    assert api.post(f"/turns/{turn_id}/cancel").json() == before


def test_after_a_cancelled_turn_the_conversation_goes_on(host, api, conversation_id):
    asked = in_background(chat, api, conversation_id, script({"sleep": 60}))
    api.post(f"/turns/{running_turn(host, conversation_id)}/cancel")
    asked.result(10)
    assert chat(api, conversation_id, "Hello again").json()["assistantMessage"] == "You said: Hello again"


# --- deleting ----------------------------------------------------------------------------------------------------


def test_a_deleted_conversation_is_gone_and_its_tool_calls_stay(host, api, conversation_id):
    turn_id = chat(api, conversation_id, "What time is it?").json()["turnId"]
    deleted = api.delete(f"/conversations/{conversation_id}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    for path in (
        f"/conversations/{conversation_id}",
        f"/conversations/{conversation_id}/messages",
        f"/turns/{turn_id}",
    ):
        problem(api.get(path), 404, "not_found")
    problem(api.delete(f"/conversations/{conversation_id}"), 404, "not_found")
    problem(chat(api, conversation_id, "Hello?"), 404, "not_found")
    problem(api.post(f"/turns/{turn_id}/cancel"), 404, "not_found")
    (call,) = rows(host, "SELECT * FROM tools_toolcall WHERE turn_id = ?", turn_id)
    assert (call["tool_name"], call["status"]) == ("time", "SUCCESS")


def test_a_conversation_is_deleted_in_mid_model_call(host, api, conversation_id):
    asked = in_background(chat, api, conversation_id, script({"sleep": 1.5, "say": "too late"}))
    turn_id = running_turn(host, conversation_id)
    assert api.delete(f"/conversations/{conversation_id}").status_code == 204
    problem(asked.result(10), 404, "not_found")
    # The model's answer comes, if it still does, before this other turn's.
    assert chat(api, start(api), script({"sleep": 2, "say": "later"})).status_code == 200
    problem(api.get(f"/turns/{turn_id}"), 404, "not_found")
    assert rows(host, "SELECT * FROM conversations_message WHERE conversation_id = ?", conversation_id) == []
    lines = [line for line in host.log_text().splitlines() if turn_id in line]
    assert lines
    assert not [line for line in lines if '"level": "error"' in line]


# --- request ids and errors of the address -----------------------------------------------------------------------


def test_a_well_formed_request_id_is_taken_and_returned(api):
    answer = api.get("/conversations", headers={"X-Request-ID": "trace.7:a_b-c"})
    assert answer.headers["x-request-id"] == "trace.7:a_b-c"


@pytest.mark.parametrize("offered", ["", "-starts-badly", "has space", "é", "a" * 65, "<script>", "a\tb"])
def test_a_malformed_request_id_is_replaced(api, offered):
    answer = api.get("/conversations", headers={"X-Request-ID": offered.encode()})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def test_every_problem_carries_the_request_id(host, api):
    given = {"X-Request-ID": "given"}
    assert problem(api.get("/nowhere", headers=given), 404, "not_found")["requestId"] == "given"
    assert problem(api.get(f"/turns/{UNKNOWN_ID}", headers=given), 404, "not_found")["requestId"] == "given"
    assert problem(api.put("/conversations", headers=given), 405, "method_not_allowed")["requestId"] == "given"
    large = api.post("/conversations", content=b" " * 3_000_000, headers=given)
    assert problem(large, 413, "body_too_large")["requestId"] == "given"
    with host.client(key=None) as nobody:
        refused = nobody.get("/conversations", headers=given)
        assert problem(refused, 401, "not_authenticated")["requestId"] == "given"
        assert refused.headers["www-authenticate"].startswith("Bearer")


def test_a_wrong_method_is_told_which_are_right(api, conversation_id):
    answer = api.put(f"/conversations/{conversation_id}", json={})
    problem(answer, 405, "method_not_allowed")
    assert {"GET", "DELETE"} <= set(answer.headers["allow"].split(", "))


@pytest.mark.parametrize("address", ["/api/schema", "/api/docs"])
def test_the_open_pages_tell_problems_too(host, address):
    problem(httpx2.post(f"{host.address}{address}"), 405, "method_not_allowed")


def test_a_fault_of_ours_is_a_problem_without_details(impatient):
    with impatient.client() as api:
        conversation_id = start(api)
        # Metadata is an object; what nobody could have stored stands for any fault.
        ours = UUID(conversation_id)
        impatient.sql("UPDATE conversations_conversation SET metadata = '[1]' WHERE id = ?", ours)
        told = problem(api.get(f"/conversations/{conversation_id}"), 500, "internal_error")
        assert "list" not in told["detail"].lower()
        assert told["requestId"] in impatient.log_text()


def test_what_is_said_is_logged_where_it_is_wanted(impatient):
    with impatient.client() as api:
        turn = chat(api, start(api), "Tell me of the rhododendron.").json()["turnId"]
    (line,) = [line for line in impatient.log_lines() if line["event"] == "model call" and line["turn"] == turn]
    assert "rhododendron" in line["prompt"]
    assert "rhododendron" in line["answer"]


def test_health_is_open_and_says_what_is_well(host):
    assert httpx2.get(f"{host.address}/health/live").json() == {"status": "ok"}
    ready = httpx2.get(f"{host.address}/health/ready")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ok",
        "checks": {"database": "ok", "doorbell": "ok", "worker": "ok", "toolbox": "ok", "news": "ok"},
        "sandbox": [modes.in_force().words],
    }
    assert httpx2.post(f"{host.address}/health/live").status_code == 405


def test_two_requests_on_one_connection_are_answered_in_order(host):
    ask = f"GET /health/live HTTP/1.1\r\nHost: {host.address.removeprefix('http://')}\r\n\r\n".encode()
    with connect(host) as connection:
        connection.sendall(ask * 2)
        received = b""
        while received.count(b'{"status":"ok"}') < 2:
            more = connection.recv(65536)
            assert more, received
            received += more
    assert received.count(b"HTTP/1.1 200 OK") == 2
