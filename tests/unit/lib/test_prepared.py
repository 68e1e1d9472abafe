"""Statements that are prepared below the driver's cursors: what they give is the driver's, whatever has happened."""

import contextlib
from datetime import UTC

import psycopg
import pytest
from django.db import DatabaseError, DataError, IntegrityError, OperationalError, connection, transaction

from agent.models import Agent
from nanohost.lib.statements import Given, Rows, Update
from tests.support import servers

pytestmark = [
    pytest.mark.production(reason="SQLite's driver keeps what it has prepared by itself"),
    pytest.mark.django_db(transaction=True),
]

by_name = Rows(lambda: Agent.objects.filter(name=Given("name")))


@pytest.fixture(autouse=True)
def _on_a_new_connection(agent: Agent) -> None:
    connection.close()
    connection.close_pool()


def prepared() -> int:
    """How many of ours the server has prepared for this connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'kept%'")
        return int(cursor.fetchone()[0])


def test_a_statement_is_prepared_once(agent):
    for _ in range(3):
        (found,) = by_name(name="default")
        assert (found, found.created_at) == (agent, agent.created_at)
        assert found.created_at.tzinfo is UTC, "as Django's own"
    assert prepared() == 1


def test_errors_are_those_that_django_knows(agent):
    with pytest.raises(DataError), transaction.atomic():
        by_name(name="no text \x00 of a database's")
    rename = Update(lambda: Agent.objects.filter(pk=Given("pk")), lambda: {"name": Given("name")})
    other = Agent.objects.create(name="other")
    with pytest.raises(IntegrityError, match="duplicate key value") as refused, transaction.atomic():
        rename(pk=other.pk, name="default")
    assert isinstance(refused.value.__cause__, psycopg.errors.UniqueViolation)
    assert by_name(name="default") == [agent]


@pytest.mark.parametrize("queries", [0, 5])
@pytest.mark.parametrize("nested", [False, True])
def test_after_a_rollback_each_is_there_or_is_prepared_again(agent, queries, nested):
    """With a rollback psycopg has the server forget all that is prepared, if psycopg itself has prepared something."""
    by_name(name="default")
    for _ in range(3):
        with transaction.atomic() if nested else contextlib.nullcontext():
            for _ in range(queries):
                assert list(Agent.objects.filter(name="default")) == [agent]
            with contextlib.suppress(ZeroDivisionError), transaction.atomic():
                Agent.objects.update(display_name="Never")
                raise ZeroDivisionError
            with transaction.atomic():
                assert [each.display_name for each in by_name(name="default")] == [agent.display_name]
    assert prepared() == 1


def test_those_of_one_that_is_given_back_in_the_midst_of_a_transaction_are_prepared_again(agent):
    with contextlib.suppress(DatabaseError), transaction.atomic():
        for _ in range(5):  # then psycopg has something to be forgotten
            assert list(Agent.objects.filter(name="default")) == by_name(name="default")
        left = connection.connection
        connection.close()
    again = None
    while again is not left:  # the pool has a few
        connection.close()
        connection.ensure_connection()
        again = connection.connection
    assert by_name(name="default") == [agent]


def test_values_may_have_ever_other_types(agent):
    """A number's type is by its size, and NULL has none."""
    change = Update(
        lambda: Agent.objects.filter(name=Given("name")),
        lambda: {"max_turn_tokens": Given("tokens"), "max_tool_rounds": Given("rounds")},
    )
    sizes = (1, 100_000, None)
    for tokens, rounds in ((tokens, rounds) for tokens in sizes for rounds in sizes):
        assert change(tokens=tokens, rounds=rounds, name="default") == 1
        agent.refresh_from_db()
        assert (agent.max_turn_tokens, agent.max_tool_rounds) == (tokens, rounds)
    assert prepared() == 8, "no more are kept"


@pytest.mark.parametrize(("like", "found"), [("%%fault", ["default"]), ("fault%%", [])])
def test_a_sign_of_percent_is_one(like, found):
    agents = Rows(lambda: Agent.objects.filter(name=Given("name")).extra(where=[f"name LIKE '{like}' AND 7 %% 2 = 1"]))
    assert [each.name for each in agents(name="default")] == found


def test_a_server_that_is_gone_is_an_outage(agent):
    by_name(name="default")
    with servers.connect() as server:
        server.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
    with pytest.raises(OperationalError):
        by_name(name="default")
    connection.close()
    assert by_name(name="default") == [agent]


def test_one_that_the_server_has_forgotten_is_prepared_again(agent):
    by_name(name="default")
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    with pytest.raises(OperationalError, match="does not exist"):
        by_name(name="default")
    assert by_name(name="default") == [agent]


def test_who_changes_tables_prepares_none(agent):
    try:
        with connection.schema_editor():
            assert by_name(name="default") == [agent]
        assert prepared() == 0
    finally:
        del connection._alters


def test_a_transaction_has_the_isolation_that_is_set():
    connection.ensure_connection()
    connection.connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with transaction.atomic():
        by_name(name="default")
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("serializable",)
    connection.close_pool()
