"""A turn that waits for tools of its caller's: who goes on with it, when it ends, and what it is told."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from conversations.engine import caller, inbox, sweeper, turn_control
from conversations.engine.incoming import Incoming
from conversations.engine.model_request import build_again, calls_of
from conversations.errors import NotWaiting, OutputMissing, UnknownCall
from conversations.kinds import TURNS
from conversations.models import CallerRound, Message, Turn
from conversations.options import Options
from conversations.statuses import TurnStatus, WaitingFor
from tests.support.scripts import script
from tests.support.threads import in_threads
from tests.support.working import advance, run_call, settle
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
OPTIONS = Options(tools=[WEATHER], instructions="Be brief.", parameters={"max_tokens": 500})


@pytest.fixture
def ask(owner):
    """A turn of a new conversation that was asked with a tool of the caller's."""

    def ask(*steps, options=OPTIONS):
        conversation = inbox.start_conversation(owner_id=owner.pk, metadata={})
        return inbox.receive(
            Incoming(script(*steps), options=options), conversation=conversation, request_id="r", turn_id=uuid4()
        )

    return ask


CALLS = {"call": [{"name": "weather"}, {"name": "weather"}]}


@pytest.fixture
def waiting(ask):
    """One that waits."""
    turn = advance(ask(CALLS, {"say": "{results}"}))
    assert (turn.status, turn.waiting_for) == (TurnStatus.WAITING, WaitingFor.CALLER)
    return turn


def outputs_of(turn: Turn, *said: str) -> dict[str, str]:
    asked = CallerRound.objects.filter(turn=turn).latest("number")
    return dict(zip([call["id"] for call in asked.calls], said, strict=False))


def found(turn: Turn) -> CallerRound:
    asked = caller.find(list(outputs_of(turn, "", "")), owner_id=turn.owner_id)
    assert asked
    return asked


def answer(turn: Turn, outputs: dict[str, str]) -> Turn:
    return caller.answer(found(turn), outputs, options=OPTIONS, request_id="r2")


def test_it_is_nobodys_and_no_worker_takes_it(waiting):
    assert (waiting.lease_until, waiting.run_after) == (None, None)
    assert not ToolCall.objects.exists(), "the caller's calls are none of the gate's"
    Turn.objects.update(notified_at=None)
    assert list(sweeper.find(TURNS)) == []
    assert advance(waiting).waiting_for == WaitingFor.CALLER


def test_it_goes_on_with_all_of_a_turns_time(waiting):
    answer(waiting, outputs_of(waiting, "rain", "sun"))
    turn = Turn.objects.get()
    assert (turn.status, turn.waiting_for, turn.deadline) == (TurnStatus.WAITING, WaitingFor.TOOLS, None)
    assert list(sweeper.find(TURNS)) == [], "workers were notified"
    Turn.objects.update(notified_at=None)
    assert list(sweeper.find(TURNS)) == [turn.pk], "and find it without"
    turn = advance(turn)
    assert turn.status == TurnStatus.SUCCEEDED
    assert Message.objects.latest("seq").content == "rain; sun"


def test_outputs_have_to_be_all_and_no_others(waiting):
    both = outputs_of(waiting, "rain", "sun")
    with pytest.raises(OutputMissing):
        answer(waiting, dict([both.popitem()]))
    with pytest.raises(UnknownCall):
        answer(waiting, outputs_of(waiting, "rain", "sun") | {"call_other": "x"})
    assert Turn.objects.get().waiting_for == WaitingFor.CALLER


def test_the_same_outputs_twice_are_once(waiting):
    outputs = outputs_of(waiting, "rain", "sun")
    in_threads([lambda: answer(waiting, outputs)] * 4)
    assert Message.objects.filter(role="tool").count() == 2
    with pytest.raises(NotWaiting):
        answer(waiting, outputs_of(waiting, "snow", "sun"))
    assert caller.is_repeated(found(waiting), outputs)


def test_somebody_elses_call_is_not_found(waiting, outsider):
    assert caller.find(list(outputs_of(waiting, "", "")), owner_id=outsider.pk) is None
    assert caller.find(["call_1", "", "call_" + "0" * 34], owner_id=waiting.owner_id) is None


def test_it_is_cancelled_when_its_time_is_over(waiting):
    caller.expire_due()
    assert Turn.objects.get().status == TurnStatus.WAITING
    assert waiting.deadline - timezone.now() > timedelta(days=6)
    Turn.objects.update(deadline=timezone.now() - timedelta(seconds=1))
    caller.expire_due()
    turn = Turn.objects.get()
    assert (turn.status, turn.error_code) == (TurnStatus.CANCELLED, "turn_cancelled")
    assert [each.role for each in Message.objects.order_by("seq")] == ["user", "assistant", "tool", "tool"]
    with pytest.raises(NotWaiting):
        answer(waiting, outputs_of(waiting, "rain", "sun"))


def test_requeueing_it_does_not_take_its_callers_time(waiting):
    assert turn_control.requeue_turn(waiting)
    turn = Turn.objects.get()
    assert (turn.waiting_for, turn.deadline) == (WaitingFor.CALLER, waiting.deadline)


def test_a_later_turn_of_its_conversation_waits_behind_it(waiting):
    later = inbox.receive(Incoming("Hello"), conversation=waiting.conversation, request_id="r")
    assert advance(later).status == TurnStatus.QUEUED
    answer(waiting, outputs_of(waiting, "rain", "sun"))
    settle([waiting, later])
    assert Message.objects.latest("seq").content == "You said: Hello"


def test_calls_of_both_kinds_and_a_worker_that_ends_in_between(ask, tool_settings):
    tool_settings("time")
    turn = advance(ask({"call": [{"name": "weather"}, {"name": "time"}]}, {"say": "{results}"}))
    assert turn.waiting_for == WaitingFor.TOOLS
    assert not CallerRound.objects.exists(), "the caller is asked when the others have ended"
    (call,) = ToolCall.objects.all()
    run_call(call)
    turn = advance(turn)
    assert turn.waiting_for == WaitingFor.CALLER
    answer(turn, outputs_of(turn, "rain"))
    turn = advance(turn)
    said = Message.objects.latest("seq").content
    assert turn.status == TurnStatus.SUCCEEDED
    assert said.endswith("; rain")


def test_what_the_model_was_sent_can_be_told(waiting):
    answer(waiting, outputs_of(waiting, "rain", "sun"))
    turn = advance(waiting)
    for call in calls_of(turn):
        again = build_again(turn.conversation, turn.model, call.record, turn=turn)
        assert again.doubts == []
        assert "Be brief." in again.request.messages[0]["content"]
        assert again.request.tools == [WEATHER]
