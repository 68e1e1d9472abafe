"""``manage.py restored``: what was open at the dump is ended, and nothing of it happens twice."""

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from agent.llm.base import Completion, tool_call
from conversations import announced
from conversations.deliveries import endpoints, outbox
from conversations.engine import deferred, lease, steps
from conversations.engine.replaying import replays
from conversations.engine.replaying.frozen import Changes
from conversations.models import DeferredMessage, DeferredState, Delivery, DeliveryStatus, Turn, Worker
from conversations.question_models import Question, QuestionState
from conversations.statuses import TurnStatus
from nanohost.lib.clock import Now
from scheduler import series
from scheduler.models import ScheduleRun
from scheduler.ticking import tick
from tests.support.scripts import script
from tests.support.working import advance, run_call, settle
from tools import calls
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def restored(*options: str) -> str:
    told = StringIO()
    call_command("restored", *options, stdout=told)
    return told.getvalue()


@pytest.fixture
def open_turns(say, tool_settings, effects) -> list[Turn]:
    """One whose calls wait and run, and another behind it."""
    tool_settings("append_line", "time", grants=["FS_WRITE"])
    turns = [say("Write it down."), say("And then?")]
    line = f'{{"path": "{effects}", "line": "one"}}'
    asks = [
        tool_call("waits", "append_line", line),
        tool_call("runs", "append_line", line),
        tool_call("reads", "time", "{}"),
    ]
    steps.store_calls(lease.claim(turns[0].pk, worker="worker-1"), Completion(tool_calls=tuple(asks)), limit=None)
    calls.claim(ToolCall.objects.get(call_id="runs").pk, worker="worker-1")
    return turns


def test_what_was_open_is_failed_and_what_may_have_acted_is_unknown(open_turns, conversation, effects):
    assert "2 turns are open" in restored()
    assert "2 turns were open" in restored("--yes")
    assert {turn.status for turn in Turn.objects.all()} == {TurnStatus.FAILED}
    statuses = dict(ToolCall.objects.values_list("call_id", "status"))
    assert statuses == {"waits": CallStatus.UNKNOWN, "runs": CallStatus.UNKNOWN, "reads": CallStatus.FAILED}
    assert all("UNKNOWN" in text for text in results_of(conversation, "waits", "runs")), "the next turn's model is told"
    for turn in open_turns:
        advance(turn)
    assert not effects.exists()
    assert "0 turns were open" in restored("--yes")


def test_what_a_schedule_or_a_deferred_message_had_begun_is_not_begun_again(conversation, owner, agent):
    wake = {"kind": deferred.Kind.WAKE, "content": "Wake up.", "run_after": datetime(2020, 1, 1, tzinfo=UTC)}
    message = deferred.put(conversation, request_id="request-1", **wake)
    deferred.fire_due()
    schedule = series.create(owner_id=owner.pk, agent=agent.name, prompt="Look.", every_seconds=3600)
    tick(now=schedule.next_at)
    assert Turn.objects.open().count() == 2
    restored("--yes")
    for minutes in (1, 10):
        deferred.fire_due()
        DeferredMessage.objects.update(run_after=wake["run_after"])
        tick(now=schedule.next_at + timedelta(minutes=minutes))
    message.refresh_from_db()
    assert (message.state, message.tries) == (DeferredState.FAILED, 1)
    assert list(ScheduleRun.objects.values_list("state", "attempts", "error")) == [("failed", 1, "turn_restored")]
    assert Turn.objects.open().count() == 0


def test_messages_to_people_are_in_doubt_and_webhooks_and_replays_go_on(say, settings):
    """A receiver of a webhook knows one that comes twice; a replay has no effects."""
    settings.EMAIL_HOST = "mail.example.org"
    kind = announced.APPROVAL_REQUESTED
    endpoint, _ = endpoints.make(name="the shop", url="https://example.org/", kinds=[kind])
    (hook,), (waits,), (sending,) = (
        outbox.put(kind, {}),
        outbox.put_emails(["anna@example.org"], kind, {}, owner_id=None),
        outbox.put_emails(["bert@example.org"], kind, {}, owner_id=None),
    )
    hold = outbox.claim(sending.pk, worker="worker-1")
    replay = replays.request(settle([say("Hello")])[0], Changes(), by="anna")
    restored("--yes")
    assert hook.endpoint_id == endpoint.pk
    statuses = dict(Delivery.objects.values_list("pk", "status"))
    assert statuses[hook.pk] == DeliveryStatus.QUEUED
    assert {statuses[row.pk] for row in (waits, sending)} == {DeliveryStatus.UNKNOWN}
    assert not outbox.settle(hold, outbox.Outcome(error="late"))
    sending.refresh_from_db()
    assert "restored from a backup" in sending.error
    assert outbox.again(sending), "whoever knows that it did not come sends it again"
    assert replays.claim(replay.pk, worker="worker-1")


def test_a_question_whose_turn_was_open_is_withdrawn(say, tool_settings):
    tool_settings("ask")
    asks = {"call": [{"name": "ask", "arguments": {"question": "Which colour?", "options": ["Red", "Blue"]}}]}
    turn = say(script(asks, {"say": "{results}"}))
    advance(turn)
    run_call(ToolCall.objects.get())
    assert Question.objects.get().state == QuestionState.PENDING
    restored("--yes")
    assert Question.objects.get().state == QuestionState.WITHDRAWN
    turn.refresh_from_db()
    assert turn.status == TurnStatus.FAILED


def results_of(conversation, *call_ids: str) -> list[str]:
    return list(conversation.messages.filter(tool_call_id__in=call_ids).values_list("content", flat=True))


def test_while_somebody_works_nothing_is_ended(open_turns):
    Worker.objects.create(name="worker-1", version="0", turns_most=1, heartbeat_at=Now())
    with pytest.raises(CommandError, match="worker-1"):
        restored("--yes")
    assert Turn.objects.open().count() == 2
