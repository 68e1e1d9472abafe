"""Connections that are cut in the midst of a statement: what is known is stored all the same, over another one."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from conversations.engine import snapshot, steps
from conversations.models import Turn
from conversations.statuses import TurnStatus
from nanohost.lib.database import Tries, store_again
from tests.support import servers
from tests.support.tool_calls import EVERY_TOOL, ask
from tests.support.wait import wait_until
from tests.support.working import advance
from tools import calls, gate
from tools.models import CallStatus, ToolCall

pytestmark = [
    pytest.mark.production(reason="there is no connection to cut"),
    pytest.mark.django_db(transaction=True),
]


class Outsider:
    """Somebody with a connection of their own, who holds locks and cuts whoever waits for them."""

    def __init__(self) -> None:
        self._server = servers.connect(connection.settings_dict["NAME"])

    def hold(self, statement: str, *given: object) -> None:
        self._server.execute("BEGIN")
        self._server.execute(statement, given)

    def cut_who_waits(self) -> None:
        """End the session that waits for our lock, then let go of it."""
        waits = "SELECT pid FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        try:
            wait_until(lambda: self._server.execute(waits).fetchone())
            for (pid,) in self._server.execute(waits).fetchall():
                self._server.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        finally:
            self._server.execute("ROLLBACK")

    def while_it_runs(self, run: Callable[[], object]) -> None:
        """Run this in a thread of its own, and cut it where it waits for us."""

        def alone() -> None:
            try:
                run()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(alone)
            self.cut_who_waits()
            running.result(timeout=60)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def outsider() -> Iterator[Outsider]:
    made = Outsider()
    yield made
    made.close()


def before_first(do: Callable[[], object], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, before whose first call this is done."""
    done: list[object] = []

    def call(*args: Any, **options: Any) -> Any:
        if not done:
            done.append(do())
        return function(*args, **options)

    return call


@pytest.fixture
def append_line(tool_settings, effects) -> ToolCall:
    tool_settings("append_line", grants=["FS_WRITE"])
    return ask("append_line", path=str(effects), line="one")


def run(call: ToolCall, then: Callable[[ToolCall], None] = lambda ended: None) -> None:
    gate.run(call.pk, agent_tools=lambda _: EVERY_TOOL, worker="worker-1", on_start=lambda _: None, then=then)


def test_an_outcome_that_is_known_outlives_the_connection_it_was_stored_over(
    append_line, outsider, effects, monkeypatch
):
    def hold() -> None:
        outsider.hold("SELECT * FROM tools_toolcall WHERE id = %s FOR UPDATE", append_line.pk)

    monkeypatch.setattr(calls, "end", before_first(hold, calls.end))
    outsider.while_it_runs(lambda: run(append_line))
    append_line.refresh_from_db()
    assert (append_line.status, append_line.result) == (CallStatus.SUCCESS, "appended one")
    assert effects.read_text() == "one\n"


def test_what_one_statement_stores_outlives_the_connection_too(append_line, outsider):
    """No transaction's end closes the connection that was cut."""

    def store() -> None:
        ToolCall.objects.filter(pk=append_line.pk).update(result="stored")

    outsider.hold("SELECT * FROM tools_toolcall WHERE id = %s FOR UPDATE", append_line.pk)
    tries = Tries("one statement", seconds=30)
    outsider.while_it_runs(lambda: store_again(tries, store, stopping=threading.Event()))
    append_line.refresh_from_db()
    assert append_line.result == "stored"


def test_a_call_that_never_began_goes_back_over_another_connection(append_line, outsider, effects, monkeypatch):
    def hold() -> None:
        outsider.hold("LOCK TABLE tools_toolsetting IN ACCESS EXCLUSIVE MODE")

    monkeypatch.setattr(gate, "admit", before_first(hold, gate.admit))
    outsider.while_it_runs(lambda: run(append_line))
    append_line.refresh_from_db()
    assert (append_line.status, append_line.attempts, effects.exists()) == (CallStatus.QUEUED, 0, False)


def test_an_outcome_whose_commit_went_unheard_is_not_taken_for_somebody_elses(append_line, monkeypatch):
    end, told = calls.end, []

    def lose_the_answer(*args: Any, **options: Any) -> None:
        end(*args, **options)
        if not told:
            told.append("lost")
            raise OperationalError("the connection is lost")

    monkeypatch.setattr(calls, "end", lose_the_answer)
    run(append_line, then=lambda ended: told.append(ended.status))
    assert told == ["lost", CallStatus.SUCCESS]


def test_an_answer_that_is_known_outlives_the_connection_it_was_stored_over(say, outsider, monkeypatch):
    turn = say("Hello")

    def hold() -> None:
        outsider.hold("SELECT * FROM conversations_conversation FOR UPDATE")

    monkeypatch.setattr(steps, "finish", before_first(hold, steps.finish))
    outsider.while_it_runs(lambda: advance(turn))
    turn.refresh_from_db()
    assert (turn.status, turn.fence, turn.retries, turn.model_calls) == (TurnStatus.SUCCEEDED, 1, 0, 1)


def test_a_turn_that_cannot_be_looked_at_goes_on_when_it_can(say, outsider, monkeypatch):
    """Nothing went wrong with it: it is neither failed nor rescheduled, and its lease need not run out."""
    turn = say("Hello")

    def hold() -> None:
        outsider.hold("LOCK TABLE agent_agent, tools_toolsetting IN ACCESS EXCLUSIVE MODE")

    monkeypatch.setattr(snapshot, "load", before_first(hold, snapshot.load))
    outsider.while_it_runs(lambda: advance(turn))
    turn = Turn.objects.get()
    assert (turn.status, turn.fence, turn.retries) == (TurnStatus.SUCCEEDED, 1, 0)
