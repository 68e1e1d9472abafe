"""What a key may do: its scopes, agents, models, networks; how often it is used, and how much of it at once."""

import threading
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

from conversations.engine import deferred, inbox, lease, turn_control
from conversations.engine.incoming import Incoming
from conversations.errors import ModelNotAllowed, TooManyTurns
from conversations.models import Conversation, DeferredMessage, Turn
from nanohost.accounts import rates
from nanohost.accounts.models import EVERY_AGENT, ApiKey, Scope
from nanohost.lib.clock import from_now
from scheduler.models import Schedule
from tests.support.factories import AgentFactory
from tests.support.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)

READ, CHAT, SCHEDULES, MEMORY, APPROVE, ADMIN = (
    {scope} for scope in ["read", "chat", "schedules", "memory", "approve", "admin"]
)

# Which scopes, any of which is enough, by the operation. A route that is new needs its line here.
SCOPES = {
    "GET /conversations": READ,
    "POST /conversations": CHAT,
    "GET /conversations/{conversation_id}": READ,
    "PATCH /conversations/{conversation_id}": CHAT,
    "DELETE /conversations/{conversation_id}": CHAT,
    "POST /conversations/{conversation_id}/branches": CHAT,
    "POST /conversations/{conversation_id}/chat": CHAT,
    "GET /conversations/{conversation_id}/messages": READ,
    "POST /conversations/{conversation_id}/messages": CHAT,
    "GET /conversations/{conversation_id}/deferred": READ,
    "GET /conversations/{conversation_id}/turns": READ,
    "POST /conversations/{conversation_id}/turns": CHAT,
    "GET /conversations/{conversation_id}/summaries": READ,
    "POST /conversations/{conversation_id}/summaries/{seq}/undo": CHAT,
    "PUT /conversations/{conversation_id}/messages/{message_id}/pin": CHAT,
    "DELETE /conversations/{conversation_id}/messages/{message_id}/pin": CHAT,
    "POST /conversations/{conversation_id}/shares": CHAT,
    "GET /shares": READ,
    "GET /turns": READ,
    "DELETE /shares/{share_id}": CHAT,
    "GET /agents/{agent}/memory": MEMORY,
    "PUT /agents/{agent}/memory": MEMORY,
    "GET /agents/{agent}/history": MEMORY,
    "GET /agents/{agent}/files": READ,
    "GET /agents/{agent}/files/{path}": READ,
    "PUT /agents/{agent}/files/{path}": CHAT,
    "DELETE /agents/{agent}/files/{path}": CHAT,
    "GET /turns/{turn_id}": READ | CHAT,
    "GET /turns/{turn_id}/events": READ | CHAT,
    "POST /turns/{turn_id}/cancel": CHAT,
    "GET /turns/{turn_id}/feedback": READ | CHAT,
    "POST /turns/{turn_id}/feedback": CHAT,
    "DELETE /turns/{turn_id}/feedback": CHAT,
    "GET /deferred/{deferred_id}": READ | CHAT,
    "POST /deferred/{deferred_id}/cancel": CHAT,
    "GET /attachments/{attachment_id}": READ,
    "GET /attachments/{attachment_id}/thumbnail": READ,
    "GET /tools": READ | CHAT,
    "GET /questions": READ,
    "POST /questions/{question_id}/answer": CHAT,
    "GET /approvals": APPROVE,
    "GET /approvals/{approval_id}": APPROVE,
    "POST /approvals/{approval_id}/decide": APPROVE,
    "GET /schedules": READ | SCHEDULES,
    "POST /schedules": SCHEDULES,
    "POST /schedules/preview": READ | SCHEDULES,
    "GET /schedules/{schedule_id}": READ | SCHEDULES,
    "PATCH /schedules/{schedule_id}": SCHEDULES,
    "DELETE /schedules/{schedule_id}": SCHEDULES,
    "GET /schedules/{schedule_id}/preview": READ | SCHEDULES,
    "POST /schedules/{schedule_id}/pause": SCHEDULES,
    "POST /schedules/{schedule_id}/resume": SCHEDULES,
    "POST /schedules/{schedule_id}/run": SCHEDULES,
    "GET /schedules/{schedule_id}/runs": READ | SCHEDULES,
    "GET /usage": READ | ADMIN,
    "GET /keys": ADMIN,
    "POST /keys": ADMIN,
    "GET /keys/{prefix}": ADMIN,
    "PATCH /keys/{prefix}": ADMIN,
    "DELETE /keys/{prefix}": ADMIN,
}


def operations() -> dict[str, dict[str, Any]]:
    """Of every route, as the API describes itself."""
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    return {
        f"{method.upper()} {path.removeprefix('/api/v1')}": operation
        for path, of_path in paths.items()
        for method, operation in of_path.items()
    }


def client_of(owner: Any, **may: Any) -> Client:
    _, key = ApiKey.objects.issue(owner=owner, **may)
    return Client(headers={"Authorization": f"Bearer {key}"})


def call(client: Client, method: str, path: str, body: object = None, **options: Any) -> Any:
    sent = {"data": body, "content_type": "application/json"} if body is not None else {}
    return getattr(client, method.lower())(f"/api/v1{path}", secure=True, **sent, **options)


@pytest.fixture
def talk(owner: Any) -> Conversation:
    return inbox.start_conversation(owner_id=owner.pk, metadata={})


# --- scopes ------------------------------------------------------------------------------------------------------


def test_every_route_is_in_the_table() -> None:
    assert set(operations()) == set(SCOPES)


def test_every_route_says_which_scope_it_needs() -> None:
    for name, operation in operations().items():
        for scope in SCOPES[name]:
            assert f"`{scope}`" in operation["description"].partition("Scope: ")[2], name


@pytest.mark.parametrize("scope", Scope.values)
def test_a_key_with_one_scope_opens_what_that_is_for_and_nothing_else(owner: Any, scope: str) -> None:
    client = client_of(owner, scopes=[scope], agent_names=[EVERY_AGENT])
    for name, enough in SCOPES.items():
        method, path = name.split(" ")
        for parameter in (
            "conversation_id",
            "message_id",
            "turn_id",
            "deferred_id",
            "schedule_id",
            "approval_id",
            "question_id",
            "attachment_id",
            "share_id",
        ):
            path = path.replace(f"{{{parameter}}}", str(uuid4()))
        for parameter, value in {"seq": "1", "agent": "default", "prefix": "none", "path": "none.txt"}.items():
            path = path.replace(f"{{{parameter}}}", value)
        answer = call(client, method, path)
        refused = answer.status_code == 403
        assert refused == (scope not in enough), (name, answer.status_code, answer.content)
        if refused:
            assert answer.json()["code"] == "missing_scope"
            assert all(each in answer.json()["detail"] for each in enough)


def test_a_new_key_talks_and_reads_and_no_more() -> None:
    assert ApiKey().scopes == ["chat", "read"]


# --- agents ------------------------------------------------------------------------------------------------------


@pytest.fixture
def agents() -> None:
    for name in ("clerk", "cook"):
        AgentFactory(name=name)
    AgentFactory(name="guide", is_public=True)


@pytest.mark.parametrize(
    ("names", "may"),
    [
        ([], {"default", "guide"}),
        (["clerk"], {"clerk"}),
        (["clerk", "guide"], {"clerk", "guide"}),
        ([EVERY_AGENT], {"default", "guide", "clerk", "cook"}),
        (["nobody"], set()),
    ],
)
def test_a_key_names_its_agents_and_opens_their_conversations(
    owner: Any, agents: None, names: list[str], may: set[str]
) -> None:
    everybody = ("default", "guide", "clerk", "cook")
    client = client_of(owner, agent_names=names, scopes=Scope.values)
    talks = {name: inbox.start_conversation(owner_id=owner.pk, agent=name, metadata={}) for name in everybody}
    turns = {name: inbox.receive(Incoming("Hello"), conversation=talks[name], request_id="r") for name in everybody}
    for name in everybody:
        status = {True: 200, False: 404}[name in may]
        later = deferred.put(talks[name], kind=deferred.Kind.CONTEXT, content="x", request_id="r")
        for path in (
            *(f"/conversations/{talks[name].pk}", f"/conversations/{talks[name].pk}/messages"),
            *(f"/conversations/{talks[name].pk}/turns", f"/turns/{turns[name].pk}", f"/deferred/{later.pk}"),
            *(
                f"/agents/{name}/memory",
                f"/agents/{name}/history",
                f"/agents/{name}/files",
                f"/conversations/{talks[name].pk}/summaries",
            ),
        ):
            assert call(client, "GET", path).status_code == status, path
        made = call(client, "POST", "/conversations", {"agent": name})
        asked = call(client, "GET", f"/tools?agent={name}")
        planned = call(client, "POST", "/schedules", {"prompt": "Hello", "cron": "0 9 * * *", "agent": name})
        if name in may:
            assert (made.status_code, asked.status_code, planned.status_code) == (201, 200, 201)
        else:
            assert (made.status_code, made.json()["code"]) == (400, "unknown_agent")
            assert (asked.status_code, planned.status_code) == (400, 400)
        said = call(client, "POST", f"/conversations/{talks[name].pk}/turns", {"message": "Hello"})
        assert said.status_code == {True: 202, False: 404}[name in may]
    assert Conversation.objects.count() == len(everybody) + len(may)
    assert Schedule.objects.count() == len(may)
    listed = call(client, "GET", "/conversations").json()["results"]
    assert {each["agent"] for each in listed} == may
    assert len(call(client, "GET", "/schedules").json()["results"]) == len(may)


def test_an_agent_that_may_not_be_named_cannot_be_told_from_none(owner: Any, agents: None) -> None:
    client = client_of(owner, scopes=Scope.values)

    def told(name: str) -> list[str]:
        answers = [
            call(client, "POST", "/conversations", {"agent": name}),
            call(client, "POST", "/conversations", {"agent": name, "key": "web:7"}),
            call(client, "POST", "/schedules", {"prompt": "Hello", "cron": "0 9 * * *", "agent": name}),
            call(client, "GET", f"/tools?agent={name}"),
            call(client, "GET", f"/agents/{name}/memory"),
            call(client, "GET", f"/agents/{name}/files"),
            call(client, "GET", f"/agents/{name}/files/a.txt"),
            call(client, "DELETE", f"/agents/{name}/files/a.txt"),
            call(client, "PUT", f"/agents/{name}/files/a.txt", {"content": "x"}),
        ]
        return [answer.content.decode().replace(name, "…") for answer in answers]

    assert told("clerk") == told("nobody")


def test_a_conversation_of_another_agent_is_not_found_by_its_key_either(owner: Any, agents: None) -> None:
    inbox.conversation_of(owner_id=owner.pk, key="web:1", agent="clerk", metadata={})
    answer = call(client_of(owner), "POST", "/conversations", {"key": "web:1"})
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_agent")


# --- models ------------------------------------------------------------------------------------------------------


def test_the_models_of_a_key_take_the_place_of_the_hosts(owner: Any, talk: Conversation, settings: Any) -> None:
    settings.LLM_MODELS = ["large"]
    key, _ = ApiKey.objects.issue(owner=owner, model_names=["small"])
    may = {"conversation": talk, "request_id": "r"}
    assert inbox.receive(Incoming("Hello", model="small"), **may, key=key).model == "small"
    assert inbox.receive(Incoming("Hello"), **may, key=key).model == settings.LLM_MODEL_DEFAULT
    for name in ("large", "other"):
        with pytest.raises(ModelNotAllowed, match="small"):
            inbox.receive(Incoming("Hello", model=name), **may, key=key)
        with pytest.raises(ModelNotAllowed):
            deferred.put(talk, kind=deferred.Kind.WAKE, content="x", model=name, request_id="r", key=key)
    large, other_key = Incoming("Hello", model="large"), ApiKey.objects.issue(owner=owner)[0]
    assert inbox.receive(large, **may, key=other_key).model == "large"
    assert Turn.objects.count() == 3
    assert not DeferredMessage.objects.exists()


def test_a_deferred_message_keeps_the_models_of_its_key(owner: Any, talk: Conversation) -> None:
    key, _ = ApiKey.objects.issue(owner=owner, model_names=["small"])
    soon = {"kind": deferred.Kind.WAKE, "content": "Hello", "model": "small", "request_id": "r", "key": key}
    message = deferred.put(talk, **soon)
    DeferredMessage.objects.filter(pk=message.pk).update(run_after=from_now(-1))
    deferred.fire_due()
    turn = Turn.objects.get()
    assert (turn.model, turn.api_key_id) == ("small", key.pk)


def test_what_a_schedule_says_is_asked_with_the_key_that_it_was_made_with(owner: Any, talk: Conversation) -> None:
    client = client_of(owner, scopes=[Scope.SCHEDULES])
    wanted = {"prompt": "Hello", "everySeconds": 3600, "conversationId": str(talk.pk)}
    made = call(client, "POST", "/schedules", wanted).json()
    assert call(client, "POST", f"/schedules/{made['scheduleId']}/run", {}).status_code == 202
    assert Turn.objects.get().api_key_id == ApiKey.objects.get().pk


# --- networks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("networks", "address", "opens"),
    [
        ([], "203.0.113.9", True),
        (["203.0.113.0/24"], "203.0.113.9", True),
        (["203.0.113.0/24"], "203.0.114.9", False),
        (["203.0.113.0/24"], "::ffff:203.0.113.9", True),
        (["203.0.113.9", "2001:db8::/32"], "2001:db8::7", True),
        (["2001:db8::/32"], "2001:db9::7", False),
        (["203.0.113.0/24"], "nonsense", False),
        (["::ffff:203.0.113.0/120"], "203.0.113.9", True),
        (["::ffff:203.0.113.0/120"], "::ffff:203.0.114.9", False),
        (["::/0"], "203.0.113.9", False),
        (["0.0.0.0/0"], "2001:db8::7", False),
        (["fe80::/64"], "fe80::7%eth0", True),
    ],
)
def test_a_key_is_used_from_its_networks(owner: Any, networks: list[str], address: str, opens: bool) -> None:
    answer = call(client_of(owner, networks=networks), "GET", "/conversations", REMOTE_ADDR=address)
    assert answer.status_code == (200 if opens else 403)
    if not opens:
        assert answer.json()["code"] == "address_not_allowed"


def test_behind_a_proxy_the_client_is_whom_the_proxy_has_seen(owner: Any, settings: Any) -> None:
    settings.TRUSTED_PROXIES = 1
    client = client_of(owner, networks=["203.0.113.0/24"])
    for seen, status in (("203.0.113.9", 200), ("203.0.113.9, 198.51.100.1", 403), ("198.51.100.1, 203.0.113.9", 200)):
        told = {"REMOTE_ADDR": "10.0.0.1", "headers": {"X-Forwarded-For": seen}}
        assert call(client, "GET", "/conversations", **told).status_code == status, seen


# --- how often, and how much at once -----------------------------------------------------------------------------


def test_a_key_is_used_so_often_in_any_minute(owner: Any) -> None:
    client, other = client_of(owner, requests_per_minute=3), client_of(owner, requests_per_minute=3)
    assert [call(client, "GET", "/conversations").status_code for _ in range(5)] == [200, 200, 200, 429, 429]
    answer = call(client, "GET", "/conversations")
    assert answer.json()["code"] == "rate_limited"
    assert 55 <= int(answer["Retry-After"]) <= 60
    assert call(other, "GET", "/conversations").status_code == 200


@pytest.mark.production(reason="embedded, there is one web process")
def test_all_web_processes_count_together(owner: Any) -> None:
    client = client_of(owner, requests_per_minute=3)
    assert [call(client, "GET", "/conversations").status_code for _ in range(2)] == [200, 200]
    for each in (rates.shared_storage, rates.own_storage):  # as another process begins
        each.cache_clear()
    assert [call(client, "GET", "/conversations").status_code for _ in range(2)] == [200, 429]


def test_what_has_no_limit_is_not_counted(owner: Any) -> None:
    client = client_of(owner)
    assert {call(client, "GET", "/conversations").status_code for _ in range(20)} == {200}


def test_while_redis_is_away_each_process_counts_for_itself(owner: Any, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"  # nobody listens there
    client = client_of(owner, requests_per_minute=2)
    assert [call(client, "GET", "/conversations").status_code for _ in range(3)] == [200, 200, 429]


def test_so_many_turns_of_a_key_are_open_at_a_time(owner: Any, talk: Conversation) -> None:
    key, secret = ApiKey.objects.issue(owner=owner, turns_at_once=2)
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    say = lambda: call(client, "POST", f"/conversations/{talk.pk}/turns", {"message": "Hello"})  # noqa: E731 -- shorter than a function
    assert [say().status_code for _ in range(3)] == [202, 202, 429]
    refused = say()
    assert (refused.json()["code"], refused["Retry-After"]) == ("too_many_turns", "1")
    assert inbox.receive(Incoming("of the host"), conversation=talk, request_id="r")
    turn_control.cancel_turn(Turn.objects.filter(api_key_id=key.pk).first())
    assert say().status_code == 202


@pytest.mark.parametrize("said", [{"message": "/stop"}, {"message": "No, this", "onBusy": "interrupt"}])
@pytest.mark.parametrize("is_running", [False, True])
def test_what_takes_the_place_of_a_turn_is_not_one_too_many(
    owner: Any, talk: Conversation, said: dict[str, str], is_running: bool
) -> None:
    client = client_of(owner, turns_at_once=1)
    say = lambda **body: call(client, "POST", f"/conversations/{talk.pk}/turns", body)  # noqa: E731 -- shorter than a function
    assert say(message="Hello").status_code == 202
    turn = Turn.objects.get()
    if is_running:
        assert lease.claim(turn.pk, worker="worker")
    assert say(**said).status_code == 202
    turn.refresh_from_db()
    assert (turn.cancel_requested, turn.ended) == (True, not is_running)
    assert say(message="One more").status_code == 429


def test_a_turn_is_stopped_however_many_are_open(owner: Any, talk: Conversation) -> None:
    key, secret = ApiKey.objects.issue(owner=owner, turns_at_once=1)
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    of_host = inbox.receive(Incoming("Hello"), conversation=talk, request_id="r")
    elsewhere = inbox.start_conversation(owner_id=owner.pk, metadata={})
    inbox.receive(Incoming("Hello"), conversation=elsewhere, request_id="r", key=key)
    assert call(client, "POST", f"/conversations/{talk.pk}/turns", {"message": "/stop"}).status_code == 202
    of_host.refresh_from_db()
    assert of_host.status == "cancelled"


def test_a_turn_that_was_not_let_in_has_cancelled_none(owner: Any, talk: Conversation) -> None:
    key, secret = ApiKey.objects.issue(owner=owner, turns_at_once=1)
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    of_host = inbox.receive(Incoming("Hello"), conversation=talk, request_id="r")
    elsewhere = inbox.start_conversation(owner_id=owner.pk, metadata={})
    inbox.receive(Incoming("Hello"), conversation=elsewhere, request_id="r", key=key)
    said = {"message": "No, this", "onBusy": "interrupt"}
    assert call(client, "POST", f"/conversations/{talk.pk}/turns", said).status_code == 429
    of_host.refresh_from_db()
    assert (of_host.status, of_host.cancel_requested) == ("queued", False)


def test_of_many_who_ask_at_once_no_more_are_let_in(owner: Any) -> None:
    key, _ = ApiKey.objects.issue(owner=owner, turns_at_once=3)
    talks = [inbox.start_conversation(owner_id=owner.pk, metadata={}) for _ in range(8)]
    together = threading.Barrier(len(talks))

    def ask(talk: Conversation) -> bool:
        together.wait(30)
        try:
            inbox.receive(Incoming("Hello"), conversation=talk, request_id="r", key=key, while_paused="refuse")
        except TooManyTurns:
            return False
        return True

    assert sum(in_threads([lambda talk=talk: ask(talk) for talk in talks])) == 3
    assert Turn.objects.filter(api_key_id=key.pk).count() == 3


def test_what_comes_again_is_not_one_too_many(owner: Any, talk: Conversation) -> None:
    client = client_of(owner, turns_at_once=1)
    say = lambda: call(  # noqa: E731 -- shorter than a function
        client, "POST", f"/conversations/{talk.pk}/turns", {"message": "Hello"}, headers={"Idempotency-Key": "k"}
    )
    assert say().json()["turnId"] == say().json()["turnId"]
