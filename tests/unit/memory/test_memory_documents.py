"""Long-term memory and the day's notes: every version kept, no writer's work lost, nothing of a stranger's."""

import threading
from datetime import date, timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from memory import documents, log
from memory.errors import MemoryChanged, MemoryTooLong
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.lib.ids import new_id
from tests.support.factories import OwnerFactory

pytestmark = pytest.mark.django_db

TODAY = date(2026, 3, 1)
FIVE = "\n".join(
    f"- Fact {number}: anna likes {what}" for number, what in enumerate(("tea", "snow", "jazz", "bees", "ink"))
)


@pytest.fixture
def rewrite(owner):
    """``rewrite(base, content)`` as a model would, of the owner's memory."""

    def write(base, content, **options):
        options = {"agent": "default", "owner_id": owner.pk, "source": "compaction"} | options
        return documents.rewrite(base=base, content=content, **options)

    return write


def background(owner, agent="default", today=TODAY):
    return documents.background(agent=agent, owner_id=owner.pk, today=today)


def test_without_a_memory_there_is_no_background(owner):
    assert background(owner) == documents.Background(version=0, content="", notes="")


def test_a_rewrite_is_the_background_and_every_version_is_kept(owner, rewrite):
    turn, conversation = new_id(), new_id()
    first = rewrite(0, "Likes tea.", turn_id=turn, conversation_id=conversation, first_seq=3, last_seq=9, model="m")
    rewrite(1, "Likes coffee.")
    assert background(owner) == documents.Background(version=2, content="Likes coffee.", notes="")
    assert list(MemoryVersion.objects.values_list("number", "base", "content")) == [
        (2, 1, "Likes coffee."),
        (1, 0, "Likes tea."),
    ]
    first.refresh_from_db()
    assert (first.source, first.turn_id, first.conversation_id) == ("compaction", turn, conversation)
    assert (first.first_seq, first.last_seq, first.model) == (3, 9, "m")


def test_the_background_is_one_statement(owner, rewrite):
    rewrite(0, "Likes tea.")
    with CaptureQueriesContext(connection) as asked:
        background(owner)
    assert len(asked) == 1


@pytest.mark.parametrize("base", [0, 1, 3])
def test_a_rewrite_of_another_version_than_the_latest_is_refused(owner, rewrite, base):
    rewrite(0, "Likes tea.")
    rewrite(1, "Likes coffee.")
    with pytest.raises(MemoryChanged):
        rewrite(base, "Likes milk.")
    assert background(owner).content == "Likes coffee."
    assert MemoryVersion.objects.count() == 2


def test_a_refused_rewrite_leaves_the_callers_transaction_usable(owner, rewrite):
    rewrite(0, "Likes tea.")
    with transaction.atomic():
        with pytest.raises(MemoryChanged):
            rewrite(0, "Likes milk.")
        rewrite(1, "Likes coffee.")
    assert background(owner).version == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("base", [0, 1])
def test_of_many_who_rewrite_one_version_at_once_one_succeeds(owner, rewrite, base):
    if base:
        rewrite(0, "Likes tea.")
    ready, outcomes = threading.Barrier(6), []

    def race(number):
        try:
            ready.wait(20)
            outcomes.append(rewrite(base, f"Likes drink {number}.").content)
        except MemoryChanged:
            outcomes.append("changed")
        finally:
            connection.close()

    racers = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert outcomes.count("changed") == 5
    assert background(owner).content in outcomes
    assert background(owner).version == MemoryVersion.objects.count() == base + 1


def test_the_same_content_is_no_new_version(owner, rewrite):
    assert rewrite(0, "") is None
    rewrite(0, "Likes tea.")
    assert rewrite(1, "Likes tea.") is None
    assert background(owner).version == 1


def test_agents_and_owners_have_memories_of_their_own(owner, outsider, rewrite):
    rewrite(0, "Likes tea.")
    rewrite(0, "Likes milk.", agent="other")
    assert background(outsider).version == 0
    assert background(owner, agent="other").content == "Likes milk."
    assert background(owner).content == "Likes tea."


# --- what a model may not do -------------------------------------------------------------------------------------


def test_a_model_that_drops_most_of_it_is_kept_aside(owner, rewrite):
    rewrite(0, FIVE)
    aside = rewrite(1, "- Fact 0: anna likes tea")
    assert (aside.number, aside.base, aside.content) == (None, 1, "- Fact 0: anna likes tea")
    assert aside.aside_because == "It drops 4 of 5 lines; MEMORY_MOST_DROPPED allows 50%."
    assert background(owner) == documents.Background(version=1, content=FIVE, notes="")
    assert rewrite(1, FIVE + "\n- Fact 5").number == 2


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        ("\n".join(FIVE.splitlines()[:2]), True),  # three lines less
        ("", False),
        ("Anna likes tea, snow, jazz, bees and ink (facts 0 1 2 3 4).", True),
        ("\n".join(reversed(FIVE.upper().splitlines())), True),
        ("I could not find anything to remember in this conversation.", False),
    ],
    ids=["few lines", "nothing", "told in one line", "in another order", "something else"],
)
def test_what_counts_as_dropped(rewrite, after, kept):
    rewrite(0, FIVE)
    assert (rewrite(1, after).number is not None) is kept


def test_how_much_may_be_dropped_is_a_setting(rewrite, settings):
    settings.MEMORY_MOST_DROPPED = 0.9
    rewrite(0, FIVE)
    assert rewrite(1, "- Fact 0: anna likes tea").number == 2


def test_a_model_that_writes_far_too_much_is_kept_aside(owner, rewrite, settings):
    settings.MEMORY_MAX_CHARS = 100
    assert rewrite(0, "x" * 200).number == 1
    assert rewrite(1, "x" * 201).aside_because == "It has 201 characters; 200 is the most a memory may have."
    assert documents.is_full("x" * 101)
    assert not documents.is_full("x" * 100)


def test_people_may_drop_what_they_like_but_write_no_more_than_there_is_room_for(owner, rewrite, settings):
    settings.MEMORY_MAX_CHARS = 200
    rewrite(0, FIVE)
    assert rewrite(1, "", source="person", made_by="anna", checked=False).number == 2
    with pytest.raises(MemoryTooLong, match="401 characters; 400"):
        rewrite(2, "x" * 401, source="person", checked=False)
    assert background(owner).content == ""


@pytest.mark.parametrize("take", [0, 2], ids=["an older one", "one that was kept aside"])
def test_what_is_restored_is_a_new_version(owner, rewrite, take):
    versions = [rewrite(0, FIVE, model="m"), rewrite(1, f"{FIVE}\nmore"), rewrite(2, "something else", model="m")]
    restored = documents.restore(versions[take], by="anna")
    assert (restored.number, restored.base, restored.source) == (3, 2, "restore")
    assert (restored.made_by, restored.model) == ("anna", "m")
    assert background(owner).content == versions[take].content
    versions[take].refresh_from_db()
    assert (versions[take].settled_by == "anna") is (versions[take].number is None)


def test_what_was_kept_aside_is_dismissed_once(owner, rewrite):
    rewrite(0, FIVE)
    aside = rewrite(1, "")
    documents.dismiss(aside, by="anna")
    documents.dismiss(aside, by="bert")
    aside.refresh_from_db()
    assert aside.settled_by == "anna"
    assert background(owner).version == 1


@pytest.mark.parametrize("text", ["sk-abcdefghijklmnop0123", "password: hunter2hunter2"])
def test_secrets_are_not_remembered(owner, rewrite, text):
    rewrite(0, f"The key: {text}\0")
    entry = log.append(agent="default", owner_id=owner.pk, content=f"{text}\0", happened_at=owner.date_joined)
    noted = log.note(agent="default", owner_id=owner.pk, text=f"{text}\0", today=TODAY)
    for kept in (background(owner).content, background(owner).notes, entry.content, noted.content):
        assert "[redacted]" in kept
        assert text.split()[-1] not in kept
        assert "\0" not in kept


# --- the log and the day's notes ---------------------------------------------------------------------------------


def note(owner, text, today=TODAY):
    return log.note(agent="default", owner_id=owner.pk, text=text, today=today)


def test_notes_are_todays_and_the_log_has_all(owner, rewrite):
    rewrite(0, "Likes tea.")
    note(owner, "Yesterday", today=TODAY - timedelta(days=1))
    note(owner, "Call Bert\nat five")
    note(owner, "Buy milk")
    assert background(owner) == documents.Background(
        version=1, content="Likes tea.", notes="Call Bert at five\nBuy milk", notes_on=TODAY
    )
    assert background(owner, today=TODAY + timedelta(days=1)).notes == ""
    assert list(HistoryEntry.objects.order_by("id").values_list("kind", "day", "content")) == [
        ("note", TODAY - timedelta(days=1), "Yesterday"),
        ("note", TODAY, "Call Bert\nat five"),
        ("note", TODAY, "Buy milk"),
    ]


def test_a_memory_may_begin_with_a_note(owner, rewrite):
    note(owner, "Buy milk")
    assert rewrite(0, "Likes tea.").number == 1
    assert background(owner) == documents.Background(version=1, content="Likes tea.", notes="Buy milk", notes_on=TODAY)


def test_of_many_notes_a_prompt_has_the_latest(owner):
    for number in range(5):
        note(owner, f"{number}" + 999 * "x")
    assert [line[0] for line in background(owner).notes.splitlines()] == ["2", "3", "4"]
    note(owner, "y" * 5000)
    assert background(owner).notes == "y" * log.MAX_NOTES
    assert HistoryEntry.objects.count() == 6


@pytest.mark.django_db(transaction=True)
def test_notes_taken_at_once_are_all_there(owner):
    ready = threading.Barrier(6)

    def take(number):
        try:
            ready.wait(20)
            note(owner, f"Note {number}")
        finally:
            connection.close()

    takers = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(background(owner).notes.splitlines()) == [f"Note {number}" for number in range(6)]


def test_a_note_is_there_in_both_places_or_in_none(owner, monkeypatch):
    def fail(lines):
        raise RuntimeError

    monkeypatch.setattr(log, "newest_lines", fail)
    with pytest.raises(RuntimeError):
        note(owner, "Buy milk")
    assert not HistoryEntry.objects.exists()
    assert not Memory.objects.exists()


def test_who_goes_is_forgotten(owner, rewrite):
    stays = OwnerFactory()
    rewrite(0, "Likes tea.")
    note(owner, "Buy milk")
    rewrite(0, "Likes milk.", owner_id=stays.pk)
    owner.delete()
    assert list(Memory.objects.values_list("content", flat=True)) == ["Likes milk."]
    assert MemoryVersion.objects.count() == 1
    assert not HistoryEntry.objects.exists()
