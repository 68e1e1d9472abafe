"""Statements that come again and again on a connection: prepared there, and executed below psycopg's cursors.

A cursor asks at each execution for what stays the same: what the SQL is in the server's words, whether it is prepared
and under which name, how each column is read. And it waits in Python for what the C library can wait for. That is half
of what a short statement costs, and two thirds of a wide one. Values are written and read by psycopg's own adapters,
and errors are of its classes. A signal is handled once the statement has ended, which ``statement_timeout`` bounds.
"""

import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import psycopg
from django.db.backends.postgresql.base import ServerBindingCursor
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

# The types of parameters are those of their values: a number's is by its size, and that of NULL is none. At most so
# many combinations of them are prepared for a statement.
_MAX_PREPARED = 32

_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_PLACEHOLDERS = re.compile("%([s%])")
_THOSE_THERE_ARE = b"SELECT name FROM pg_prepared_statements WHERE name LIKE 'kept\\_%'"
# After these psycopg may have the server forget all that is prepared on a connection.
_MAY_FORGET = ("ROLLBACK", "ALTER", "DROP", "DISCARD", "DEALLOCATE")


# The stubs leave out what it has from psycopg's.
_Cursor: Any = ServerBindingCursor


class NoticingCursor(_Cursor):  # type: ignore[misc]
    """Django's cursor, which notices what may make the server forget our statements."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """As psycopg's."""
        executed = super().execute(*args, **kwargs)
        if (self.statusmessage or "").startswith(_MAY_FORGET):
            doubt(self.connection)
        return executed


def doubt(connection: Any) -> None:
    """Have it looked before the next statement which of ours the server still knows."""
    if statements := getattr(connection, "kept_statements", None):
        statements.is_in_doubt = True


class Statements:
    """Those of one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._kept: dict[str, _Prepared] = {}
        self._numbers = count()
        self.is_in_doubt = False

    def run(self, sql: str, parameters: Sequence[Any], cursor: Callable[[], Any]) -> tuple[list[Any], int]:
        """Execute one; its rows, and how many it has read or changed. ``cursor``: makes one, by whose adapters values
        are written and read."""
        if self.is_in_doubt:
            self._make_sure()
        statement = self._kept.get(sql)
        if statement is None:
            statement = self._kept[sql] = _Prepared(cursor(), sql, self._numbers)
        try:
            return statement.run(parameters)
        except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported) as error:
            # The server has forgotten it, or a table of it has changed. Whoever tries again has it prepared again.
            self._kept.pop(sql)
            raise psycopg.OperationalError(str(error)) from None

    def _make_sure(self) -> None:
        _begin(self._connection)
        there_are = _done(self._connection, self._connection.pgconn.exec_(_THOSE_THERE_ARE))
        names = {there_are.get_value(row, 0) for row in range(there_are.ntuples)}
        self._kept = {sql: statement for sql, statement in self._kept.items() if statement.is_among(names)}
        self.is_in_doubt = False


class _Prepared:
    """``numbers``: those that no other of the connection has had."""

    def __init__(self, cursor: Any, sql: str, numbers: "count[int]") -> None:
        self._connection = cursor.connection
        self._sql, self._numbers = sql, numbers
        self._numbered, parameters = _numbered(sql)
        self._formats = [PyFormat.AUTO] * parameters
        self._values: Any = Transformer(cursor)
        self._names: dict[tuple[int, ...], bytes] = {}
        # By the name of what was executed last: the types of its columns may be those of its parameters.
        self._can_read = b""

    def run(self, parameters: Sequence[Any]) -> tuple[list[Any], int]:
        """Execute it; its rows, and how many it has read or changed."""
        connection, values = self._connection, self._values
        written = values.dump_sequence(parameters, self._formats)
        _begin(connection)
        name = self._names.get(values.types) or self._prepare(values.types)
        if not name:
            return _by_cursor(connection.cursor(), self._sql, parameters)
        result = _done(connection, connection.pgconn.exec_prepared(name, written, values.formats))
        if result.status == ExecStatus.COMMAND_OK:
            return [], result.command_tuples or 0
        values.set_pgresult(result, set_loaders=name != self._can_read)
        self._can_read = name
        rows = values.load_rows(0, result.ntuples, tuple)
        values.set_pgresult(None, set_loaders=False)  # it may be large, and this is kept
        return rows, result.ntuples

    def is_among(self, names: set[bytes]) -> bool:
        """Whether the server knows it by all the names that it has here."""
        return names.issuperset(self._names.values())

    def _prepare(self, types: tuple[int, ...]) -> bytes:
        """The name under which it is prepared for these types from now on; empty: there are too many others."""
        if len(self._names) >= _MAX_PREPARED:
            return b""
        name = f"kept_{next(self._numbers)}".encode()
        _done(self._connection, self._connection.pgconn.prepare(name, self._numbered, types))
        self._names[types] = name
        return name


def _by_cursor(cursor: Any, sql: str, parameters: Sequence[Any]) -> tuple[list[Any], int]:
    """The same by a cursor, which is closed."""
    with cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else [], cursor.rowcount


def commit(connection: "psycopg.Connection[Any]") -> None:
    """Commit the transaction, if there is one."""
    if connection.pgconn.transaction_status != TransactionStatus.IDLE:
        _done(connection, connection.pgconn.exec_(b"COMMIT"))


def _begin(connection: Any) -> None:
    """Begin a transaction where psycopg would: with the first statement, unless each is one by itself."""
    if connection.pgconn.transaction_status != TransactionStatus.IDLE or connection.autocommit:
        return
    if connection.isolation_level is connection.read_only is connection.deferrable is None:
        _done(connection, connection.pgconn.exec_(b"BEGIN"))
    else:
        connection.execute("SELECT")  # psycopg says what kind of transaction it is


def _done(connection: Any, result: Any) -> Any:
    if result.status in _DONE:
        return result
    error = error_from_result(result, connection.info.encoding)
    if connection.pgconn.status == ConnStatus.BAD and not isinstance(error, psycopg.OperationalError):
        raise psycopg.OperationalError(str(error))
    raise error


def _numbered(sql: str) -> tuple[bytes, int]:
    """The SQL with its parameters as the server knows them, ``$1`` and so on; and how many there are."""
    numbers = count(1)
    numbered = _PLACEHOLDERS.sub(lambda found: "%" if found[1] == "%" else f"${next(numbers)}", sql)
    return numbered.encode(), next(numbers) - 1
