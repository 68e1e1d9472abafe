"""PostgreSQL's pool: what is dead is dropped at once, what lives is asked nothing."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from tests import servers

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
