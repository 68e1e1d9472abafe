"""How many statements a turn costs: the same at its first message and at its two-thousandth."""

import json
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agent.llm.base import Completion, tool_call
from agent.spending import book
from conversations.channels import accounts
from conversations.deliveries import endpoints
from conversations.engine import inbox, steps
from conversations.engine.turns import claim_and_load
from conversations.models import Conversation, Message, Turn
from nanohost.accounts.models import WIDE, ApiKey
from tests.support.hosts import KEY
from tools import calls, gate
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def chat(owner, conversation, tool_settings, monkeypatch) -> Callable[[], Turn]:
    """A message that comes by HTTP; returns its turn."""
    tool_settings("time")
    monkeypatch.setattr(book, "FRESH_SECONDS", 3600)  # else it is read once a second
    ApiKey.objects.register(KEY, owner=owner, **WIDE).note_use()  # which it does once a minute
    client = Client(headers={"Authorization": f"Bearer {KEY}"})

    def post() -> Turn:
        address = f"/api/v1/conversations/{conversation.pk}/turns"
        answer = client.post(address, json.dumps({"message": "Hello"}), content_type="application/json")
        assert answer.status_code == 202, answer.content
        return Turn.objects.get(pk=answer.json()["turnId"])

    return post


def statements(do: Callable[[], object]) -> list[str]:
    """What is asked of the database, without what begins and ends transactions, or is asked once a second."""
    endpoints.wanted()
    accounts.names()
    with CaptureQueriesContext(connection) as asked:
        do()
    every = [query["sql"] for query in asked.captured_queries]
    return [sql for sql in every if not sql.startswith(("SAVEPOINT", "RELEASE", "BEGIN", "COMMIT"))]


def echo(chat: Callable[[], Turn]) -> dict[str, int]:
    """Statements of each part of a turn that only speaks."""
    made: list[Turn] = []
    spent = {"receive": len(statements(lambda: made.append(chat()))) - 1}  # the last one is this test's own
    taken = []
    spent["take"] = len(statements(lambda: taken.append(claim_and_load(made[0].pk, worker="worker"))))
    claim, _ = taken[0]
    finish = lambda: steps.finish(claim, Completion(content="Hi"), reply="Hi", has_called=False)  # noqa: E731 -- shorter than a function
    return spent | {"finish": len(statements(finish))}


def with_tool(chat: Callable[[], Turn]) -> dict[str, int]:
    """Statements of each part of a turn that calls a tool."""
    turn = chat()
    claim, _ = claim_and_load(turn.pk, worker="worker")
    asks = Completion(tool_calls=(tool_call("call", "time", "{}"),))
    spent = {"store_calls": len(statements(lambda: steps.store_calls(claim, asks, limit=None)))}
    call = ToolCall.objects.get(turn_id=turn.pk)
    run = lambda: gate.run(  # noqa: E731 -- shorter than a function
        call.pk,
        agent_tools=lambda _: turn.conversation.agent.allowed_tools(),
        worker="worker",
        on_start=lambda _: None,
        then=lambda _: None,
    )
    spent["run"] = len(statements(run))
    call.refresh_from_db()
    assert call.status == "SUCCESS"
    taken = []
    spent["answer"] = len(statements(lambda: taken.append(claim_and_load(turn.pk, worker="worker"))))
    claim, _ = taken[0]
    finish = lambda: steps.finish(claim, Completion(content="Noon"), reply="Noon")  # noqa: E731 -- shorter than a function
    return spent | {"finish": len(statements(finish))}


def fill(conversation: Conversation, messages: int) -> None:
    """As many messages before those to come."""
    first = Conversation.objects.get(pk=conversation.pk).next_seq
    Message.objects.bulk_create(
        Message(conversation=conversation, seq=first + number, role=role, content="words")
        for number, role in enumerate(("user", "assistant") * (messages // 2))
    )
    Conversation.objects.filter(pk=conversation.pk).update(next_seq=first + messages)


def test_a_turn_costs_as_many_statements_in_a_long_conversation_as_in_a_short_one(chat, conversation):
    with_tool(chat)  # the first one starts the tools' processes, and renews its lease meanwhile
    chat_once = echo(chat)
    tool_once = with_tool(chat)
    fill(conversation, 2000)
    echo(chat)  # reads all that came at once, once
    assert echo(chat) == chat_once == {"receive": 5, "take": 8, "finish": 3}
    assert with_tool(chat) == tool_once


def test_a_round_of_tools_costs_no_more_for_what_came_before_it(chat, conversation):
    with_tool(chat)
    assert with_tool(chat) == with_tool(chat) == {"store_calls": 6, "run": 6, "answer": 9, "finish": 4}


def test_a_call_is_claimed_by_one_statement(chat):
    claim, _ = claim_and_load(chat().pk, worker="worker")
    steps.store_calls(claim, Completion(tool_calls=(tool_call("call", "time", "{}"),)), limit=None)
    call = ToolCall.objects.get()
    with CaptureQueriesContext(connection) as asked:
        assert calls.claim(call.pk, worker="worker")
    begun = [query["sql"] for query in asked.captured_queries if query["sql"].startswith(("BEGIN", "COMMIT"))]
    # On SQLite, who writes has to wait for its turn.
    assert len(begun) == (2 if connection.vendor == "sqlite" else 0)
    assert len(asked.captured_queries) == 1 + len(begun)


@pytest.mark.production(reason="SQLite plans what it prepares once")
def test_a_turn_s_statements_are_not_planned_each_time(say, owner, conversation):
    """PostgreSQL plans a prepared statement five times by its values, and then decides whether one plan is for all."""

    def take_turns(count: int) -> None:
        for _ in range(count):
            turn = say("Hello", conversation=conversation)
            claim, _ = claim_and_load(turn.pk, worker="worker")
            steps.finish(claim, Completion(content="Hi"), reply="Hi", has_called=False)

    def planned() -> dict[str, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT statement, custom_plans FROM pg_prepared_statements WHERE name LIKE 'kept%'")
            return dict(cursor.fetchall())

    for _ in range(20):  # of a small table each plan costs next to nothing, and which one is chosen is chance
        fill(inbox.start_conversation(owner_id=owner.pk, metadata={}), 100)
    take_turns(10)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")  # as a database that has been in use is
    connection.close()
    connection.close_pool()  # what was planned before would be planned anew, and held against what it cost then
    take_turns(30)
    before = planned()
    take_turns(10)
    assert len(before) > 10
    assert [statement for statement, plans in planned().items() if plans > max(5, before.get(statement, 0))] == []
