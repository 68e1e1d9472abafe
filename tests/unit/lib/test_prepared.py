"""Statements that are prepared below the driver's cursors: what they give is the driver's, whatever has happened."""

import contextlib
import itertools
from datetime import UTC

import psycopg
import pytest
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)
from django.db.models import TextField

from agent.models import Agent
from conversations.models import Conversation
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


def elsewhere() -> psycopg.Connection:
    """Another's connection to the same database."""
    return servers.connect(connection.settings_dict["NAME"])


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


def test_transactions_begin_and_end_where_django_begins_and_ends_them(agent):
    rename = Update(lambda: Agent.objects.filter(name="default"), lambda: {"display_name": Given("to")})

    def said() -> str:
        with elsewhere() as other:
            return str(other.execute("SELECT display_name FROM agent_agent WHERE name = 'default'").fetchone())

    connection.ensure_connection()
    before, driver = said(), connection.connection
    assert driver.autocommit
    with transaction.atomic():
        rename(to="One")
        assert (driver.autocommit, said()) == (False, before), "nobody else sees it yet"
    assert driver.autocommit
    assert "One" in said()
    transaction.set_autocommit(False)
    rename(to="Two")
    with pytest.raises(ProgrammingError):
        transaction.set_autocommit(True)  # in the midst of it
    transaction.rollback()
    transaction.set_autocommit(True)
    assert "One" in said()


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
    names = ("max_turn_tokens", "max_tool_rounds", "memory_window", "context_window")
    change = Update(lambda: Agent.objects.filter(name=Given("name")), lambda: {name: Given(name) for name in names})
    before = prepared()
    for values in itertools.product((1, 100_000, None), repeat=len(names)):
        assert change(**dict(zip(names, values, strict=True)), name="default") == 1
        agent.refresh_from_db()
        assert tuple(getattr(agent, name) for name in names) == values
    assert prepared() - before == 32, "no more are kept"


def test_a_column_may_have_the_type_of_a_value():
    either = Rows(
        lambda: Agent.objects.filter(name="default").annotate(it=Given("it", TextField())).values_list("it", flat=True)
    )
    values = [1, "one", 100_000, None, 1]
    assert [either(it=value)[0] for value in values] == values


@pytest.mark.parametrize(("like", "found"), [("%%fault", ["default"]), ("fault%%", [])])
def test_a_sign_of_percent_is_one(like, found):
    agents = Rows(lambda: Agent.objects.filter(name=Given("name")).extra(where=[f"name LIKE '{like}' AND 7 %% 2 = 1"]))
    assert [each.name for each in agents(name="default")] == found


def test_a_server_that_is_gone_is_an_outage(agent):
    by_name(name="default")
    with elsewhere() as server:
        server.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
    with pytest.raises(OperationalError):
        by_name(name="default")
    connection.close()
    assert by_name(name="default") == [agent]


MORE = [Rows(lambda name=name: Agent.objects.filter(name=Given("name")).values_list(name)) for name in ("pk", "tools")]


def test_after_others_changed_tables_each_is_there_or_is_prepared_again(agent):
    """With DROP and ALTER too, psycopg has the server forget what is prepared."""
    for statement in (by_name, *MORE):
        statement(name="default")
    for _ in range(2):
        for _ in range(5):  # then psycopg has something to be forgotten
            assert list(Agent.objects.filter(name="default")) == [agent]
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("CREATE TABLE for_a_while ()")
                cursor.execute("DROP TABLE for_a_while")
            assert MORE[1](name="default") == [agent.tools]
            assert by_name(name="default") == [agent]
    assert MORE[0](name="default") == [agent.pk]
    assert prepared() == 3


def test_those_that_the_server_was_told_to_forget_elsewhere_are_prepared_again(agent):
    """Whoever meets that may try again."""
    for statement in (by_name, MORE[0]):
        statement(name="default")
    connection.connection.pgconn.exec_(b"DEALLOCATE ALL")
    MORE[1](name="default")
    for statement in (by_name, MORE[0]):
        with pytest.raises(OperationalError, match="does not exist"):
            statement(name="default")
    assert by_name(name="default") == [agent]
    assert (MORE[0](name="default"), MORE[1](name="default")) == ([agent.pk], [agent.tools])
    assert prepared() == 3


def test_after_a_column_has_changed_its_type_whoever_tries_again_succeeds(agent):
    """As by a migration to the next version, beside which this one works."""
    by_name(name="default")
    widened, as_it_was = (
        f"ALTER TABLE agent_agent ALTER COLUMN display_name TYPE varchar({most})" for most in (81, 80)
    )
    with elsewhere() as server:
        server.execute(widened)
        try:
            with pytest.raises(OperationalError, match="cached plan"):
                by_name(name="default")
            assert by_name(name="default") == [agent]
        finally:
            connection.close()
            server.execute(as_it_was)


@pytest.mark.parametrize(
    ("setting", "error"),
    [("statement_timeout", psycopg.errors.QueryCanceled), ("lock_timeout", psycopg.errors.LockNotAvailable)],
)
def test_a_statement_that_takes_too_long_is_an_outage(agent, setting, error):
    change = Update(lambda: Agent.objects.filter(name=Given("name")), lambda: {"display_name": "Changed"})
    change(name="default")
    with connection.cursor() as cursor:
        cursor.execute(f"SET {setting} = '50ms'")
    try:
        with elsewhere() as server, server.transaction():
            server.execute("SELECT FROM agent_agent FOR UPDATE")
            with pytest.raises(OperationalError) as refused:
                change(name="default")
        assert isinstance(refused.value.__cause__, error)
    finally:
        connection.close_pool()
        connection.close()


def test_a_commit_that_is_refused_is_an_error(conversation):
    with pytest.raises(IntegrityError, match="foreign key"), transaction.atomic():
        Conversation.objects.filter(pk=conversation.pk).update(agent_id=-1)
    conversation.refresh_from_db()
    assert conversation.agent.name == "default"


def test_a_transaction_has_the_isolation_that_is_set():
    connection.ensure_connection()
    connection.connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with transaction.atomic():
        by_name(name="default")
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("serializable",)
    connection.close_pool()
