"""Django's PostgreSQL backend with a check of pooled connections that costs no round trip and forgives no dead one.

psycopg's own check asks the server at each use, an eighth of a worker's time in the database, and waits a second and
more between one dead connection and the next: after a server's restart a full pool keeps requests waiting for seconds.
Here the socket is asked. A server that ends a connection says so, and the kernel knows of one that no longer answers
(``tcp_user_timeout``). Only a connection that has something to say is asked in full; one that is dead is dropped, and
the next is tried at once. And so is one whose server takes no writes any more: it may be a primary that was demoted,
where others already work with the next.
"""

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any, cast

import psycopg
from django.db import transaction
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base
from django.db.backends.signals import connection_created
from django.utils.asyncio import async_unsafe
from django.utils.functional import cached_property
from psycopg.pq import TransactionStatus
from psycopg.types.datetime import TimestamptzLoader
from psycopg_pool import ConnectionPool
from psycopg_pool.base import AttemptWithBackoff

from nanohost.lib.outages import SortedErrors
from nanohost.lib.postgresql.prepared import NoticingCursor, Statements, commit, doubt

# The stubs leave out what the pool adds.
_Wrapper: Any = base.DatabaseWrapper


class _OftenAgain(AttemptWithBackoff):
    """Tries to connect: soon again, and at least twice a second, since somebody waits."""

    INITIAL_DELAY = 0.1
    DELAY_BACKOFF = 1.5

    def update_delay(self, now: float) -> None:
        super().update_delay(now)
        self.delay = min(self.delay, 0.5)


class EagerPool(ConnectionPool["psycopg.Connection[Any]"]):
    """psycopg's pool, which otherwise leaves a server alone for one second, then for two, and so on: those who ask for
    a connection when it is long back wait all the same, or are turned away."""

    def _add_connection(self, attempt: AttemptWithBackoff | None, growing: bool = False) -> None:
        super()._add_connection(attempt or _OftenAgain(timeout=self.reconnect_timeout), growing)


class DatabaseWrapper(_Wrapper):  # type: ignore[misc]
    """Django's wrapper; see the module."""

    # Whether its connection is to be dropped instead of being used again.
    is_spent = False
    run_commit_hooks_on_set_autocommit_on: bool  # Django's
    _has_connected = False

    @cached_property
    def wrap_database_errors(self) -> SortedErrors:
        return SortedErrors(self)

    @property
    def pool(self) -> Any:
        """As Django makes it, of another class."""
        if made := self._connection_pools.get(self.alias):  # it is asked for several times a statement
            return made
        options = self.settings_dict["OPTIONS"].get("pool")
        if self.alias != NO_DB_ALIAS and options and self.alias not in self._connection_pools:
            parameters = self.get_connection_params() | {"autocommit": True}
            made = EagerPool(kwargs=parameters, open=False, configure=self._configure_connection, **options)
            self._connection_pools.setdefault(self.alias, made)
        return super().pool

    @async_unsafe
    def connect(self) -> None:
        """As Django's, which begins with each connection that the pool lends as with a new one: it puts together how to
        connect, and has it configured. That cost as much as a statement, for each request and each step of a turn."""
        if not self._has_connected or not self.pool:
            super().connect()
            self._has_connected = True
            return
        self.in_atomic_block = self.needs_rollback = self.closed_in_transaction = self.errors_occurred = False
        self.savepoint_ids: list[Any] = []
        self.atomic_blocks: list[Any] = []
        self.run_on_commit: list[Any] = []
        self.health_check_done = True
        self.close_at = time.monotonic()  # it is given back after use
        self.connection = self._lent()
        self.autocommit = self.connection.autocommit
        if not self.autocommit:  # it was given back in a transaction
            self.set_autocommit(True)
        connection_created.send(sender=self.__class__, connection=self)

    def _lent(self) -> Any:
        self.pool.open()  # unless it is
        return self._living(self.pool.getconn())

    def _living(self, connection: Any) -> Any:
        """This connection of the pool's; if it is dead, the next that is not."""
        while not _lives(connection):
            connection.close()
            self.pool.putconn(connection)
            connection = self.pool.getconn()
        return connection

    def run(self, sql: str, parameters: Sequence[Any], returns_rows: bool) -> tuple[list[Any], int]:
        """Execute a statement that comes again and again; its rows, and how many it has read or changed."""
        connection: Any = self.connection
        try:
            statements = connection.kept_statements
        except AttributeError:
            statements = connection.kept_statements = Statements(connection)
        return cast("tuple[list[Any], int]", statements.run(sql, parameters, self._kept_cursor))

    def _kept_cursor(self) -> Any:
        cursor = self.create_cursor()
        if self.timezone is UTC:  # as is the connection's: Django's own loader, in Python, would say the same
            cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        return cursor

    def set_autocommit(self, autocommit: bool, force_begin_transaction_with_broken_autocommit: bool = False) -> None:
        """As Django's, which has psycopg ask, in twenty calls, whether a transaction goes on: each of ours begins and
        ends by it."""
        connection: Any = self.connection
        if (
            connection is None
            or self.in_atomic_block
            or self.queries_logged
            or connection.pgconn.transaction_status != TransactionStatus.IDLE
        ):
            super().set_autocommit(autocommit, force_begin_transaction_with_broken_autocommit)
            return
        connection._autocommit = self.autocommit = autocommit
        if autocommit and self.run_commit_hooks_on_set_autocommit_on:
            self.run_and_clear_commit_hooks()
            self.run_commit_hooks_on_set_autocommit_on = False

    def _commit(self) -> None:
        if self.queries_logged or self.connection is None:
            super()._commit()
        else:
            with self.wrap_database_errors:
                commit(self.connection)

    def _rollback(self) -> None:
        doubt(self.connection)
        super()._rollback()

    def refuses_writes(self) -> bool:
        """Whether the server takes no writes, as a standby, or this session; another is then made for the next."""
        with self.cursor() as cursor:
            cursor.execute("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool")
            self.is_spent |= cursor.fetchone()[0]
        return bool(self.is_spent)

    def _close(self) -> None:
        if self.is_spent and self.connection is not None:
            self.connection.close()
        if not self.autocommit:
            doubt(self.connection)  # what it is given back in the midst of is rolled back
        self.is_spent = False
        super()._close()

    def get_connection_params(self) -> dict[str, Any]:
        return {**super().get_connection_params(), "cursor_factory": NoticingCursor}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        return self._living(connection) if self.pool else connection

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """No statement inside may take longer; nor one that follows in the same transaction of the caller's. Where
        the caller has none, the database is asked for nothing until there is a statement."""
        most = f"{max(1, round(seconds * 1000))}"

        def limit() -> None:
            with self.wrap_database_errors:
                self.connection.execute("SELECT set_config('statement_timeout', %s, true)", [most])

        def each_limited(execute: Any, *statement: Any) -> Any:
            if not self.in_atomic_block:
                with transaction.atomic(using=self.alias):
                    limit()
                    return execute(*statement)
            if self.connection.info.transaction_status == TransactionStatus.IDLE:  # it begins with this statement
                limit()
            return execute(*statement)

        if self.in_atomic_block:
            self.ensure_connection()
            limit()
            yield
            return
        with self.execute_wrapper(each_limited):
            yield


def _lives(connection: "psycopg.Connection[Any]") -> bool:
    silent = select.poll()
    silent.register(connection.fileno(), select.POLLIN)
    if not silent.poll(0):
        return True
    try:
        ConnectionPool.check_connection(connection)
    except psycopg.Error:
        return False
    return True
