"""Statements that are written once do what the ORM does, in either database, with other values each time."""

import asyncio
import importlib
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django import conf
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql import psycopg_any
from django.db.models import DurationField, F, IntegerField, Subquery
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agent.models import Agent
from agent.spending.models import Budget, BudgetPeriod, Reservation
from conversations.kinds import KINDS
from conversations.models import Conversation, Message, Turn
from nanohost.lib import lease
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from nanohost.lib.statements import Delete, Given, Insert, Rows, Statement, Update
from tests.support.sources import product_modules

pytestmark = pytest.mark.django_db


def test_rows_are_those_of_the_values_that_are_given(agent):
    rows = Rows(lambda: Agent.objects.filter(name=Given("name")))
    Agent.objects.create(name="other", tools=["time"], every_tool=True)
    for name in ("other", "default", "other"):
        (agent,) = rows(name=name)
        assert vars(agent).keys() == vars(Agent.objects.get(name=name)).keys()
        assert agent == Agent.objects.get(name=name)
        assert (agent.tools, agent.created_at) == (
            Agent.objects.get(name=name).tools,
            Agent.objects.get(name=name).created_at,
        )
    assert rows(name="nobody") == []


def test_related_rows_and_annotations_come_along(conversation):
    rows = Rows(
        lambda: Conversation.objects.select_related("agent").annotate(next=F("next_seq") + 1).filter(pk=Given("id"))
    )
    (found,) = rows(id=conversation.pk)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert (found.agent.name, found.next) == ("default", 2)
    assert len(asked) == 0


def test_rows_are_made_as_django_makes_them(conversation):
    rows = Rows(lambda: Conversation.objects.select_related("agent").filter(pk=Given("id")))
    some = Rows(lambda: Agent.objects.only("name").filter(pk=Given("id")))
    for found, made in (
        (rows(id=conversation.pk)[0], Conversation.objects.get(pk=conversation.pk)),
        (rows(id=conversation.pk)[0].agent, Agent.objects.get(pk=conversation.agent_id)),
        (some(id=conversation.agent_id)[0], Agent.objects.only("name").get(pk=conversation.agent_id)),
    ):
        assert vars(found) | {"_state": None} == vars(made) | {"_state": None}
        state, as_made = vars(found)["_state"], vars(made)["_state"]
        assert (state.adding, state.db) == (as_made.adding, as_made.db)
    assert some(id=conversation.agent_id)[0].tools == conversation.agent.tools, "read when it is asked for"


def test_whoever_listens_to_how_rows_are_made_is_told(agent):
    told: list[Any] = []

    def listen(sender: Any, instance: Any, **_: Any) -> None:
        told.append(instance)

    rows = Rows(lambda: Agent.objects.filter(name=Given("name")))
    post_init.connect(listen, sender=Agent)
    try:
        assert rows(name="default") == told == [agent]
    finally:
        post_init.disconnect(listen, sender=Agent)


def test_values_are_converted_as_the_orm_converts_them(say):
    turn = say("Hello")
    rows = Rows(lambda: Turn.objects.filter(pk=Given("id")).values_list("pk", "created_at", "cancel_requested"))
    assert rows(id=turn.pk) == [Turn.objects.values_list("pk", "created_at", "cancel_requested").get(pk=turn.pk)]
    ids = Rows(lambda: Turn.objects.filter(created_at__lte=Given("now")).values_list("pk", flat=True))
    assert ids(now=timezone.now()) == [turn.pk]
    assert ids(now=timezone.now() - timedelta(days=1)) == []


JSON = ([], {}, None, "", 0, 1.5, True, "null", [None], {"a": [{"b": "\u00e9\u2028"}]}, [[]], "[]", "{}")


def test_json_is_read_as_the_orm_reads_it(say):
    turn = say("Hello")
    of_turn = Rows(lambda: Turn.objects.filter(pk=Given("id")).values_list("sent", "created_at", "ended_at", "options"))
    for value in JSON:
        Turn.objects.filter(pk=turn.pk).update(sent=value, ended_at=timezone.now())
        (row,) = of_turn(id=turn.pk)
        assert row == Turn.objects.values_list("sent", "created_at", "ended_at", "options").get(pk=turn.pk)
    Turn.objects.filter(pk=turn.pk).update(sent=[])
    ((one, *_),) = of_turn(id=turn.pk)
    one.append("mine")
    ((another, *_),) = of_turn(id=turn.pk)
    assert another == [], "each has its own"


@pytest.mark.embedded(reason="PostgreSQL takes nothing that is no JSON")
def test_what_a_hand_has_left_in_the_place_of_json_is_read_as_it_stands(say):
    turn = say("Hello")
    of_turn = Rows(lambda: Turn.objects.filter(pk=Given("id")).values_list("sent", flat=True))
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        cursor.execute("UPDATE conversations_turn SET sent = '[broken' WHERE id = %s", [turn.pk.hex])
        cursor.execute("PRAGMA ignore_check_constraints = OFF")
    assert of_turn(id=turn.pk) == ["[broken"] == list(Turn.objects.filter(pk=turn.pk).values_list("sent", flat=True))


@pytest.mark.production(reason="SQLite's cursors keep the list")
def test_no_list_of_columns_is_made_of_a_statement(agent, monkeypatch):
    rows = Rows(lambda: Agent.objects.filter(name=Given("name")))
    count = Update(lambda: Agent.objects.filter(name=Given("name")), lambda: {"tools": Given("tools")})
    returning = Update(
        lambda: Agent.objects.filter(name=Given("name")), lambda: {"is_public": True}, returning=("name",)
    )

    def refuse(cursor):
        raise AssertionError("psycopg makes it anew each time")

    monkeypatch.setattr(psycopg.Cursor, "description", property(refuse))
    assert [each.name for each in rows(name=agent.name)] == [agent.name]
    assert count(name=agent.name, tools=["time"]) == 1
    assert returning(name=agent.name) == [(agent.name,)]


@pytest.mark.production(reason="SQLite's driver gives texts")
def test_times_are_read_by_the_driver_itself(agent, monkeypatch):
    monkeypatch.setattr(psycopg_any.BaseTzLoader, "load", None)
    times = Rows(lambda: Agent.objects.filter(name=Given("name")).values_list("created_at", flat=True))
    assert times(name="default") == [agent.created_at]


def test_an_update_tells_how_many_it_changed_or_what_they_are_then(say):
    turn = say("Hello")
    change = Update(
        lambda: Turn.objects.filter(pk=Given("id")),
        lambda: {
            "fence": F("fence") + Given("more", IntegerField()),
            "lease_until": from_now(Given("lease", DurationField())),
            "worker": Given("worker"),
        },
    )
    assert change(id=turn.pk, more=2, lease=timedelta(hours=1), worker="one") == 1
    assert change(id=new_id(), more=2, lease=timedelta(hours=1), worker="one") == 0
    assert change(id=turn.pk, more=3, lease=timedelta(minutes=90), worker='it\'s %s \\ "two"') == 1
    turn.refresh_from_db()
    assert (turn.fence, turn.worker) == (5, 'it\'s %s \\ "two"')
    assert timedelta(minutes=85) < turn.lease_until - timezone.now() < timedelta(minutes=95)

    returning = Update(
        lambda: Turn.objects.filter(pk=Given("id")), lambda: {"fence": F("fence") + 1}, returning=("id", "fence")
    )
    assert returning(id=turn.pk) == [(turn.pk, 6)]
    assert returning(id=new_id()) == []


def test_an_update_returns_also_what_it_finds_in_other_rows(say):
    turn, other = say("Hello"), say("Hello again")
    update = Update(
        lambda: Turn.objects.filter(pk=Given("id")),
        lambda: {"worker": Given("worker")},
        returning=("worker",),
        returning_also=lambda: Subquery(Turn.objects.filter(number=Given("number")).values("pk")),
    )
    assert update(id=turn.pk, worker="one", number=other.number) == [("one", other.pk)]
    assert update(id=turn.pk, worker="two", number=99) == [("two", None)]
    assert update(id=new_id(), worker="one", number=other.number) == []
    with pytest.raises(TypeError, match="behind fields"):
        Update(Turn.objects.all, dict, returning_also=lambda: Subquery(Turn.objects.values("pk")))


def test_a_deletion_tells_how_many_it_deleted_and_leaves_alone_what_others_refer_to():
    budget = Budget.objects.create(name="house", whose="host", measure="tokens", every="day", amount=1)
    period = BudgetPeriod.objects.create(budget=budget, start=timezone.localdate())
    whose = {"period": period, "amount": 1, "lease_until": timezone.now(), "conversation_id": new_id()}
    calls = [Reservation.objects.create(call_id=new_id(), work_id=new_id(), **whose).call_id for _ in range(2)]
    delete = Delete(lambda: Reservation.objects.filter(call_id=Given("call_id")))
    assert [delete(call_id=calls[0]), delete(call_id=calls[0])] == [1, 0]
    assert list(Reservation.objects.values_list("call_id", flat=True)) == [calls[1]]
    with pytest.raises(TypeError, match="with rows of BudgetPeriod others are deleted"):
        Delete(lambda: BudgetPeriod.objects.filter(pk=Given("pk")))(pk=period.pk)
    assert BudgetPeriod.objects.count() == 1


def test_an_insert_makes_the_row_that_the_orm_would(conversation):
    insert = Insert(
        Message,
        "id",
        "conversation_id",
        "turn_id",
        "seq",
        "content",
        "tool_calls",
        "created_at",
        role=Message.Role.USER,
    )
    given = {
        "conversation_id": conversation.pk,
        "turn_id": None,
        "content": '%s, it\'s \\ "so" Grüße',
        "tool_calls": [{"id": "call", "n": None}],
        "created_at": timezone.now(),
    }
    first, second = new_id(), new_id()
    insert(id=first, seq=1, **given)
    insert(id=second, seq=2, **given | {"tool_calls": None})
    row = Message.objects.get(pk=first)
    assert {name: getattr(row, name) for name in given} == given
    assert (row.role, row.type, row.tool_name) == ("user", "NORMAL", "")
    assert list(Message.objects.filter(tool_calls__isnull=True).values_list("pk", flat=True)) == [second]
    with pytest.raises(IntegrityError):
        insert(id=new_id(), seq=2, **given)


def test_many_rows_are_inserted_by_one_statement(conversation):
    insert = Insert(Message, "id", "seq", "content", "created_at", conversation_id=conversation.pk, role="user")
    given = [{"id": new_id(), "seq": seq, "content": f"%s {seq}", "created_at": timezone.now()} for seq in (1, 2, 3)]
    with CaptureQueriesContext(connection) as asked:
        insert.many(given)
    assert len(asked) == 1
    assert list(Message.objects.order_by("seq").values("id", "seq", "content", "created_at")) == given


def test_an_insert_that_would_freeze_a_value_is_refused(conversation):
    """A default that is called, such as a new id or the time, would be the same in every row."""
    given = {"conversation_id": conversation.pk, "turn_id": None, "content": "", "created_at": timezone.now()}
    with pytest.raises(TypeError, match="id of a Message has another value each time"):
        Insert(Message, *given, role="user")(**given)
    with pytest.raises(TypeError, match="created_at of a Message has another value each time"):
        Insert(Message, "id", role="user")(id=new_id())
    with pytest.raises(TypeError, match="a Message has no colour"):
        Insert(Message, "id", "created_at", colour="red")(id=new_id(), created_at=Now())


def test_the_orm_writes_a_statement_once(say, monkeypatch):
    turn, written = say("Hello"), []
    rows = Rows(lambda: written.append(1) or Turn.objects.filter(pk=Given("id")))
    for _ in range(3):
        assert rows(id=turn.pk) == [turn]
    assert written == [1, 1], "and once more at the first use, to see whether it is the same each time"


@pytest.mark.parametrize(
    "statement",
    [
        Rows(lambda: Turn.objects.filter(created_at__lte=timezone.now())),
        Rows(lambda: Turn.objects.filter(pk=new_id())),
        Update(lambda: Turn.objects.filter(pk=Given("id")), lambda: {"deadline": timezone.now()}),
    ],
    ids=["a time", "an id", "a time that is stored"],
)
def test_what_has_another_value_each_time_is_refused(statement):
    for _ in range(2):
        with pytest.raises(TypeError, match="give it"):
            statement(id=new_id())


# --- every statement there is ------------------------------------------------------------------------------------


# Sign-in by OpenID Connect: it needs apps that are there where the settings name a provider; it has no rows of ours.
WITH_A_PROVIDER_ONLY = {"nanohost.console.single_sign_on"}


def statements_of_the_product() -> dict[str, Statement]:
    """Those that modules have, by module and name; and of each kind of work, the one that sweeps look by."""
    sweeps = {f"overdue, {kind.queue}": lease.first_overdue(kind.rows.model) for kind in KINDS}
    return sweeps | {
        f"{module}.{name}": value
        for module, _ in product_modules()
        if module not in WITH_A_PROVIDER_ONLY
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, Statement)
    }


def change_every_setting(settings: Any) -> None:
    for name in filter(str.isupper, dir(conf.settings)):
        value = getattr(conf.settings, name, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            setattr(settings, name, value + 7)
    settings.TIME_ZONE = "Asia/Kathmandu"


def test_no_statement_depends_on_when_and_by_which_settings_it_is_written(settings, monkeypatch):
    there_are = statements_of_the_product()
    assert len(there_are) > 50
    before = {name: statement.written() for name, statement in there_are.items()}
    later = timezone.now() + timedelta(days=400, seconds=1)
    monkeypatch.setattr(timezone, "now", lambda: later)
    change_every_setting(settings)
    assert {name: statement.written() for name, statement in there_are.items()} == before


@pytest.mark.parametrize(
    "freezes",
    [lambda settings: timezone.localdate(), lambda settings: timedelta(seconds=settings.TURN_LEASE_SECONDS)],
    ids=["the day", "a setting"],
)
def test_one_that_depends_on_them_would_be_seen(settings, monkeypatch, freezes):
    statement = Rows(lambda: Turn.objects.filter(created_at__lte=Now() - F("model_ms") + str(freezes(settings))))
    before = statement.written()
    later = timezone.now() + timedelta(days=400)
    monkeypatch.setattr(timezone, "now", lambda: later)
    change_every_setting(settings)
    assert statement.written() != before


named = Rows(lambda: Agent.objects.filter(name=Given("name")).values_list("name", flat=True))


def test_whoever_watches_a_connection_sees_what_is_executed(agent):
    asked = []

    def note(execute, sql, params, many, context):
        asked.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        assert named(name="default") == ["default"]
    assert [params for _, params in asked] == [["default"]]
    assert named(name="default") == ["default"]
    assert len(asked) == 1


def test_nothing_is_executed_in_a_transaction_that_is_broken(agent):
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            named(name="default")
        transaction.set_rollback(False)
    assert named(name="default") == ["default"]


def test_an_event_loop_executes_nothing(agent):
    async def ask():
        return named(name="default")

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(ask())
