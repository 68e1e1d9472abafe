"""Django's PostgreSQL backend with a check of pooled connections that costs no round trip and forgives no dead one.

psycopg's own check asks the server at each use, an eighth of a worker's time in the database, and waits a second and
more between one dead connection and the next: after a server's restart a full pool keeps requests waiting for seconds.
Here the socket is asked. A server that ends a connection says so, and the kernel knows of one that no longer answers
(``tcp_user_timeout``). Only a connection that has something to say is asked in full; one that is dead is dropped, and
the next is tried at once.
"""

import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import transaction
from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

# The stubs leave out what the pool adds.
_Wrapper: Any = base.DatabaseWrapper


class DatabaseWrapper(_Wrapper):  # type: ignore[misc]
    """Django's wrapper; see the module."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        while self.pool and not _lives(connection):
            connection.close()
            self.pool.putconn(connection)
            connection = super().get_new_connection(conn_params)
        return connection

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """No statement inside may take longer; nor one that follows in the same transaction."""
        with transaction.atomic(using=self.alias, savepoint=False):
            with self.cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{max(1, round(seconds * 1000))}"])
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
