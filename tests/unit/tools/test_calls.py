"""The life of a call, write by write: whose it is, and what is kept of it."""

import pytest
from django.utils import timezone

from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from tests.support.tool_calls import ask
from tools import calls
from tools.calls import Outcome
from tools.errors import CallLost
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

DONE = Outcome(status=CallStatus.SUCCESS, result="noon", rule="")
FAILED = Outcome(status=CallStatus.FAILED, result="FAILED: x", rule="raised")


@pytest.fixture
def call(tool_settings, effects):
    """A queued one, which writes."""
    tool_settings("append_line", grants=["FS_WRITE"])
    return ask("append_line", path=str(effects), line="one")


@pytest.fixture
def reading_call(tool_settings, effects):
    tool_settings("look_around")
    return ask("look_around", path=str(effects))


def expire(call):
    ToolCall.objects.filter(pk=call.pk).update(lease_until=from_now(-1))


def row(call):
    return ToolCall.objects.get(pk=call.pk)


# --- what is asked for -----------------------------------------------------------------------------------------------


def asked_for(arguments, *, name="time", refused=None):
    given = {"agent": "default", "request_id": "r", "call_id": "c", "position": 0, "effects": "read"}
    given |= {"conversation_id": new_id(), "turn_id": new_id(), "owner_id": 1, "rate_limited": False}
    return calls.new_call(tool_name=name, arguments=arguments, refused=refused, **given)


@pytest.mark.parametrize("word", ["hunter22", "HUNTER22"])
def test_arguments_are_kept_whole_beside_the_masked_ones_where_those_differ(word):
    plain, secret = '{"a": "b"}', f'{{"password": "{word}"}}'
    assert (asked_for(plain).arguments, asked_for(plain).private_arguments) == (plain, "")
    call = asked_for(secret)
    assert word not in call.arguments
    assert (call.private_arguments, call.whole_arguments) == (secret, secret)
    assert asked_for(plain).whole_arguments == plain
    refused = asked_for(secret, refused=Outcome(status=CallStatus.REJECTED, result="no", rule="not_enabled"))
    assert (refused.status, refused.private_arguments, refused.duration_ms) == (CallStatus.REJECTED, "", 0)


def test_a_name_is_as_long_as_its_column():
    longest = ToolCall._meta.get_field("tool_name").max_length
    assert asked_for("{}", name="x" * 1000).tool_name == "x" * longest


# --- whose it is -----------------------------------------------------------------------------------------------------


def test_who_takes_a_call_has_it_for_a_lease(call, settings):
    settings.TURN_LEASE_SECONDS = 100
    taken = calls.claim(call.pk, worker="worker-1")
    assert (taken.status, taken.fence, taken.attempts, taken.worker) == (CallStatus.RUNNING, 1, 1, "worker-1")
    assert 90 < (taken.lease_until - timezone.now()).total_seconds() < 110
    assert calls.claim(call.pk, worker="worker-2") is None
    ToolCall.objects.update(lease_until=from_now(5))
    assert calls.keep(taken) is True
    assert 90 < (row(call).lease_until - timezone.now()).total_seconds() < 110


def test_an_outcome_is_stored_once_and_may_be_told_again(call):
    taken = calls.claim(call.pk, worker="worker-1")
    calls.end(taken, DONE, duration_ms=7)
    calls.end(taken, FAILED, duration_ms=8)
    ended = row(call)
    assert (ended.status, ended.result, ended.duration_ms, ended.lease_until) == (CallStatus.SUCCESS, "noon", 7, None)
    assert calls.keep(taken) is False
    calls.release(taken)
    assert row(call).status == CallStatus.SUCCESS


def test_whoever_lost_a_call_stores_nothing(reading_call):
    lost = calls.claim(reading_call.pk, worker="worker-1")
    expire(lost)
    heir = calls.claim(reading_call.pk, worker="worker-2")
    assert (heir.fence, heir.attempts) == (2, 2)
    assert calls.keep(lost) is False
    with pytest.raises(CallLost):
        calls.end(lost, DONE, duration_ms=1)
    calls.release(lost)
    assert row(lost).status == CallStatus.RUNNING
    calls.end(heir, DONE, duration_ms=1)
    with pytest.raises(CallLost):
        calls.end(lost, DONE, duration_ms=1)


def test_a_write_whose_worker_is_gone_is_ended_by_who_finds_it(call):
    lost = calls.claim(call.pk, worker="worker-1")
    expire(lost)
    found = calls.claim(call.pk, worker="worker-2")
    assert (found.status, found.rule, found.fence, found.attempts) == (CallStatus.UNKNOWN, "crashed", 2, 1)
    assert found.ended_at is not None
    with pytest.raises(CallLost):
        calls.end(lost, DONE, duration_ms=1)
    assert row(call).status == CallStatus.UNKNOWN


def test_what_goes_back_costs_nothing_and_is_not_who_gave_it_back_s(reading_call):
    taken = calls.claim(reading_call.pk, worker="worker-1")
    calls.release(taken)
    waiting = row(taken)
    assert (waiting.status, waiting.fence, waiting.attempts, waiting.notified_at) == (CallStatus.QUEUED, 2, 0, None)
    with pytest.raises(CallLost):
        calls.end(taken, DONE, duration_ms=1)


def test_a_read_that_costs_too_many_workers_fails(reading_call, settings):
    settings.TURN_MAX_ATTEMPTS = 2
    for attempt in (1, 2):
        assert calls.claim(reading_call.pk, worker="worker-1").attempts == attempt
        expire(reading_call)
    ended = calls.claim(reading_call.pk, worker="worker-1")
    assert (ended.status, ended.rule, ended.attempts) == (CallStatus.FAILED, "crashed", 2)


# --- what nobody was told of -----------------------------------------------------------------------------------------


def test_what_nobody_runs_is_due_once_it_was_not_told_of_for_as_long(call, reading_call):
    def due(told, *, limit=10, **fields):
        """Which are due, with a call that was told of so many seconds ago."""
        fields = {"status": CallStatus.QUEUED, "lease_until": None} | fields
        ToolCall.objects.filter(pk=call.pk).update(notified_at=None if told is None else from_now(-told), **fields)
        return ToolCall.objects.find(limit=limit)

    ToolCall.objects.filter(pk=reading_call.pk).update(notified_at=Now())
    crashed = {"status": CallStatus.RUNNING, "lease_until": from_now(-1)}
    assert due(0) == []
    assert due(None) == due(61) == [call.pk]
    assert ToolCall.objects.find(limit=10) == [], "it has just been told of"
    assert due(1.5, **crashed) == due(None, **crashed) == [call.pk]
    assert due(-0.9, **crashed) == []
    assert due(61, status=CallStatus.RUNNING, lease_until=from_now(60)) == []
    assert due(61, status=CallStatus.SUCCESS) == []
    ToolCall.objects.filter(pk=reading_call.pk).update(notified_at=from_now(-70))
    assert due(61, limit=1) == [reading_call.pk]
    assert due(61) == [call.pk]
