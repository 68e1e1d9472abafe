"""A turn that a process with room claims in the transaction that stores it."""

import threading
from collections.abc import Iterator
from uuid import UUID

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from agent.llm.base import Completion
from conversations.attachments.parts import SentFile
from conversations.engine import deferred, doorbell, inbox, intake, lease, step_context, steps, transcript, turns
from conversations.engine.turns import claim_and_load
from conversations.engine.worker import Runtime
from conversations.kinds import TURNS
from conversations.models import Conversation, Message, Turn
from conversations.statuses import TurnStatus, WaitingFor
from tests.support.process_with_room import ProcessWithRoom
from tests.support.scripts import script
from tests.support.wait import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CAT = SentFile(name="cat.txt", data=b"I am a cat.")


@pytest.fixture
def here() -> Iterator[ProcessWithRoom]:
    made = ProcessWithRoom()
    doorbell.answer_here(TURNS, made)
    yield made
    doorbell.answer_no_more()


@pytest.fixture
def runtime(settings) -> Iterator[Runtime]:
    settings.WORKER_MAX_TURNS = 2
    made = Runtime((TURNS,))
    made.start()
    yield made
    made.stop()


def another(conversation: Conversation) -> Conversation:
    return inbox.start_conversation(owner_id=conversation.owner_id, metadata={})


def seqs_of(turn: Turn) -> list[int | None]:
    return list(Message.objects.filter(turn=turn).order_by("pk").values_list("seq", flat=True))


# Of the two ways, the times differ, and what tells them apart; the hash is of the conversation, too.
OWN = {"id", "conversation", "idempotency_key", "body_hash"}
TIMES = {"created_at", "deadline", "lease_until", "notified_at", "started_at", "stepped_at"}


def test_the_row_and_the_claim_are_those_of_a_turn_that_was_queued_and_claimed(say, here, conversation):
    now = say("Hello", model="gpt-4.1-mini", idempotency_key="now")
    doorbell.answer_no_more()
    later = say("Hello", model="gpt-4.1-mini", idempotency_key="later", conversation=another(conversation))
    claim, context = claim_and_load(later.pk, worker="worker-1")
    rows = [Turn.objects.get(pk=each.pk) for each in (now, later)]
    fields = {each.name for each in Turn._meta.fields} - OWN - TIMES
    stored = [{name: getattr(row, name) for name in fields} for row in rows]
    assert stored[0] == stored[1]
    for row in rows:
        assert all(getattr(row, name) for name in OWN | TIMES)
        assert row.lease_until - row.started_at == lease.lease_length()
        assert row.deadline - row.started_at == rows[0].deadline - rows[0].started_at
    assert seqs_of(now) == seqs_of(later) == [1]

    ((claimed, known),) = here.begun
    same = vars(claim).keys() - {"turn_id", "conversation_id", "key", "deadline"}
    assert {name: getattr(claimed, name) for name in same} == {name: getattr(claim, name) for name in same}
    assert (claimed.turn_id, claimed.conversation_id, claimed.key) == (now.pk, conversation.pk, conversation.key)
    assert abs(claimed.seconds_left() - claim.seconds_left()) < 60
    assert step_context.load(claimed).snapshot == known.snapshot
    assert (known.tools, known.memory, known.today) == (context.tools, context.memory, context.today)
    steps.finish(claimed, Completion(content="Hi"), reply="Hi", has_called=False)
    assert Turn.objects.get(pk=now.pk).status == TurnStatus.SUCCEEDED


def test_it_costs_fewer_statements_and_one_transaction_less(say, here):
    say("Hello")  # writes the statements
    steps.finish(here.begun[0][0], Completion(content="Hi"), reply="Hi", has_called=False)
    with CaptureQueriesContext(connection) as asked:
        say("Hello")
    every = [query["sql"].split()[0] for query in asked.captured_queries]
    assert [sql for sql in every if sql not in ("BEGIN", "COMMIT")] == [
        *("UPDATE", "SELECT", "INSERT", "UPDATE", "INSERT"),  # its place, open turns, itself, a number, the message
        *("SELECT", "SELECT", "SELECT"),  # once it is committed: messages, tools, memory
    ]
    assert every.count("COMMIT") <= 1
    assert not here.notified


def test_one_that_waits_for_another_is_queued(say, here):
    first, second = say("one"), say("two")
    assert [first.status, second.status] == [TurnStatus.RUNNING, TurnStatus.QUEUED]
    assert [claim.turn_id for claim, _ in here.begun] == [first.pk]
    assert (seqs_of(first), seqs_of(second)) == ([1], [None])
    assert here.notified == [second.pk]


def test_one_behind_a_queued_turn_is_queued_too(say, here):
    with transaction.atomic():
        first = say("one")
    second = say("two")
    assert [first.status, second.status] == [TurnStatus.QUEUED, TurnStatus.QUEUED]
    assert here.notified == [first.pk, second.pk]


def test_without_room_it_is_queued(say, conversation, here):
    here.places = 1
    for queued in range(3):
        say("Hello", conversation=another(conversation))
        assert (len(here.begun), len(here.notified)) == (1, queued)


def test_while_the_intake_is_paused_it_is_queued(say, here):
    intake.pause(by="admin", because="a deploy")
    turn = say("Hello")
    assert (turn.status, turn.waiting_for) == (TurnStatus.QUEUED, WaitingFor.INTAKE)
    assert Turn.objects.get(pk=turn.pk).waiting_for == WaitingFor.INTAKE
    assert not here.begun


def test_what_rides_along_comes_first(say, conversation, here):
    for words in ("one", "two"):
        deferred.put(conversation, kind=deferred.Kind.CONTEXT, content=words, request_id="r")
    turn = say("three")
    said = Message.objects.filter(turn=turn).order_by("seq").values_list("seq", "content")
    assert list(said) == [(1, "one"), (2, "two"), (3, "three")]
    assert Conversation.objects.get(pk=conversation.pk).next_seq == 4
    assert [message["content"] for message in here.begun[0][1].snapshot.own] == ["one", "two", "three"]


def test_one_that_interrupts_begins_once_nothing_is_open(say, here):
    with transaction.atomic():
        queued = say("one")
    second = say("two", on_busy="interrupt")
    assert Turn.objects.get(pk=queued.pk).status == TurnStatus.CANCELLED
    assert second.status == TurnStatus.RUNNING
    assert say("three", on_busy="interrupt").status == TurnStatus.QUEUED  # the second runs until it is stopped
    assert Turn.objects.get(pk=second.pk).cancel_requested


@pytest.mark.parametrize("again", range(5))
def test_of_those_that_come_at_once_the_first_begins_and_the_others_wait(say, here, again):
    together, made = threading.Barrier(4), []

    def receive() -> None:
        try:
            together.wait(10)
            made.append(say("Hello"))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=receive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.sort(key=lambda turn: turn.number)
    assert [turn.number for turn in made] == [1, 2, 3, 4]
    assert [turn.status for turn in made] == [TurnStatus.RUNNING, *[TurnStatus.QUEUED] * 3]
    assert [claim.turn_id for claim, _ in here.begun] == [made[0].pk]


def test_one_that_is_cancelled_before_it_begins_is_cancelled_by_its_fence(say, here):
    turn = say("Hello")
    ((claim, _),) = here.begun
    Turn.objects.filter(pk=turn.pk).update(cancel_requested=True)
    with pytest.raises(steps.FenceLost):
        steps.finish(claim, Completion(content="Hi"), reply="Hi", has_called=False)
    assert steps.cancel_if_asked(claim)


def test_what_cannot_be_read_once_it_is_stored_is_left_to_whoever_runs_it(say, here, monkeypatch):
    def broken(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(step_context, "load", broken)
    assert say("Hello").status == TurnStatus.RUNNING
    ((_, context),) = here.begun
    assert context is None


# --- in a worker's process ---------------------------------------------------------------------------------------


def test_it_is_answered(say, runtime):
    turn = say("Hello")
    assert (turn.status, Turn.objects.get(pk=turn.pk).worker) == (TurnStatus.RUNNING, runtime.name)
    waited = threading.Event()
    while not (turn := Turn.objects.get(pk=turn.pk)).ended:
        waited.wait(0.01)
    assert turn.status == TurnStatus.SUCCEEDED
    assert list(Message.objects.order_by("seq").values_list("seq", "role")) == [(1, "user"), (2, "assistant")]


def test_a_place_is_left_again_when_nothing_begins(say, runtime, conversation, monkeypatch):
    say(script({"sleep": 60}), idempotency_key="k")
    assert runtime.free(TURNS) == 1
    say(script({"sleep": 60}), idempotency_key="k")  # the same
    say("behind it")

    def refuse(*_: object) -> None:
        raise IntegrityError

    monkeypatch.setattr(transcript, "take_seqs", refuse)
    with pytest.raises(IntegrityError):
        say("cannot be stored", conversation=another(conversation))
    while not runtime.free(TURNS):  # what it was notified of is looked at
        threading.Event().wait(0.01)
    assert runtime.free(TURNS) == 1
    assert Turn.objects.filter(status=TurnStatus.RUNNING).count() == 1


def test_a_transaction_that_may_be_rolled_back_holds_no_place(say, runtime):
    with transaction.atomic():
        assert say("Hello").status == TurnStatus.QUEUED
        assert runtime.free(TURNS) == 2
        transaction.set_rollback(True)
    assert not Turn.objects.exists()


def test_a_process_that_stops_begins_nothing(say, runtime):
    runtime.wind_down()
    assert say("Hello").status == TurnStatus.QUEUED


@pytest.mark.parametrize("way", ["by this process", "by the broker"])
def test_a_claim_that_fails_leaves_its_place_and_is_nobody_elses_trouble(runtime, monkeypatch, caplog, way):
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(turns, "claim_and_load", broken)
    if way == "by this process":
        doorbell.notify(TURNS, UUID(int=1))
    else:
        runtime.take(TURNS, UUID(int=1))
    wait_until(lambda: "a fault of ours" in caplog.text)
    assert runtime.free(TURNS) == 2


def test_one_with_which_a_file_rides_along_is_claimed_by_the_way_on_which_it_taints(say, here, conversation):
    deferred.put(conversation, kind=deferred.Kind.CONTEXT, content="Look.", files=[CAT], request_id="r")
    turn = say("And?")
    assert (turn.status, here.begun, here.notified) == (TurnStatus.QUEUED, [], [turn.pk])
    assert lease.claim(turn.pk, worker="worker-1")
    conversation.refresh_from_db()
    assert conversation.tainted_by == "the file cat.txt"
