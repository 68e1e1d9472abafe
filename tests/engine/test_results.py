"""The answers to a turn's calls: stored with the claim of the turn, or by its next step, and once."""

import pytest
from django.db import IntegrityError

from agent.llm.base import Completion, tool_call
from conversations.engine import lease, snapshot, steps, transcript
from conversations.engine.lease import Claim
from conversations.engine.results import answers_of
from conversations.engine.turns import claim_and_load
from conversations.models import TaintedText, Turn
from nanohost.lib.clock import Now
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

ASKS_FOR_TIME = Completion(tool_calls=(tool_call("call_1", "time", "{}"),))


def claim(turn: Turn) -> Claim:
    held = lease.claim(turn.pk, worker="worker-1")
    assert held is not None
    return held


@pytest.mark.parametrize("tainted_by", ["", "example.org"])
def test_with_results_stored_at_the_claim_a_turn_goes_on_as_if_it_were_read_anew(say, tool_settings, tainted_by):
    tool_settings("time")
    turn = say("What time is it?")
    steps.store_calls(claim(turn), ASKS_FOR_TIME, limit=None)
    ToolCall.objects.update(status=CallStatus.SUCCESS, result="noon", tainted_by=tainted_by)
    Turn.objects.update(retries=1, retry_code="turn_error", retrying_since=Now())
    held, context = claim_and_load(turn.pk, worker="worker")
    assert context.snapshot == snapshot.load(held)
    assert (context.snapshot.retries, context.snapshot.tainted_by) == (0, tainted_by)
    assert [message["role"] for message in context.snapshot.own] == ["user", "assistant", "tool"]


@pytest.fixture
def answered(say, tool_settings) -> Turn:
    """A turn whose two calls have ended, and have not been answered."""
    tool_settings("time")
    turn = say("What time is it?")
    twice = Completion(tool_calls=(tool_call("c1", "time", "{}"), tool_call("c2", "time", "{}")))
    steps.store_calls(claim(turn), twice, limit=None)
    ToolCall.objects.filter(call_id="c1").update(status=CallStatus.SUCCESS, result="noon")
    ToolCall.objects.filter(call_id="c2").update(status=CallStatus.REJECTED, result="refused", tainted_by="here")
    return turn


def answers(turn: Turn) -> list[tuple[str, str, str | None]]:
    """What is stored in answer to its calls."""
    stored = turn.messages.filter(role="tool").order_by("seq")
    return list(stored.values_list("tool_call_id", "content", "tainted_by"))


ANSWERS = [("c1", "noon", None), ("c2", "refused", "here")]


def test_a_claim_stores_what_the_turn_has_waited_for(answered, conversation):
    held, context = claim_and_load(answered.pk, worker="worker")
    assert answers(answered) == ANSWERS
    assert context.snapshot == snapshot.load(held)
    conversation.refresh_from_db()
    assert (conversation.tainted_by, conversation.tainted_at_seq, conversation.next_seq) == ("here", 4, 5)
    assert TaintedText.objects.count() == 2  # the calls
    # And once.
    steps.reschedule(held, seconds=-1)
    claim_and_load(answered.pk, worker="worker")
    assert answers(answered) == ANSWERS


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda turn: ToolCall.objects.filter(call_id="c2").update(status=CallStatus.RUNNING),
        lambda turn: Turn.objects.create(conversation=turn.conversation, owner=turn.owner, number=0),
    ],
    ids=["a call is open", "an earlier turn is open"],
)
def test_of_a_turn_that_cannot_be_claimed_nothing_is_stored(answered, otherwise):
    otherwise(answered)
    assert claim_and_load(answered.pk, worker="worker") is None
    assert answers(answered) == []


@pytest.mark.parametrize("changed", [{"cancel_requested": True}, {"attempts": 1}], ids=["cancelled", "poison"])
def test_nothing_is_stored_with_the_claim_of_a_turn_that_is_cancelled_or_may_kill_its_worker(answered, changed):
    Turn.objects.filter(pk=answered.pk).update(**changed)
    assert claim_and_load(answered.pk, worker="worker")
    assert answers(answered) == []


def test_calls_are_answered_in_the_order_in_which_they_were_asked_for_whatever_became_of_them(say, tool_settings):
    tool_settings("time")
    turn = say("What time is it?")
    names = {"c1": "nonsense", "c2": "time", "c3": "nonsense", "c4": "time"}
    asks = Completion(tool_calls=tuple(tool_call(call_id, name, "{}") for call_id, name in names.items()))
    steps.store_calls(claim(turn), asks, limit=None)
    ToolCall.objects.filter(tool_name="time").update(status=CallStatus.SUCCESS, result="noon")
    assert claim_and_load(turn.pk, worker="worker")
    assert [call_id for call_id, *_ in answers(turn)] == list(names)


def test_a_call_of_an_earlier_round_whose_answer_was_deleted_is_not_answered_again(answered):
    held, _ = claim_and_load(answered.pk, worker="worker")
    steps.store_calls(held, ASKS_FOR_TIME, limit=None, before=2)
    answered.messages.filter(tool_call_id="c1").delete()
    ToolCall.objects.filter(call_id="call_1").update(status=CallStatus.SUCCESS, result="later")
    assert claim_and_load(answered.pk, worker="worker")
    assert answers(answered) == [ANSWERS[1], ("call_1", "later", None)]


def test_answers_are_stored_once_though_two_have_read_them(answered):
    """The other has claimed the turn in between, stored them, and let it go again."""

    def read_and_be_late(turn_id):
        read = answers_of(turn_id)
        other, _ = claim_and_load(turn_id, worker="worker-1")
        steps.reschedule(other, seconds=-1)
        return read

    assert lease.claim(answered.pk, worker="worker-2", answers_of=read_and_be_late) is None
    assert answers(answered) == ANSWERS


@pytest.mark.parametrize("fault", [RuntimeError, IntegrityError])
def test_a_turn_whose_answers_cannot_be_stored_with_its_claim_is_held_all_the_same(answered, monkeypatch, fault):
    """Its holder meets the fault, and counts it."""

    def fail(*_, **__):
        raise fault("as if")

    with monkeypatch.context() as patched:
        patched.setattr(transcript, "append", fail)
        held, _ = claim_and_load(answered.pk, worker="worker")
        with pytest.raises(fault):
            steps.store_results(held, snapshot.load(held))
    assert answers(answered) == []
    steps.store_results(held, snapshot.load(held))
    assert answers(answered) == ANSWERS


def test_a_call_that_opens_once_the_answers_were_read_keeps_the_turn_from_being_claimed(answered):
    def read_and_open(turn_id):
        read = answers_of(turn_id)
        ToolCall.objects.filter(call_id="c1").update(status=CallStatus.RUNNING)
        return read

    assert lease.claim(answered.pk, worker="worker", answers_of=read_and_open) is None
    assert answers(answered) == []


def test_a_call_that_ends_once_the_answers_were_read_is_answered_by_the_next_step(answered):
    ToolCall.objects.filter(call_id="c1").update(status=CallStatus.RUNNING, result="")

    def read_too_early(turn_id):
        read = answers_of(turn_id)
        ToolCall.objects.filter(call_id="c1").update(status=CallStatus.SUCCESS, result="noon")
        return read

    held = lease.claim(answered.pk, worker="worker", answers_of=read_too_early)
    assert answers(answered) == []
    steps.store_results(held, snapshot.load(held))
    assert answers(answered) == ANSWERS
