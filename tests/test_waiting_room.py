"""The waiting room: many clients wait at once, and cost the web process next to nothing."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from conversations import waiting
from tests.host import KEY, Host
from tests.http import chat, eventually, start, turns_of
from tests.scripts import script

WAITERS = 200


def threads_of(host: Host) -> int:
    status = Path(f"/proc/{host.process.pid}/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])


def files_of(host: Host) -> list[str]:
    """What the process has open: sockets, pipes, the database's file once a connection."""
    opened = []
    for link in Path(f"/proc/{host.process.pid}/fd").iterdir():
        try:
            opened.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return opened


def database_files(opened: list[str]) -> int:
    return sum(name.endswith("nanohost.sqlite3") for name in opened)


def sockets(opened: list[str]) -> int:
    return sum(name.startswith("socket:") for name in opened)


async def ask(client: httpx2.AsyncClient, conversation_id: str, message: str, **options: Any) -> httpx2.Response:
    return await client.post(f"/conversations/{conversation_id}/chat", json={"message": message}, **options)


def async_client(host: Host) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx2.AsyncClient(base_url=f"{host.address}/api/v1", headers=headers, timeout=60, limits=limits)


def test_200_clients_wait_without_a_thread_or_a_connection_each(host):
    with host.client() as client:
        conversations = [start(client) for _ in range(WAITERS)]
    opened = files_of(host)

    async def wait_together() -> tuple[list[httpx2.Response], int, list[str]]:
        async with async_client(host) as client:
            slow = script({"sleep": 2, "say": "done"})
            asked = [asyncio.create_task(ask(client, one, slow)) for one in conversations]
            await asyncio.to_thread(eventually, lambda: sockets(files_of(host)) >= WAITERS)
            await asyncio.to_thread(eventually, lambda: turns_of(host, conversations[-1]))
            during = threads_of(host), files_of(host)
            return await asyncio.gather(*asked), *during

    answers, threads_during, opened_during = asyncio.run(wait_together())
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["assistantMessage"] for answer in answers} == {"done"}
    assert len({answer.json()["turnId"] for answer in answers}) == WAITERS
    assert not any(waiting.AWAIT_HEADER in answer.headers for answer in answers)
    # Threads and database connections are those of the pools, however many wait; sockets are the waiters' own.
    assert threads_during <= 40
    assert database_files(opened_during) <= 20
    assert sockets(opened_during) >= WAITERS
    eventually(lambda: sockets(files_of(host)) <= sockets(opened))


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


def test_the_header_that_keeps_a_client_waiting_stays_inside(tmp_path: Path):
    host = Host(tmp_path, CHAT_WAIT_SECONDS="0.2").start()
    try:
        with host.client() as client:
            answers = [chat(client, start(client), message) for message in ("Hello", script({"sleep": 1}))]
        assert [answer.status_code for answer in answers] == [200, 202]
        assert not any("await" in name.lower() for answer in answers for name in answer.headers)
    finally:
        host.kill()


def test_who_joins_while_rows_are_read_is_not_sent_away(host):
    # Turns that end all the time keep the room reading; each newcomer must wait for its own.
    with host.client() as client, ThreadPoolExecutor(16) as pool:
        conversations = [start(client) for _ in range(160)]
        answers = list(pool.map(lambda one: chat(client, one, script({"sleep": 0.05, "say": "done"})), conversations))
    assert {answer.status_code for answer in answers} == {200}


def test_those_who_wait_are_let_go_when_the_host_stops(tmp_path: Path):
    host = Host(tmp_path).start()
    try:
        with host.client() as client, ThreadPoolExecutor(1) as pool:
            conversation_id = start(client)
            asked = pool.submit(chat, client, conversation_id, script({"sleep": 60}))
            eventually(lambda: turns_of(host, conversation_id) and turns_of(host, conversation_id)[0]["worker"])
            assert host.stop() == 0
            answer = asked.result(10)
        assert answer.status_code == 202
        assert answer.headers["location"] == f"/api/v1/turns/{answer.json()['turnId']}"
    finally:
        host.kill()


# --- driven as the ASGI server drives it -------------------------------------------------------------------------


def serve(django: Any, messages: list[dict[str, Any]], *headers: tuple[bytes, bytes]) -> list[dict[str, Any]]:
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

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "http_version": "1.1",
             "headers": [(b"host", b"localhost"), *headers]}  # fmt: skip
    asyncio.run(waiting.WaitingRoom(django)(scope, receive, send))
    return sent


def django_that_fails(environ: Any, start_response: Any) -> Any:
    raise RuntimeError("on purpose")


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch):
    monkeypatch.setattr(waiting, "BODY_SECONDS", 0.05)
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
    first, body = serve(django_that_fails, parts)
    assert first["status"] == 413
    assert b"10 bytes" in body["body"]
