"""Messages coming in."""

import hashlib
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from agent.models import DEFAULT_AGENT, Agent
from conversations.engine import deferred, inbox, lease, turn_control
from conversations.engine.incoming import Incoming
from conversations.errors import (
    ConversationBusy,
    IdempotencyConflict,
    KeyTaken,
    ModelNotAllowed,
    NotFailed,
    UnknownAgent,
)
from conversations.models import Conversation, DeferredMessage, Message, Turn
from conversations.statuses import TurnStatus
from nanohost.lib import clock
from nanohost.lib.errors import InvalidRequest, NotFound
from tests.support.working import settle

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
    for other in ("Goodbye", *(f"Hello {number}" for number in range(20))):
        with pytest.raises(IdempotencyConflict):
            say(other, idempotency_key="k")
    assert Turn.objects.count() == 1


def test_what_a_request_is_known_by_stays_from_version_to_version(say, conversation):
    asked = f'["{conversation.pk}", "Grüße", "gpt-4.1-mini"]'
    assert say("Grüße", model="gpt-4.1-mini").body_hash == hashlib.sha256(asked.encode()).hexdigest()


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
    together, with_files_stored = threading.Barrier(8), Incoming.with_files_stored

    def wait_for_all(*asked: Any) -> Incoming:
        together.wait(20)
        return with_files_stored(*asked)

    monkeypatch.setattr(Incoming, "with_files_stored", wait_for_all)  # after the look, before anything is stored

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
        assert say("Hello", model=model).model == (model or "gpt-4.1-mini")
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


# --- conversations by their key --------------------------------------------------------------------------------------


@pytest.fixture
def other_agents():
    """Of ids below and above the default agent's."""
    default = Agent.objects.get(name=DEFAULT_AGENT)
    return [Agent.objects.create(pk=default.pk + step, name=f"agent{step}") for step in (-1000, 1000)]


def test_a_key_leads_to_one_conversation_with_the_agent_it_was_made_with(owner, other_agents):
    made, is_new = inbox.conversation_of(owner_id=owner.pk, key="irc:1", metadata={"a": 1})
    assert (is_new, made.agent.name, made.metadata) == (True, DEFAULT_AGENT, {"a": 1})
    for agent in (None, DEFAULT_AGENT):
        found, is_new = inbox.conversation_of(owner_id=owner.pk, key="irc:1", agent=agent, metadata={"a": 2})
        assert (is_new, found.pk, found.metadata) == (False, made.pk, {"a": 1})
    for agent in other_agents:
        with pytest.raises(KeyTaken, match="is with the agent default"):
            inbox.conversation_of(owner_id=owner.pk, key="irc:1", agent=agent.name, metadata={})
        theirs, is_new = inbox.conversation_of(owner_id=owner.pk, key=agent.name, agent=agent.name, metadata={})
        assert (is_new, theirs.agent) == (True, agent)
        # Without a name, it is what it is.
        for named in (None, agent.name):
            again = inbox.conversation_of(owner_id=owner.pk, key=agent.name, agent=named, metadata={})
            assert again == (theirs, False)
        with pytest.raises(KeyTaken, match=f"is with the agent {agent.name}"):
            inbox.conversation_of(owner_id=owner.pk, key=agent.name, agent=DEFAULT_AGENT, metadata={})


def test_what_the_host_began_is_found_by_its_key_and_begun_by_nobody_else(owner):
    with pytest.raises(InvalidRequest, match="the host's own"):
        inbox.conversation_of(owner_id=owner.pk, key="heartbeat:default", metadata={})
    assert not Conversation.objects.exists()
    agent = Agent.objects.get(name=DEFAULT_AGENT)
    began = Conversation.objects.create(owner=owner, agent=agent, key="heartbeat:default")
    assert inbox.conversation_of(owner_id=owner.pk, key="heartbeat:default", metadata={}) == (began, False)


# --- asked again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", TurnStatus.values)
def test_what_failed_may_be_asked_again_once_and_nothing_else(say, status):
    turn = say("Hello")
    Turn.objects.update(status=status)
    turn.refresh_from_db()
    assert inbox.asked_again([turn]) == {}
    assert inbox.may_be_asked_again(turn, {}) is (status == "failed")
    if status != "failed":
        with pytest.raises(NotFailed, match=f"It is {status}"):
            inbox.ask_again(turn, request_id="request-2")
        assert Turn.objects.count() == 1
        return
    again = inbox.ask_again(turn, request_id="request-2")
    assert inbox.ask_again(turn, request_id="request-3").pk == again.pk
    assert inbox.asked_again([turn, again]) == {turn.pk: again}
    assert inbox.may_be_asked_again(turn, {turn.pk: again}) is False
    assert inbox.may_be_asked_again(turn, {again.pk: turn}) is True
    assert (again.request_id, Turn.objects.count()) == ("request-2", 2)


@pytest.mark.parametrize("status", [status for status in TurnStatus.values if status != "failed"])
def test_that_is_looked_up_only_for_what_failed(say, django_assert_num_queries, status):
    turn = say("Hello")
    turn.status = status
    with django_assert_num_queries(0):
        assert inbox.asked_again([turn]) == {}


# --- what was set aside ----------------------------------------------------------------------------------------------


def test_what_was_set_aside_rides_along_in_order_once_it_is_time(say, conversation):
    given = {"request_id": "request-1"}
    deferred.put(conversation, kind=deferred.Kind.NOTE, content="a note", **given)
    deferred.put(conversation, kind=deferred.Kind.CONTEXT, content="context", **given)
    deferred.put(
        conversation, kind=deferred.Kind.CONTEXT, content="past", run_after=datetime(2020, 1, 1, tzinfo=UTC), **given
    )
    deferred.put(
        conversation, kind=deferred.Kind.CONTEXT, content="to come", run_after=datetime(2999, 1, 1, tzinfo=UTC), **given
    )
    deferred.put(
        conversation, kind=deferred.Kind.WAKE, content="wakes", run_after=datetime(2020, 1, 1, tzinfo=UTC), **given
    )
    command = say("/help")
    assert list(command.messages.values_list("content", flat=True)) == ["/help"]
    turn = say("Hello")
    assert list(turn.messages.order_by("pk").values_list("content", flat=True)) == [
        *("[note] a note", "context", "past", "Hello")
    ]
    conversation.refresh_from_db()
    assert conversation.set_aside == 1
    assert list(DeferredMessage.objects.order_by("pk").values_list("content", "state", "turn_id")) == [
        *(("a note", "done", turn.pk), ("context", "done", turn.pk), ("past", "done", turn.pk)),
        *(("to come", "waiting", None), ("wakes", "waiting", None)),
    ]
    assert list(say("Again").messages.values_list("content", flat=True)) == ["Again"]


# --- while others are open -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_busy", "left"), [("enqueue", "queued"), ("interrupt", "cancelled"), ("reject", "queued")])
def test_what_becomes_of_it_while_another_is_open(say, on_busy, left):
    on_busy = "".join(on_busy)  # not the object that stands in the code
    first = say("one", on_busy=on_busy)
    if on_busy == "reject":
        for _ in range(2):
            say("behind")
        with pytest.raises(ConversationBusy) as refused:
            say("two", on_busy=on_busy)
        assert refused.value.members == {"turnId": str(first.pk)}
        assert Turn.objects.count() == 3
    else:
        assert say("two", on_busy=on_busy).number == 2
    first.refresh_from_db()
    assert first.status == left


@pytest.mark.parametrize("word", ["/stop", "/help", "/zebra", "/stop now"])
def test_one_command_interrupts(say, word):
    first = say("one")
    say(word)
    first.refresh_from_db()
    assert first.status == ("cancelled" if word.startswith("/stop") else "queued")


def test_a_model_that_is_not_offered_is_refused_before_anything_is_stored(conversation):
    inbox.refuse_other_models(conversation.agent, "")
    with pytest.raises(ModelNotAllowed):
        inbox.refuse_other_models(conversation.agent, "large")


# --- what nobody has asked for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by_agent", "role", "kind"), [(True, "assistant", ""), (False, "system", "command")])
def test_a_note_is_appended_between_turns(say, conversation, by_agent, role, kind):
    settle([say("Hello")])
    turn = say("And you?")
    assert inbox.note(conversation_id=conversation.pk, content="one", by_agent=by_agent) is True
    assert inbox.note(conversation_id=conversation.pk, content="two", by_agent=by_agent) is True
    appended = conversation.messages.filter(seq__gt=2).order_by("seq")
    assert list(appended.values_list("seq", "role", "kind", "content")) == [
        *((3, role, kind, "one"), (4, role, kind, "two"))
    ]
    conversation.refresh_from_db()
    assert conversation.next_seq == 5
    lease.claim(turn.pk, worker="worker-1")
    assert inbox.note(conversation_id=conversation.pk, content="three") is False
    turn_control.delete_conversation(conversation.pk)
    assert inbox.note(conversation_id=conversation.pk, content="four") is True


def test_the_next_prompt_begins_anew_unless_a_turn_is_active(say, conversation):
    settle([say("Hello")])
    turn = say("And you?")
    lease.claim(turn.pk, worker="worker-1")

    def begins():
        inbox.begin_anew(conversation_id=conversation.pk)
        return Conversation.objects.values_list("starts_at_seq", "consolidated_through", "summary_seq").get()

    with transaction.atomic():
        assert begins() == (1, 0, None)
    Turn.objects.update(status=TurnStatus.CANCELLED)
    Conversation.objects.update(summary_seq=2)
    with transaction.atomic():
        assert begins() == (4, 3, None)


def test_what_is_to_be_stored_with_a_turn_is_stored_with_it_or_neither_is(conversation):
    class Refused(Exception):
        pass

    def refuse(turn_id, number):
        assert Turn.objects.filter(pk=turn_id, number=number).exists()
        raise Refused

    with pytest.raises(Refused):
        inbox.receive(Incoming("Hello"), conversation=conversation, request_id="r", also=refuse)
    assert not Turn.objects.exists()
    conversation.refresh_from_db()
    assert conversation.next_turn == 1
