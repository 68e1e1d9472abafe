"""A summary that is undone: the one before it counts again, nothing is erased, and nobody makes it again at once."""

import threading

import pytest
from django.db import connection

from conversations import summaries
from conversations.engine import inbox
from conversations.engine.compacting import compaction, parts
from conversations.engine.incoming import Incoming
from conversations.engine.turns import claim_and_load
from conversations.errors import FenceLost, Overtaken, SummaryStays
from conversations.models import Compaction, CompactionStatus, Conversation, Message
from memory.models import HistoryEntry, Memory
from nanohost.lib.errors import NotFound
from tests.support.compacting import KEEP, compact
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


def pointer(conversation):
    conversation.refresh_from_db()
    return conversation.consolidated_through, conversation.summary_seq


def undo(conversation, seq=None, **options):
    seq = seq or Conversation.objects.get(pk=conversation.pk).summary_seq
    return summaries.undo(conversation.pk, seq, **{"by": "anna", "reason": "It is wrong."} | options)


def test_the_pointer_goes_back_step_by_step_and_nothing_is_erased(conversation, fill):
    fill(44)
    compact(conversation)
    first = pointer(conversation)
    fill(22)
    compact(conversation)
    assert pointer(conversation) != first
    kept = [list(model.objects.order_by("pk").values()) for model in (Message, HistoryEntry, Memory)]
    row = undo(conversation)
    assert pointer(conversation) == first
    assert (row.undone_by, row.undone_because, row.status) == ("anna", "It is wrong.", CompactionStatus.DONE)
    assert row.undone_at
    undo(conversation)
    assert pointer(conversation) == (0, None)
    assert [list(model.objects.order_by("pk").values()) for model in (Message, HistoryEntry, Memory)] == kept


def test_the_prompt_has_again_what_the_summary_covered(conversation, fill, say):
    fill(44)
    compact(conversation)
    undo(conversation)
    _, context = claim_and_load(say("And now?").pk, worker="worker-1")
    assert len(context.snapshot.transcript) == 45
    assert context.snapshot.summary == ""


def test_those_that_were_made_before_their_rows_told_are_undone_as_well(conversation, fill):
    fill(44)
    compact(conversation)
    first = pointer(conversation)
    fill(22)
    compact(conversation)
    Compaction.objects.update(before_through=None, before_summary=None)
    undo(conversation)
    assert pointer(conversation) == first
    undo(conversation)
    assert pointer(conversation) == (0, None)


def test_only_the_summary_that_counts_is_undone_and_once(conversation, fill, say):
    fill(44)
    first = compact(conversation).summary_seq
    fill(22)
    second = compact(conversation).summary_seq
    with pytest.raises(SummaryStays, match="Only the current summary"):
        undo(conversation, first)
    undo(conversation, second)
    with pytest.raises(SummaryStays, match="undone before"):
        undo(conversation, second)
    for seq in (1, 10**18):
        with pytest.raises(NotFound):
            undo(conversation, seq)
    settle([say("/reset")])
    with pytest.raises(SummaryStays, match="Only the current summary"):
        undo(conversation, first)


def test_one_of_a_file_and_one_of_a_day_are_not_undone(conversation, fill):
    fill(44)
    row = compact(conversation)
    Compaction.objects.update(before_through=None, first_seq=None)
    with pytest.raises(SummaryStays, match="It was imported"):
        undo(conversation)
    Compaction.objects.filter(pk=row.pk).update(kind="daily")
    with pytest.raises(NotFound):
        undo(conversation)
    assert pointer(conversation)[0] == 24


def test_a_compaction_under_way_stores_nothing(conversation, fill):
    fill(44)
    compact(conversation)
    fill(22)
    compaction.request(conversation.pk, None, keep_tokens=KEEP)
    hold = compaction.claim(Compaction.objects.get(status="queued").pk, worker="slow")
    part = parts.read(conversation.pk, agent=conversation.agent, keep_tokens=KEEP)
    undo(conversation)
    assert not compaction.renew(hold)
    with pytest.raises((FenceLost, Overtaken)):
        compaction.store(hold, part, parts.stub_of(part))
    assert pointer(conversation) == (0, None)
    assert Message.objects.filter(type="SUMMARY").count() == 1


def test_it_is_not_made_again_until_the_conversation_has_gone_on_by_a_window(conversation, fill, say, settings):
    fill(44)
    compact(conversation)
    undo(conversation)
    requested = []
    for number in range(settings.MEMORY_WINDOW):
        settle([say(f"Word {number}")])
        if Compaction.objects.filter(status="queued").exists():
            requested.append(number)
    # A turn has two messages.
    assert requested[:1] == [settings.MEMORY_WINDOW // 2]
    assert compact(conversation).status == CompactionStatus.DONE
    assert pointer(conversation)[0] > 24
    assert Conversation.objects.get().summarise_from_seq == 0


def test_it_is_made_at_once_where_the_prompt_has_no_room_for_what_it_covered(conversation, fill, say, agent):
    fill(44, words="words " * 60)
    compact(conversation)
    undo(conversation)
    agent.context_window = 4000
    agent.save()
    settle([say("And now?")])
    assert Compaction.objects.filter(status="queued").exists()


def test_of_two_who_undo_it_at_once_one_does(conversation, fill):
    fill(44)
    compact(conversation)
    seq, ready, told = pointer(conversation)[1], threading.Barrier(2), []

    def run(name):
        ready.wait(20)
        try:
            undo(conversation, seq, by=name)
            told.append(name)
        except SummaryStays:
            told.append("")
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[name]) for name in ("anna", "ben")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (who,) = filter(None, told)
    assert Compaction.objects.get(summary_seq=seq).undone_by == who


def test_a_secret_is_in_no_reason(conversation, fill):
    fill(44)
    compact(conversation)
    row = undo(conversation, reason="It has sk-abcdefghijklmnopqrstuvwxyz0123456789.")
    assert "abcdefghijkl" not in row.undone_because


def test_turns_go_on_after_it(conversation, fill, model):
    fill(44)
    compact(conversation)
    undo(conversation)
    (turn,) = settle([inbox.receive(Incoming("Go on"), conversation=conversation, request_id="r")])
    assert turn.status == "succeeded"
