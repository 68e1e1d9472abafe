"""Input that makes no sense, or means harm: a clear problem, nothing stored, never a fault of ours.

What is malformed as HTTP never reaches us: uvicorn answers it itself, with 400 in plain text and without a request id
(``refused_by_the_server`` says so where it is accepted).
"""

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import patched_settings

import conversations.api.urls
import conversations.openai_api.urls
import scheduler.api.urls
from conversations.openai_api.schema import SETTINGS as OPENAI_SETTINGS
from conversations.openai_api.schema import OpenAISchema
from conversations.web import gateway
from nanohost.accounts.models import Scope
from nanohost.console.middleware import MAX_OF_STRANGERS
from nanohost.lib import rest
from nanohost.lib.http import MAX_HEAD_BYTES, BoundedHeads
from tests.support.api_client import (
    PROBLEM,
    approval_of,
    chat,
    connect,
    eventually,
    key_of,
    problem,
    question_of,
    raw,
    read_answer,
    start,
    stored,
    turns_of,
)
from tests.support.hosts import KEY, PLAIN, Host

UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"
HUGE = 40 * 1024 * 1024
THREE_MB = 3_000_000
DEEP = 50_000


WRITING = ("post", "put", "patch", "delete")


def writing(patterns: list[Any]) -> list[str]:
    """Of some addresses, every route that writes: its method and pattern."""
    return sorted(
        f"{method.upper()} /" + re.sub("<[a-z]+:([a-z_]+)>", r"{\1}", str(route.pattern))
        for route in patterns
        for method in WRITING
        if hasattr(route.callback.view_class, method)
    )


# Of our API and of OpenAI's. All of them are tried.
ROUTES = writing([*conversations.api.urls.urlpatterns, *scheduler.api.urls.urlpatterns])
OPENAI_ROUTES = writing(conversations.openai_api.urls.urlpatterns)
# Those that read a body.
WITH_BODY = [route for route in ROUTES if not route.startswith("DELETE ")]
OPENAI_WITH_BODY = [route for route in OPENAI_ROUTES if not route.startswith("DELETE ") and "/cancel" not in route]
OF_A_CONVERSATION = "POST /conversations/{conversation_id}"

with patched_settings(OPENAI_SETTINGS):
    OPENAI_DOCUMENT = OpenAISchema.generator_class().get_schema(request=None, public=True)
DOCUMENT = SchemaGenerator().get_schema(request=None, public=True)


def told_of(document: dict[str, Any], base: str) -> dict[str, dict[str, Any]]:
    """Of each route that writes, as an OpenAPI document tells of it, the fields of its body in JSON."""

    def whole(schema: dict[str, Any]) -> dict[str, Any]:
        name = schema.get("$ref", "").rpartition("/")[2]
        return whole(document["components"]["schemas"][name]) if name else schema

    found = {}
    for path, ways in document["paths"].items():
        for way in filter(WRITING.__contains__, ways):
            body = ways[way].get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            fields = {name: whole(field) for name, field in whole(body).get("properties", {}).items()}
            found[f"{way.upper()} {path.removeprefix(base)}"] = fields
    return found


TOLD, OPENAI_TOLD = told_of(DOCUMENT, "/api/v1"), told_of(OPENAI_DOCUMENT, "/v1")


def bounded(told: dict[str, dict[str, Any]]) -> list[tuple[str, str, int]]:
    """All that take a text of a bounded length: the route, its field, and how long it may be."""
    each = ((route, field, how) for route, fields in told.items() for field, how in fields.items())
    return [(route, field, how["maxLength"]) for route, field, how in each if "maxLength" in how]


BOUNDED, OPENAI_BOUNDED = bounded(TOLD), bounded(OPENAI_TOLD)


@pytest.fixture(scope="module")
def api(host: Host) -> Iterator[httpx2.Client]:
    """With a key that may do everything."""
    with host.client(key_of(host, "of bad input", Scope.values)) as api:
        yield api


@pytest.fixture(scope="module")
def routes(host: Host, api: httpx2.Client) -> dict[str, tuple[str, str]]:
    """Every route that writes, of rows that there are: its method and address."""
    conversation_id = start(api)
    turn_id = chat(api, conversation_id, "Hello").json()["turnId"]
    (message, *_) = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    schedule = api.post("/schedules", json={"prompt": "Hello", "cron": "0 9 24 12 *"}).json()
    rows = {"conversation_id": conversation_id, "turn_id": turn_id, "message_id": message["id"], "seq": 1}
    note = api.post(f"/conversations/{conversation_id}/messages", json={"message": "Hello", "onWake": True}).json()
    rows |= {
        "agent": "default",
        "path": "notes/a.txt",
        "schedule_id": schedule["scheduleId"],
        "deferred_id": note["messageId"],
    }
    rows["share_id"] = api.post(f"/conversations/{conversation_id}/shares", json={}).json()["shareId"]
    rows["approval_id"] = approval_of(host, "of bad input")
    rows["question_id"] = question_of(host, "of bad input", conversation_id)
    rows["prefix"] = api.post("/keys", json={}).json()["prefix"]
    found = {route: (route.partition(" ")[0], route.partition(" ")[2].format(**rows)) for route in ROUTES}
    undo = found[f"{OF_A_CONVERSATION}/summaries/{{seq}}/undo"]
    return found | {"chat": found[f"{OF_A_CONVERSATION}/chat"], "undo": undo}


@pytest.fixture(scope="module")
def openai(host: Host) -> Iterator[httpx2.Client]:
    """The same key, at OpenAI's API."""
    key = key_of(host, "of bad input at OpenAI's", Scope.values)
    with httpx2.Client(base_url=f"{host.address}/v1", headers={"Authorization": f"Bearer {key}"}, timeout=60) as openai:
        yield openai


@pytest.fixture(scope="module")
def openai_routes(openai: httpx2.Client) -> dict[str, tuple[str, str]]:
    """As ``routes``."""
    response = openai.post("/responses", json={"model": "default", "input": "Hello"}).json()
    conversation = openai.post("/conversations", json={"items": [{"role": "user", "content": "Hello"}]}).json()
    (item,) = openai.get(f"/conversations/{conversation['id']}/items").json()["data"]
    rows = {"response_id": response["id"], "conversation_id": conversation["id"], "item_id": item["id"]}
    return {route: (route.partition(" ")[0], route.partition(" ")[2].format(**rows)) for route in OPENAI_ROUTES}


@pytest.fixture
def nothing_stored(host: Host, routes: dict[str, tuple[str, str]]) -> Iterator[None]:
    """Whatever the test does leaves the tables as they were."""
    before = stored(host)
    yield
    assert stored(host) == before


def test_the_routes_are_those_that_the_schema_tells_of():
    """Or one could be added without being tried."""
    assert set(ROUTES) == set(TOLD)
    assert set(OPENAI_ROUTES) == set(OPENAI_TOLD)
    assert (len(ROUTES) > 15, len(OPENAI_ROUTES) > 8) == (True, True)
    assert (len(BOUNDED) > 20, len(OPENAI_BOUNDED) > 5) == (True, True)


# --- bodies ------------------------------------------------------------------------------------------------------

NO_JSON = {
    "half": b"{",
    "words": b"not json",
    "single quotes": b"{'message': 'Hello'}",
    "a trailing comma": b'{"message": "Hello",}',
    "two values": b"{} {}",
    "NaN": b'{"message": NaN}',
    "Infinity": b'{"message": Infinity}',
    "minus Infinity": b'{"metadata": {"a": [-Infinity]}}',
    "1e400": b'{"metadata": {"a": 1e400}}',
    "5,000 digits": b'{"metadata": {"a": ' + b"7" * 5000 + b"}}",
    "a null byte": b'{"message": "a\x00b"}',
    "an escaped null": b'{"message": "a\\u0000b"}',
    "an escaped null in a key": b'{"metadata": {"a\\u0000b": 1}}',
    "a lone surrogate": b'{"message": "\\ud800"}',
    "a lone surrogate inside": b'{"metadata": {"a": ["\\udfff"]}}',
    "no UTF-8": b'{"message": "\xff"}',
    "latin-1": '{"message": "é"}'.encode("latin-1"),
    "UTF-16": '{"message": "Hello"}'.encode("utf-16"),
    "deep lists": b'{"metadata": {"a": ' + b"[" * DEEP + b"]" * DEEP + b"}}",
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep and broken": b"[" * DEEP,
}
NO_OBJECT = {"a list": b"[]", "a text": b'"Hello"', "a number": b"7", "null": b"null", "true": b"true"}
UNKNOWN_FIELD = {"an unknown field": b'{"message": "Hello", "mesage": "Hello", "surprise": 1}'}
JUNK = NO_JSON | NO_OBJECT | UNKNOWN_FIELD


@pytest.mark.parametrize("route", WITH_BODY)
def test_a_body_that_is_no_object_of_ours_is_refused(api, routes, route, nothing_stored):
    method, address = routes[route]
    for body in JUNK.values():
        answer = api.request(method, address, content=body, headers={"Content-Type": "application/json"})
        problem(answer, 400, "invalid_request")


@pytest.mark.parametrize(("route", "field", "longest"), BOUNDED)
def test_a_text_that_is_too_long_is_refused_by_its_field(api, routes, route, field, longest, nothing_stored):
    method, address = routes[route]
    body = {"message": "Hello"} if "message" in TOLD[route] else {}
    told = problem(api.request(method, address, json=body | {field: "m" * (longest + 1)}), 400, "invalid_request")
    assert field in json.dumps(told["errors"])


@pytest.mark.parametrize("route", OPENAI_WITH_BODY)
def test_a_body_that_is_no_object_of_openai_s_is_refused(openai, openai_routes, route, nothing_stored):
    method, address = openai_routes[route]
    for name, body in (NO_JSON | NO_OBJECT).items():
        answer = openai.request(method, address, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), (
            name,
            answer.text,
        )


@pytest.mark.parametrize(("route", "field", "longest"), OPENAI_BOUNDED)
def test_a_text_that_is_too_long_for_openai_s_api_is_refused_by_its_field(
    openai, openai_routes, route, field, longest, nothing_stored
):
    method, address = openai_routes[route]
    sensible = {"model": "default", "input": "Hello", "messages": [{"role": "user", "content": "Hello"}]}
    body = {name: value for name, value in sensible.items() if name in OPENAI_TOLD[route]}
    answer = openai.request(method, address, json=body | {field: "m" * (longest + 1)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_for_openai_s_api_is_refused(openai, openai_routes, chunked, nothing_stored):
    for route in OPENAI_ROUTES:
        method, address = openai_routes[route]
        size = 20 * THREE_MB
        content = (b" " * 30_000 for _ in range(size // 30_000)) if chunked else b" " * size
        answer = openai.request(method, address, content=content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large"), route


BAD_CHATS = [
    *({}, {"model": "m"}, {"message": None}, {"message": 7}, {"message": 1.5}, {"message": True}),
    *({"message": []}, {"message": {}}, {"message": ""}, {"message": " \n\t"}, {"message": "\u2003"}),
    *({"message": "a", "model": value} for value in (None, 7, "", [], {}, True, "m" * 129)),
    *({"message": "a", "stream": []}, {"message": "a", "conversationId": UNKNOWN_ID}),
]


@pytest.mark.parametrize("body", BAD_CHATS, ids=json.dumps)
def test_a_chat_of_wrong_types_is_refused(api, routes, body, nothing_stored):
    told = problem(api.post(routes["chat"][1], json=body), 400, "invalid_request")
    assert told["errors"]


FORM = {"name": "a", "schema": {"type": "object"}}
BAD_FORMS = {
    "none": None,
    "a text": "json_object",
    "a list": [],
    "no type": {},
    "an unknown type": {"type": "yaml"},
    "a type that is none": {"type": {}},
    "no schema": {"type": "json_schema", "json_schema": {"name": "a"}},
    "an odd name": {"type": "json_schema", "json_schema": FORM | {"name": "a b"}},
    "more": {"type": "json_schema", "json_schema": FORM, "more": 1},
    "no JSON Schema": {"type": "json_schema", "json_schema": FORM | {"schema": {"type": "strin"}}},
    "elsewhere": {"type": "json_schema", "json_schema": FORM | {"schema": {"$ref": "http://127.0.0.1/"}}},
    "without end": {"type": "json_schema", "json_schema": FORM | {"schema": {"$ref": "#"}}},
    "a backreference": {"type": "json_schema", "json_schema": FORM | {"schema": {"pattern": r"(a)\1"}}},
    "a large one": {"type": "json_schema", "json_schema": FORM | {"schema": {"title": "x" * 32_000}}},
    "a deep one": {"type": "json_schema", "json_schema": FORM | {"schema": {"const": json.loads("[" * 50 + "]" * 50)}}},
}


@pytest.mark.parametrize("route", ["chat", "turns"])
@pytest.mark.parametrize("form", BAD_FORMS.values(), ids=BAD_FORMS)
def test_a_form_of_answers_that_is_none_is_refused_by_its_field(api, routes, route, form, nothing_stored):
    address = routes["chat"][1].replace("/chat", f"/{route}")
    told = problem(api.post(address, json={"message": "a", "response_format": form}), 400, "invalid_request")
    assert list(told["errors"]) == ["response_format"]


def test_what_a_problem_quotes_is_short_and_holds_no_secret(api, conversation_id, nothing_stored):
    address = f"/conversations/{conversation_id}/turns"
    for quoted in ("sk-0123456789canary", "eyJ-" * 100_000, "x" * 5_000 + " sk-0123456789canary"):
        answer = api.post(address, json={"message": "a", "onBusy": quoted})
        told = problem(answer, 400, "invalid_request")
        assert told["errors"]["onBusy"]
        assert "canary" not in answer.text
        assert len(answer.text) < 3 * rest.MAX_QUOTED


def test_a_chat_without_a_body_is_refused(api, routes, nothing_stored):
    problem(api.post(routes["chat"][1]), 400, "invalid_request")
    problem(
        api.post(routes["chat"][1], content=b"", headers={"Content-Type": "application/json"}),
        400,
        "invalid_request",
    )


BAD_CONVERSATIONS = [
    *({"agent": value} for value in (None, 7, "", [], {}, True, "a" * 65)),
    *({"metadata": value} for value in (None, 7, "text", [], True)),
    *({"owner": 1}, {"key": "no-channel"}),
]


@pytest.mark.parametrize("body", BAD_CONVERSATIONS, ids=json.dumps)
def test_a_conversation_of_wrong_types_is_refused(api, body, nothing_stored):
    problem(api.post("/conversations", json=body), 400, "invalid_request")


@pytest.mark.parametrize("body", [{"reason": value} for value in (None, 7, [], {}, True, "x" * 501)], ids=json.dumps)
def test_a_reason_of_wrong_types_is_refused(api, routes, body, nothing_stored):
    told = problem(api.post(routes["undo"][1], json=body), 400, "invalid_request")
    assert "reason" in told["errors"]


@pytest.mark.parametrize("seq", ["0", "9" * 19, "9" * 60, "-1", "x", "1.5", "%00"])
def test_a_summary_there_is_none_of_is_not_found(api, routes, seq, nothing_stored):
    problem(api.post(routes["undo"][1].replace("/1/", f"/{seq}/")), 404, "not_found")


@pytest.mark.parametrize("agent", ["nobody", "Default", "' OR 1=1 --", "é", "../default"])
def test_an_unknown_agent_is_refused(api, agent, nothing_stored):
    problem(api.post("/conversations", json={"agent": agent}), 400, "unknown_agent")
    problem(api.get("/tools", params={"agent": agent}), 400, "unknown_agent")


# Every door by which a model may be named.
WITH_A_MODEL = [
    *(("chat", {}), ("chat", {"stream": True}), ("turns", {}), ("messages", {}), ("messages", {"trigger": False})),
    *(("messages", {"onWake": True}), ("messages", {"runAfter": "2100-01-01T00:00:00Z"})),
]


@pytest.mark.parametrize(("route", "more"), WITH_A_MODEL)
def test_a_model_that_is_not_offered_is_refused_and_nothing_stored(host, api, impatient, route, more):
    with impatient.client() as choosy:
        for where, client, offered in ((host, api, "gpt-4.1-mini"), (impatient, choosy, "gpt-4.1-mini, gpt-4.1")):
            address = f"/conversations/{start(client)}/{route}"
            for name in ("gpt-9", offered.upper(), "gpt-4.1-mini ", "../gpt-4.1-mini"):
                before = everything_but_the_log(where)
                key = {"Idempotency-Key": f"model {name}".replace(" ", "-")}
                for headers in ({}, key, key):
                    refused = client.post(address, json={"message": "Hello", "model": name, **more}, headers=headers)
                    assert f"choose one of {offered}." in problem(refused, 400, "model_not_allowed")["detail"]
                assert everything_but_the_log(where) == before
            for name in offered.split(", "):
                assert client.post(address, json={"message": "Hello", "model": name, **more}).status_code in (200, 202)


def everything_but_the_log(host: Host) -> tuple[int, ...]:
    (deferred,) = host.sql("SELECT count(*) AS n FROM conversations_latermessage")
    return (*stored(host), deferred["n"])


def test_what_is_odd_but_right_is_kept_as_it_is(api):
    metadata = {"": None, "n": 10**400, "x": [1.5, {"é": "\U0001f600"}], "deep": json.loads("[" * 60 + "]" * 60)}
    conversation_id = api.post("/conversations", json={"metadata": metadata}).json()["conversationId"]
    assert api.get(f"/conversations/{conversation_id}").json()["metadata"] == metadata
    message = "  \u202e\ufeffé\U0001f600\r\n'; DROP TABLE conversations_turn; --  "
    chat(api, conversation_id, message)
    first = api.get(f"/conversations/{conversation_id}/messages").json()["results"][0]
    assert first["content"] == message


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(api, routes, chunked, nothing_stored):
    """3 MB, and where files are taken, more than they may have."""
    for route in ROUTES:
        method, address = routes[route]
        size = 9 * THREE_MB if address.endswith(("/chat", "/turns", "/messages", "/a.txt")) else THREE_MB
        content = (b" " * 30_000 for _ in range(size // 30_000)) if chunked else b" " * size
        answer = api.request(method, address, content=content)
        assert answer.status_code == 413, route
        problem(answer, 413, "body_too_large")


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize("path", ["/chat/sign-in/", "/chat/join/x/", "/admin/login/", "/admin/%6cogin/"])
def test_a_form_of_whoever_has_not_signed_in_is_small(host, path, chunked, nothing_stored):
    """However its address is written."""
    size = gateway.MAX_SIGN_IN_BYTES + 1
    content = (b"%" * size for _ in range(1)) if chunked else b"%" * size
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = httpx2.post(f"{host.address}{path}", content=content, headers=headers, verify=PLAIN)
    problem(answer, 413, "body_too_large")
    assert httpx2.post(f"{host.address}{path}", data={"username": "x"}, verify=PLAIN).status_code == 403  # no token


@pytest.mark.parametrize("path", ["/admin/", "/admin/agent/agent/add/", "/chat/sign-out/", "/chat/nothing/"])
def test_no_large_form_of_a_stranger_is_read(host, path):
    """Not even by the check against forged requests: both of what it compares may be made up."""
    token = "a" * 32
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-CSRFToken": token}
    content = b"%" * (MAX_OF_STRANGERS + 1)
    answer = httpx2.post(
        f"{host.address}{path}", content=content, headers=headers, cookies={"csrftoken": token}, verify=PLAIN
    )
    assert answer.status_code == 413


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_who_sends_all_of_it_before_they_read_are_told_too(host, routes, chunked, nothing_stored):
    """Far more than a message may have. A connection that is closed upon unread bytes is reset, and what was answered
    is lost with it."""
    head_of = head(
        host, "POST", routes["chat"][1], "Transfer-Encoding: chunked" if chunked else f"Content-Length: {HUGE}"
    )
    part = b" " * 65_536
    framed = b"10000\r\n" + part + b"\r\n" if chunked else part
    with connect(host) as connection:
        connection.sendall(head_of)
        for _ in range(HUGE // len(part)):
            connection.sendall(framed)
        connection.sendall(b"0\r\n\r\n" if chunked else b"")
        status, headers, body = read_answer(connection)
        assert connection.recv(1) == b"", "it is closed"
    assert (status, headers["connection"]) == (413, "close")
    assert b'"code":"body_too_large"' in body


def test_who_sends_without_end_is_let_go(host, routes, nothing_stored):
    """So much is read, and no more."""
    with connect(host) as connection:
        connection.sendall(head(host, "POST", routes["chat"][1], f"Content-Length: {10**15}"))
        with pytest.raises(OSError, match=r"reset|pipe"):
            connection.sendall(b" " * 2 * gateway.DROPPED_BYTES)


def test_who_asks_before_sending_is_told_before_sending(host, routes, nothing_stored):
    status, _, _ = raw(host, head(host, "POST", routes["chat"][1], "Expect: 100-continue", f"Content-Length: {10**12}"))
    assert status == 413


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml",
        "application/jsonx", "garbage", "application/json, text/plain", "application/json; charset=utf-16",
        "application/json; charset=hex", "application/json; charset=undefined", "application/json; charset=idna",
        "application/json; charset*=hex''%41", "application/json; charset*=x'y'%ff", "application/json; charset=é",
        "application/json; charset=" + "a" * 5000,
    ],
)  # fmt: skip
def test_anything_but_json_in_utf_8_is_refused(api, routes, content_type, nothing_stored):
    for route in WITH_BODY:
        method, address = routes[route]
        answer = api.request(method, address, content=b"{}", headers={"Content-Type": content_type.encode()})
        assert answer.status_code == 415, route
        problem(answer, 415, "unsupported_media_type")


JSON_TYPES = [None, "", ";", "APPLICATION/JSON", "application/json; charset=UTF-8", "application/json;x=y"]


@pytest.mark.parametrize("content_type", JSON_TYPES)
def test_json_may_be_called_json_in_several_ways(api, routes, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert api.post(routes["chat"][1], content='{"message": "é"}', headers=headers).status_code == 200


# --- headers -----------------------------------------------------------------------------------------------------


def head(host: Host, method: str, address: str, *headers: str | bytes, version: str = "1.1") -> bytes:
    """The head of a request, as raw bytes."""
    lines = [f"{method} /api/v1{address} HTTP/{version}", f"Host: {host.address.removeprefix('http://')}",
             f"Authorization: Bearer {KEY}", *headers]  # fmt: skip
    return b"\r\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\r\n\r\n"


def refused_by_the_server(answer: tuple[int, dict[str, str], bytes]) -> bool:
    """uvicorn's own answer to what is no HTTP."""
    status, headers, body = answer
    return (status, headers["content-type"], body) == (
        400,
        "text/plain; charset=utf-8",
        b"Invalid HTTP request received.",
    )


@pytest.mark.parametrize("name", ["evil.example", "", "a, b", "[::1", "127.0.0.1.evil.example", "é", "a" * 5000])
def test_a_host_that_is_not_ours_is_refused(api, routes, name, nothing_stored):
    for method, address in [("GET", "/conversations"), routes["chat"]]:
        problem(api.request(method, address, headers={"Host": name.encode()}), 400, "invalid_request")


@pytest.mark.parametrize(
    "path", ["/health/live", "/health/ready", "/api/v1/conversations", "/", "/admin/", "/static/x"]
)
@pytest.mark.parametrize("hosts", [0, 2])
def test_a_request_names_one_host(host, path, hosts):
    ours = f"Host: {host.address.removeprefix('http://')}\r\n"
    status, headers, body = raw(host, f"GET {path} HTTP/1.1\r\n{ours * hosts}\r\n".encode())
    assert (status, headers["content-type"], json.loads(body)["code"]) == (400, PROBLEM, "invalid_request")


def test_http_1_0_had_no_hosts(host):
    assert raw(host, b"GET /health/live HTTP/1.0\r\n\r\n")[0] == 200


def test_forwarding_headers_do_not_make_links(api, routes):
    for _ in range(2):
        start(api)
    hostile = {"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example", "X-Forwarded-For": "' OR 1=1",
               "X-Forwarded-Proto": "javascript", "X-Original-URL": "/admin/"}  # fmt: skip
    page = api.get("/conversations?limit=1", headers=hostile)
    assert page.status_code == 200
    assert page.json()["next"].startswith(str(api.base_url).rstrip("/"))


def test_a_header_with_an_underscore_is_not_taken_for_ours(host, api, routes):
    shadows = {"X_Request_ID": "shadow", "Content_Type": "text/plain", "Idempotency_Key": "shadow",
               "Content_Length": "1", "X-Request_ID": "shadow"}  # fmt: skip
    conversation_id = start(api)
    for _ in range(2):
        answer = chat(api, conversation_id, "Hello", headers={**shadows, "X-Request-ID": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
    assert len(turns_of(host, conversation_id)) == 2


def test_a_client_cannot_have_itself_kept_waiting(api):
    answer = api.get("/conversations", headers={"X-Nanohost-Await-Turn": UNKNOWN_ID}, timeout=5)
    assert answer.status_code == 200
    assert "x-nanohost-await-turn" not in answer.headers


@pytest.mark.parametrize("value", [b"\xe9\xff", b"a" * 5_000, b"${jndi:ldap://x}", b"%00%0d%0aSet-Cookie: a=b"])
def test_an_odd_header_does_no_harm(api, value):
    headers = dict.fromkeys(("X-Whatever", "User-Agent", "Cookie", "Referer"), value)
    answer = api.get("/conversations", headers=headers)
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("headers", [{"X-Long": "a" * 40_000}, {f"X-{n}": "a" * 100 for n in range(500)}])
def test_headers_that_are_too_large_are_refused(api, routes, headers, nothing_stored):
    problem(api.post(routes["chat"][1], json={"message": "Hello"}, headers=headers), 431, "headers_too_large")


def test_headers_without_an_end_are_cut_off(host):
    with connect(host) as connection:
        connection.sendall(head(host, "GET", "/conversations")[:-2] + b"X-Endless: ")
        sent = send_endlessly(connection)
    # Not when httptools gives up, or memory does: what lies in the sockets' buffers comes on top of the bound.
    assert MAX_HEAD_BYTES <= sent < MAX_HEAD_BYTES + 16_000_000


HALF_A_HEAD = b"GET / HTTP/1.1\r\nHost: x"


@pytest.mark.parametrize(
    "sent", [b"", HALF_A_HEAD, HALF_A_HEAD + b"\r\n\r\n" + HALF_A_HEAD], ids=["nothing", "half a head", "a second half"]
)
def test_a_connection_on_which_nothing_more_arrives_is_closed(sent):
    """In this process, where the bound can be made short."""
    import asyncio

    import uvicorn

    async def answer(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    async def silent_client() -> bytes:
        config = uvicorn.Config(answer, http=QuickHeads, lifespan="off", log_config=None, timeout_keep_alive=60)
        server = uvicorn.Server(config)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(sent)
            said = await asyncio.wait_for(reader.read(), timeout=10)
            writer.close()
            server.should_exit = True
            await serving
            return said

    assert asyncio.run(silent_client()).count(b"HTTP/1.1 204") == sent.count(b"\r\n\r\n")


class QuickHeads(BoundedHeads):
    head_seconds = 0.1


def send_endlessly(connection: socket.socket) -> int:
    """How many bytes were taken until the connection was cut; fails if it never is."""
    for sent in range(1000):
        try:
            connection.sendall(b"a" * 65536)
        except ConnectionError:
            return sent * 65536
    raise AssertionError("64 MB of a head were taken")


@pytest.mark.parametrize(
    "value",
    [
        "", "Bearer", "Bearer nh_", "Bearer nh__", "Bearer nh_test1234_", "Bearer wrong",
        f"Basic {KEY}", f"Token {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY} {KEY}", f"Bearer {KEY.upper()}",
        f"Bearer {KEY}, Bearer {KEY}", "Bearer nh_é_é", "Bearer " + "nh_" * 5000, "Bearer nh_test1234_%00",
    ],
)  # fmt: skip
def test_a_garbled_authorization_opens_nothing(host, routes, value, nothing_stored):
    with host.client(key=None) as nobody:
        answer = nobody.post(routes["chat"][1], json={"message": "Hello"}, headers={"Authorization": value.encode()})
        problem(answer, 401, "not_authenticated")


def test_two_authorizations_open_nothing(host, routes):
    again = f"Authorization: Bearer {KEY}"
    status, headers, _ = raw(host, head(host, "GET", "/conversations", again))
    assert (status, headers["content-type"]) == (401, PROBLEM)


# --- lengths and slowness ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: -1"],
        ["Content-Length: x"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: gzip"],
        ["X: a\x00b"],
        [b"X\xff: a"],
        ["no colon"],
    ],
)
def test_what_is_no_http_is_refused_by_the_server(host, routes, headers, nothing_stored):
    assert refused_by_the_server(raw(host, head(host, "POST", routes["chat"][1], *headers) + b'{"message": "Hello"}'))


def test_a_length_that_is_too_short_cuts_the_body(host, routes, nothing_stored):
    # Its end is taken for the next request, which is no HTTP.
    answer = raw(host, head(host, "POST", routes["chat"][1], "Content-Length: 5") + b'{"message": "Hello"}')
    assert refused_by_the_server(answer)


def test_a_length_that_is_too_long_stores_nothing(host, routes, nothing_stored):
    with connect(host) as connection:
        connection.sendall(head(host, "POST", routes["chat"][1], "Content-Length: 500") + b'{"message": "Hello"}')


def test_a_chunk_that_lies_is_refused(host, routes, nothing_stored):
    body = b'zz\r\n{"message": "Hello"}\r\n0\r\n\r\n'
    assert refused_by_the_server(raw(host, head(host, "POST", routes["chat"][1], "Transfer-Encoding: chunked") + body))


def test_slow_bodies_keep_nobody_else_waiting(host):
    api = host.client()
    conversation_id = start(api)
    body = b'{"message": "slowly"}'
    slow = [connect(host) for _ in range(30)]
    for connection in slow:
        connection.sendall(head(host, "POST", f"/conversations/{conversation_id}/chat", f"Content-Length: {len(body)}"))
        connection.sendall(body[:5])
    assert chat(api, conversation_id, "quickly", timeout=5).status_code == 200
    for connection in slow[1:]:
        connection.close()
    slow[0].sendall(body[5:])
    assert read_answer(slow[0])[0] == 200
    slow[0].close()
    assert len(turns_of(host, conversation_id)) == 2


# --- addresses ---------------------------------------------------------------------------------------------------

PATHS = [
    "/%ff", "/%00", "/conversations/%ff", "/conversations/%00/chat", "/conversations/%2e%2e/%2e%2e/admin",
    "/../../../etc/passwd", "//conversations", "/conversations/", "/conversations/not-an-id",
    f"/conversations/{UNKNOWN_ID.upper()}x", f"/conversations/{UNKNOWN_ID}%00", f"/turns/{UNKNOWN_ID}/cancel/",
    "/turns/0", "/conversations;a=b", "/CONVERSATIONS", "/" + "a" * 20_000, "/%F0%9F%98%80", "/%c0%ae%c0%ae", "/%",
    "/conversations/${7*7}", "/conversations\\chat",
]  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:30])
def test_a_hostile_path_leads_nowhere(host, method, path, nothing_stored):
    status, headers, _ = raw(host, head(host, method, path, "Content-Length: 0"))
    assert (status, headers["content-type"]) == (404, PROBLEM)
    assert headers["x-request-id"]


@pytest.mark.parametrize("path", [b"/\xff", b"/caf\xc3\xa9", b"/ b", b"/\x00"])
def test_a_raw_byte_in_a_path_is_refused_by_the_server(host, path):
    request = head(host, "GET", "/PATH").replace(b"/PATH", path)
    answer = raw(host, request)
    assert refused_by_the_server(answer) or answer[0] == 404


QUERIES = [
    "%ff",
    "%00",
    "cursor=%ff",
    "cursor=%00",
    "limit=%00",
    "limit=%ff",
    "=",
    "&&&",
    "limit[]=1",
    "a=%zz",
    "x" * 20_000,
]


@pytest.mark.parametrize("address", ["/conversations", "/tools"])
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query[:20])
def test_a_hostile_query_is_refused_or_ignored(host, address, query):
    status, headers, body = raw(host, head(host, "GET", f"{address}?{query}"))
    assert status in (200, 400)
    if status == 400:
        assert headers["content-type"] == PROBLEM
        assert json.loads(body)["requestId"] == headers["x-request-id"]


@pytest.mark.parametrize("agent", ["%ff", "%00", "%F0%9F%98%80", "a" * 5000, ""])
def test_a_hostile_agent_in_the_query_is_unknown(api, agent):
    problem(api.get(f"/tools?agent={agent}"), 400, "unknown_agent")


@pytest.mark.parametrize("agent", [b"\xff", b"caf\xc3\xa9"])
def test_a_raw_byte_in_a_query_is_refused_by_the_server(host, agent):
    assert refused_by_the_server(raw(host, head(host, "GET", "/tools?agent=X").replace(b"=X", b"=" + agent)))


def test_more_parameters_than_anybody_reads_are_refused(api):
    problem(api.get("/tools?" + "&".join(f"a{n}=1" for n in range(1500))), 400, "invalid_request")
    problem(api.get("/conversations?" + "&".join(f"a{n}=1" for n in range(1500))), 400, "invalid_request")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE"])
def test_a_method_that_is_not_ours_is_refused(api, routes, method, nothing_stored):
    tried = {address for _, address in routes.values()} - {
        address for ours, address in routes.values() if ours == method
    }
    assert len(tried) > 10
    for address in tried:
        problem(api.request(method, address), 405, "method_not_allowed")


@pytest.mark.parametrize("method", ["BREW", "GET\x00", "get", "G\u00c9T", ""])
def test_a_method_that_is_none_is_refused_by_the_server(host, method):
    assert refused_by_the_server(raw(host, head(host, method, "/conversations")))


def test_connect_leads_nowhere(host):
    """A method of HTTP's, to which we are no proxy."""
    status, headers, body = raw(host, head(host, "CONNECT", "/conversations"))
    assert (status, headers["content-type"], json.loads(body)["code"]) == (405, PROBLEM, "method_not_allowed")


def test_many_bad_requests_at_once_do_no_harm(host, api, routes):
    def send(number: int) -> int:
        body = list(JUNK.values())[number % len(JUNK)]
        return api.post(routes["chat"][1], content=body).status_code

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(send, range(300))) == {400}
    assert chat(api, start(api), "still there?").status_code == 200


@pytest.fixture(scope="module", autouse=True)
def _nothing_was_a_fault_of_ours(host: Host) -> Iterator[None]:
    """Whichever of these tests run: no request of theirs ended in a fault, and the log that would tell is read."""
    before = len(host.log_lines())
    yield
    assert raw(host, head(host, "GET", "/the-last-of-them"))[0] == 404
    eventually(lambda: "/the-last-of-them" in host.log_text())
    lines = host.log_lines()[before:]
    assert [line for line in lines if line.get("status", 0) >= 500 or line["level"] in ("error", "critical")] == []
