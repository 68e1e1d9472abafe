"""``Idempotency-Key``: a request that is repeated is answered once, whatever happens in between."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.support.api_client import chat, eventually, key_of, problem, start, stored, turns_of
from tests.support.hosts import Host
from tests.support.scripts import script


def key(conversation_id: str) -> dict[str, str]:
    """A key nobody else uses."""
    return {"Idempotency-Key": f"key-{conversation_id}"}


def test_the_same_request_gets_the_same_turns_answer(host, api, conversation_id):
    first = chat(api, conversation_id, "Hello", headers=key(conversation_id))
    again = chat(api, conversation_id, "Hello", headers=key(conversation_id))
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert len(turns_of(host, conversation_id)) == 1


def test_a_failed_turns_answer_is_repeated_too(api, conversation_id):
    failing = script({"fail": "content_filter"})
    first = problem(chat(api, conversation_id, failing, headers=key(conversation_id)), 422, "llm_content_filter")
    again = problem(chat(api, conversation_id, failing, headers=key(conversation_id)), 422, "llm_content_filter")
    assert first["turnId"] == again["turnId"]


def test_concurrent_duplicates_wait_for_the_one_turn(host, api, conversation_id):
    slow, together = script({"sleep": 0.5, "say": "once"}), threading.Barrier(20)

    def ask() -> httpx2.Response:
        together.wait(20)
        return chat(api, conversation_id, slow, headers=key(conversation_id))

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask) for _ in range(20)]
    answers = [future.result() for future in asked]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert len(turns_of(host, conversation_id)) == 1
    assert len(api.get(f"/conversations/{conversation_id}/messages").json()["results"]) == 2


IN_JSON = {"message": "Hello", "response_format": {"type": "json_object"}}


@pytest.mark.parametrize("other", [{"message": "Goodbye"}, {"message": "Hello", "model": "another"}, IN_JSON])
def test_the_same_key_with_another_body_is_a_conflict(host, api, conversation_id, other):
    turn_id = chat(api, conversation_id, "Hello", headers=key(conversation_id)).json()["turnId"]
    before = stored(host)
    refused = api.post(f"/conversations/{conversation_id}/chat", json=other, headers=key(conversation_id))
    assert turn_id in problem(refused, 409, "idempotency_conflict")["detail"]
    assert stored(host) == before


def test_the_same_key_in_another_conversation_is_a_conflict(api, conversation_id):
    chat(api, conversation_id, "Hello", headers=key(conversation_id))
    problem(chat(api, start(api), "Hello", headers=key(conversation_id)), 409, "idempotency_conflict")


def test_a_key_is_its_owners_own(host, api, conversation_id):
    mine = chat(api, conversation_id, "Hello", headers=key(conversation_id)).json()
    with host.client(key_of(host, "somebody-else")) as other:
        theirs = chat(other, start(other), "Something else", headers=key(conversation_id)).json()
    assert theirs["assistantMessage"] == "You said: Something else"
    assert theirs["turnId"] != mine["turnId"]


@pytest.mark.parametrize("bad", ["", "two words", "a" * 256, "schlüssel", "tab\tinside"])
def test_a_bad_key_is_refused(host, api, conversation_id, bad):
    before = stored(host)
    refused = chat(api, conversation_id, "Hello", headers={"Idempotency-Key": bad.encode()})
    assert "Idempotency-Key" in problem(refused, 400, "invalid_request")["detail"]
    assert stored(host) == before


def test_a_deleted_conversations_key_is_free_again(api, conversation_id):
    chat(api, conversation_id, "Hello", headers=key(conversation_id))
    api.delete(f"/conversations/{conversation_id}")
    assert chat(api, start(api), "Anew", headers=key(conversation_id)).status_code == 200


def test_the_answer_outlasts_a_kill_and_a_restart(mortal: Host):
    with mortal.client() as api:
        done = chat(api, start(api), "Hello", headers={"Idempotency-Key": "done"}).json()
        half_done = start(api)
        with pytest.raises(httpx2.ReadTimeout):
            chat(api, half_done, script({"sleep": 1}), headers={"Idempotency-Key": "half"}, timeout=0.3)
        eventually(lambda: turns_of(mortal, half_done)[0]["status"] == "running")
    mortal.kill()
    mortal.start()
    with mortal.client() as api:
        assert chat(api, done["conversationId"], "Hello", headers={"Idempotency-Key": "done"}).json() == done
        resumed = chat(api, half_done, script({"sleep": 1}), headers={"Idempotency-Key": "half"})
        assert resumed.status_code == 200
        assert len(turns_of(mortal, half_done)) == 1
