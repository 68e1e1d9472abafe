"""Connections outside of requests."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import close_old_connections


@contextmanager
def borrowed_connection() -> Iterator[None]:
    """What runs inside may use the database. A broken connection is dropped before; afterwards it goes back to the
    pool, so that no thread that waits keeps one. (On SQLite, which has no pool, it stays with the thread.)"""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
