"""The history log is searched by words: the same entries in both databases, and nobody else's."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from memory import index, log
from memory.models import HistoryEntry
from memory.words import words_of
from tests.support.factories import OwnerFactory

pytestmark = pytest.mark.django_db

TODAY = date(2026, 3, 10)
NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


@pytest.fixture
def tell(owner):
    """``tell("It rained.", hours=3)``: an entry of three hours ago."""

    def append(content, *, hours=0, **options):
        options = {"agent": "default", "owner_id": owner.pk, "happened_at": NOON - timedelta(hours=hours)} | options
        return log.append(content=content, **options)

    return append


@pytest.fixture
def recall(owner):
    """``recall("rain")``: what is found, as texts."""

    def search(query, **options):
        options = {"agent": "default", "owner_id": owner.pk, "today": TODAY} | options
        return [found.content for found in log.recall(query=query, **options)]

    return search


@pytest.fixture
def only_by_index(monkeypatch):
    """As if there were so many entries that those that are found are not among the latest."""
    monkeypatch.setattr(index, "LATEST", 0)


@pytest.fixture(params=["among the latest", "by index"])
def either_way(request):
    if request.param == "by index":
        request.getfixturevalue("only_by_index")


# --- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The café's Rate: 4.5%, the cafe!", ["the", "cafe", "s", "rate", "4", "5"]),
        ("STRASSE Straße", ["strasse"]),
        ("snake_case foo-bar", ["snake", "case", "foo", "bar"]),
        ("東京へ行く", ["東", "京", "へ", "行", "く"]),
        ("ﾃｽﾄ テスト", ["テ", "ス", "ト"]),
        ("สวัสดี", ["ส", "ว", "ด"]),
        ("Ελλάδα ΕΛΛΆΣ", ["ελλαδα", "ελλασ"]),
        ("x² ①", ["x2", "1"]),
        ("a" * 99, ["a" * 40]),
        ("\0\ud800 ' \" * : & | ! ( ) \\ %", []),
    ],
)
def test_the_words_of_a_text(text, words):
    assert words_of(text) == words


# --- what is found -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("kayak", True),
        ("KAYÁK", True),
        ("kay", True),
        ("yak", False),
        ("kayak anna", True),
        ("anna, kayak!", True),
        ("kayak berta", True),  # one of both is there
        ("berta", False),
        ("strasse", True),
        ("2026", True),
        ("京", True),
        ("京東", True),
        ("大", False),
        ("", False),
        ("…", False),
    ],
)
def test_each_word_of_the_query_begins_a_word_of_what_is_found(tell, recall, either_way, query, found):
    tell("Anna bought a Kayak in the Hauptstraße, 2026 (Straße; 東京).")
    assert bool(recall(query)) is found


def test_newest_first_by_when_it_happened(tell, recall, either_way):
    for hours in (3, 1, 2):
        tell(f"rain, {hours} hours ago", hours=hours)
    assert recall("rain") == ["rain, 1 hours ago", "rain, 2 hours ago", "rain, 3 hours ago"]
    assert recall("rain", limit=2) == ["rain, 1 hours ago", "rain, 2 hours ago"]


def test_it_says_when_and_where(tell, owner, conversation):
    until = NOON + timedelta(hours=1)
    tell("rain", conversation_id=conversation.pk, first_seq=3, last_seq=9, happened_until=until, kind="raw")
    (found,) = log.recall(agent="default", owner_id=owner.pk, query="rain", today=TODAY)
    assert found == log.Found(
        when=NOON, until=until, conversation_id=conversation.pk, first_seq=3, last_seq=9, kind="raw", content="rain"
    )


def test_what_has_all_words_is_found_alone(tell, recall, either_way):
    tell("rain in Rome", hours=9)
    tell("rain")
    tell("Rome")
    assert recall("rome rain") == ["rain in Rome"]


def test_if_nothing_has_all_words_what_has_most_comes_first(tell, recall, either_way):
    tell("rain in Rome", hours=9)
    tell("rain")
    tell("Rome", hours=1)
    tell("snow")
    assert recall("rain Rome umbrella") == ["rain in Rome", "rain", "Rome"]
    assert recall("rain Rome umbrella", limit=2) == ["rain in Rome", "rain"]


def test_notes_are_found_for_seven_days(owner, recall, either_way):
    for days in (0, 6, 7, 30):
        log.note(agent="default", owner_id=owner.pk, text=f"rain {days}", today=TODAY - timedelta(days=days))
    assert recall("rain") == ["rain 6", "rain 0"]  # by when they were written
    assert recall("rain", limit=1) == ["rain 6"]


# --- what is not -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marks", ["marks of their own", "one mark"])
def test_nobody_finds_what_is_anothers(tell, recall, outsider, either_way, monkeypatch, marks):
    if marks == "one mark":  # as two may have by chance
        monkeypatch.setattr(index, "marked", lambda words, **whose: [f"0_{word}" for word in words])
    tell("secret rain of the owner's")
    tell("secret rain of another agent's", agent="other")
    tell("secret rain of the outsider's", owner_id=outsider.pk)
    assert recall("secret rain") == ["secret rain of the owner's"]
    assert recall("secret", limit=1) == ["secret rain of the owner's"]  # the oldest of them
    assert recall("rain sun") == ["secret rain of the owner's"]
    assert recall("secret", owner_id=outsider.pk) == ["secret rain of the outsider's"]
    assert recall("secret", owner_id=OwnerFactory().pk) == []
    assert recall("secret", agent="third") == []


@pytest.mark.parametrize(
    "mark", ["", "{mark}_", "{mark}", "'{mark}", "{mark}_rain' | 'x", '{mark}_rain" OR "x', "x OR {mark}_rain"]
)
def test_who_knows_the_mark_of_another_finds_nothing_of_theirs(tell, recall, outsider, either_way, mark):
    tell("rain of the owner's")
    words = HistoryEntry.objects.get().words
    assert recall(mark.format(mark=words.partition("_")[0]), owner_id=outsider.pk) == []
    assert recall(words, owner_id=outsider.pk) == []


@pytest.mark.parametrize(
    "query",
    [
        *(
            "'",
            '"',
            "''''",
            '""',
            "rain'",
            '"rain',
            "rain*",
            "*",
            ":*",
            "rain:*",
            "-rain",
            "!rain",
            "^rain",
            "(rain",
            ")",
        ),
        *(
            "rain AND",
            "AND",
            "OR",
            "NOT",
            "NEAR(rain sun)",
            "rain & | !",
            "words:rain",
            "{words}:rain",
            "<->",
            "\\",
            "%",
        ),
        *("\0", "rain\0", "\ud800", "rain; DROP TABLE memory_historyentry", "' || (SELECT 1) || '", "%s", "_", "rain_"),
        *("rain " * 2000, " ".join(f"w{number}" for number in range(2000)), "x" * 10_000, "'" * 10_000, "東" * 10_000),
    ],
    ids=lambda query: repr(query[:20]),
)
def test_a_query_has_no_syntax(tell, recall, either_way, query):
    tell("rain and snow")
    asked = any(word.startswith(tuple(words_of(query))) for word in ("rain", "and", "snow"))
    assert recall(query) == ["rain and snow"] * asked


@pytest.mark.parametrize(
    "content",
    ["", "\0", "…", "'; \"* \\ %s", "x" * 100_000, " ".join(map(str, range(100_000))), "東京" * 50_000, "👍" * 9],
    ids=lambda content: repr(content[:10]),
)
def test_whatever_an_entry_holds_it_is_kept(tell, recall, content):
    tell(content)
    tell("rain")
    assert recall("rain") == ["rain"]
    assert HistoryEntry.objects.count() == 2


def test_an_entry_is_found_by_four_thousand_words(tell, recall, either_way):
    tell(" ".join(chr(0x20000 + number) * 2 for number in range(5000)))
    assert recall(chr(0x20000 + 3999))
    assert not recall(chr(0x20000 + 4000))


def test_what_is_deleted_is_not_in_the_index(tell, recall, owner, outsider, only_by_index):
    tell("rain of the owner's")
    tell("rain of the outsider's", owner_id=outsider.pk)
    owner.delete()
    assert recall("rain", owner_id=outsider.pk) == ["rain of the outsider's"]
    if connection.vendor == "sqlite":  # where the index is a table of its own
        with connection.cursor() as cursor:
            cursor.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, memory_historywords, instance)")
            cursor.execute("SELECT count(DISTINCT doc), count(*) FROM temp.terms")
            assert cursor.fetchone() == (1, 5)
            cursor.execute("DROP TABLE temp.terms")


@pytest.mark.skipif(connection.vendor != "sqlite", reason="tests/plans/test_recall_plans.py has those of PostgreSQL")
def test_sqlite_never_reads_all_entries(tell, recall):
    tell("rain")
    with CaptureQueriesContext(connection) as asked:
        assert recall("rain sun") == ["rain"]
    assert len(asked) == 7
    for statement in asked:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {statement['sql']}".replace("%", "%%"), [])
            plan = [str(step[-1]) for step in cursor.fetchall()]
        scans = [step for step in plan if step.startswith("SCAN") and "VIRTUAL TABLE INDEX" not in step]
        assert not scans, (statement, plan)
