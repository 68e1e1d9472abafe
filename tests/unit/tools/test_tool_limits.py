"""What an admin sets for a tool: its timeout, its caps, its rate limits; at the request, at the start, and at once."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.statuses import TurnStatus
from nanohost.lib.clock import from_now
from nanohost.lib.ids import new_id
from tests.faults import doorbell
from tests.faults.interleave import coming_between
from tests.support.scripts import script
from tests.support.tool_calls import ask, run
from tests.support.wait import wait_until
from tests.support.working import advance, settle
from tools import gate
from tools.models import CallStatus, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = new_id()  # a conversation


@pytest.fixture
def limit(tool_settings):
    """Enable a tool with limits: ``limit("time", max_input_bytes=10)``."""

    def set_them(name, **limits):
        tool_settings(name)
        ToolSetting.objects.filter(name=name).update(**limits)

    return set_them


def ask_in_thread(*arguments, **options):
    try:
        return ask(*arguments, **options)
    finally:
        connections.close_all()


def rules(number, **options):
    """The rules that so many requests for ``time`` meet, one after the other."""
    return [ask("time", **options).rule for _ in range(number)]


# --- timeout and caps --------------------------------------------------------------------------------------------


def test_a_tool_is_stopped_at_the_timeout_the_admin_sets(limit, settings):
    settings.TOOL_TIMEOUT_SECONDS = 100
    limit("answer_later", timeout_seconds=0.2)
    call = run(ask("answer_later", seconds=50))
    assert (call.status, call.rule) == (CallStatus.FAILED, "timeout")
    assert "0.2 s" in call.result


def test_the_admins_timeout_counts_before_the_tools_own(limit):
    limit("hang", timeout_seconds=0.1)  # of its own it has half a second
    assert "0.1 s" in run(ask("hang")).result


def test_arguments_above_the_tools_cap_are_refused_at_the_request_and_at_the_start(limit):
    limit("echo", max_input_bytes=14)
    call = ask("echo", value="1")
    assert ask("echo", value="12").rule == "input_size"
    ToolSetting.objects.update(max_input_bytes=12)
    assert run(call).rule == "input_size"
    assert "12 are allowed" in run(call).result


def test_a_result_is_cut_at_the_tools_cap(limit):
    limit("echo", max_output_bytes=5)
    assert "[cut: 5 of 9 bytes" in run(ask("echo", value="123456789")).result


def test_the_environment_is_the_ceiling_of_the_caps_however_late_it_was_lowered(limit, settings):
    limit("echo", max_input_bytes=1000, max_output_bytes=1000)
    settings.TOOL_MAX_INPUT_BYTES, settings.TOOL_MAX_OUTPUT_BYTES = 20, 5
    assert ask("echo", value="x" * 20).rule == "input_size"
    assert "[cut: 5 of 6 bytes" in run(ask("echo", value="123456")).result


# --- rate limits -------------------------------------------------------------------------------------------------


def test_a_conversation_has_so_many_calls_a_minute(limit):
    limit("time", calls_per_minute_conversation=2)
    assert rules(3, conversation_id=CHAT) == ["", "", "rate:conversation"]
    assert rules(2, conversation_id=new_id()) == ["", ""]


def test_an_owner_has_so_many_calls_a_minute_in_all_conversations(limit):
    limit("time", calls_per_minute_owner=2)
    assert rules(3, owner_id=1) == ["", "", "rate:owner"]
    assert rules(3, owner_id=2) == ["", "", "rate:owner"]


def test_each_tool_is_counted_apart(limit, tool_settings):
    limit("time", calls_per_minute_owner=1)
    limit("echo", calls_per_minute_owner=1)
    assert rules(2) == ["", "rate:owner"]
    assert [ask("echo", value=1).rule for _ in range(2)] == ["", "rate:owner"]


def test_refused_calls_do_not_count(limit):
    limit("time", calls_per_minute_owner=2)
    ask("time", raw="no json")
    assert rules(3) == ["", "", "rate:owner"]
    run(ToolCall.objects.filter(status=CallStatus.QUEUED).first(), agent_tools=gate.AgentTools(names=frozenset()))
    assert rules(2) == ["", "rate:owner"], "a call that is refused when it starts gives its place back"


def test_a_place_is_free_again_after_a_minute(limit):
    limit("time", calls_per_minute_conversation=2)
    rules(2, conversation_id=CHAT)
    ToolCall.objects.update(created_at=from_now(-61))
    assert rules(3, conversation_id=CHAT) == ["", "", "rate:conversation"]


def seconds_told(call):
    return int(re.search(r"In (\d+) s, one is free again\.$", json.loads(call.result)["message"])[1])


def test_the_refusal_tells_how_many_are_allowed_and_when_one_is_free(limit):
    limit("time", calls_per_minute_conversation=2)
    for age in (20, 40):
        call = ask("time", conversation_id=CHAT)
        ToolCall.objects.filter(pk=call.pk).update(created_at=from_now(-age))
    refused = ask("time", conversation_id=CHAT)
    assert "limited to 2 calls a minute for one conversation" in refused.result
    assert 1 <= seconds_told(refused) <= 20
    ToolSetting.objects.update(calls_per_minute_conversation=1)
    assert 21 <= seconds_told(ask("time", conversation_id=CHAT)) <= 40, "two calls have to leave"


def test_of_two_limits_that_are_met_the_one_that_lasts_longer_is_named(limit):
    limit("time", calls_per_minute_conversation=1, calls_per_minute_owner=2)
    rules(1, conversation_id=CHAT)
    ToolCall.objects.update(created_at=from_now(-30))
    rules(1)
    refused = ask("time", conversation_id=CHAT)
    assert (refused.rule, 1 <= seconds_told(refused) <= 30) == ("rate:conversation", True)
    ToolSetting.objects.update(calls_per_minute_owner=1)
    assert ask("time", conversation_id=CHAT).rule == "rate:owner"


@pytest.mark.parametrize(("scope", "calls"), [("conversation", 2), ("owner", 3)])
def test_the_calls_of_one_round_take_their_places_in_order(limit, say, conversation, scope, calls):
    limit("time", **{f"calls_per_minute_{scope}": calls})
    rules(1, owner_id=conversation.owner_id)
    turn = say(script({"call": [{"name": "time"}] * 4}, {"say": "{results}"}))
    settle([turn])
    met = ToolCall.objects.filter(turn_id=turn.pk).order_by("position").values_list("rule", flat=True)
    assert list(met) == ["", "", f"rate:{scope}", f"rate:{scope}"]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_machine_whose_clock_is_wrong_counts_right(limit, monkeypatch, hours):
    limit("time", calls_per_minute_owner=2)
    rules(1)
    right_now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: right_now() + timedelta(hours=hours))
    rules(1)
    monkeypatch.undo()
    assert rules(1) == ["rate:owner"]
    assert not ToolCall.objects.exclude(created_at__range=(from_now(-60), from_now(0))).exists()


# --- when a call starts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowered", ["conversation", "owner"])
def test_a_limit_that_was_lowered_meanwhile_is_kept_at_the_start(limit, lowered):
    limit("time", calls_per_minute_conversation=3, calls_per_minute_owner=3)
    asked = [ask("time", conversation_id=CHAT) for _ in range(3)]
    ToolSetting.objects.update(**{f"calls_per_minute_{lowered}": 1})
    assert [run(call).rule for call in reversed(asked)] == [f"rate:{lowered}", f"rate:{lowered}", ""]
    assert 1 <= seconds_told(run(asked[1])) <= 60


def test_a_limit_that_did_not_change_refuses_nothing_at_the_start(limit):
    limit("time", calls_per_minute_conversation=3, calls_per_minute_owner=3)
    asked = [ask("time", conversation_id=CHAT) for _ in range(5)][:3]
    # However late they start, and whatever was asked for since.
    ToolCall.objects.update(created_at=from_now(-3600))
    rules(3, conversation_id=CHAT)
    assert [run(call).status for call in asked] == [CallStatus.SUCCESS] * 3


def test_a_call_of_an_earlier_version_without_its_owner_runs(limit):
    limit("time", calls_per_minute_conversation=1, calls_per_minute_owner=1)
    call = ask("time")
    ToolCall.objects.update(owner_id=None)
    ask("time")
    assert run(call).status == CallStatus.SUCCESS


# --- whoever asks at once ----------------------------------------------------------------------------------------


def test_many_who_ask_at_once_do_not_get_more_than_there_is(limit):
    limit("time", calls_per_minute_conversation=5, calls_per_minute_owner=8)
    start = threading.Barrier(8)

    def race(worker):
        start.wait()
        return [ask_in_thread("time", conversation_id=CHAT if worker % 2 else new_id()).rule for _ in range(4)]

    with ThreadPoolExecutor(8) as threads:
        met = [rule for found in threads.map(race, range(8)) for rule in found]
    assert met.count("") == 8
    assert ToolCall.objects.exclude(status=CallStatus.REJECTED).filter(conversation_id=CHAT).count() <= 5


@pytest.mark.production(reason="SQLite has one writer at a time")
@pytest.mark.parametrize("at", range(4))
def test_whoever_comes_between_takes_the_place_or_finds_it_taken(limit, at):
    limit("time", calls_per_minute_conversation=1)

    def another_asks():
        with ThreadPoolExecutor(1) as other:
            other.submit(ask_in_thread, "time", conversation_id=CHAT).result()

    with coming_between(at, another_asks):
        ask("time", conversation_id=CHAT)
        ask("time")  # as many statements again, so that each place is met
    met = ToolCall.objects.filter(conversation_id=CHAT).values_list("rule", flat=True)
    assert sorted(met) == ["", "rate:conversation"]


@pytest.mark.production(reason="SQLite has one writer at a time")
@pytest.mark.parametrize("scope", ["conversation", "owner"])
def test_whoever_asks_while_the_last_place_is_being_taken_waits_and_is_refused(limit, scope):
    limit("time", **{f"calls_per_minute_{scope}": 1})
    with ThreadPoolExecutor(1) as other:
        with transaction.atomic():
            assert ask("time", conversation_id=CHAT).rule == ""
            late = other.submit(ask_in_thread, "time", conversation_id=CHAT)
            wait_until(lambda: late.done() or somebody_waits_for_us())
        assert late.result(timeout=10).rule == f"rate:{scope}"


def somebody_waits_for_us():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid")
        return cursor.fetchone()


def test_a_round_whose_calls_are_all_refused_at_the_last_moment_goes_on(limit, say):
    """The turn already waits for its tools when their limit is found to be reached."""
    limit("time", calls_per_minute_conversation=1)
    turn = say(script({"call": [{"name": "time"}]}, {"call": [{"name": "time"}]}, {"say": "So be it."}))
    settle_until_refused(turn)
    assert advance(turn).status == TurnStatus.SUCCEEDED
    assert turn.messages.latest("seq").content == "So be it."


def settle_until_refused(turn):
    """Do what the doorbell says, and nothing else, until the second call has been refused."""
    doorbell.purge()
    advance(turn)
    run(ToolCall.objects.get(turn_id=turn.pk))
    doorbell.purge()
    advance(turn)
    assert ToolCall.objects.get(turn_id=turn.pk, position=1).rule == "rate:conversation"
    assert list(doorbell.notifications()) == [("turn", turn.pk)]


# --- what it costs -----------------------------------------------------------------------------------------------


def statements_of(act):
    with CaptureQueriesContext(connection) as captured:
        act()
    return [query["sql"] for query in captured if not query["sql"].startswith(("BEGIN", "COMMIT"))]


def test_a_tool_without_a_limit_costs_no_statement_more(limit, tool_settings):
    tool_settings("echo")
    limit("time", calls_per_minute_conversation=5)
    plain, limited = statements_of(lambda: ask("echo", value=1)), statements_of(lambda: ask("time"))
    assert [sql.split()[0] for sql in plain] == ["SELECT", "INSERT", "INSERT", "SELECT"], (
        "the last INSERT is the audit log's"
    )
    assert len(limited) == len(plain) + 2, "the lock, and the count"
    assert not any("FOR UPDATE" in sql for sql in plain)


@pytest.mark.embedded(reason="the plan is SQLite's; tests/plans/test_query_plans.py has PostgreSQL's")
def test_the_count_goes_by_its_index(limit):
    limit("time", calls_per_minute_conversation=5, calls_per_minute_owner=5)
    counts = [sql for sql in statements_of(lambda: ask("time")) if '"age"' in sql]
    counts += [sql for sql in statements_of(lambda: run(ToolCall.objects.get())) if '"age"' in sql]
    indexes = ["calls_of_a_conversation (conversation_id=? AND created_at>?"]
    indexes += ["calls_of_an_owner (owner_id=? AND tool_name=? AND created_at>?"]
    assert len(counts) == 4
    for sql, index in zip(counts, indexes * 2, strict=True):
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            (first, *_) = [str(step[-1]) for step in cursor.fetchall()]
        assert f"USING INDEX {index}" in first
