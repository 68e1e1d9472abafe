"""PostgreSQL's pool: what is dead is dropped at once, what lives is asked nothing."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection

from nanohost.lib.database import PoolUse, pool_use
from nanohost.lib.postgresql.base import DatabaseWrapper
from tests.support import servers
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.production(reason="SQLite has no pool"),
    pytest.mark.django_db(transaction=True),
]
SIZE = 8


def in_threads(do: Callable[[], Any], number: int) -> list[Any]:
    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(lambda _: do(), range(number)))


def backend_of(everybody: threading.Barrier) -> int:
    """The server process behind a thread's connection, which all threads hold at the same time."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid = cursor.fetchone()[0]
        everybody.wait(20)
        return int(pid)
    finally:
        connection.close()


@pytest.fixture
def backends() -> Iterator[set[int]]:
    """A pool with connections that wait, by their server processes."""
    connection.close()
    connection.close_pool()  # which may hold what other tests have used
    everybody = threading.Barrier(SIZE)
    yield set(in_threads(lambda: backend_of(everybody), SIZE))
    connection.close_pool()


def test_what_lives_is_used_again(backends: set[int]) -> None:
    everybody = threading.Barrier(SIZE)
    assert set(in_threads(lambda: backend_of(everybody), SIZE)) == backends


def test_after_a_servers_restart_the_first_who_asks_gets_a_connection(backends: set[int]) -> None:
    with servers.connect() as server:
        for pid in backends:
            server.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    # psycopg's own check waits longer after each dead connection, and after the third it gives up.
    assert backend_of(threading.Barrier(1)) not in backends


class Doorkeeper:
    """A port before the server that turns the first few away, and passes on the others."""

    def __init__(self, turned_away: int) -> None:
        self.turned_away, self.came = turned_away, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self.came += 1
                if self.came <= self.turned_away:
                    client.close()
                    continue
                server = urlsplit(servers.url_of("any"))
                ends = [client, socket.create_connection((server.hostname or "127.0.0.1", server.port or 5432))]
                for source, target in (ends, ends[::-1]):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                target.sendall(part)
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def test_who_waits_while_the_server_comes_back_is_served_soon_after() -> None:
    """psycopg's own pool comes again after one second, and after another, and then no more."""
    door = Doorkeeper(turned_away=8)
    database = connection.settings_dict | {"HOST": "127.0.0.1", "PORT": str(door.port)}
    elsewhere = DatabaseWrapper(database, alias="through_the_door")
    try:
        with elsewhere.cursor() as cursor:
            cursor.execute("SELECT 1")
        assert door.came > door.turned_away
    finally:
        elsewhere.close()
        elsewhere.close_pool()
        door.close()


def test_its_use_is_told_while_threads_hold_and_await_connections(backends: set[int]) -> None:
    used_up, enough = threading.Event(), threading.Event()
    most = connection.pool.max_size

    def hold(holding: threading.Barrier) -> None:
        try:
            connection.ensure_connection()
            holding.wait(20)
            assert enough.wait(20)
        finally:
            connection.close()

    def want() -> None:
        assert used_up.wait(20)
        connection.ensure_connection()
        connection.close()

    holding = threading.Barrier(most + 1)
    with ThreadPoolExecutor(most + 1) as threads:
        held = [threads.submit(hold, holding) for _ in range(most)]
        waiter = threads.submit(want)
        holding.wait(20)
        assert pool_use() == PoolUse(used=most, most=most, waiting=0)
        used_up.set()
        wait_until(lambda: pool_use() == PoolUse(used=most, most=most, waiting=1))
        enough.set()
        for each in (*held, waiter):
            each.result(20)
    assert pool_use() == PoolUse(used=0, most=most, waiting=0)
