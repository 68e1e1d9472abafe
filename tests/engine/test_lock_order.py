"""Locks are taken in the order conversation, turn, call by whatever ends a turn: no two of them wait for each other."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.llm.base import Completion, tool_call
from conversations.engine import lease, snapshot, steps, turn_control
from conversations.engine.results import answers_of
from conversations.models import Turn
from tools.models import CallStatus, ToolCall

pytestmark = [
    pytest.mark.production(reason="SQLite has one lock"),
    pytest.mark.django_db(transaction=True),
]
ORDER = ("conversations_conversation", "conversations_turn", "tools_toolcall")
ANSWER = Completion(content="Hello.")
ASKS_FOR_TIME = Completion(tool_calls=(tool_call("call_1", "time", "{}"),))


def locked_by(do) -> list[str]:
    """The tables in which this locks rows, in the order of their first locks."""
    with CaptureQueriesContext(connection) as captured:
        do()
    statements = [query["sql"] for query in captured.captured_queries]
    locking = [sql for sql in statements if sql.startswith(("UPDATE", "DELETE")) or "FOR UPDATE" in sql]
    return list(dict.fromkeys(filter(None, map(_table_of, locking))))


def _table_of(sql: str) -> str:
    """The one whose rows a statement locks, if it is one of these."""
    whole = sql.split("WHERE")[0]
    named = whole.split('"')[1:2] if sql.startswith(("UPDATE", "DELETE")) else whole.split('"')
    return next((table for table in ORDER if table in named), "")


@pytest.fixture
def waiting_turn(say, tool_settings) -> Turn:
    """One that waits for a call."""
    tool_settings("time")
    turn = say("What time is it?")
    assert steps.store_calls(lease.claim(turn.pk, worker="worker-1"), ASKS_FOR_TIME, limit=None)
    return turn


@pytest.fixture
def held(waiting_turn) -> lease.Claim:
    """The same, held, with a call that is still open."""
    ToolCall.objects.update(status=CallStatus.SUCCESS)
    held = lease.claim(waiting_turn.pk, worker="worker-2")
    ToolCall.objects.update(status=CallStatus.RUNNING)
    assert held is not None
    return held


@pytest.mark.parametrize(
    "end",
    [
        lambda turn: turn_control.cancel_turn(turn),
        lambda turn: turn_control.fail_turn(turn, reason="as asked"),
        lambda turn: turn_control.delete_conversation(turn.conversation_id),
        lambda turn: turn_control.end_restored(),
    ],
    ids=["cancel", "fail", "delete", "restored"],
)
def test_whoever_ends_a_turn_from_outside(waiting_turn, end):
    assert locked_by(lambda: end(waiting_turn)) == list(ORDER)


def test_the_worker_that_fails_its_turn(held):
    assert locked_by(lambda: steps.fail(held, code="turn_error")) == list(ORDER)


def test_the_worker_that_cancels_its_turn(held):
    Turn.objects.update(cancel_requested=True)
    assert locked_by(lambda: steps.cancel_if_asked(held)) == list(ORDER)


def test_the_worker_that_finishes_its_turn(held):
    assert locked_by(lambda: steps.finish(held, ANSWER, reply="Hello.")) == list(ORDER[:2])


def test_the_worker_that_claims_a_turn_with_the_answers_to_its_calls(waiting_turn):
    ToolCall.objects.update(status=CallStatus.SUCCESS)

    def claim() -> None:
        assert lease.claim(waiting_turn.pk, worker="worker-2", answers_of=answers_of)

    assert locked_by(claim) == list(ORDER[:2])
    assert waiting_turn.messages.filter(role="tool").exists()


def test_the_worker_that_stores_results(held):
    view = snapshot.load(held)
    assert locked_by(lambda: steps.store_results(held, view)) == list(ORDER[:2])
