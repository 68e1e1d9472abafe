"""Django's SQLite backend with one lock a process around write transactions.

SQLite admits one writer; the others sleep and try again, in no order, so that under load some starve (measured: the
lock halves a turn's p95). The lock is held from BEGIN to COMMIT or ROLLBACK. ``transaction_mode=IMMEDIATE`` makes
every transaction a write transaction, which is what the lock takes for granted. Other processes on the same file
(``manage.py``) are kept apart by SQLite itself, through its busy timeout.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from django.db.backends.sqlite3 import base
from django.db.utils import OperationalError
from django.utils.functional import cached_property

from nanohost.lib.outages import SortedErrors

_write_lock = threading.Lock()

# Steps of SQLite's machine between two looks at the clock: some microseconds.
_STEPS = 1000

# The stubs leave out the methods that begin and end transactions.
_Wrapper: Any = base.DatabaseWrapper
_Cursor: Any = base.SQLiteCursorWrapper


class Cursor(_Cursor):  # type: ignore[misc]
    """Django's, which looks through each statement's text for its parameters: the same texts come again and again."""

    def execute(self, query: str, params: Any = None) -> Any:
        if type(params) is list and len(query) <= _MAX_KNOWN_CHARS:
            return sqlite3.Cursor.execute(self, _converted(query), params)
        return super().execute(query, params)

    def convert_query(self, query: str, *, param_names: Sequence[str] | None = None) -> str:
        """SQLite's placeholders instead of Django's."""
        if param_names is not None or len(query) > _MAX_KNOWN_CHARS:
            return str(super().convert_query(query, param_names=param_names))
        return _converted(query)


# Longer statements are made once, of as many values as there are.
_MAX_KNOWN_CHARS = 8192


@lru_cache(maxsize=1024)
def _converted(query: str) -> str:
    return str(base.FORMAT_QMARK_REGEX.sub("?", query).replace("%%", "%"))


class DatabaseWrapper(_Wrapper):  # type: ignore[misc]
    """Django's wrapper; see the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._holds_write_lock = False

    @cached_property
    def wrap_database_errors(self) -> SortedErrors:
        return SortedErrors(self)

    def create_cursor(self, name: str | None = None) -> Any:
        """As Django's, of our class."""
        return self.connection.cursor(factory=Cursor)

    def run(self, sql: str, parameters: Sequence[Any], returns_rows: bool) -> tuple[list[Any], int]:
        """Execute a statement; its rows, and how many it has read or changed."""
        cursor = self.create_cursor()
        try:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if returns_rows else [], cursor.rowcount
        finally:
            cursor.close()

    def refuses_writes(self) -> bool:
        """False: a file that takes no writes is found out by writing. Raises if it cannot even be read."""
        with self.cursor() as cursor:
            cursor.execute("SELECT 1")
        return False

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Statements inside that are still running after so many seconds are interrupted."""
        self.ensure_connection()
        until = time.monotonic() + seconds
        self.connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
        try:
            yield
        finally:
            if self.connection is not None:
                self.connection.set_progress_handler(None, 0)

    def _start_transaction_under_autocommit(self) -> None:
        if not self._holds_write_lock:
            timeout = self.settings_dict["OPTIONS"].get("timeout", 5.0)
            if not _write_lock.acquire(timeout=timeout):
                raise OperationalError(f"database is locked: another thread has been writing for {timeout} s")
            self._holds_write_lock = True
        try:
            super()._start_transaction_under_autocommit()
        except BaseException:
            self._release()
            raise

    def _commit(self) -> None:
        super()._commit()
        # A failed COMMIT leaves the transaction open: Django rolls it back, and that releases the lock.
        self._release()

    def _rollback(self) -> None:
        try:
            super()._rollback()
        finally:
            self._release()

    def _close(self) -> None:
        try:
            super()._close()
        finally:
            self._release()

    def _release(self) -> None:
        if self._holds_write_lock:
            self._holds_write_lock = False
            _write_lock.release()
