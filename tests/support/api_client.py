"""Talking to a running host as its clients do, well-behaved ones and others."""

import hashlib
import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import httpx2

from nanohost.accounts.models import WIDE
from tests.support.hosts import Host
from tests.support.wait import rest, wait_until

T = TypeVar("T")

PROBLEM = "application/problem+json"


def start(client: httpx2.Client) -> str:
    """A new conversation's id."""
    answer = client.post("/conversations")
    assert answer.status_code == 201, answer.text
    return answer.json()["conversationId"]


def chat(client: httpx2.Client, conversation_id: str, message: str, **options: Any) -> httpx2.Response:
    """Say something; ``options`` are httpx2's."""
    return client.post(f"/conversations/{conversation_id}/chat", json={"message": message}, **options)


def problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The problem an answer tells, after seeing that it is one: RFC 9457, with its code and the request's id."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text
    told = answer.json()
    assert {"type", "title", "status", "code", "detail", "requestId"} <= told.keys()
    assert (told["status"], told["code"]) == (status, code), told
    assert told["requestId"] == answer.headers["x-request-id"]
    return told


def eventually(condition: Callable[[], T], *, seconds: float = 20) -> T:
    """What the condition gives once it is true; fails after so many seconds."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        if found := condition():
            return found
        rest(began)
    raise AssertionError("it did not come true in time")


def key_of(host: Host, owner: str, scopes: Sequence[str] = WIDE["scopes"]) -> str:
    """A key of a new owner, for every agent, written past the host: `manage.py keys create` would take a second."""
    key = f"nh_{secrets.token_hex(8)}_{secrets.token_hex(16)}"
    (row,) = host.sql(
        "INSERT INTO auth_user (username, password, first_name, last_name, email, is_superuser, is_staff, is_active,"
        " date_joined) VALUES (?, '!', '', '', '', ?, ?, ?, CURRENT_TIMESTAMP) RETURNING id",
        *(owner, False, False, True),
    )
    host.sql(
        "INSERT INTO accounts_apikey (owner_id, prefix, digest, scopes, agent_names, created_at)"
        " VALUES (?, ?, ?, ?, ?, CURRENT_TIMESTAMP)",
        *(row["id"], key.split("_")[1], hashlib.sha256(key.encode()).hexdigest()),
        *(json.dumps(list(each)) for each in (scopes, WIDE["agent_names"])),
    )
    return key


def turns_of(host: Host, conversation_id: str) -> list[dict[str, Any]]:
    """The turns of a conversation, in order, as the database has them: the API lists none."""
    return rows(host, "SELECT * FROM conversations_turn WHERE conversation_id = ? ORDER BY number", conversation_id)


def rows(host: Host, query: str, *ids: str) -> list[dict[str, Any]]:
    """Rows of the host's database; ids are given as the API shows them, and ids of rows are shown like that."""
    found = host.sql(query, *[UUID(identity) for identity in ids])
    return [row | {"id": str(UUID(str(row["id"])))} if row.get("id") else row for row in found]


def stored(host: Host) -> tuple[int, ...]:
    """How many conversations, turns and messages there are."""
    tables = ("conversation", "turn", "message")
    (counts,) = rows(
        host, "SELECT " + ", ".join(f"(SELECT count(*) FROM conversations_{each}) {each}" for each in tables)
    )
    return tuple(counts.values())


def stored_at_rest(host: Host) -> tuple[int, ...]:
    """The same, once what other tests have left says no more: turns, but for those that wait for their callers, and
    compactions, which a turn leaves behind at its end."""
    going_on = (
        "SELECT id FROM conversations_turn WHERE status IN (?, ?) OR (status = ? AND waiting_for <> ?)"
        " UNION ALL SELECT id FROM conversations_compaction WHERE status IN (?, ?)"
    )
    states = ("queued", "running", "waiting", "caller", "queued", "running")
    wait_until(lambda: not host.sql(going_on, *states), seconds=60)
    return stored(host)


def connect(host: Host) -> socket.socket:
    """A raw connection, for what no HTTP client would send."""
    address = urlsplit(host.address)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def raw(host: Host, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send these bytes and read one answer: its status, headers and body."""
    with connect(host) as connection:
        connection.sendall(request)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = connection.recv(65536)
        assert more, f"the connection ended after {received!r}"
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return int(status_line.split(" ")[1]), headers, body


def approval_of(host: Host, owner: str) -> str:
    """The id of an approval that waits for a decision, in nobody's turn: written past the host, with its call."""
    owner_id, call, conversation, turn = _waiting_call(host, owner)
    approval, digest, none = uuid4(), hashlib.sha256(b"{}").hexdigest(), ""
    host.sql(
        "INSERT INTO tools_approval (id, call_id, conversation_id, turn_id, owner_id, agent, tool_name, rule,"
        " request_id, arguments, arguments_hash, proposed, private_proposed, approved_hash, four_eyes, state, reason,"
        " decided_by, requested_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, 'default', 'time', 'consent:always', ?, '{}', ?, ?, ?, ?, ?,"
        " 'pending', ?, ?, CURRENT_TIMESTAMP, '2126-12-24 09:00:00')",
        *(approval, call, conversation, turn, owner_id, none, digest, none, none, none, False, none, none),
    )
    return str(approval)


def question_of(host: Host, owner: str, conversation: str) -> str:
    """The id of a question in a conversation that waits for its answer, in nobody's turn: written past the host."""
    owner_id, call, _, turn = _waiting_call(host, owner)
    question, none = uuid4(), ""
    host.sql(
        "INSERT INTO conversations_question (id, conversation_id, turn_id, call_id, owner_id, agent, text, options,"
        " sender_id, state, answer, answered_by, asked_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, 'default', 'Which colour', '[\"Red\", \"Blue\"]', ?, 'pending', ?, ?,"
        " CURRENT_TIMESTAMP, '2126-12-24 09:00:00')",
        *(question, UUID(conversation), turn, call, owner_id, none, none, none),
    )
    return str(question)


def _waiting_call(host: Host, owner: str) -> tuple[Any, UUID, UUID, UUID]:
    """Who that is, and the ids of a call that waits for people, of its conversation and its turn."""
    (row,) = host.sql("SELECT id FROM auth_user WHERE username = ?", owner)
    call, conversation, turn = (uuid4() for _ in range(3))
    digest, none = hashlib.sha256(b"{}").hexdigest(), ""
    host.sql(
        "INSERT INTO tools_toolcall (id, conversation_id, turn_id, owner_id, agent, request_id, call_id, position,"
        " tool_name, arguments, arguments_hash, effects, status, rule, result, consent, attempts, fence, worker)"
        " VALUES (?, ?, ?, ?, 'default', ?, 'call_1', 0, 'time', '{}', ?, 'read', 'WAITING', ?, ?,"
        " 'consent:always', 0, 0, ?)",
        *(call, conversation, turn, row["id"], none, digest, none, none, none),
    )
    return row["id"], call, conversation, turn
