"""OpenAI's API: which key opens which route; nobody sees what is not theirs; and bodies that mean harm.

The routes are read from the addresses, so that one that is added is tried too.
"""

import json
import re
import time
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from conversations.openai_api import schema
from nanohost.accounts.models import Scope
from tests.support.api_client import key_of, start, stored_at_rest
from tests.support.hosts import KEY, PLAIN, Host

ROUTES = {
    f"{method.upper()} {route.pattern}": route.callback.view_class.scopes.get(method.upper())
    for included in schema.patterns()
    for route in included.url_patterns
    for method in ("get", "post", "put", "patch", "delete")
    if hasattr(route.callback.view_class, method)
}
# Which scopes, any of which is enough. A route that is new needs its line here.
SCOPES = {
    "GET models": {"read", "chat"},
    "GET models/<path:model>": {"read", "chat"},
    "POST chat/completions": {"chat"},
    "POST conversations": {"chat"},
    "GET conversations/<str:conversation_id>": {"read", "chat"},
    "POST conversations/<str:conversation_id>": {"chat"},
    "DELETE conversations/<str:conversation_id>": {"chat"},
    "GET conversations/<str:conversation_id>/items": {"read", "chat"},
    "POST conversations/<str:conversation_id>/items": {"chat"},
    "GET conversations/<str:conversation_id>/items/<str:item_id>": {"read", "chat"},
    "DELETE conversations/<str:conversation_id>/items/<str:item_id>": {"chat"},
    "POST responses": {"chat"},
    "POST responses/compact": {"chat"},
    "POST responses/input_tokens": {"chat"},
    "GET responses/<str:response_id>": {"read", "chat"},
    "DELETE responses/<str:response_id>": {"chat"},
    "POST responses/<str:response_id>/cancel": {"chat"},
    "GET responses/<str:response_id>/input_items": {"read", "chat"},
}
HELLO = {"model": "default", "messages": [{"role": "user", "content": "Hello"}]}
MEGABYTE = 1_000_000


def call(host: Host, key: str | None, route: str, body: Any = None) -> httpx2.Response:
    method, pattern = route.split(" ")
    path = re.sub("<str:[a-z_]+>", "none", pattern.replace("<path:model>", "default"))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    sent = {"json": HELLO if body is None else body} if method != "GET" else {}
    return httpx2.request(method, f"{host.address}/v1/{path}", headers=headers, timeout=60, verify=PLAIN, **sent)


def test_every_route_is_in_the_table():
    assert {route: set(scopes) for route, scopes in ROUTES.items()} == SCOPES


@pytest.fixture(scope="module")
def keys(host: Host) -> dict[str, str]:
    """One of each scope."""
    return {scope: key_of(host, f"openai {scope}", [scope]) for scope in Scope.values}


@pytest.mark.parametrize("route", SCOPES)
@pytest.mark.parametrize("scope", Scope.values)
def test_a_key_opens_what_its_scope_is_for_and_nothing_else(host, keys, scope, route):
    answer = call(host, keys[scope], route)
    if scope in SCOPES[route]:
        # Past the gate; what there is not is not found, and a body of chat completions is none of responses.
        assert answer.status_code in ((200, 400, 404) if "<str:" in route or "chat" not in route else (200,)), (
            answer.text
        )
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")


@pytest.mark.parametrize("route", SCOPES)
def test_no_route_opens_without_a_good_key(host, route):
    revoked = key_of(host, f"revoked {route}")
    host.sql("UPDATE accounts_apikey SET revoked_at = CURRENT_TIMESTAMP WHERE prefix = ?", revoked.split("_")[1])
    before = stored_at_rest(host)
    for key in (None, revoked, KEY[:-1] + "x"):
        answer = call(host, key, route)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert stored_at_rest(host) == before


def test_what_somebody_else_has_asked_is_not_found_by_its_key(host):
    mine, theirs = (key_of(host, name) for name in ("openai one", "openai two"))
    with host.client(mine) as api:
        conversation_id = start(api)
    for named in (conversation_id, str(uuid4())):
        body = HELLO | {"metadata": {"conversation_id": named}}
        answer = call(host, theirs, "POST chat/completions", body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")
    ids = set()
    for key in (mine, theirs):
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "shared"}
        answer = httpx2.post(f"{host.address}/v1/chat/completions", json=HELLO, headers=headers)
        ids.add(answer.json()["id"])
    assert len(ids) == 2


# --- bodies ------------------------------------------------------------------------------------------------------


def message(**fields: Any) -> dict[str, Any]:
    return HELLO | {"messages": [{"role": "user", "content": "Hello"} | fields]}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LARGE = {
    "a long model": HELLO | {"model": "x" * (MEGABYTE - 100)},
    "a long role": message(role="x" * (MEGABYTE - 100)),
    "many messages": HELLO | {"messages": [{}] * 300_000},
    "many bad parts": message(content=[{}] * 300_000),
    "a part of a long type": message(content=[{"type": "x" * (MEGABYTE - 200)}]),
    "many tools": HELLO | {"tools": [{}] * 300_000},
    "a long tool": HELLO | {"tools": [{"type": "function", "function": {"name": "a" * (MEGABYTE - 200)}}]},
    "a long choice": HELLO | {"tool_choice": "x" * (MEGABYTE - 200)},
    "a long parameter": HELLO | {"reasoning_effort": "x" * (MEGABYTE - 200)},
    "a long metadata": HELLO | {"metadata": {"x" * (MEGABYTE - 200): "y"}},
    "a long conversation": HELLO | {"metadata": {"conversation_id": "x" * (MEGABYTE - 200)}},
    "a long call": HELLO
    | {"messages": [*HELLO["messages"], {"role": "tool", "tool_call_id": "call_" + "f" * (MEGABYTE - 300)}]},
    "many calls": HELLO
    | {"messages": [*HELLO["messages"], {"role": "assistant", "content": None, "tool_calls": [CALL] * 10_000}]},
    "no object": [],
    "a text": "Hello",
    "null": None,
    "a deep one": message(content=json.loads("[" * 60 + "]" * 60)),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_body_that_means_harm_is_refused_at_once_and_stored_nowhere(host, name):
    before, began = stored_at_rest(host), time.perf_counter()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    sent = json.dumps(LARGE[name]).encode()
    answer = httpx2.post(f"{host.address}/v1/chat/completions", content=sent, headers=headers, timeout=60)
    assert answer.status_code in (400, 404, 413), answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert len(answer.content) < 5_000, "what was sent is not sent back"
    assert stored_at_rest(host) == before
    assert time.perf_counter() - began < 10


def test_a_megabyte_is_asked_and_answered(host):
    said = "word " * (MEGABYTE // 5 - 100)
    with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        for streams in (False, True):
            answer = client.post(
                f"{host.address}/v1/chat/completions", json=message(content=said) | {"stream": streams}
            )
            assert answer.status_code == 200


def test_a_key_in_what_was_sent_is_not_sent_back(host):
    answer = call(host, KEY, "POST chat/completions", HELLO | {"model": KEY})
    assert answer.status_code == 404
    assert KEY.split("_")[2] not in answer.text
