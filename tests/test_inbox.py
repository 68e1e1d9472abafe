"""Messages coming in."""

import threading
from datetime import UTC, datetime

import pytest
from django.db import connections
from django.utils import timezone

from conversations.engine import inbox, turn_control
from conversations.errors import IdempotencyConflict, ModelNotAllowed, UnknownAgent
from conversations.models import Conversation, Message, Turn, TurnStatus
from nanohost.lib import clock
from nanohost.lib.errors import NotFound

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_message_waits_in_the_inbox_until_its_turn_starts(say):
    turn = say("Hello")
    assert (turn.number, turn.status) == (1, TurnStatus.QUEUED)
    message = Message.objects.get(turn=turn)
    assert (message.content, message.seq) == ("Hello", None)


def test_the_same_key_and_request_return_the_same_turn(say):
    assert say("Hello", idempotency_key="k").pk == say("Hello", idempotency_key="k").pk
    assert Turn.objects.count() == Message.objects.count() == 1


def test_the_same_key_with_another_request_is_a_conflict(say):
    say("Hello", idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        say("Goodbye", idempotency_key="k")
    assert Turn.objects.count() == 1


def test_another_owner_may_use_the_same_key(say, outsider):
    theirs = inbox.start_conversation(owner_id=outsider.pk, metadata={})
    assert say("Hello", idempotency_key="k").pk != say("Hello", idempotency_key="k", conversation=theirs).pk


def test_concurrent_messages_get_numbers_without_gaps(say):
    together = threading.Barrier(12)

    def speak(number: int) -> None:
        together.wait(20)
        try:
            say(f"message {number}")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Turn.objects.values_list("number", flat=True)) == list(range(1, 13))


def test_concurrent_duplicates_make_one_turn(say, monkeypatch):
    """Each of them looks for an earlier one before any of them is stored."""
    turns: list[Turn] = []
    # As many as have a connection each: all of them hold theirs at once.
    together, has_looked, look = threading.Barrier(8), threading.local(), inbox._earlier_turn

    def look_together(*args: object) -> Turn | None:
        found = look(*args)
        if not hasattr(has_looked, "once"):
            has_looked.once = True
            assert found is None
            together.wait(20)
        return found

    monkeypatch.setattr(inbox, "_earlier_turn", look_together)

    def speak() -> None:
        turns.append(say("Hello", idempotency_key="k"))
        connections.close_all()

    threads = [threading.Thread(target=speak) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({turn.pk for turn in turns}) == Turn.objects.count() == 1
    assert len(turns) == 8


def test_a_turn_was_made_when_the_databases_clock_says_whatever_the_web_nodes_does(say, monkeypatch):
    before = clock.read()
    monkeypatch.setattr(timezone, "now", lambda: datetime(2040, 1, 1, tzinfo=UTC))
    turn = say("Hello")
    monkeypatch.undo()
    assert before <= turn.created_at <= clock.read()
    assert Turn.objects.get().created_at == Message.objects.get().created_at == turn.created_at


@pytest.mark.parametrize("offered", [[], ["gpt-4.1-mini", "small"]])
def test_only_the_agents_own_model_and_those_that_are_offered_may_be_named(say, settings, conversation, offered):
    settings.LLM_MODELS = offered
    with pytest.raises(ModelNotAllowed, match=", ".join(offered) or "gpt-4.1-mini"):
        say("Hello", model="large")
    assert [kind.objects.count() for kind in (Turn, Message)] == [0, 0]
    assert Conversation.objects.get().next_turn == 1
    for model in ("", "gpt-4.1-mini", *offered):
        assert say("Hello", model=model).model == model or "gpt-4.1-mini"
    conversation.agent.model = "large"
    assert [say("Hello", model=model).model for model in ("large", "")] == ["large", "large"]


def test_the_default_model_is_not_that_of_an_agent_with_its_own(say, conversation):
    conversation.agent.model = "large"
    with pytest.raises(ModelNotAllowed, match=r"'gpt-4\.1-mini' is not offered; choose one of large\."):
        say("Hello", model="gpt-4.1-mini")


def test_a_repeat_gets_its_answer_whatever_is_offered_now(say, settings):
    settings.LLM_MODELS = ["gpt-4.1-mini", "large"]
    turn = say("Hello", model="large", idempotency_key="k")
    settings.LLM_MODELS = []
    assert say("Hello", model="large", idempotency_key="k").pk == turn.pk


def test_asked_again_it_is_asked_of_its_model_while_that_is_offered_and_then_of_the_agents(say, settings):
    settings.LLM_MODELS = ["gpt-4.1-mini", "large"]
    first, second = say("Hello", model="large"), say("And you?", model="large")
    Turn.objects.update(status=TurnStatus.FAILED)
    asked, later = Turn.objects.get(pk=first.pk), Turn.objects.get(pk=second.pk)
    again = inbox.ask_again(asked, request_id="r")
    settings.LLM_MODELS = []
    assert again.model == "large"
    assert inbox.ask_again(asked, request_id="r").pk == again.pk
    moved_on = inbox.ask_again(later, request_id="r")
    settings.LLM_MODELS = ["gpt-4.1-mini", "large"]
    assert moved_on.model == "gpt-4.1-mini"
    assert inbox.ask_again(later, request_id="r").pk == moved_on.pk


def test_an_unknown_agent_is_refused(owner):
    with pytest.raises(UnknownAgent):
        inbox.start_conversation(owner_id=owner.pk, agent="nobody", metadata={})
    assert not Conversation.objects.exists()


def test_a_message_for_a_conversation_deleted_meanwhile_is_not_found(say, conversation):
    turn_control.delete_conversation(conversation.pk)
    with pytest.raises(NotFound):
        say("Hello")
    assert not Turn.objects.exists()
