"""PostgreSQL's pool: what is dead is dropped at once, what lives is asked nothing."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from psycopg.pq import TransactionStatus

from nanohost.accounts.models import ApiKey
from nanohost.lib.database import PoolUse, pool_use
from nanohost.lib.postgresql.base import DatabaseWrapper
from tests.support import servers
from tests.support.wait import wait_until
from tests.support.ways import Way

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


def test_who_has_borrowed_before_gets_none_that_is_dead(backends: set[int]) -> None:
    backend_of(threading.Barrier(1))
    with servers.connect() as server:
        for pid in backends:
            server.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert backend_of(threading.Barrier(1)) not in backends


def test_after_one_was_given_back_in_the_midst_of_a_transaction_the_next_begins_anew() -> None:
    with suppress(DatabaseError), transaction.atomic():
        ApiKey.objects.count()
        left = connection.connection
        connection.close()
    again = None
    while again is not left:  # the pool lends its connections in turn
        assert not connection.in_atomic_block
        ApiKey.objects.count()
        again = connection.connection
        assert connection.get_autocommit()
        assert again.autocommit
        assert again.info.transaction_status == TransactionStatus.IDLE
        connection.close()


def test_who_waits_while_the_server_comes_back_is_served_soon_after() -> None:
    """psycopg's own pool comes again after one second, and after another, and then no more."""
    door = Way(servers.url_of("any"), turned_away=8)
    database = connection.settings_dict | {"HOST": "127.0.0.1", "PORT": str(door.port)}
    elsewhere = DatabaseWrapper(database, alias="through_the_door")
    try:
        with elsewhere.cursor() as cursor:
            cursor.execute("SELECT 1")
        assert door.came > door.turned_away
    finally:
        elsewhere.close()
        elsewhere.close_pool()
        door.cut()


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
