"""Conversations by a key of the client's: ``channel:chat_id[:thread]``."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections

from conversations.engine import inbox
from conversations.errors import KeyTaken
from conversations.models import Conversation
from conversations.transfer import sessions
from nanohost.accounts.models import ApiKey
from tests.support.api_client import key_of, problem, stored
from tests.support.factories import AgentFactory

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = "telegram:12345"


def of(owner, key=CHAT, **options):
    return inbox.conversation_of(owner_id=owner.pk, key=key, metadata={}, **options)


def test_one_key_is_one_conversation_of_an_owner(owner, outsider):
    first, is_new = of(owner)
    assert (first.key, is_new) == (CHAT, True)
    assert of(owner) == (first, False)
    for another, key in ((outsider, CHAT), (owner, f"{CHAT}:7"), (owner, CHAT.upper())):
        assert of(another, key)[1]
    assert Conversation.objects.count() == 4


def test_it_keeps_the_agent_it_was_made_with(owner):
    AgentFactory(name="clerk")
    first, _ = of(owner, agent="clerk")
    assert of(owner) == of(owner, agent="clerk") == (first, False)
    with pytest.raises(KeyTaken, match="clerk"):
        of(owner, agent="default")


def test_two_who_ask_at_once_get_one_conversation(owner):
    both_have_looked, found, own = threading.Barrier(2), [], threading.local()

    def wait_after_the_first_look(execute, sql, params, *rest):
        looked = execute(sql, params, *rest)
        if not hasattr(own, "has_looked") and sql.startswith("SELECT") and CHAT in (params or ()):
            own.has_looked = True
            both_have_looked.wait(timeout=30)
        return looked

    def ask():
        try:
            with connection.execute_wrapper(wait_after_the_first_look):
                found.append(of(owner))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both_have_looked.broken
    assert len({conversation.pk for conversation, _ in found}) == Conversation.objects.count() == 1
    assert sorted(is_new for _, is_new in found) == [False, True]


def test_what_was_imported_is_found_by_its_key(owner, agent, tmp_path, client):
    header = {"_type": "metadata", "key": CHAT, "created_at": "2026-03-01T10:00:00", "metadata": {}}
    said = {"role": "user", "content": "Good morning.", "timestamp": "2026-03-01T10:00:00"}
    (tmp_path / "telegram_12345.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(said)}\n")
    sessions.import_folder(tmp_path, owner_id=owner.pk, agent=agent, dry_run=False, report=pytest.fail)
    headers = {"Authorization": f"Bearer {ApiKey.objects.issue(owner=owner)[1]}"}
    found = client.post("/api/v1/conversations", {"key": CHAT}, content_type="application/json", headers=headers)
    assert found.status_code == 200
    address = f"/api/v1/conversations/{found.json()['conversationId']}/messages"
    (message,) = client.get(address, headers=headers).json()["results"]
    assert message["content"] == "Good morning."
    (listed,) = client.get(f"/api/v1/conversations?key={CHAT}", headers=headers).json()["results"]
    assert listed["conversationId"] == found.json()["conversationId"]


# --- over HTTP -----------------------------------------------------------------------------------------------------


@pytest.fixture
def key(conversation_id):
    """A key nobody else uses."""
    return f"matrix:!{conversation_id}:example.org"


def test_a_key_is_shown_found_and_kept(api, key):
    made = api.post("/conversations", json={"key": key, "metadata": {"ticket": 7}})
    assert (made.status_code, list(made.json()), made.json()["key"]) == (201, ["conversationId", "key"], key)
    again = api.post("/conversations", json={"key": key, "metadata": {"ticket": 8}})
    assert (again.status_code, again.json()) == (200, made.json())
    assert again.headers["location"] == made.headers["location"]
    shown = api.get(made.headers["location"].removeprefix("/api/v1")).json()
    assert (shown["key"], shown["metadata"]) == (key, {"ticket": 7})
    assert api.get("/conversations", params={"key": key}).json()["results"] == [shown]
    for other in ("", key[:-1], f"{key}%", key.upper()):
        assert api.get("/conversations", params={"key": other}).json()["results"] == []


def test_without_a_key_each_is_a_new_one_with_a_key_of_its_own(api):
    first, second = (api.post("/conversations", json={}).json() for _ in range(2))
    assert first["key"] == f"api:{first['conversationId']}"
    assert first["key"] != second["key"]
    assert api.post("/conversations", json={"key": first["key"]}).json() == first


def test_a_key_is_its_owners_own(host, api, key):
    mine = api.post("/conversations", json={"key": key}).json()["conversationId"]
    with host.client(key_of(host, f"another-{mine}")) as other:
        assert other.get("/conversations", params={"key": key}).json()["results"] == []
        theirs = other.post("/conversations", json={"key": key})
    assert (theirs.status_code, theirs.json()["conversationId"] == mine) == (201, False)


def test_many_requests_at_once_get_one_conversation(host, api, key):
    before, together = stored(host)[0], threading.Barrier(8)

    def ask(_):
        together.wait(timeout=30)
        return api.post("/conversations", json={"key": key})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["conversationId"] for answer in answers}) == stored(host)[0] - before == 1


def test_a_deleted_conversations_key_is_free_again(api, key):
    first = api.post("/conversations", json={"key": key}).json()["conversationId"]
    api.delete(f"/conversations/{first}")
    anew = api.post("/conversations", json={"key": key})
    assert (anew.status_code, anew.json()["conversationId"] == first) == (201, False)


@pytest.mark.parametrize(
    "bad",
    [
        *("", "telegram", "telegram:", ":12345", "telegram::7", "telegram:12345:", "tele gram:1", "telegram:1 2"),
        *("telegram:1\n", "telegram:é", "tél:1", "telegram:\u200b1", f"{'c' * 65}:1", f"telegram:{'1' * 250}"),
        *(None, 7, [], {}, True),
    ],
)
def test_what_is_no_key_is_refused(host, api, bad):
    before = stored(host)
    assert "key" in problem(api.post("/conversations", json={"key": bad}), 400, "invalid_request")["errors"]
    assert stored(host) == before


def test_the_hosts_own_channel_is_refused(host, api):
    before = stored(host)
    told = problem(api.post("/conversations", json={"key": "heartbeat:nobody"}), 400, "invalid_request")
    assert "heartbeat" in told["detail"]
    assert stored(host) == before


def test_a_key_of_another_agents_conversation_is_taken(host, api, key):
    columns = "system_prompt, documents, model, every_tool, tools, created_at, updated_at"
    copy = f"INSERT INTO agent_agent (name, {columns}) SELECT 'key-clerk', {columns} FROM agent_agent"
    host.sql(f"{copy} WHERE name = 'default'")
    try:
        assert api.post("/conversations", json={"key": key, "agent": "default"}).status_code == 201
        taken = problem(api.post("/conversations", json={"key": key, "agent": "key-clerk"}), 409, "key_taken")
        assert "default" in taken["detail"]
        assert api.post("/conversations", json={"key": key, "agent": "default"}).status_code == 200
        problem(api.post("/conversations", json={"key": key, "agent": "nobody"}), 400, "unknown_agent")
    finally:
        host.sql("DELETE FROM agent_agent WHERE name = ?", "key-clerk")


def test_a_list_is_filtered_by_what_can_be_a_key(api):
    problem(api.get("/conversations", params={"key": "a\x00b"}), 400, "invalid_request")
