"""Statements that come again and again on a connection: prepared there, and executed below psycopg's cursors.

A cursor asks at each execution for what stays the same: what the SQL is in the server's words, whether it is prepared
and under which name, how each column is read. And it waits in Python for what the C library can wait for. That is half
of what a short statement costs, and two thirds of a wide one. Values are written and read by psycopg's own adapters,
and errors are its own.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

# The types of parameters are those of their values: a number's is by its size, and that of NULL is none. So many sets
# of them are prepared for one statement.
_MAX_PREPARED = 8

_ARE_THERE = b"SELECT FROM pg_prepared_statements WHERE name LIKE 'kept\\_%' LIMIT 1"
_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_PLACEHOLDERS = re.compile("%([s%])")


class Statements:
    """Those of one connection. ``is_in_doubt``: the server may have been told to forget what is prepared there, as
    psycopg does with a rollback."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._kept: dict[str, _Prepared] = {}
        self.is_in_doubt = False

    def run(self, sql: str, parameters: Sequence[Any], cursor: Callable[[], Any]) -> tuple[list[Any], int]:
        """Execute one; its rows, and how many it has read or changed. ``cursor``: makes one, by whose adapters values
        are written and read."""
        if self.is_in_doubt:
            self._make_sure()
        statement = self._kept.get(sql)
        if statement is None:
            statement = self._kept[sql] = _Prepared(cursor(), sql, number=len(self._kept))
        try:
            return statement.run(parameters)
        except psycopg.errors.InvalidSqlStatementName as error:
            self._kept.clear()  # somebody had the server forget them: they are prepared again for whoever tries again
            raise psycopg.OperationalError(str(error)) from None

    def _make_sure(self) -> None:
        _begin(self._connection)
        if not _done(self._connection, self._connection.pgconn.exec_(_ARE_THERE)).ntuples:
            self._kept.clear()
        self.is_in_doubt = False


class _Prepared:
    """``number``: no other of the connection has it."""

    def __init__(self, cursor: Any, sql: str, *, number: int) -> None:
        self._connection = cursor.connection
        self._sql, self._number = sql, number
        self._numbered, count = _numbered(sql)
        self._formats = [PyFormat.AUTO] * count
        self._values: Any = Transformer(cursor)
        self._names: dict[tuple[int, ...], bytes] = {}
        self._can_read = False

    def run(self, parameters: Sequence[Any]) -> tuple[list[Any], int]:
        """Execute it; its rows, and how many it has read or changed."""
        connection, values = self._connection, self._values
        written = values.dump_sequence(parameters, self._formats)
        _begin(connection)
        name = self._names.get(values.types) or self._prepare(values.types)
        if not name:
            return by_cursor(connection.cursor(), self._sql, parameters)
        result = _done(connection, connection.pgconn.exec_prepared(name, written, values.formats))
        if result.status == ExecStatus.COMMAND_OK:
            return [], result.command_tuples or 0
        values.set_pgresult(result, set_loaders=not self._can_read)
        self._can_read = True
        rows = values.load_rows(0, result.ntuples, tuple)
        values.set_pgresult(None, set_loaders=False)  # it may be large, and this is kept
        return rows, result.ntuples

    def _prepare(self, types: tuple[int, ...]) -> bytes:
        """The name under which it is prepared for these types from now on; empty: there are too many others."""
        if len(self._names) >= _MAX_PREPARED:
            return b""
        name = f"kept_{self._number}_{len(self._names)}".encode()
        _done(self._connection, self._connection.pgconn.prepare(name, self._numbered, types))
        self._names[types] = name
        return name


def by_cursor(cursor: Any, sql: str, parameters: Sequence[Any]) -> tuple[list[Any], int]:
    """The same by a cursor, which is closed."""
    with cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else [], cursor.rowcount


def commit(connection: "psycopg.Connection[Any]") -> None:
    """As psycopg's, if there is something to be committed."""
    if connection.pgconn.transaction_status != TransactionStatus.IDLE:
        _done(connection, connection.pgconn.exec_(b"COMMIT"))


def _begin(connection: Any) -> None:
    """Begin a transaction where psycopg would: with the first statement, unless each is one by itself."""
    if connection.pgconn.transaction_status == TransactionStatus.IDLE and not connection.autocommit:
        level = connection.isolation_level
        how = b"" if level is None else f" ISOLATION LEVEL {level.name.replace('_', ' ')}".encode()
        _done(connection, connection.pgconn.exec_(b"BEGIN" + how))


def _done(connection: Any, result: Any) -> Any:
    if result.status in _DONE:
        return result
    if connection.pgconn.status == ConnStatus.BAD:
        raise psycopg.OperationalError(connection.pgconn.get_error_message())
    raise error_from_result(result, connection.info.encoding)


def _numbered(sql: str) -> tuple[bytes, int]:
    """The SQL with its parameters as the server knows them, ``$1`` and so on; and how many there are."""
    count = 0

    def number(found: re.Match[str]) -> str:
        nonlocal count
        if found[1] == "%":
            return "%"
        count += 1
        return f"${count}"

    return _PLACEHOLDERS.sub(number, sql).encode(), count
