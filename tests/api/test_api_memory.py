"""The API of memory: what an agent knows, what happened, and what a conversation was summarised to."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.support.api_client import chat, eventually, key_of, problem, start
from tests.support.hosts import Host


@pytest.fixture(scope="module")
def people(host: Host) -> Iterator[tuple[httpx2.Client, httpx2.Client]]:
    """Two who have not spoken yet."""
    with host.client(key_of(host, "anna")) as anna, host.client(key_of(host, "ben")) as ben:
        yield anna, ben


@pytest.fixture(scope="module")
def compacted(people) -> str:
    """A conversation of the first one, long enough to have been compacted."""
    anna, _ = people
    conversation_id = start(anna)
    for number in range(21):
        answer = chat(anna, conversation_id, f"Remember that rose {number} is red.")
        assert answer.status_code == 200, answer.text
    eventually(lambda: anna.get(f"/conversations/{conversation_id}/summaries").json()["results"])
    return conversation_id


def test_a_summary_tells_what_it_came_from(people, compacted):
    anna, ben = people
    (summary,) = anna.get(f"/conversations/{compacted}/summaries").json()["results"]
    assert (summary["fromSeq"], summary["throughSeq"], summary["isStub"]) == (1, 22, False)
    assert (summary["kind"], summary["day"], summary["undoneAt"]) == ("rolling", None, None)
    assert summary["model"] == "gpt-4.1-mini"
    assert "rose 10 is red" in summary["content"]
    (last,) = anna.get(f"/conversations/{compacted}/turns?limit=1").json()["results"]
    assert summary["turnId"] == last["turnId"]
    messages = anna.get(f"/conversations/{compacted}/messages").json()["results"]
    shown = [message for message in messages if message["type"] == "SUMMARY"]
    assert [(each["role"], each["seq"]) for each in shown] == [("SYSTEM", summary["seq"])]
    problem(ben.get(f"/conversations/{compacted}/summaries"), 404, "not_found")


def test_messages_tell_what_sets_them_apart(people, compacted):
    anna, _ = people
    chat(anna, compacted, "/help")
    messages = anna.get(f"/conversations/{compacted}/messages?limit=200").json()["results"]
    assert {(each["type"], each["kind"]) for each in messages} == {
        ("NORMAL", "said"),
        ("SUMMARY", "rolling"),
        ("NORMAL", "command"),
    }


def test_a_message_is_pinned_and_a_summary_undone(host, people, compacted):
    anna, _ = people
    messages = anna.get(f"/conversations/{compacted}/messages").json()["results"]
    pin = f"/conversations/{compacted}/messages/{messages[2]['id']}/pin"
    for _ in range(2):
        pinned = anna.put(pin)
        assert (pinned.status_code, pinned.json()) == (200, messages[2] | {"pinned": True})
    assert [each["seq"] for each in pinned_in(anna, compacted)] == [3]
    assert [anna.delete(pin).status_code for _ in range(2)] == [204, 204]
    assert pinned_in(anna, compacted) == []
    summary = next(each for each in messages if each["kind"] == "rolling")
    problem(anna.put(pin.replace(messages[2]["id"], summary["id"])), 409, "cannot_be_pinned")
    undo = f"/conversations/{compacted}/summaries/{summary['seq']}/undo"
    told = anna.post(undo, json={"reason": "It is wrong."}).json()
    assert (told["seq"], told["undoneBy"], told["undoneBecause"]) == (summary["seq"], "anna", "It is wrong.")
    listed = anna.get(f"/conversations/{compacted}/summaries").json()["results"]
    assert [each for each in listed if each["undoneAt"]] == [told]
    problem(anna.post(undo), 409, "summary_stays")
    assert f"summary {summary['seq']} was undone by anna" in host.log_text()


def pinned_in(client, conversation_id):
    messages = client.get(f"/conversations/{conversation_id}/messages?limit=200").json()["results"]
    return [each for each in messages if each["pinned"]]


def test_the_memory_is_the_callers_own(people, compacted):
    anna, ben = people
    known = anna.get("/agents/default/memory").json()
    assert known["version"] == 1
    assert "- Remember that rose 3 is red." in known["content"]
    assert (known["characters"], known["maxCharacters"]) == (len(known["content"]), 16000)
    assert ben.get("/agents/default/memory").json()["content"] == ""


def test_what_happened_is_found_by_words_and_only_by_its_owner(people, compacted):
    anna, ben = people
    (entry,) = anna.get("/agents/default/history", params={"q": "rose red"}).json()["results"]
    assert (entry["conversationId"], entry["fromSeq"], entry["throughSeq"]) == (compacted, 1, 22)
    assert anna.get("/agents/default/history", params={"q": "tulip"}).json()["results"] == []
    assert anna.get("/agents/default/history").json()["results"] == [entry]
    for query in ({}, {"q": "rose"}):
        assert ben.get("/agents/default/history", params=query).json()["results"] == []


def test_a_memory_is_rewritten_from_the_version_that_was_read(people):
    _, ben = people
    written = ben.put("/agents/default/memory", json={"content": "- likes tea", "version": 0})
    assert (written.status_code, written.json()["version"]) == (200, 1)
    told = problem(
        ben.put("/agents/default/memory", json={"content": "- likes coffee", "version": 0}), 409, "memory_changed"
    )
    assert "read it again" in told["detail"] or "read it again" in told["title"]
    assert ben.get("/agents/default/memory").json()["content"] == "- likes tea"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"content": "x"}, 400, "invalid_request"),
        ({"content": 7, "version": 0}, 400, "invalid_request"),
        ({"content": "x", "version": -1}, 400, "invalid_request"),
        ({"content": "x", "version": 0, "more": 1}, 400, "invalid_request"),
        ({"content": "x" * 40_000, "version": 0}, 422, "memory_too_long"),
        ({"content": "x", "version": 99}, 409, "memory_changed"),
    ],
)
def test_a_rewrite_that_makes_no_sense_is_refused(api, body, status, code):
    problem(api.put("/agents/default/memory", json=body), status, code)


def test_there_is_no_memory_of_an_agent_there_is_none_of(api):
    for path in ("memory", "history", "history?q=rose"):
        problem(api.get(f"/agents/nobody/{path}"), 404, "not_found")


@pytest.mark.parametrize("query", ['"', "rose OR (", "*", "' OR 1=1 --", "x" * 5000, "…", "a:b & c | !d"])
def test_a_search_is_words_and_no_syntax(api, query):
    assert api.get("/agents/default/history", params={"q": query}).status_code == 200


def test_a_command_is_answered_by_the_host(api, conversation_id):
    assert chat(api, conversation_id, "/help").json()["assistantMessage"].startswith("/new:")
    assert chat(api, conversation_id, "/new").json()["assistantMessage"].startswith("Started afresh.")


def test_stop_cancels_a_turn_that_runs(host, api, conversation_id):
    slow = api.post(f"/conversations/{conversation_id}/turns", json={"message": '{"script": [{"sleep": 60}]}'}).json()
    eventually(lambda: api.get(f"/turns/{slow['turnId']}").json()["status"] == "running")
    assert chat(api, conversation_id, "/stop").json()["assistantMessage"].startswith("Stopped")
    assert api.get(f"/turns/{slow['turnId']}").json()["status"] == "cancelled"
