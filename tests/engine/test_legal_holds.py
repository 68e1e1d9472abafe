"""Legal holds: at each door by which something could be deleted, what one keeps stays; and goes when it is released."""

import threading
from collections import Counter
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction

from agent.models import Agent, AgentVersion
from conversations.attachments import intake, store
from conversations.deliveries import outbox
from conversations.engine import editing, inbox, turn_control
from conversations.engine.consent import questions
from conversations.models import Attachment, Conversation, Delivery, Message
from conversations.question_models import Question
from memory import documents, log
from memory.models import HistoryEntry
from nanohost.accounts import holds
from nanohost.accounts.errors import UnderLegalHold
from nanohost.accounts.models import AuditEntry, LegalHold
from nanohost.console import people
from nanohost.console.holding import subject_named
from nanohost.lib import clock
from nanohost.lib.ids import new_id
from scheduler import runs, series
from scheduler.models import CheckIn, Schedule
from tests.support import files
from tests.support.ageing import age, go, keep, would_go
from tests.support.factories import AgentFactory
from tests.support.scripts import script
from tests.support.working import settle
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

KINDS = ("owner", "conversation", "agent")


@pytest.fixture
def hold(conversation, owner, agent):
    """Place one: ``hold("owner")``."""
    names = {"owner": owner.username, "conversation": str(conversation.pk), "agent": agent.name}
    return lambda kind: holds.place(kind=kind, reason="A matter.", by="anna", **subject_named(kind, names[kind]))


@pytest.fixture
def everything_old(say, agent, owner, tool_settings):
    """Something of each kind, and nothing is kept for longer than it has been there."""
    tool_settings("time")
    settle([say(script({"call": [{"name": "time"}]}, {"say": "Done."}))])
    whose = {"agent": agent.name, "owner_id": owner.pk}
    for base, content in enumerate(("one", "two")):
        documents.rewrite(**whose, base=base, content=content, source="person", checked=False)
    log.append(**whose, content="words", happened_at=clock.read())
    agent.system_prompt = "Another."
    agent.save_version(by="anna")
    keep(agent, messages=30, sent=30, results=30, memory=30, history=30)
    age(40)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_it_goes_by_its_age_until_it_is_released(everything_old, hold, kind):
    placed = hold(kind)
    kept = {("default", "history"): 1} if kind == "none" else {}
    assert would_go() == go() == kept
    assert holds.release(placed, reason="Settled.", by="bert")
    assert set(go()) == {("default", each) for each in ("messages", "sent", "results", "memory", "history")}


def test_what_others_have_goes_all_the_same(everything_old, hold, outsider, agent):
    hold("owner")
    log.append(agent=agent.name, owner_id=outsider.pk, content="x", happened_at=clock.read() - timedelta(days=40))
    assert go() == {("default", "history"): 1}
    assert HistoryEntry.objects.get().content == "words"


@pytest.mark.parametrize("kind", KINDS)
def test_no_conversation_is_deleted_and_no_person_erased(say, hold, kind, conversation, owner):
    settle([say("words")])
    placed = hold(kind)
    with pytest.raises(UnderLegalHold, match=f"legal hold {placed.pk} on {kind}"):
        turn_control.delete_conversation(conversation.pk)
    with pytest.raises(UnderLegalHold, match=f"legal hold {placed.pk}"):
        people.erase(owner)
    owner.refresh_from_db()
    assert owner.is_active
    assert Message.objects.count() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_no_code_deletes_what_is_held(hold, kind, owner, conversation):
    hold(kind)
    for row in (owner, conversation):
        with pytest.raises(UnderLegalHold), transaction.atomic():
            row.delete()
    assert Conversation.objects.exists()


def test_no_code_deletes_an_agent_that_is_held():
    agent = Agent.objects.create(name="clerk")
    placed = holds.place(kind="agent", reason="A matter.", by="anna", agent="clerk")
    with pytest.raises(UnderLegalHold), transaction.atomic():
        agent.delete()
    holds.release(placed, reason="Settled.", by="anna")
    agent.delete()
    assert not Agent.objects.filter(name="clerk").exists()


def test_a_hold_that_is_placed_in_the_midst_of_an_erasure_ends_it(say, owner, hold, monkeypatch):
    settle([say("words")])
    real = turn_control.delete_conversation
    monkeypatch.setattr(turn_control, "delete_conversation", lambda pk: (hold("owner"), real(pk)))
    with pytest.raises(UnderLegalHold):
        people.erase(owner)
    assert Conversation.objects.exists()
    assert get_user_model().objects.filter(pk=owner.pk).exists()


def test_clear_keeps_what_is_held(say, hold):
    Conversation.objects.update(state={"step": "2"})
    hold("conversation")
    (turn,) = settle([say("/clear")])
    assert "is kept, by a legal hold" in Message.objects.get(turn=turn, role="assistant").content
    assert Conversation.objects.get().state == {"step": "2"}


@pytest.mark.parametrize("kind", KINDS)
def test_old_schedules_and_check_ins_are_kept(hold, kind, owner, agent):
    series.create(owner_id=owner.pk, agent=agent.name, prompt="x", every_seconds=60)
    long_ago = clock.read() - timedelta(days=100)
    Schedule.objects.update(cancelled_at=long_ago)
    CheckIn.objects.create(agent=agent, owner=owner, slot=long_ago, day=long_ago.date(), state="ok", ended_at=long_ago)
    placed = hold(kind)
    assert runs.forget_old() == 0
    holds.release(placed, reason="Settled.", by="bert")
    assert runs.forget_old() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_for_a_while_only_stays_of_what_is_held(hold, kind, conversation, owner, agent, outsider):
    others = inbox.start_conversation(owner_id=outsider.pk, agent=AgentFactory().name, metadata={})
    long_ago = clock.read() - timedelta(days=100)
    over = {"expires_at": long_ago}
    for each in (conversation, others):
        whose = {"owner_id": each.owner_id, "agent": each.agent.name, "turn_id": new_id(), "call_id": new_id()}
        Question.objects.create(conversation=each, text="Which?", options=[], state="answered", **over, **whose)
        Delivery.objects.create(kind="message", conversation_id=each.pk, status="delivered", data={"text": "x"}, **over)
    Delivery.objects.create(kind="turn.succeeded", status="delivered", data={}, **over)  # which is of no conversation
    Question.objects.update(asked_at=long_ago)
    Delivery.objects.update(created_at=long_ago)
    placed = hold(kind)
    assert (questions.forget_old(), outbox.forget_old()) == (1, 2)
    assert (Question.objects.get().conversation, Delivery.objects.get().conversation_id) == (
        conversation,
        conversation.pk,
    )
    holds.release(placed, reason="Settled.", by="bert")
    assert (questions.forget_old(), outbox.forget_old()) == (1, 1)


def test_files_that_no_message_has_stay_with_who_is_held(hold, owner, outsider):
    for each in (owner, outsider):
        store.store(each.pk, files.picture(), intake.reading.read(files.picture(), name="x"))
    placed = hold("owner")
    assert store.collect(grace=timedelta(0)) == 1
    assert Attachment.objects.get().owner_id == owner.pk
    holds.release(placed, reason="Settled.", by="bert")
    assert store.collect(grace=timedelta(0)) == 1


def test_versions_of_an_agent_stay_while_anything_is_held(agent, hold, outsider):
    inbox.start_conversation(owner_id=outsider.pk, metadata={})
    Agent.objects.create(name="other").save_version(by="anna")
    hold("owner")
    for prompt in ("one", "two"):
        agent.system_prompt = prompt
        agent.save_version(by="anna")
    keep(agent, sent=30)
    age(40)
    assert go() == Counter()
    assert AgentVersion.objects.filter(agent=agent).count() == 4


def test_both_ends_of_a_hold_are_in_the_audit_log_and_it_is_released_once(hold):
    placed = hold("owner")
    assert holds.release(placed, reason="Settled.", by="bert")
    assert not holds.release(placed, reason="Again.", by="bert")
    entries = AuditEntry.objects.filter(object_type="accounts.legalhold").order_by("pk")
    assert [(each.action, each.reason) for each in entries] == [
        ("hold.placed", "A matter."),
        ("hold.released", "Settled."),
    ]
    row = LegalHold.objects.get()
    assert (row.placed_by, row.released_by, row.released_because) == ("anna", "bert", "Settled.")


def test_whoever_places_a_hold_waits_for_a_deletion_under_way(hold, conversation):
    """From when it is placed, nothing goes: also nothing that somebody has begun to delete before."""

    def delete(is_under_way):
        with transaction.atomic():
            assert not holds.placed_until_the_end().holds
            is_under_way()

    assert in_what_order(delete, hold) == ["deleted", "placed"]
    assert ToolCall.objects.count() == 0


def test_whoever_places_a_hold_waits_until_a_message_is_deleted(say, hold, conversation):
    settle([say("words")])
    message = Message.objects.get(role="user")

    def delete(is_under_way):
        editing.delete(conversation, message, without=lambda row: is_under_way())

    assert in_what_order(delete, hold) == ["deleted", "placed"]
    assert not Message.objects.filter(pk=message.pk).exists()


def in_what_order(delete, hold):
    """Place a hold while somebody deletes, who calls what it is given once the holds were read."""
    reads, placed, order = threading.Event(), threading.Event(), []

    def is_under_way():
        reads.set()
        placed.wait(1)
        order.append("deleted")

    def deletes():
        try:
            delete(is_under_way)
        finally:
            connection.close()

    deleting = threading.Thread(target=deletes)
    deleting.start()
    assert reads.wait(10)
    hold("owner")
    order.append("placed")
    placed.set()
    deleting.join()
    return order


def test_nobody_reads_the_holds_for_a_deletion_that_is_in_no_transaction():
    """Whoever places one would wait for nothing."""
    with pytest.raises(transaction.TransactionManagementError):
        holds.placed_until_the_end()
