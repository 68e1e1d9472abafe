"""Commands in a chat message: carried out by the host, seen by no model."""

import pytest
from django.db import OperationalError
from hypothesis import given
from hypothesis import strategies as st

from conversations.engine import steps, turn_control
from conversations.engine.compacting import compaction, parts
from conversations.engine.incoming import command_in
from conversations.engine.turns import claim_and_load
from conversations.models import Conversation, Message, Turn
from conversations.statuses import TurnStatus
from memory.models import HistoryEntry, Memory
from tests.support.compacting import KEEP, rows, run_last, saves
from tests.support.openai_server import completion, failure
from tests.support.working import prompt_of, settle

pytestmark = pytest.mark.django_db(transaction=True)


def reply(turn) -> str:
    """What the turn answered."""
    return turn.messages.get(role="assistant").content


@pytest.mark.parametrize(
    ("content", "command"),
    [
        *(("/new", "new"), ("/New please", "new"), ("  /stop\n", "stop"), ("/help@mybot", "help")),
        *(("/dance", "dance"), ("/etc/passwd is what?", ""), ("new", ""), ("1/2", ""), ("/ new", ""), ("//new", "")),
    ],
)
def test_what_is_a_command(content, command):
    assert command_in(content) == command


@given(st.text())
def test_whatever_is_said_it_is_a_command_or_not(content):
    assert len(command_in(content)) <= 32


def test_help_lists_the_commands_and_no_model_is_asked(say, model):
    (turn,) = settle([say("/help")])
    assert (turn.status, turn.prompt_tokens) == (TurnStatus.SUCCEEDED, 0)
    assert "/reset: start afresh" in reply(turn)
    assert model.requests == []


def test_an_unknown_command_gets_a_hint_and_reaches_no_model(say, model):
    (turn,) = settle([say("/dance wildly")])
    assert reply(turn).startswith("There is no command /dance. These are:\n/new")
    assert model.requests == []


def test_commands_and_their_answers_are_in_no_later_prompt(say):
    settle([say("Hello"), say("/help"), say("/status")])
    assert prompt_of(say("Again")) == ["Hello", "You said: Hello", "Again"]


def test_status_tells_how_the_conversation_stands(say):
    first, turn = settle([say("Hello"), say("/status")])
    assert "Agent default, version 1; model gpt-4.1-mini." in reply(turn)
    assert "2 messages are in the prompt, 2 of them in no summary yet." in reply(turn)
    assert f"have used {first.prompt_tokens} tokens" in reply(turn)


def test_new_archives_what_is_left_and_the_next_prompt_is_empty_of_it(conversation, say, fill):
    fill(6)
    Conversation.objects.filter(pk=conversation.pk).update(state={"step": 2})
    (turn,) = settle([say("/new")])
    assert reply(turn) == "Started afresh. The conversation is kept in memory."
    entry = HistoryEntry.objects.get()
    assert (entry.first_seq, entry.last_seq, entry.turn_id) == (1, 6, turn.pk)
    assert "word 5" in entry.content
    conversation.refresh_from_db()
    assert conversation.state == {"step": 2}
    assert Message.objects.count() == 8
    assert prompt_of(say("Hello")) == ["Hello"]


def test_new_after_a_compaction_drops_its_summary_from_the_prompt(conversation, say, fill):
    fill(44)
    compaction.request(conversation.pk, None, keep_tokens=KEEP)
    run_last()
    settle([say("/new")])
    _, context = claim_and_load(say("Hello").pk, worker="worker-1")
    assert context.snapshot.summary == ""
    assert [entry.first_seq for entry in HistoryEntry.objects.order_by("first_seq")] == [1, 25]


@pytest.mark.parametrize("answer", [completion("No."), failure(401)])
def test_if_archiving_fails_nothing_changes_and_the_answer_says_so(conversation, say, fill, model, answer):
    fill(6)
    model.answer(answer)
    (turn,) = settle([say("/new")])
    assert reply(turn).startswith("Nothing was changed: the model")
    conversation.refresh_from_db()
    assert (conversation.starts_at_seq, conversation.consolidated_through) == (1, 0)
    assert not HistoryEntry.objects.exists()
    assert not Memory.objects.exists()
    model.answer(saves())
    (turn,) = settle([say("/new")])
    assert "in memory" in reply(turn)


def test_what_was_archived_is_paid_for_once_though_the_database_is_away_when_it_is_stored(
    say, fill, model, monkeypatch
):
    fill(6)
    model.answer(saves())
    real, asked = steps.finish, []

    def refuse_once(*args, **options):
        asked.append(1)
        if len(asked) == 1:
            raise OperationalError("the connection is lost")
        real(*args, **options)

    monkeypatch.setattr(steps, "finish", refuse_once)
    (turn,) = settle([say("/new")])
    assert reply(turn) == "Started afresh. The conversation is kept in memory."
    assert len(asked) == 2
    assert len(model.requests) == 1


def test_new_with_nothing_said_needs_no_model(say, model):
    (turn,) = settle([say("/new")])
    assert turn.status == TurnStatus.SUCCEEDED
    assert model.requests == []


def test_reset_begins_anew_without_archiving(conversation, say, fill, model):
    fill(6)
    Conversation.objects.filter(pk=conversation.pk).update(state={"step": 2})
    settle([say("/reset")])
    assert not HistoryEntry.objects.exists()
    conversation.refresh_from_db()
    assert conversation.state == {"step": 2}
    assert prompt_of(say("Hello")) == ["Hello"]


def test_clear_forgets_the_state_too(conversation, say):
    settle([say("Hello")])
    Conversation.objects.filter(pk=conversation.pk).update(state={"step": 2})
    settle([say("/clear")])
    conversation.refresh_from_db()
    assert conversation.state == {}
    assert prompt_of(say("Again")) == ["Again"]


def test_stop_cancels_what_is_under_way_at_once(say):
    running, waiting = say("one"), say("two")
    claim_and_load(running.pk, worker="other")
    stop = say("/stop")
    running.refresh_from_db()
    waiting.refresh_from_db()
    assert running.cancel_requested
    assert waiting.status == TurnStatus.CANCELLED
    assert stop.status == TurnStatus.QUEUED


def test_stop_says_how_much_it_has_cancelled(say):
    settle([say("before")])
    turn_control.cancel_turn(say("cancelled by somebody else"))
    (alone,) = settle([say("/stop")])
    assert reply(alone) == "Nothing was under way."
    say("one")
    (stop,) = settle([say("/stop")])
    assert reply(stop) == "Stopped: one turn was cancelled."
    running, _ = say("two"), say("three")
    claim_and_load(running.pk, worker="other")
    stop = say("/stop")
    assert stop.status == TurnStatus.QUEUED
    Turn.objects.filter(pk=running.pk).update(status=TurnStatus.CANCELLED)  # as its worker does in a moment
    settle([stop])
    assert reply(stop) == "Stopped: 2 turns were cancelled."


def test_stop_does_not_claim_what_ended_by_itself(say):
    running = say("one")
    claim_and_load(running.pk, worker="other")
    stop = say("/stop")
    Turn.objects.filter(pk=running.pk).update(status=TurnStatus.FAILED)
    settle([stop])
    assert reply(stop) == "Nothing was under way."


def test_who_interrupts_is_told_of_each_turn_that_gave_way(say):
    first = say("one")
    second = say("two", on_busy="interrupt")
    first.refresh_from_db()
    assert first.cancelled_by == second.pk


def test_of_a_compaction_and_a_new_beginning_that_race_one_counts(conversation, say, fill):
    fill(44)
    compaction.request(conversation.pk, None, keep_tokens=KEEP)
    turn = say("/new")
    hold = compaction.claim(rows()[0].pk, worker="slow")
    part = parts.read(conversation.pk, agent=conversation.agent, keep_tokens=KEEP)
    settle([turn])
    with pytest.raises(compaction.Overtaken):
        compaction.store(hold, part, parts.stub_of(part))
    assert [entry.kind for entry in HistoryEntry.objects.all()] == ["entry"]
