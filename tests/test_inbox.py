"""Messages coming in."""

import threading

import pytest
from django.db import connections

from conversations import endings, inbox
from conversations.errors import IdempotencyConflict, UnknownAgent, UnknownModel
from conversations.models import Conversation, Message, Turn, TurnStatus
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
    def speak(number: int) -> None:
        say(f"message {number}")
        connections.close_all()

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Turn.objects.values_list("number", flat=True)) == list(range(1, 13))


def test_concurrent_duplicates_make_one_turn(say):
    turns: list[Turn] = []

    def speak() -> None:
        turns.append(say("Hello", idempotency_key="k"))
        connections.close_all()

    threads = [threading.Thread(target=speak) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({turn.pk for turn in turns}) == Turn.objects.count() == 1
    assert len(turns) == 12


def test_a_model_that_is_not_offered_is_refused(say, settings):
    settings.LLM_MODELS = ["small"]
    with pytest.raises(UnknownModel):
        say("Hello", model="large")
    assert not Turn.objects.exists()
    assert say("Hello", model="small").model == "small"


def test_a_repeat_gets_its_answer_whatever_is_offered_now(say, settings):
    turn = say("Hello", model="large", idempotency_key="k")
    settings.LLM_MODELS = ["small"]
    assert say("Hello", model="large", idempotency_key="k").pk == turn.pk


def test_an_unknown_agent_is_refused(owner):
    with pytest.raises(UnknownAgent):
        inbox.start_conversation(owner_id=owner.pk, agent="nobody", metadata={})
    assert not Conversation.objects.exists()


def test_a_message_for_a_conversation_deleted_meanwhile_is_not_found(say, conversation):
    endings.delete_conversation(conversation.pk)
    with pytest.raises(NotFound):
        say("Hello")
    assert not Turn.objects.exists()
