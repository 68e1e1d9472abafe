"""The gateway: many clients wait at once, and cost the web process next to nothing."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import httpx2
import pytest
from django.db import InterfaceError, OperationalError
from django.http.cookie import parse_cookie

from conversations.events import answers, hub
from conversations.web import gateway, open_keys
from conversations.web.open_keys import OpenKeys
from tests import shapes
from tests.support.api_client import chat, eventually, rows, start, turns_of
from tests.support.crowd import Visitor, come, come_all, memory_of, request, sockets_of, threads_of, until
from tests.support.hosts import KEY, PLAIN, Host
from tests.support.regexes import grows_too_fast
from tests.support.scripts import script

# A path that froze a host, and one that looks like nothing.
MARKS, LETTERS = "/" + "eyJ-" * 16_000, "/" + "a-b-" * 16_000

WAITERS, TALKS = 500, 25
# What a waiter may cost the process, its connection in uvicorn included; measured: 19 to 27 KB.
MAX_BYTES = 60 * 1024


async def ask(client: httpx2.AsyncClient, conversation_id: str, message: str, **options: Any) -> httpx2.Response:
    return await client.post(f"/conversations/{conversation_id}/chat", json={"message": message}, **options)


def async_client(host: Host) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {KEY}"}
    address = f"{host.address}/api/v1"
    return httpx2.AsyncClient(base_url=address, headers=headers, timeout=60, limits=limits, verify=PLAIN)


def test_500_clients_wait_without_a_thread_or_a_connection_each(host, capsys):
    with host.client() as client:
        talks = [start(client) for _ in range(TALKS)]
        slow = [
            client.post(f"/conversations/{one}/turns", json={"message": script({"sleep": 600})}).json()["turnId"]
            for one in talks
        ]

    def asked(talk: str) -> bytes:
        return request("POST", f"/conversations/{talk}/chat", body={"message": script({"say": "done"})})

    async def wait_together() -> tuple[list[Visitor], dict[str, int]]:
        early = await come_all(host.address, [asked(talk) for talk in talks])  # what the first ones cost is not counted
        await until(lambda: queued(host, talks) == TALKS)
        memory = memory_of(host)
        others = WAITERS - len(early)
        waiters = early + await come_all(host.address, [asked(talks[number % TALKS]) for number in range(others)])
        await until(lambda: queued(host, talks) == WAITERS)
        figures = {
            "bytes a waiter": (memory_of(host) - memory) // others,
            "threads": threads_of(host),
            "database connections": host.database_connections(),
            "sockets": sockets_of(host),
        }
        assert not any(one.status for one in waiters)
        await asyncio.gather(*(come(host.address, request("POST", f"/turns/{one}/cancel")) for one in slow))
        await asyncio.wait([one.left for one in waiters], timeout=60)
        return waiters, figures

    before = sockets_of(host)
    waiters, figures = asyncio.run(wait_together())
    with capsys.disabled():
        print(f"\n{WAITERS} waiters: {figures}")  # noqa: T201 -- what it costs
    answers = [json.loads(one.body()) for one in waiters]
    assert {one.status for one in waiters} == {200}
    assert {answer["assistantMessage"] for answer in answers} == {"done"}
    assert len({answer["turnId"] for answer in answers}) == WAITERS
    # Threads and database connections are those of the pools, however many wait; sockets are the waiters' own.
    assert figures["threads"] <= 40
    assert figures["database connections"] <= 30
    assert figures["sockets"] >= WAITERS
    assert figures["bytes a waiter"] < MAX_BYTES
    # What stays are connections to production's servers: for each of its 8 threads two to Redis and one to PostgreSQL.
    eventually(lambda: sockets_of(host) <= before + (30 if shapes.shape() == shapes.PRODUCTION else 0))


def queued(host: Host, talks: list[str]) -> int:
    """How many turns wait in these conversations."""
    marks = ", ".join("?" * len(talks))
    statement = f"SELECT count(*) AS n FROM conversations_turn WHERE status = 'queued' AND conversation_id IN ({marks})"
    return int(rows(host, statement, *talks)[0]["n"])


def test_20_duplicates_share_one_turn(host):
    with host.client() as client:
        conversation_id = start(client)

    async def wait_together() -> list[httpx2.Response]:
        async with async_client(host) as client:
            slow, key = script({"sleep": 1, "say": "once"}), {"Idempotency-Key": f"key-{conversation_id}"}
            return await asyncio.gather(*(ask(client, conversation_id, slow, headers=key) for _ in range(20)))

    answers = asyncio.run(wait_together())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert len(turns_of(host, conversation_id)) == 1


def test_the_header_that_keeps_a_client_waiting_stays_inside(host, impatient):
    with host.client() as patient, impatient.client() as client:
        answers = [chat(patient, start(patient), "Hello"), chat(client, start(client), script({"sleep": 2}))]
    assert [answer.status_code for answer in answers] == [200, 202]
    assert not any("await" in name.lower() for answer in answers for name in answer.headers)


def test_who_joins_while_rows_are_read_is_not_sent_away(host):
    # Turns that end all the time keep the room reading; each newcomer must wait for its own.
    with host.client() as client, ThreadPoolExecutor(16) as pool:
        conversations = [start(client) for _ in range(160)]
        answers = list(pool.map(lambda one: chat(client, one, script({"sleep": 0.05, "say": "done"})), conversations))
    assert {answer.status_code for answer in answers} == {200}


def test_those_who_wait_are_let_go_when_the_host_stops(mortal: Host):
    with mortal.client() as client, ThreadPoolExecutor(1) as pool:
        conversation_id = start(client)
        asked = pool.submit(chat, client, conversation_id, script({"sleep": 60}))
        eventually(lambda: turns_of(mortal, conversation_id) and turns_of(mortal, conversation_id)[0]["worker"])
        assert mortal.stop() == 0
        answer = asked.result(10)
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v1/turns/{answer.json()['turnId']}"


# --- driven as the ASGI server drives it -------------------------------------------------------------------------


async def ask_room(
    room: gateway.ResponseGateway,
    path: str,
    messages: Sequence[dict[str, Any]] = ({"type": "http.request"},),
    *headers: tuple[bytes, bytes],
) -> list[dict[str, Any]]:
    """What the room sends for one request whose messages these are; after them, the client is silent."""
    sent: list[dict[str, Any]] = []
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        for message in left:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "http_version": "1.1",
             "headers": [(b"host", b"localhost"), *headers]}  # fmt: skip
    await room(scope, receive, send)
    return sent


def serve(
    django: Any, messages: list[dict[str, Any]], *headers: tuple[bytes, bytes], path: str = "/"
) -> list[dict[str, Any]]:
    """What a room around this Django sends."""
    return asyncio.run(ask_room(gateway.ResponseGateway(django), path, messages, *headers))


def django_that_fails(environ: Any, start_response: Any) -> Any:
    raise RuntimeError("on purpose")


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch):
    monkeypatch.setattr(gateway, "BODY_SECONDS", 0.05)
    first, body = serve(django_that_fails, [{"type": "http.request", "body": b"{", "more_body": True}])
    assert first["status"] == 408
    assert b"body_too_slow" in body["body"]
    assert (b"connection", b"close") in first["headers"]


def test_a_fault_outside_the_views_is_a_problem_too(caplog):
    with caplog.at_level(logging.CRITICAL):
        first, body = serve(django_that_fails, [{"type": "http.request"}], (b"x-request-id", b"given"))
    assert first["status"] == 500
    assert (b"x-request-id", b"given") in first["headers"]
    assert b"internal_error" in body["body"]
    assert b"on purpose" not in body["body"]


def test_nobody_is_answered_who_has_gone():
    assert serve(django_that_fails, [{"type": "http.disconnect"}]) == []


@pytest.mark.parametrize("more", [True, False])
def test_a_body_past_its_bound_is_refused_wherever_it_is_noticed(settings, more):
    settings.MAX_BODY_BYTES = 10
    parts = [{"type": "http.request", "body": b"a" * 20, "more_body": more}, {"type": "http.request"}]
    first, body, *end = serve(django_that_fails, parts)
    assert first["status"] == 413
    assert b"10 bytes" in body["body"]
    assert len(end) == more


DOORS = ["/chat/sign-in/", "/chat/join/nh_invite_x/", "/admin/login/"]


@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize("announced", [True, False])
def test_a_form_that_anybody_may_send_is_small(path, announced):
    """To read a long one costs the processor a second, before anybody has signed in. Django is not asked."""
    most = gateway.MAX_SIGN_IN_BYTES

    def sent(size: int, path: str) -> int:
        headers = [(b"content-length", str(size).encode())] if announced else []
        messages = [{"type": "http.request", "body": b"%" * size, "more_body": False}]
        first, *_ = serve(django_that_fails, messages, *headers, path=path)
        status: int = first["status"]
        return status

    assert [sent(most, path), sent(most + 1, path), sent(most + 1, "/chat/")] == [500, 413, 500]


@pytest.mark.parametrize("path", DOORS)
def test_a_bound_of_all_bodies_that_is_smaller_holds_for_those_forms_too(settings, path):
    settings.MAX_BODY_BYTES = 10
    first, *_ = serve(django_that_fails, [{"type": "http.request", "body": b"a" * 11}], path=path)
    assert first["status"] == 413


def test_who_is_let_go_is_told_what_is_known_without_a_database_that_hangs(settings, monkeypatch):
    """The one thread there is waits for it."""
    settings.WEB_THREADS = 1
    monkeypatch.setattr(hub, "LOOK_SECONDS", 60)
    is_taken, go_on = threading.Event(), threading.Event()

    def django(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/hangs":
            is_taken.set()
            go_on.wait(20)
        awaited = gateway.Awaited(turn_id=UUID(int=0), renderer=answers, streams=False)
        environ[gateway.HANDOVER].awaited = awaited
        start_response("202 Accepted", [("Location", "/there")])
        return [b"{}"]

    async def stop_while_it_hangs() -> tuple[dict[str, Any], dict[str, Any]]:
        room = gateway.ResponseGateway(django)
        waits, sent = asyncio.ensure_future(ask_room(room, "/waits")), asyncio.ensure_future(ask_room(room, "/hangs"))
        await asyncio.to_thread(is_taken.wait, 20)
        room.drain()
        try:
            return await asyncio.wait_for(waits, 10)
        finally:
            go_on.set()
            await sent

    first, body = asyncio.run(stop_while_it_hangs())
    assert (first["status"], body["body"]) == (202, b"{}")
    assert (b"location", b"/there") in first["headers"]


def test_a_path_costs_the_same_whatever_stands_in_it(host):
    """A host was frozen for seconds by one that looks like the beginning of many tokens, without a key."""

    def seconds(client: httpx2.Client, path: str) -> float:
        """What it takes until the loop is free again, at best: the path is logged when its answer is sent."""
        best = float("inf")
        for _ in range(3):
            began = time.perf_counter()
            assert client.get(path).status_code == 404
            assert client.get("/health/live").status_code == 200
            best = min(best, time.perf_counter() - began)
        return best

    with httpx2.Client(base_url=host.address, timeout=60) as client:
        seconds(client, LETTERS)
        assert seconds(client, MARKS) < 5 * seconds(client, LETTERS)


def test_cookies_are_read_in_time_in_proportion_to_their_length():
    """Of Python before 3.11.10: a header of 28 KB took it two seconds, and eight of them a host."""
    attacks = [('a="', pump, '"') for pump in ('\\"', "\\", "\\054", "a", '"; b="\\')]

    def read(text: str) -> object:
        return parse_cookie(gateway.without_escapes(text.encode()).decode())

    assert not grows_too_fast(read, attacks)


def test_a_cookie_with_a_backslash_leaves_the_others_as_they_are():
    sent = b'csrftoken=abc; a="x\\"y"; sessionid="def"'
    assert parse_cookie(gateway.without_escapes(sent).decode()) == {"csrftoken": "abc", "sessionid": "def"}


def test_who_comes_while_keys_are_looked_at_is_not_let_go(monkeypatch):
    monkeypatch.setattr(open_keys, "LOOK_SECONDS", 0)

    async def wait() -> None:
        asked, answered, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def read(key_ids: Any) -> set[int]:
            asked.set()
            await answered.wait()
            return {2} & {*key_ids}

        keys = OpenKeys(read=read)
        with keys.used(1, over.set) as first:
            await asked.wait()
            with keys.used(2, lambda: None) as second:
                answered.set()
                await over.wait()
                assert (first.is_over, second.is_over) == (True, False)

    asyncio.run(asyncio.wait_for(wait(), timeout=20))


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_keys_are_looked_at_again_after_the_database_was_away(monkeypatch, error):
    monkeypatch.setattr(open_keys, "LOOK_SECONDS", 0)

    async def wait() -> None:
        over, looks = asyncio.Event(), 0

        async def read(_: Any) -> set[int]:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise error
            return set()

        with OpenKeys(read=read).used(1, over.set):
            await over.wait()

    asyncio.run(asyncio.wait_for(wait(), timeout=5))


def test_of_a_long_path_the_beginning_is_logged(host):
    begun = len(host.log_text())
    with httpx2.Client(base_url=host.address) as client:
        client.get(f"/{'long/' * 10_000}")
    line = eventually(lambda: next((each for each in host.log_text()[begun:].splitlines() if "/long/" in each), None))
    assert len(json.loads(line)["path"]) == gateway.LOGGED_PATH_CHARS
