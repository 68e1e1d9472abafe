"""Whether a database is away, asked in one place: by what the server says of its own state, and not by the class that
its driver gives the error.

Drivers sort errors by the standard's classes. A server that has become read-only is an InternalError to psycopg, like a
fault of its own, and an index row that is too long an OperationalError, like a server that is gone. Both backends of
ours sort them anew: ``OperationalError`` is what may be tried again, and nothing else is.
"""

import sqlite3
import sys
import time
from types import TracebackType
from typing import Any

from django.db.utils import DatabaseError, DatabaseErrorWrapper, OperationalError, ProgrammingError

# PostgreSQL's SQLSTATEs, by their class: no connection; rolled back for another's sake; out of disk, memory or
# connections; told to stop; trouble of the system. And single ones: read-only, as a primary that was demoted; ended for
# being idle in a transaction; a lock that was not granted in time.
_AWAY_CLASSES = ("08", "40", "53", "57", "58")
READ_ONLY = "25006"
_AWAY = (READ_ONLY, "25P03", "55P03")
# Of these, what tells that no write is taken just now, whoever asks.
_REFUSES_CLASSES = ("53", "58")

_SQLITE_REFUSES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_SQLITE_AWAY = (
    *_SQLITE_REFUSES,
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM),
    sqlite3.SQLITE_INTERRUPT,
)

# A database that has refused a write is taken to refuse others for so many seconds.
REFUSES_FOR = 3.0
refused_at = -REFUSES_FOR


def is_away(error: BaseException) -> bool:
    """Whether a driver's error tells that its database is away: what was to be done may be done later."""
    psycopg = _psycopg()
    if psycopg and isinstance(error, psycopg.Error):
        if error.sqlstate is None:  # nothing the server said: the way to it
            return isinstance(error, psycopg.OperationalError)
        return error.sqlstate.startswith(_AWAY_CLASSES) or error.sqlstate in _AWAY
    return isinstance(error, sqlite3.Error) and _primary(error) in _SQLITE_AWAY


def _refuses_writes(error: BaseException) -> bool:
    psycopg = _psycopg()
    if psycopg and isinstance(error, psycopg.Error):
        sqlstate = error.sqlstate or ""
        return sqlstate.startswith(_REFUSES_CLASSES) or sqlstate == READ_ONLY
    return isinstance(error, sqlite3.Error) and _primary(error) in _SQLITE_REFUSES


def _psycopg() -> Any:
    """The driver, if it is in use. A host on SQLite never loads it, which saves it 9 MiB."""
    return sys.modules.get("psycopg")


def _primary(error: sqlite3.Error) -> int:
    """SQLite's result code without what it adds to it; -1 for what Python's module says itself."""
    code = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else code & 0xFF


def refused_lately() -> bool:
    """Whether this process has just been refused a write for the sake of the server's state: a full disk is not seen by
    reading."""
    return time.monotonic() - refused_at < REFUSES_FOR


class SortedErrors(DatabaseErrorWrapper):
    """Django's translation of a driver's errors into its own, except that one question is decided by state."""

    def __init__(self, wrapper: Any) -> None:
        super().__init__(wrapper)
        self._wrapper = wrapper

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, self._wrapper.Database.Error):
            return
        if is_away(error):
            self._note(error)
            raise OperationalError(*error.args).with_traceback(traceback) from error
        if isinstance(error, self._wrapper.Database.OperationalError):
            self._wrapper.errors_occurred = True
            # To SQLite it is no more than an error that there is no such table.
            said = ProgrammingError if isinstance(error, sqlite3.Error) else DatabaseError
            raise said(*error.args).with_traceback(traceback) from error
        super().__exit__(kind, error, traceback)

    def _note(self, error: BaseException) -> None:
        global refused_at
        self._wrapper.errors_occurred = True
        if _refuses_writes(error):
            refused_at = time.monotonic()
        if getattr(error, "sqlstate", None) == READ_ONLY:
            self._wrapper.is_spent = True
