"""Which errors of a database mean that it is away: its server's state decides, and not the class of its driver."""

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test import Client

from conversations.models import Conversation
from nanohost.lib import outages

pytestmark = pytest.mark.django_db(transaction=True)
on_postgresql = pytest.mark.production(reason="SQLSTATEs")
on_sqlite = pytest.mark.embedded(reason="SQLite's codes")


def raised_by(*statements: str) -> DatabaseError:
    """The error of the last of these statements, on a connection that is dropped afterwards."""
    try:
        with connection.cursor() as cursor:
            for statement in statements[:-1]:
                cursor.execute(statement)
            with pytest.raises(DatabaseError) as raised:
                cursor.execute(statements[-1])
        return raised.value
    finally:
        connection.close()


def saying(sqlstate: str) -> str:
    """A statement that the server refuses with that SQLSTATE."""
    return f"DO $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = '{sqlstate}'; END $$"


@on_postgresql
@pytest.mark.parametrize(
    "sqlstate",
    [
        *("08006", "25006", "25P03", "40001", "40P01", "53000", "53100", "53200", "53300", "55P03"),
        *("57014", "57P01", "57P02", "57P03", "58000", "58030"),
    ],
)
def test_a_server_that_cannot_just_now_is_away(sqlstate):
    assert type(raised_by(saying(sqlstate))) is OperationalError


@on_postgresql
@pytest.mark.parametrize("sqlstate", ["54000", "54001", "25P02", "42P01", "42501", "55000", "XX000", "XX001", "0A000"])
def test_what_no_waiting_mends_is_a_fault(sqlstate):
    error = raised_by(saying(sqlstate))
    assert not isinstance(error, OperationalError)
    assert error.__cause__.sqlstate == sqlstate  # type: ignore[union-attr]


@on_postgresql
@pytest.mark.parametrize("sqlstate", ["25006", "53100", "58030"])
def test_who_was_refused_a_write_remembers_it_for_moments(sqlstate, monkeypatch):
    monkeypatch.setattr(outages, "refused_at", -outages.REFUSES_FOR)
    raised_by(saying("57014"))
    assert not outages.refused_lately()
    raised_by(saying(sqlstate))
    assert outages.refused_lately()
    monkeypatch.setattr(outages, "REFUSES_FOR", 0.0)
    assert not outages.refused_lately()


@on_postgresql
def test_a_session_that_may_not_write_is_not_used_again():
    """As after a primary was demoted: its sessions live on, and the next primary is elsewhere."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    with pytest.raises(OperationalError), transaction.atomic():
        Conversation.objects.update(key="anything")
    connection.close()
    Conversation.objects.update(key="anything")


@on_postgresql
def test_who_looks_whether_writes_are_taken_drops_the_session_that_takes_none():
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    assert connection.refuses_writes()  # type: ignore[attr-defined]
    connection.close()
    assert not connection.refuses_writes()  # type: ignore[attr-defined]


@on_sqlite
def test_a_full_disk_is_an_outage(monkeypatch):
    monkeypatch.setattr(outages, "refused_at", -outages.REFUSES_FOR)
    error = raised_by(
        "CREATE TEMP TABLE filler (text)",
        "PRAGMA temp.max_page_count = 2",
        "INSERT INTO filler VALUES (zeroblob(1000000))",
    )
    assert (type(error), str(error)) == (OperationalError, "database or disk is full")
    assert outages.refused_lately()
    # By reading, it would seem to be well.
    assert Client().get("/health/ready").json()["checks"]["database"] == "unavailable"
    monkeypatch.setattr(outages, "REFUSES_FOR", 0.0)
    assert Client().get("/health/ready").json()["checks"]["database"] == "ok"


@on_sqlite
def test_a_file_that_may_not_be_written_is_an_outage():
    error = raised_by("PRAGMA query_only = ON", "DELETE FROM conversations_message")
    assert (type(error), str(error)) == (OperationalError, "attempt to write a readonly database")


@on_sqlite
def test_a_statement_that_makes_no_sense_is_a_fault():
    error = raised_by("SELECT * FROM no_such_table")
    assert not isinstance(error, OperationalError)
