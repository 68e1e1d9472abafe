"""Conditions that servers get into while they run: each is there for the body of its ``with``, or until it returns."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import redis

from tests.faults.cluster import Cluster

Sql = Any


@contextmanager
def often(act: Callable[[], object], *, shortest: float, longest: float, rng: random.Random) -> Iterator[None]:
    """Do it again and again beside the body, so many seconds apart."""
    enough = threading.Event()

    def go_on() -> None:
        while not enough.wait(rng.uniform(shortest, longest)):
            with suppress(psycopg.Error, redis.RedisError):
                act()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


# --- PostgreSQL ------------------------------------------------------------------------------------------------------

_OTHERS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"


def end_sessions(cluster: Cluster) -> None:
    """All sessions are cut, as by an administrator."""
    with cluster.postgresql.connect() as database:
        database.execute(f"SELECT pg_terminate_backend(pid) {_OTHERS}")


def cancel_statements(cluster: Cluster) -> None:
    """All that is being carried out is cancelled, by the code that a tiny statement_timeout has."""
    with cluster.postgresql.connect() as database:
        database.execute(f"SELECT pg_cancel_backend(pid) {_OTHERS} AND state = 'active'")


@contextmanager
def locked(cluster: Cluster, *statements: Sql) -> Iterator[None]:
    """Somebody holds locks in a transaction that does not end."""
    with cluster.postgresql.connect() as database, database.transaction():
        for statement in statements:
            database.execute(statement)
        yield


@contextmanager
def read_only(cluster: Cluster) -> Iterator[None]:
    """Each transaction is read-only, as on a primary that was demoted: SQLSTATE 25006."""
    with cluster.postgresql.connect() as database:
        database.execute("SET default_transaction_read_only = off")
        database.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        database.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            database.execute("ALTER SYSTEM RESET default_transaction_read_only")
            database.execute("SELECT pg_reload_conf()")


_WRITTEN = ("conversations_conversation", "conversations_turn", "conversations_message", "tools_toolcall")


@contextmanager
def disk_full(cluster: Cluster) -> Iterator[None]:
    """Whatever is written is answered as by a server whose disk is full: SQLSTATE 53100. Reading goes on."""
    with cluster.postgresql.connect() as database:
        database.execute(
            "CREATE OR REPLACE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION"
            " 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"
        )
        with database.transaction():
            for table in _WRITTEN:
                database.execute(
                    f"CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {table}"
                    " FOR EACH STATEMENT EXECUTE FUNCTION disk_is_full()"
                )
        try:
            yield
        finally:
            with database.transaction():
                for table in _WRITTEN:
                    database.execute(f"DROP TRIGGER full_disk ON {table}")


# --- Redis -----------------------------------------------------------------------------------------------------------


@contextmanager
def redis_full(cluster: Cluster) -> Iterator[None]:
    """It takes nothing more: OOM."""
    with cluster.redis.connect() as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextmanager
def redis_demoted(cluster: Cluster) -> Iterator[None]:
    """It is a replica of nobody's: READONLY."""
    with cluster.redis.connect() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "9")
        try:
            yield
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def redis_password_changed(cluster: Cluster) -> Iterator[None]:
    """Nobody knows its password any more, and all connections are cut: NOAUTH."""
    with cluster.redis.connect() as client:
        client.config_set("requirepass", "changed")
        client.execute_command("AUTH", "changed")
        client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
        client.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
        try:
            yield
        finally:
            client.config_set("requirepass", "")


def flush_with_scripts(cluster: Cluster) -> None:
    """It forgets all it held, and the scripts that it was given."""
    with cluster.redis.connect() as client:
        client.script_flush()
        client.flushall()


JUNK = (
    b"junk",
    b"\xff\xfe\x00",
    b"",
    b"null",
    b"[]",
    b"{}",
    b"[" * 50_000,
    b'{"body": 7, "headers": 7, "properties": 7}',
    b'{"body": "!", "content-encoding": "utf-8", "content-type": "application/json", "headers": {"id": "1",'
    b' "task": "nothing.like.it"}, "properties": {"delivery_tag": "1", "body_encoding": "base64",'
    b' "delivery_info": {"exchange": "", "routing_key": "turns"}}}',
)


def put_junk(cluster: Cluster) -> None:
    """Somebody else writes to the queues."""
    with cluster.redis.connect() as client:
        for queue in ("turns", "tools", "compaction", "deliveries", "listeners", "replays"):
            client.lpush(queue, *JUNK)


def url_of(cluster: Cluster, name: str) -> str:
    """Of another database of the same server."""
    return f"{cluster.postgresql.url.rpartition('/')[0]}/{name}"


def connect_to(cluster: Cluster, name: str) -> Any:
    """A connection of the judge's, to another database of the same server."""
    return psycopg.connect(url_of(cluster, name), autocommit=True, row_factory=psycopg.rows.dict_row)


def wait_out(seconds: float) -> None:
    """What is tested is that it lasts."""
    time.sleep(seconds)
