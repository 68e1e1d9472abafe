"""Tools that work on the database run where it is: what they change is kept with their outcome, or not at all."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.utils import timezone

from memory import log
from memory.models import HistoryEntry
from nanohost.lib.clock import from_now
from nanohost.lib.database import TookTooLong, time_limit
from tests.support.tool_calls import EVERY_TOOL, ask, run, run_in_thread
from tools import calls, gate, registry
from tools.models import CallStatus, SettingChange, ToolCall, ToolSetting
from tools.registry import Caller, tool

pytestmark = pytest.mark.django_db(transaction=True)

SLOW = {
    "postgresql": "SELECT pg_sleep(20)",
    "sqlite": "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
}


def keep(caller: Caller, text: str, then: str = "") -> str:
    """Keep a text, and then come to grief.

    Args:
        text: What is kept.
        then: In which way.
    """
    log.append(agent=caller.agent, owner_id=caller.owner_id, content=text, happened_at=timezone.now())
    if then == "explain":
        raise ValueError("Say it otherwise: password=hunter2hunter2.")
    if then == "break":
        raise KeyError("secret detail")
    if then == "violate":
        SettingChange.objects.create(pk=1, tool_name="x", before={}, after={})
        SettingChange.objects.create(pk=1, tool_name="x", before={}, after={})
    if then == "take too long":
        statement(SLOW[connection.vendor])
    if then == "go on and on":
        while True:
            statement("SELECT 1")
    return f"kept {text}"


def who(caller: Caller) -> dict[str, str]:
    """Say who calls."""
    return {name: str(value) for name, value in vars(caller).items()}


def read_slowly(caller: Caller) -> str:
    """Read for too long."""
    statement(SLOW[connection.vendor])
    return "read"


def let_others_write(caller: Caller) -> bool:
    """Say whether somebody else could write in the meantime."""

    def write() -> None:
        with transaction.atomic():
            SettingChange.objects.create(tool_name="x", before={}, after={})
        connection.close()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(5)
    return not writer.is_alive()


def say(caller: Caller, text: str, times: int) -> str:
    """Say something.

    Args:
        text: What.
        times: How often.
    """
    return text * times


def statement(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        cursor.fetchall()


@pytest.fixture(autouse=True)
def tools(monkeypatch, tool_settings):
    """These, for the time of a test, and allowed."""
    monkeypatch.setattr(registry, "_tools", dict(registry._tools))
    tool(effects="rows", timeout=0.5)(keep)
    for function in (who, let_others_write, say):
        tool(effects="read")(function)
    tool(effects="read", timeout=0.5)(read_slowly)
    for name in ("keep", "who", "let_others_write", "say", "read_slowly"):
        assert registry.get(name).schema
        tool_settings(name)


@pytest.fixture
def ask_for(owner):
    """``ask_for("keep", text="x")``, for the owner."""
    return lambda name, **arguments: ask(name, owner_id=owner.pk, **arguments)


def kept():
    return list(HistoryEntry.objects.values_list("content", flat=True))


# --- who calls ---------------------------------------------------------------------------------------------------


def test_a_tool_is_told_on_whose_behalf_it_runs(ask_for, owner):
    call = run(ask_for("who"))
    assert json.loads(call.result) == {
        "conversation_id": str(call.conversation_id),
        "turn_id": str(call.turn_id),
        "owner_id": str(owner.pk),
        "agent": "default",
        "call_id": str(call.pk),
        "request_id": "request-1",
        "tainted_by": "",
    }


@pytest.mark.parametrize("name", ["caller", "owner_id"])
def test_no_model_says_who_calls(ask_for, name, outsider):
    call = ask_for("keep", raw=json.dumps({"text": "x", name: {"owner_id": outsider.pk}}))
    assert (call.status, call.rule) == (CallStatus.REJECTED, "arguments")
    assert "unknown argument" in call.result


def test_no_other_tools_process_imports_them(tool_settings):
    tool_settings("imported")
    assert registry.get("remember").inline
    assert json.loads(run(ask("imported")).result) == ["tests.toolbox.agent_tools"]


# --- all or nothing ----------------------------------------------------------------------------------------------


def test_what_it_changes_is_kept_with_its_outcome(ask_for, caplog):
    caplog.set_level(logging.INFO, "TOOL_AUDIT")
    told, began = [], time.monotonic()
    call = run(ask_for("keep", text="one"), then=told.append)
    assert (call.status, call.rule, call.result, call.effects) == (CallStatus.SUCCESS, "", "kept one", "rows")
    assert kept() == ["one"]
    assert call.ended_at is not None
    assert 0 <= call.duration_ms <= (time.monotonic() - began) * 1000 + 1
    assert [ended.pk for ended in told] == [call.pk]
    assert [(line.tool, line.status) for line in caplog.records if line.name == "TOOL_AUDIT"] == [("keep", "SUCCESS")]


@pytest.mark.parametrize(
    ("then", "rule", "result"),
    [
        ("explain", "raised", "FAILED: Say it otherwise: password=[redacted]"),
        ("break", "raised", "FAILED: KeyError"),
        ("violate", "raised", "FAILED: IntegrityError"),
        ("take too long", "timeout", "FAILED: timed out after 0.5 s and was stopped"),
        ("go on and on", "timeout", "FAILED: timed out after 0.5 s and was stopped"),
    ],
)
def test_of_one_that_fails_nothing_is_kept(ask_for, caplog, then, rule, result):
    began = time.monotonic()
    call = run(ask_for("keep", text="one", then=then))
    assert (call.status, call.rule, call.result) == (CallStatus.FAILED, rule, result)
    assert kept() == []
    assert time.monotonic() - began < 10
    assert ("Traceback" in caplog.text) is (result in ("FAILED: KeyError", "FAILED: IntegrityError"))
    assert run(ask_for("keep", text="two")).status == CallStatus.SUCCESS  # on the same connection


def test_a_result_that_cannot_be_stored_leaves_nothing_and_runs_again(ask_for, monkeypatch):
    end, asked = calls.end, []

    def refuse_once(*args, **options):
        end(*args, **options)
        asked.append(1)
        if len(asked) == 1:
            raise OperationalError("the connection is lost")

    monkeypatch.setattr(calls, "end", refuse_once)
    call = run(ask_for("keep", text="one"))
    assert (call.status, call.attempts, kept()) == (CallStatus.QUEUED, 0, [])
    call = run(call)
    assert (call.status, kept()) == (CallStatus.SUCCESS, ["one"])


def test_an_answer_to_a_commit_that_is_lost_does_not_repeat_it(ask_for, monkeypatch):
    real = transaction.Atomic.__exit__

    def lose(self, *exception):
        real(self, *exception)
        if not connection.in_atomic_block and kept() == ["one"]:
            monkeypatch.undo()
            raise OperationalError("the connection is lost")

    monkeypatch.setattr(transaction.Atomic, "__exit__", lose)
    call = run(ask_for("keep", text="one"))
    assert (call.status, kept()) == (CallStatus.SUCCESS, ["one"])
    assert run(call).attempts == 1
    assert kept() == ["one"]


# --- ended elsewhere, taken over, crashed ------------------------------------------------------------------------


def cancel(call):
    gate.end_open([call.turn_id], rule="cancelled", reason="the turn was cancelled")


def test_what_is_cancelled_before_it_runs_keeps_nothing(ask_for):
    call = ask_for("keep", text="one")
    told = []
    gate.run(call.pk, agent_tools=lambda _: EVERY_TOOL, worker="worker-1", on_start=cancel, then=told.append)
    assert told == []
    call.refresh_from_db()
    assert (call.status, call.rule, call.result) == (CallStatus.FAILED, "cancelled", "FAILED: the turn was cancelled")
    assert kept() == []


@pytest.mark.production(reason="on SQLite nobody else writes while it runs")
def test_what_is_cancelled_while_it_runs_keeps_nothing(ask_for, monkeypatch):
    call, written, cancelled = ask_for("keep", text="one"), threading.Event(), threading.Event()
    append = log.append

    def append_and_wait(**entry):
        append(**entry)
        written.set()
        assert cancelled.wait(10)

    monkeypatch.setattr(log, "append", append_and_wait)
    ToolSetting.objects.filter(name="keep").update(timeout_seconds=10)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_in_thread, call)
        assert written.wait(10)
        cancel(call)
        cancelled.set()
        ended = running.result(timeout=20)
    assert (ended.status, ended.rule) == (CallStatus.FAILED, "cancelled")
    assert kept() == []


def test_what_another_worker_has_taken_over_keeps_nothing(ask_for):
    def take_over(call):
        ToolCall.objects.update(lease_until=from_now(-1))
        assert calls.claim(call.pk, worker="another").fence == call.fence + 1

    call = ask_for("keep", text="one")
    told = []
    gate.run(call.pk, agent_tools=lambda _: EVERY_TOOL, worker="slow", on_start=take_over, then=told.append)
    assert told == []
    call.refresh_from_db()
    assert (call.status, call.worker, kept()) == (CallStatus.RUNNING, "another", [])


def test_a_call_whose_worker_died_runs_again(ask_for, settings):
    call = ask_for("keep", text="one")
    calls.claim(call.pk, worker="dead")
    ToolCall.objects.update(lease_until=from_now(-1))
    call = run(call)
    assert (call.status, call.attempts, kept()) == (CallStatus.SUCCESS, 2, ["one"])


def test_one_that_costs_too_many_workers_fails(ask_for, settings):
    call = ask_for("keep", text="one")
    calls.claim(call.pk, worker="dead")
    ToolCall.objects.update(lease_until=from_now(-1), attempts=settings.TURN_MAX_ATTEMPTS)
    call = run(call)
    assert (call.status, call.rule, call.result) == (CallStatus.FAILED, "crashed", calls.CRASHED_RESULT)
    assert kept() == []


# --- limits ------------------------------------------------------------------------------------------------------


def test_one_that_reads_is_stopped_as_well(ask_for):
    call = run(ask_for("read_slowly"))
    assert (call.status, call.rule) == (CallStatus.FAILED, "timeout")


def test_one_that_reads_keeps_nobody_from_writing(ask_for):
    assert run(ask_for("let_others_write")).result == "true"


def test_it_ends_well_within_its_lease(ask_for, settings):
    settings.TURN_LEASE_SECONDS = 0.4
    assert "after 0.2 s" in run(ask_for("read_slowly")).result


def test_an_admins_timeout_counts(ask_for):
    ToolSetting.objects.update(timeout_seconds=0.3)
    assert "after 0.3 s" in run(ask_for("read_slowly")).result


def test_its_output_is_capped_and_without_secrets(ask_for, settings):
    settings.TOOL_MAX_OUTPUT_BYTES = 100
    call = run(ask_for("say", text="abc", times=1000))
    assert call.status == CallStatus.SUCCESS
    assert "[cut: 100 of 3000 bytes are kept" in call.result
    assert run(ask_for("say", text="sk-abcdefghijklmnop0123 ", times=1)).result == "[redacted] "


def test_a_limit_is_gone_with_what_it_limited():
    with time_limit(0.2):
        statement("SELECT 1")
    time.sleep(0.3)  # noqa: TID251 -- the limit's own time
    statement("SELECT 1")
    with time_limit(0.2), pytest.raises(DatabaseError):
        statement(SLOW[connection.vendor])
    if connection.vendor == "postgresql":
        statement("SELECT pg_sleep(0.5)")


def test_each_transaction_inside_a_limit_is_limited():
    slow = SLOW[connection.vendor]
    for transactions in (["SELECT 1"], [slow]), (["SELECT 1", slow],):
        with pytest.raises(TookTooLong), time_limit(0.2):
            run_transactions(transactions)


def run_transactions(transactions):
    for statements in transactions:
        with transaction.atomic():
            for sql in statements:
                statement(sql)


@pytest.mark.production(reason="SQLite needs no connection of its own for a limit")
def test_a_limit_on_nothing_does_not_even_connect():
    connection.close()
    with time_limit(0.2):
        pass
    assert connection.connection is None


def test_errors_of_another_kind_pass_through_a_limit():
    SettingChange.objects.create(pk=1, tool_name="x", before={}, after={})
    with pytest.raises(IntegrityError), time_limit(5):
        SettingChange.objects.create(pk=1, tool_name="x", before={}, after={})
    with pytest.raises(DatabaseError, match="no_such"), time_limit(5):
        statement("SELECT * FROM no_such_table")
    with pytest.raises(TookTooLong), time_limit(0.2):
        statement(SLOW[connection.vendor])
