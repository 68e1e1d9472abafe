"""Finds entries of the history log by their words.

The words are made here, and both databases are given the same, as text between blanks; each database only keeps an
index of it. In front of each word stands a mark of whose it is, so that a search goes through what its own owner and
agent have, however much others have. A mark is no secret, and two may have the same: the rows are filtered as well.
"""

import hashlib
from collections.abc import Sequence
from datetime import date

from django.db import connection, transaction
from django.db.models import Q, Value
from django.db.models.functions import StrIndex
from django.db.models.lookups import GreaterThan

from memory.models import HistoryEntry
from memory.words import words_of

# Different words of one entry that are found; as many as are surely within PostgreSQL's 1 MB of a tsvector.
MAX_WORDS = 4000

# So many of the latest are looked through before the index is asked. Of a word that is in everything the index would
# give all there is, to be sorted; here the first few are found at once.
LATEST = 500

# Alike in meaning: entries that have a word with each of the given beginnings, in any order. PostgreSQL is told not to
# think: by its own estimate it may walk all of an owner's entries, and make the words of each anew.
_BY_INDEX = {
    "postgresql": """WITH found AS MATERIALIZED (
            SELECT id, owner_id, agent, day, happened_at FROM memory_historyentry
            WHERE array_to_tsvector(string_to_array(words, ' ')) @@ %s::tsquery
        )
        SELECT id FROM found WHERE owner_id = %s AND agent = %s AND (day IS NULL OR day > %s)
        ORDER BY happened_at DESC, id DESC LIMIT %s
    """,
    "sqlite": """SELECT entry.id FROM memory_historywords CROSS JOIN memory_historyentry entry
        ON entry.id = memory_historywords.rowid
        WHERE memory_historywords MATCH %s AND owner_id = %s AND agent = %s AND (day IS NULL OR day > %s)
        ORDER BY happened_at DESC, entry.id DESC LIMIT %s
    """,
}
# Words are letters and digits: nothing in them ends a quotation.
_ASKED = {
    "postgresql": lambda words: " & ".join(f"'{word}':*" for word in words),
    "sqlite": lambda words: " AND ".join(f'"{word}"*' for word in words),
}


def marked(words: Sequence[str], *, agent: str, owner_id: int) -> list[str]:
    """The words as the index has them."""
    whose = hashlib.blake2s(f"{owner_id} {agent}".encode(), digest_size=4).hexdigest()
    return [f"{whose}_{word}" for word in words]


def indexed(text: str, *, agent: str, owner_id: int) -> str:
    """What is indexed of an entry."""
    return " ".join(marked(words_of(text)[:MAX_WORDS], agent=agent, owner_id=owner_id))


def find(words: Sequence[str], *, agent: str, owner_id: int, notes_after: date, limit: int) -> list[int]:
    """The ids of the newest entries in which each of the words begins a word, newest first. Notes of older days than
    those after ``notes_after`` are left out."""
    beginnings = marked(words, agent=agent, owner_id=owner_id)
    latest = HistoryEntry.objects.filter(owner_id=owner_id, agent=agent)[:LATEST]
    among_latest = HistoryEntry.objects.filter(
        Q(day=None) | Q(day__gt=notes_after),
        *(GreaterThan(StrIndex("words", Value(beginning)), 0) for beginning in beginnings),
        pk__in=latest.values("pk"),
    )
    ids = list(among_latest.values_list("pk", flat=True)[:limit])
    if len(ids) == limit:
        return ids
    with connection.cursor() as cursor:
        asked = _ASKED[connection.vendor](beginnings)
        cursor.execute(_BY_INDEX[connection.vendor], [asked, owner_id, agent, notes_after, limit])
        return [pk for (pk,) in cursor.fetchall()]


# Pages of SQLite's index that are merged in one transaction.
_PAGES = 500


def forget_deleted() -> None:
    """Have the index itself lose the words of entries that were deleted, piece by piece: SQLite only marks them there,
    until it merges what is written. (PostgreSQL's VACUUM does so.)"""
    if connection.vendor != "sqlite":
        return
    pages = -_PAGES  # the first time, to have all of it merged
    while _merge(pages):
        pages = _PAGES


def _merge(pages: int) -> bool:
    """Whether there was anything to merge, by SQLite's own rule: it then changes two rows or more."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT total_changes()")
        before = cursor.fetchone()[0]
        cursor.execute("INSERT INTO memory_historywords (memory_historywords, rank) VALUES ('merge', %s)", [pages])
        cursor.execute("SELECT total_changes()")
        return bool(cursor.fetchone()[0] - before >= 2)
