"""Connections outside of requests, what may run on one for a limited time, and what is stored again while the database
is away."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections, transaction

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between tries to store what is known while the database is away; after these, the last again and again.
STORE_AGAIN = (0.2, 0.5, 1.0, 2.0)
# A process that stops tries on for so many seconds.
STORE_AT_A_STOP = 5.0


class TookTooLong(Exception):
    """The time limit of statements has passed."""


@contextmanager
def borrowed_connection() -> Iterator[None]:
    """What runs inside may use the database. A broken connection is dropped before; afterwards it goes back to the
    pool, so that no thread that waits keeps one. (On SQLite, which has no pool, it stays with the thread.)"""
    # Of the only database there is: Django's close_old_connections looks for others in each thread's storage.
    own = connections[DEFAULT_DB_ALIAS]
    own.close_if_unusable_or_obsolete()
    try:
        yield
    finally:
        own.close_if_unusable_or_obsolete()


def one_statement() -> AbstractContextManager[Any]:
    """For a write of one statement. It is a transaction by itself, and to begin and commit one costs PostgreSQL two
    round trips; on SQLite it has to wait for its turn among this process's writers."""
    return nullcontext() if connection.vendor == "postgresql" else transaction.atomic()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Statements inside that run on after so many seconds are stopped by the database, and no more are begun: raises
    :class:`TookTooLong`. In a transaction of the caller's, that is then to be rolled back."""
    until = time.monotonic() + seconds

    def in_time(execute: Any, *statement: Any) -> Any:
        if time.monotonic() > until:
            raise TookTooLong
        return execute(*statement)

    limited: Any = connection
    try:
        with limited.limited(seconds), connection.execute_wrapper(in_time):
            yield
    except OperationalError as error:
        if time.monotonic() < until:
            raise
        raise TookTooLong from error


class Tries:
    """The tries to store one thing: answers of turns, outcomes of calls, what is released, compactions. A fence
    makes it safe to repeat each, also where a commit went through and only the answer to it was lost.

    While the database is away nobody else can take over what we hold; so there is no reason to give up before
    ``seconds`` are over, after which nobody wants it any more.
    """

    def __init__(self, what: str, *, seconds: float) -> None:
        self._what, self._until = what, time.monotonic() + seconds
        self._waits = iter(STORE_AGAIN)
        self._told = False

    def wait_after(self, error: OperationalError) -> float:
        """Seconds to wait before the next try; raises the error if there is no further try."""
        wait = next(self._waits, STORE_AGAIN[-1])
        if time.monotonic() + wait > self._until:
            raise error
        if not self._told:
            logger.warning("%s: the database is away (%s); it is tried again", self._what, type(error).__name__)
            self._told = True
        return wait

    def hurry(self) -> None:
        """The process stops: only few tries are left."""
        self._until = min(self._until, time.monotonic() + STORE_AT_A_STOP)


def store_again(tries: Tries, store: Callable[[], T], *, stopping: threading.Event) -> T:
    """Store something in this thread, trying again on a working connection; not within a transaction."""
    hurried = False
    while True:
        if stopping.is_set() and not hurried:
            tries.hurry()
            hurried = True
        try:
            with borrowed_connection():
                return store()
        except OperationalError as error:
            time.sleep(tries.wait_after(error))  # noqa: TID251 -- a server is away


@dataclass(frozen=True, kw_only=True)
class PoolUse:
    """Of a process' pool: connections in use, how many it may open, and threads that wait for one."""

    used: int
    most: int
    waiting: int


def pool_use() -> PoolUse | None:
    """How much of this process' pool is in use now; None where there is none, as on SQLite."""
    pool = getattr(connection, "pool", None)
    if pool is None:
        return None
    told = pool.get_stats()
    used = told["pool_size"] - told["pool_available"]
    return PoolUse(used=used, most=told["pool_max"], waiting=told["requests_waiting"])


@contextmanager
def overwriting_what_is_deleted() -> Iterator[None]:
    """On SQLite, what is deleted inside is overwritten in the file, and the log that it was written to is emptied, if
    nobody reads it just then. (PostgreSQL has that done by VACUUM.)"""
    if connection.vendor != "sqlite":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA secure_delete")
        before = cursor.fetchone()[0]
        cursor.execute("PRAGMA secure_delete = ON")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA secure_delete = {before}")
            if not connection.in_atomic_block:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
