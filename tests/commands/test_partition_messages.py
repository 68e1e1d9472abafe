"""``manage.py partition_messages``: the same host, whose messages are in parts."""

import uuid

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from conversations.models import Message, Worker
from nanohost.lib.postgresql.partitioning import CannotBePartitioned, partition_by_hash
from tests.support import servers
from tests.support.api_client import chat, start
from tests.support.hosts import Host

TABLE = Message._meta.db_table

on_postgresql = pytest.mark.production(reason="SQLite has no tables in parts")


DESCRIBED = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = %(table)s::text::regclass AND conparentid = 0 AND contype <> 'n'
UNION ALL
SELECT indexname, replace(indexdef, ' ON ONLY ', ' ON ') FROM pg_indexes WHERE tablename = %(table)s::text
UNION ALL
SELECT grantee, string_agg(privilege_type, ', ' ORDER BY privilege_type)
FROM information_schema.role_table_grants WHERE table_name = %(table)s::text GROUP BY grantee
"""
TWICE = f"""
INSERT INTO {TABLE} SELECT (jsonb_populate_record(null::{TABLE}, to_jsonb(m) || jsonb_build_object('id', %s::text))).*
FROM {TABLE} m LIMIT 1
"""


def described(database: psycopg.Connection) -> dict[str, str]:
    """The table's constraints and indexes, and who may do what with it."""
    return dict(database.execute(DESCRIBED, {"table": TABLE}).fetchall())


@on_postgresql
def test_a_host_goes_on_with_all_it_had(tmp_path):
    host = Host(tmp_path)
    with host.start().client() as client:
        conversation = start(client)
        for number in range(3):
            assert chat(client, conversation, f"Number {number}").status_code == 200
        others = [start(client) for _ in range(5)]
        for other in others:
            chat(client, other, "Hello")
        before = client.get(f"/conversations/{conversation}/messages").json()
    assert "Stop the workers first" in host.manage("partition_messages").stderr
    host.stop()
    with psycopg.connect(servers.url_of(servers.database_of(tmp_path)), autocommit=True) as database:
        database.execute(f"GRANT SELECT ON {TABLE} TO PUBLIC")
        expected = described(database)
        done = host.manage("partition_messages", "--parts", "4")
        assert done.stdout.startswith("16 messages are in 4 parts."), done.stderr
        now = described(database)
        changed = {name for name in expected.keys() | now.keys() if expected.get(name) != now.get(name)}
        assert changed == {f"{TABLE}_pkey"}, "which has the conversation as well"
        (parts,) = database.execute(f"SELECT count(DISTINCT tableoid) FROM {TABLE}").fetchone()
        assert parts > 1
        with pytest.raises(psycopg.errors.UniqueViolation, match="conversation_id, seq"):
            database.execute(TWICE, [uuid.uuid4()])
    assert "is partitioned already" in host.manage("partition_messages").stderr
    assert host.manage("migrate", "--check").returncode == 0
    with host.start().client() as client:
        assert chat(client, conversation, "Number 3").status_code == 200
        after = client.get(f"/conversations/{conversation}/messages").json()
        assert after["results"][: len(before["results"])] == before["results"]
        assert len(after["results"]) == len(before["results"]) + 2
        assert client.delete(f"/conversations/{others[0]}").status_code in (200, 204)
    host.stop()


@on_postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE TABLE others (message uuid REFERENCES {table} (id))", "others_message_fkey"),
        ("ALTER TABLE {table} ADD CONSTRAINT one_alone UNIQUE (id, seq)", "one_alone"),
        ("CREATE UNIQUE INDEX one_index ON {table} (id)", "one_index"),
    ],
)
def test_what_stands_against_it_is_said_and_nothing_is_done(say, statement, reason):
    say("Hello")
    undo = {"others": "DROP TABLE others", "one_alone": f"ALTER TABLE {TABLE} DROP CONSTRAINT one_alone"}
    with connection.cursor() as cursor:
        cursor.execute(statement.format(table=TABLE))
        try:
            with pytest.raises(CannotBePartitioned, match=reason):
                partition_by_hash(TABLE, "conversation_id", parts=2)
        finally:
            cursor.execute(
                next((undone for name, undone in undo.items() if reason.startswith(name)), "DROP INDEX one_index")
            )
    assert Message.objects.count() == 1


@on_postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("parts", ["1", "257"])
def test_a_number_of_parts_that_makes_no_sense_is_refused(parts):
    Worker.objects.all().delete()
    with pytest.raises(CommandError, match="--parts is 2 to 256"):
        call_command("partition_messages", "--parts", parts)


@pytest.mark.embedded(reason="PostgreSQL has them")
@pytest.mark.django_db
def test_sqlite_says_that_it_has_none():
    with pytest.raises(CommandError, match="SQLite"):
        call_command("partition_messages")
