"""Two owners, and people without a key: nobody sees or touches what is not theirs, on any route there is.

The routes are read from the OpenAPI document, so that one that is added is tried too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest
from drf_spectacular.generators import SchemaGenerator

from nanohost.accounts.models import WIDE
from tests.support.api_client import approval_of, chat, key_of, problem, question_of, start
from tests.support.files import image_part, picture
from tests.support.hosts import KEY, Host
from tests.support.wait import wait_until

OPERATIONS = {
    f"{method.upper()} {path.removeprefix('/api/v1')}": [
        p for p in operation.get("parameters", ()) if p["in"] == "path"
    ]
    for path, operations in SchemaGenerator().get_schema(request=None, public=True)["paths"].items()
    for method, operation in operations.items()
}
# Of an agent everybody sees what is their own; test_api_memory.py and test_api_files.py tell owners apart.
OF_AGENTS = {name for name in OPERATIONS if "/agents/" in name}
# Keys are everybody's to who has the scope for them; tests/api/test_key_limits.py tells who has not.
OF_KEYS = {name for name in OPERATIONS if "/keys" in name}
WITH_IDS = [name for name, parameters in OPERATIONS.items() if parameters and name not in OF_AGENTS | OF_KEYS]
# What these tell apart by owner is tested by name below; a new route without an id needs such a test, too.
WITHOUT_IDS = {
    *("GET /conversations", "POST /conversations", "GET /tools", "GET /approvals", "GET /questions", "GET /usage"),
    *("GET /schedules", "POST /schedules", "POST /schedules/preview", "GET /shares"),
    "GET /turns",
}


@dataclass(frozen=True)
class Things:
    """What somebody owns, by the name of the path parameter."""

    client: httpx2.Client
    conversation_id: str
    turn_id: str
    schedule_id: str
    message_id: str
    deferred_id: str
    approval_id: str
    question_id: str
    attachment_id: str
    share_id: str
    seq: int = 1
    prefix: str = "none"
    agent: str = "default"
    path: str = "notes.md"


@pytest.fixture(scope="module")
def owners(host: Host) -> Iterator[tuple[Things, Things]]:
    """Two people, each with a conversation that holds a turn."""
    names = ("one", "two")
    clients = [host.client(key_of(host, name, [*WIDE["scopes"], "approve"])) for name in names]
    yield tuple(things_of(client, host, name) for client, name in zip(clients, names, strict=True))
    for client in clients:
        client.close()


def things_of(client: httpx2.Client, host: Host, name: str) -> Things:
    conversation_id = start(client)
    answer = chat(client, conversation_id, "What time is it?").json()
    sees = {"content": [image_part(picture())]}
    client.post(f"/conversations/{conversation_id}/chat", json=sees)
    yearly = {"prompt": "Hello", "cron": "0 9 24 12 *", "conversationId": conversation_id}
    schedule_id = client.post("/schedules", json=yearly).json()["scheduleId"]
    message_id = client.get(f"/conversations/{conversation_id}/messages").json()["results"][0]["id"]
    messages = client.get(f"/conversations/{conversation_id}/messages").json()["results"]
    (attachment_id,) = [file["id"] for message in messages for file in message["attachments"]]
    note = {"message": "Hello", "trigger": False}
    deferred_id = client.post(f"/conversations/{conversation_id}/messages", json=note).json()["messageId"]
    share_id = client.post(f"/conversations/{conversation_id}/shares", json={}).json()["shareId"]
    return Things(
        client,
        conversation_id,
        answer["turnId"],
        schedule_id,
        message_id,
        deferred_id,
        approval_of(host, name),
        question_of(host, name, conversation_id),
        attachment_id,
        share_id,
    )


def everything(things: Things) -> list[object]:
    """All that the API shows of somebody's things."""
    mine = f"/conversations/{things.conversation_id}"
    paths = (mine, f"{mine}/messages", f"{mine}/deferred", f"/turns/{things.turn_id}", "/conversations",
             f"/schedules/{things.schedule_id}", "/schedules", f"/schedules/{things.schedule_id}/runs", "/shares",
             "/turns", "/questions", "/approvals", f"/approvals/{things.approval_id}")  # fmt: skip
    return [things.client.get(path).json() for path in paths]


def address(operation: str, things: Things) -> tuple[str, str]:
    """The method, and the path filled with somebody's ids."""
    method, path = operation.split(" ")
    ids = {parameter["name"]: getattr(things, parameter["name"]) for parameter in OPERATIONS[operation]}
    return method, path.format(**ids)


def body_of(operation: str) -> dict[str, str]:
    if operation.endswith("/answer"):
        return {"answer": "Red"}
    return {"decision": "deny"} if operation.endswith("/decide") else {"message": "Hello"}


@pytest.mark.parametrize("operation", WITH_IDS)
def test_what_is_another_owners_is_not_found(owners, operation):
    mine, theirs = owners
    before = everything(theirs)
    method, path = address(operation, theirs)
    told = problem(mine.client.request(method, path, json=body_of(operation)), 404, "not_found")
    unknown = path.replace(theirs.conversation_id, mine.turn_id).replace(theirs.turn_id, mine.conversation_id)
    for of_theirs in (
        *(theirs.schedule_id, theirs.message_id, theirs.deferred_id, theirs.approval_id, theirs.share_id),
        theirs.question_id,
    ):
        unknown = unknown.replace(of_theirs, mine.turn_id)
    assert (
        problem(mine.client.request(method, unknown, json=body_of(operation)), 404, "not_found")["detail"]
        == told["detail"]
    )
    assert everything(theirs) == before


def test_routes_without_an_id_are_known():
    assert set(OPERATIONS) - set(WITH_IDS) - OF_AGENTS - OF_KEYS == WITHOUT_IDS
    assert len(OF_KEYS) == 5
    of_files = {f"{method} /agents/{{agent}}/files/{{path}}" for method in ("GET", "PUT", "DELETE")}
    of_memory = {"GET /agents/{agent}/history", "GET /agents/{agent}/memory", "PUT /agents/{agent}/memory"}
    assert {*of_memory, *of_files, "GET /agents/{agent}/files"} == OF_AGENTS


def test_approvals_are_listed_to_their_owner_only(owners):
    for mine, _ in (owners, owners[::-1]):
        listed = [row["approvalId"] for row in mine.client.get("/approvals").json()["results"]]
        assert listed == [mine.approval_id]


def test_questions_are_listed_to_their_owner_only(owners):
    for mine in owners:
        listed = [row["questionId"] for row in mine.client.get("/questions").json()["results"]]
        assert listed == [mine.question_id]


def test_conversations_are_listed_to_their_owner_only(owners):
    for mine, theirs in (owners, owners[::-1]):
        listed = [row["conversationId"] for row in mine.client.get("/conversations").json()["results"]]
        assert mine.conversation_id in listed
        assert theirs.conversation_id not in listed


def test_what_was_used_is_told_to_its_owner_only(owners):
    def names(of: Things) -> list[str]:
        return [row["name"] for row in of.client.get("/usage?group_by=owner").json()["results"]]

    wait_until(lambda: all(names(each) for each in owners))  # it is counted every ten seconds
    (mine,), (theirs,) = map(names, owners)
    assert mine != theirs
    assert theirs not in owners[0].client.get("/usage?group_by=owner&format=csv").text


def test_schedules_are_listed_to_their_owner_only(owners):
    for mine, theirs in (owners, owners[::-1]):
        listed = [row["scheduleId"] for row in mine.client.get("/schedules").json()["results"]]
        assert mine.schedule_id in listed
        assert theirs.schedule_id not in listed


def test_shares_are_listed_to_their_owner_only(owners):
    for mine, _ in (owners, owners[::-1]):
        assert [row["shareId"] for row in mine.client.get("/shares").json()["results"]] == [mine.share_id]


def test_a_schedule_does_not_speak_in_another_owners_conversation(owners):
    mine, theirs = owners
    wanted = {"prompt": "Hello", "cron": "0 9 24 12 *", "conversationId": theirs.conversation_id}
    problem(mine.client.post("/schedules", json=wanted), 400, "invalid_schedule")


def test_a_cursor_of_another_owner_shows_nothing_of_theirs(owners):
    mine, theirs = owners
    start(theirs.client)
    link = theirs.client.get("/conversations?limit=1").json()["next"]
    assert theirs.conversation_id in theirs.client.get(link).text
    assert theirs.conversation_id not in mine.client.get(link).text


def test_a_message_of_another_owner_is_not_pinned_in_a_conversation_of_mine(owners):
    mine, theirs = owners
    for method in ("PUT", "DELETE"):
        path = f"/conversations/{mine.conversation_id}/messages/{theirs.message_id}/pin"
        problem(mine.client.request(method, path), 404, "not_found")


def test_a_message_beside_another_owners_conversation_is_not_stored(owners):
    mine, theirs = owners
    before = everything(theirs)
    problem(chat(mine.client, theirs.conversation_id, "Hello"), 404, "not_found")
    problem(chat(mine.client, theirs.conversation_id, "", headers={"Idempotency-Key": ""}), 404, "not_found")
    assert everything(theirs) == before


# --- keys --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad_keys(host: Host) -> dict[str, str | None]:
    """Keys that open nothing; each of the last three did once."""
    keys = {name: key_of(host, name) for name in ("revoked", "expired", "inactive")}
    for key in keys.values():
        with host.client(key) as client:
            assert client.get("/tools").status_code == 200
    prefix = {name: key.split("_")[1] for name, key in keys.items()}
    host.sql("UPDATE accounts_apikey SET revoked_at = CURRENT_TIMESTAMP WHERE prefix = ?", prefix["revoked"])
    host.sql("UPDATE accounts_apikey SET expires_at = '2001-01-01 00:00:00' WHERE prefix = ?", prefix["expired"])
    host.sql("UPDATE auth_user SET is_active = false WHERE username = 'inactive'")
    return {"none": None, "wrong": KEY[:-1] + "x", "of no prefix": "nh_nobody_0123456789abcdefghij", **keys}


@pytest.mark.parametrize("kind", ["none", "wrong", "of no prefix", "revoked", "expired", "inactive"])
def test_no_route_opens_without_a_good_key(host, owners, bad_keys, kind):
    before = everything(owners[0])
    with host.client(bad_keys[kind]) as client:
        for operation in OPERATIONS:
            method, path = address(operation, owners[0])
            refused = client.request(method, path, json=body_of(operation))
            assert refused.status_code == 401, operation
            assert refused.headers.get("www-authenticate", "").startswith("Bearer"), operation
            problem(refused, 401, "not_authenticated")
    assert everything(owners[0]) == before
