"""The gate: what it refuses and says of it, what it runs, and how a call ends whatever happens."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.db import OperationalError

from nanohost.lib.clock import from_now
from tests.support.prohibitions import (
    PROHIBITIONS,
    not_enabled,
)
from tests.support.tool_calls import EVERY_TOOL, ask, run, run_in_thread
from tests.support.wait import wait_until
from tools import calls, gate, registry
from tools.calls import Outcome
from tools.gate import AgentTools
from tools.models import CallStatus, ToolCall, ToolSetting
from tools.runners import Runner
from tools.sandbox.children import ChildPool, place_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def allowed(tool_settings):
    """``append_line`` may run."""
    tool_settings("append_line", grants=["FS_WRITE"])


def assert_rejected(call, rule, effects):
    """The rule stands in the row and in the structured result, and nothing ran."""
    assert (call.status, call.rule) == (CallStatus.REJECTED, rule)
    told = json.loads(call.result)
    assert (told["status"], told["rule"]) == ("REJECTED", rule)
    assert told["message"]
    assert call.ended_at is not None
    assert not effects.exists()


def test_what_is_allowed_runs(allowed, effects):
    call = run(ask("append_line", path=str(effects), line="one"))
    assert (call.status, call.rule, call.result) == (CallStatus.SUCCESS, "", "appended one")
    assert effects.read_text() == "one\n"
    assert call.attempts == 1
    assert call.duration_ms is not None


class Elsewhere(Runner):
    """A tool that is no function of this host."""

    defined_in = "another host"

    def run_admitted(self, admitted):
        return Outcome(status=CallStatus.SUCCESS, result=f"{admitted.arguments['line']}, {admitted.still_wanted()}")


def test_a_runner_of_another_kind_is_asked_for_what_the_gate_admits_and_for_nothing_else(
    allowed, effects, settings, monkeypatch
):
    function = registry.get("append_line")
    remote = replace(function, runner=Elsewhere())
    remote.__dict__["schema"] = function.schema
    monkeypatch.setitem(registry._tools, "append_line", remote)
    call = run(ask("append_line", path=str(effects), line="one"))
    assert (call.status, call.result, effects.exists()) == (CallStatus.SUCCESS, "one, True", False)
    second = ask("append_line", path=str(effects), line="two")
    not_enabled(settings)
    assert_rejected(run(second), "not_enabled", effects)


# --- the rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prohibit", "rule"), PROHIBITIONS)
def test_a_call_is_refused_when_it_is_asked_for(allowed, effects, settings, prohibit, rule):
    prohibit(settings)
    call = ask("append_line", path=str(effects), line="one")
    assert_rejected(call, rule, effects)
    assert_rejected(run(call), rule, effects)
    assert call.attempts == 0


@pytest.mark.parametrize(("prohibit", "rule"), PROHIBITIONS)
def test_what_is_taken_back_before_the_start_is_refused_at_the_start(allowed, effects, settings, prohibit, rule):
    call = ask("append_line", path=str(effects), line="one")
    assert call.status == CallStatus.QUEUED
    prohibit(settings)
    assert_rejected(run(call), rule, effects)


def test_a_tool_nobody_registered_is_refused(db, effects):
    assert_rejected(ask("no_such_tool"), "not_registered", effects)


def test_a_name_that_is_nearly_a_tools_is_refused_with_the_tools_it_may_have_meant(allowed, effects):
    call = ask("append_lines", path=str(effects), line="one")
    assert_rejected(call, "not_registered", effects)
    assert json.loads(call.result)["message"].endswith("Did you mean append_line?")


def test_a_name_is_quoted_as_it_is_and_not_whole_where_it_is_long(db):
    assert "named 'größe'." in ask("größe").result
    assert f"named '{'x' * 100}'." in ask("x" * 128).result


def test_no_tool_is_suggested_that_the_agent_may_not_use(allowed, effects):
    call = ask("append_lines", agent_tools=AgentTools(names=frozenset({"time"})), path=str(effects), line="one")
    assert "append_line?" not in json.loads(call.result)["message"]


def test_arguments_reach_the_tool_as_its_schema_asks_for_them(allowed, effects):
    call = run(ask("append_line", path=str(effects), line="one", before="0"))
    assert call.status == CallStatus.SUCCESS


def test_a_tool_that_is_gone_when_its_call_starts_is_refused(allowed, effects):
    call = ask("append_line", path=str(effects), line="one")
    ToolCall.objects.update(tool_name="append_line_of_an_earlier_version")
    assert_rejected(run(call), "not_registered", effects)


def test_a_tool_the_agent_may_not_use_is_refused_at_both_times(allowed, effects):
    nothing = AgentTools(names=frozenset({"time"}))
    asked = {"path": str(effects), "line": "one"}
    assert_rejected(ask("append_line", agent_tools=nothing, **asked), "not_for_agent", effects)
    assert_rejected(run(ask("append_line", **asked), agent_tools=nothing), "not_for_agent", effects)


def test_shell_never_runs_however_it_is_granted(tool_settings, effects, settings):
    tool_settings("shell", grants=["SHELL"])
    settings.PERMISSIONS_GRANTED = ["NET_HTTP", "FS_READ", "FS_WRITE", "SHELL"]
    assert_rejected(ask("shell", command="id"), "permission_ceiling:SHELL", effects)


@pytest.mark.parametrize(
    "raw",
    [
        "no json",
        "[1]",
        '"text"',
        "null",
        '{"path": 1, "line": "one"}',
        '{"path": "x"}',
        '{"path": "x", "line": "one", "more": 1}',
        '{"path": "x", "line": "one", "before": NaN}',
        '{"path": "x", "line": ' + "[" * 20_000 + "]" * 20_000 + "}",
    ],
)
def test_arguments_that_do_not_fit_are_refused(allowed, effects, raw):
    assert_rejected(ask("append_line", raw=raw), "arguments", effects)


def test_arguments_that_are_too_deep_for_the_way_to_the_tool_are_refused(tool_settings, effects):
    tool_settings("echo")
    assert_rejected(ask("echo", raw='{"value": ' + "[" * 900 + "]" * 900 + "}"), "arguments", effects)
    assert run(ask("echo", raw='{"value": ' + "[" * 60 + "]" * 60 + "}")).status == CallStatus.SUCCESS


def test_the_input_limit_counts_bytes(allowed, effects, settings):
    raw = json.dumps({"path": str(effects), "line": "ü" * 100}, ensure_ascii=False)
    settings.TOOL_MAX_INPUT_BYTES = len(raw.encode()) - 1
    assert_rejected(ask("append_line", raw=raw), "input_size", effects)
    settings.TOOL_MAX_INPUT_BYTES += 1
    assert run(ask("append_line", raw=raw)).status == CallStatus.SUCCESS


def test_no_arguments_at_all_are_an_empty_object(tool_settings):
    tool_settings("time")
    assert run(ask("time", raw="")).status == CallStatus.SUCCESS


# --- the record --------------------------------------------------------------------------------------------------

AUDIT_FIELDS = (
    "tool",
    "status",
    "rule",
    "argsHash",
    "durationMs",
    "resultBytes",
    "call",
    "requestId",
    "turn",
    "conversation",
    "agent",
)


def audited(caplog):
    lines = [record for record in caplog.records if record.name == "TOOL_AUDIT"]
    return [{field: getattr(line, field) for field in AUDIT_FIELDS} for line in lines]


def test_a_call_that_ran_is_audited(allowed, effects, caplog):
    call = run(ask("append_line", path=str(effects), line="one"))
    (line,) = audited(caplog)
    assert line == {
        "tool": "append_line",
        "status": "SUCCESS",
        "rule": "",
        "argsHash": call.arguments_hash,
        "durationMs": call.duration_ms,
        "resultBytes": len("appended one"),
        "call": str(call.pk),
        "requestId": "request-1",
        "turn": str(call.turn_id),
        "conversation": str(call.conversation_id),
        "agent": "default",
    }


def test_a_refusal_is_audited_with_its_rule_and_no_arguments(db, caplog):
    ask("append_line", path="/secret/place", line="one")
    (line,) = audited(caplog)
    assert (line["status"], line["rule"], line["durationMs"]) == ("REJECTED", "not_enabled", 0)
    assert "/secret/place" not in caplog.text


# --- a worker that died in a call --------------------------------------------------------------------------------


def abandoned(call, *, attempts=1):
    """The call as a worker leaves it that was killed in it."""
    assert calls.claim(call.pk, worker="dead") is not None
    ToolCall.objects.filter(pk=call.pk).update(lease_until=from_now(-1), attempts=attempts)
    return call


def test_a_reading_call_whose_worker_died_runs_again(tool_settings, effects):
    tool_settings("look_around")
    call = run(abandoned(ask("look_around", path=str(effects))))
    assert (call.status, call.attempts, call.worker) == (CallStatus.SUCCESS, 2, "worker-1")
    assert effects.read_text() == "looked\n"


def test_a_call_with_side_effects_whose_worker_died_is_unknown_and_never_run_again(allowed, effects, caplog):
    told = []
    call = run(abandoned(ask("append_line", path=str(effects), line="one")), then=told.append)
    assert (call.status, call.rule, call.attempts) == (CallStatus.UNKNOWN, "crashed", 1)
    assert "not known" in call.result
    assert [ended.pk for ended in told] == [call.pk]
    assert [line["status"] for line in audited(caplog)] == ["UNKNOWN"]
    assert run(call, then=told.append).status == CallStatus.UNKNOWN
    assert len(told) == 1
    assert not effects.exists()


def test_a_reading_call_that_costs_too_many_workers_fails(tool_settings, effects, settings):
    tool_settings("look_around")
    abandoned_call = abandoned(ask("look_around", path=str(effects)), attempts=settings.TURN_MAX_ATTEMPTS)
    call = run(abandoned_call)
    assert (call.status, call.rule) == (CallStatus.FAILED, "crashed")
    assert not effects.exists()


def test_a_call_whose_worker_lives_is_left_alone(allowed, effects):
    call = ask("append_line", path=str(effects), line="one")
    calls.claim(call.pk, worker="alive")
    call = run(call)
    assert (call.status, call.worker) == (CallStatus.RUNNING, "alive")
    assert not effects.exists()


# --- two at once -------------------------------------------------------------------------------------------------


def test_of_many_workers_one_runs_a_call(allowed, effects):
    asked = [ask("append_line", path=str(effects), line=str(number)) for number in range(5)]
    told = []
    with ThreadPoolExecutor(8) as threads:
        for call in asked:
            start = threading.Barrier(8)

            def race(worker, call=call, start=start):
                start.wait()
                run_in_thread(call, worker=f"worker-{worker}", then=told.append)

            list(threads.map(race, range(8)))
    assert effects.read_text().split() == ["0", "1", "2", "3", "4"]
    assert len(told) == 5
    assert set(ToolCall.objects.values_list("status", "attempts")) == {(CallStatus.SUCCESS, 1)}


def test_a_call_ended_elsewhere_while_it_runs_is_stopped_and_keeps_its_outcome(tool_settings, effects, settings):
    tool_settings("look_around")
    settings.TOOL_TIMEOUT_SECONDS = 60
    call, told = ask("look_around", path=str(effects), seconds=60), []
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_in_thread, call, then=told.append)
        wait_until(effects.exists)
        gate.end_open([call.turn_id], rule="cancelled", reason="the turn was cancelled")
        ended = running.result(timeout=10)
    assert (ended.status, ended.rule) == (CallStatus.FAILED, "cancelled")
    assert told == []


def test_an_outcome_that_comes_after_another_does_not_overwrite_it(allowed, effects):
    call = ask("append_line", path=str(effects), line="one", after=0.3)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_in_thread, call)
        wait_until(effects.exists)
        gate.end_open([call.turn_id], rule="cancelled", reason="the turn was cancelled")
        ended = running.result(timeout=10)
    assert (ended.status, ended.rule) == (CallStatus.UNKNOWN, "cancelled")
    assert "the turn was cancelled" in ended.result


def test_an_outcome_outlives_a_database_that_is_away_for_a_moment(allowed, effects, monkeypatch):
    end, asked = calls.end, []

    def refuse_once(*args, **options):
        asked.append(1)
        if len(asked) == 1:
            raise OperationalError("database is locked")
        end(*args, **options)

    monkeypatch.setattr(calls, "end", refuse_once)
    ended = run(ask("append_line", path=str(effects), line="one"))
    assert (ended.status, effects.read_text()) == (CallStatus.SUCCESS, "one\n")


def test_a_call_the_gate_could_not_decide_on_was_not_started_and_goes_back(allowed, effects):
    call = ask("append_line", path=str(effects), line="one")

    def away(claimed):
        raise OperationalError("database is locked")

    gate.run(call.pk, agent_tools=away, worker="worker-1", on_start=lambda claimed: None, then=lambda ended: None)
    call.refresh_from_db()
    assert (call.status, call.attempts) == (CallStatus.QUEUED, 0)
    assert run(call).status == CallStatus.SUCCESS


@pytest.mark.parametrize("way", ["write_garbage", "flood_its_answer", "answer_for_itself"])
def test_a_write_whose_answer_cannot_be_read_may_have_taken_effect(tool_settings, effects, way):
    tool_settings("misbehave_after_effect")
    call = run(ask("misbehave_after_effect", way=way, path=str(effects)))
    assert (call.status, call.rule) == (CallStatus.UNKNOWN, "output")
    assert effects.exists()


def test_it_is_said_how_long_a_call_ran(allowed, effects, caplog):
    caplog.set_level(logging.INFO, logger="TOOL_AUDIT")
    began = time.monotonic()
    call = run(ask("append_line", path=str(effects), line="one", before=0.1))
    most = (time.monotonic() - began) * 1000 + 1
    assert 100 <= call.duration_ms <= most
    assert audited(caplog)[0]["durationMs"] == call.duration_ms
    # And nothing of one that did not run.
    ask("no_such_tool")
    abandoned = ask("append_line", path=str(effects), line="two")
    calls.claim(abandoned.pk, worker="dead")
    ToolCall.objects.filter(pk=abandoned.pk).update(lease_until=from_now(-1))
    assert run(abandoned).status == CallStatus.UNKNOWN
    gate.end_open([ask("append_line", path=str(effects), line="three").turn_id], rule="cancelled", reason="x")
    assert [line["durationMs"] for line in audited(caplog)][1:] == [0, 0, 0]


def test_a_call_ended_from_outside_is_audited_as_well(allowed, effects, caplog):
    caplog.set_level(logging.INFO, logger="TOOL_AUDIT")
    call = ask("append_line", path=str(effects), line="one")
    calls.claim(call.pk, worker="worker-1")
    gate.end_open([call.turn_id], rule="cancelled", reason="the turn was cancelled")
    gate.end_open([call.turn_id], rule="cancelled", reason="a second time ends nothing")
    (line,) = [record for record in caplog.records if record.name == "TOOL_AUDIT"]
    assert (line.call, line.status, line.rule) == (str(call.pk), "UNKNOWN", "cancelled")


# --- results -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("nothing", "null"),
        ("number", "0.5"),
        ("bytes", "\"b'\\\\xff\\\\x00'\""),
        ("date", '"2025-01-02"'),
        ("set", '"{1}"'),
        ("keys", "{(1, 2): 3}"),
        ("circle", "[[...]]"),
        ("nul", "a\ufffdb"),
        ("surrogate", "a?b"),
        ("umlaut", '{"stadt": "Köln"}'),
    ],
)
def test_whatever_a_tool_returns_is_stored_as_text(tool_settings, kind, result):
    tool_settings("return_unusual")
    call = run(ask("return_unusual", kind=kind))
    assert (call.status, call.result) == (CallStatus.SUCCESS, result)


def test_a_tool_may_be_a_coroutine(tool_settings):
    tool_settings("answer_later")
    assert run(ask("answer_later", seconds=0.01)).result == "later"


def test_a_tool_that_exits_ends_its_call_only(tool_settings):
    tool_settings("return_unusual")
    call = run(ask("return_unusual", kind="exit"))
    assert (call.status, call.rule, call.result) == (CallStatus.FAILED, "raised", "FAILED: SystemExit: enough")


def test_a_null_character_in_an_error_is_stored_safely(tool_settings):
    tool_settings("raise_error")
    call = run(ask("raise_error", message="a\x00b"))
    assert (call.status, call.result) == (CallStatus.FAILED, "FAILED: RuntimeError: a\ufffdb")


def test_the_gate_knows_an_agent_only_by_its_tools():
    assert EVERY_TOOL.include("anything")
    assert not AgentTools(names=frozenset()).include("time")


def test_a_database_that_is_away_ends_no_tool_in_mid_effect(allowed, effects, monkeypatch):
    asked = []

    def be_away(call):
        asked.append(call.pk)
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(calls, "keep", be_away)
    call = run(ask("append_line", path=str(effects), line="one", before=1.5))
    assert (call.status, effects.read_text()) == (CallStatus.SUCCESS, "one\n")
    assert asked, "nobody looked while it ran"


def test_processes_are_started_for_enabled_tools_that_have_some(db, tool_settings, monkeypatch):
    ToolSetting.objects.update(enabled=False)
    tool_settings("append_line", grants=["FS_WRITE"])
    tool_settings("keep")  # works on the database, in the worker itself
    started = []
    monkeypatch.setattr(ChildPool, "start", lambda pool, places: started.append(places))
    gate.warm_tools()
    assert started == [{place_of(registry.get("append_line"))}]
    ToolSetting.objects.update(enabled=False)
    gate.warm_tools()
    assert started[1:] == [set()]


def test_a_survey_says_of_each_tool_which_rule_forbids_it(tool_settings):
    tool_settings("time")
    tool_settings("append_line")
    found = {tool.name: rule for tool, rule in gate.survey(agent_tools=EVERY_TOOL)}
    assert found.keys() == {tool.name for tool in registry.registered()}
    assert (found["time"], found["append_line"]) == (None, "permission:FS_WRITE")
    disabled = set(found) - set(ToolSetting.objects.filter(enabled=True).values_list("name", flat=True))
    assert {found[name] for name in disabled} == {"not_enabled"}


def test_a_call_that_cannot_be_claimed_while_the_database_is_away_is_left_to_a_sweep(
    allowed, effects, settings, monkeypatch, caplog
):
    def away(*_: object, **__: object) -> None:
        raise OperationalError("the database is away")

    call = ask("append_line", path=str(effects), line="one")
    settings.TURN_LEASE_SECONDS = 0
    monkeypatch.setattr(calls, "claim", away)
    run(call)
    assert "a tool call could not be claimed (OperationalError); a sweep finds it" in caplog.text
    call.refresh_from_db()
    assert (call.status, effects.exists()) == (CallStatus.QUEUED, False)


def test_what_enabled_tools_run_in_is_started_before_their_first_call(allowed, monkeypatch):
    started = []

    class Started(Runner):
        @classmethod
        def start(cls, tools):
            started.extend(tool.name for tool in tools)

    monkeypatch.setattr(gate, "KINDS", (Started,))
    gate.warm_tools()
    assert set(started) == set(ToolSetting.objects.filter(enabled=True).values_list("name", flat=True))
    assert "append_line" in started
