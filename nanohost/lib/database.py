"""Connections outside of requests, and what may run on one for a limited time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, close_old_connections, connection


class TookTooLong(Exception):
    """The time is up for what ran on the database."""


@contextmanager
def borrowed_connection() -> Iterator[None]:
    """What runs inside may use the database. A broken connection is dropped before; afterwards it goes back to the
    pool, so that no thread that waits keeps one. (On SQLite, which has no pool, it stays with the thread.)"""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


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
