"""Finds conversations by words that were said in them.

Each database keeps an index of what users and agents have said (migration 0037): PostgreSQL a GIN index over
``to_tsvector``, SQLite a full-text table that triggers keep. A word is found by its beginning; all words have to stand
in one message.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from conversations.models import Message
from nanohost.lib.redaction import redact_known

# The messages said last, among those that the index gives: so many are looked at.
MAX_MESSAGES = 500
# Of a word that is in everything, PostgreSQL sorts so many at most; SQLite reads its index from the end.
MAX_SORTED = 20_000
MAX_WORDS = 10

# What stands in the index, as the migration has it; PostgreSQL uses an index only of the very same words.
INDEXED = "to_tsvector('simple', left(content, 100000))"
SAID = "role IN ('user', 'assistant') AND kind = ''"

_FOUND = {
    "postgresql": f"""WITH found AS MATERIALIZED (
            SELECT id FROM conversations_message WHERE {INDEXED} @@ %s::tsquery AND {SAID} {{whose}} LIMIT {MAX_SORTED}
        )
        SELECT id FROM found ORDER BY id DESC LIMIT {MAX_MESSAGES}
    """,  # noqa: S608 -- constants
    "sqlite": f"""SELECT said.message_id FROM conversations_saidwords
        CROSS JOIN conversations_said said ON said.id = conversations_saidwords.rowid
        WHERE conversations_saidwords MATCH %s {{whose}}
        ORDER BY conversations_saidwords.rowid DESC LIMIT {MAX_MESSAGES}
    """,  # noqa: S608 -- constants
}
_WHOSE = {
    # Of each message that is found, and not of all that an owner has: as a join, PostgreSQL may begin with those.
    "postgresql": "AND (SELECT owner_id FROM conversations_conversation whose WHERE whose.id = conversation_id) = %s",
    "sqlite": "AND said.owner_id = %s",
}
# Words are letters and digits: nothing in them ends a quotation.
_ASKED = {
    "postgresql": lambda words: " & ".join(f"'{word}':*" for word in words),
    "sqlite": lambda words: " AND ".join(f'"{word}"*' for word in words),
}


def words_of(text: str) -> list[str]:
    """The words to search for; none where there are only signs."""
    return re.findall(r"[^\W_]{1,100}", text)[:MAX_WORDS]


def find(text: str, *, owner_id: int | None = None) -> list[UUID]:
    """The conversations in which all these words were said in one message, as far as they are among the latest messages
    that have them; the latest first. ``owner_id``: in theirs alone. No secret that the host knows is found."""
    return _found(text, owner_id, "conversation_id")


def find_turns(text: str, *, owner_id: int | None = None) -> list[UUID]:
    """The turns in which they were said, in the same way."""
    return _found(text, owner_id, "turn_id")


def _found(text: str, owner_id: int | None, of: str) -> list[UUID]:
    """``of``: the field of a message that says what is found."""
    words = words_of(text)
    if not words:
        return []
    asked: list[Any] = [_ASKED[connection.vendor](words)]
    whose = ""
    if owner_id is not None:
        whose = _WHOSE[connection.vendor]
        asked.append(owner_id)
    with connection.cursor() as cursor:
        cursor.execute(_FOUND[connection.vendor].format(whose=whose), asked)
        ids = [row[0] if isinstance(row[0], UUID) else UUID(row[0]) for row in cursor.fetchall()]
    rows = Message.objects.filter(pk__in=ids).order_by("-pk").values_list(of, "content")
    found = (pk for pk, content in rows.iterator(chunk_size=50) if pk and _is_told(content, words))
    return list(dict.fromkeys(found))


def _is_told(content: str, words: Sequence[str]) -> bool:
    """Whether the words are in what is shown of a message: in its secrets they are not."""
    told = redact_known(content)
    if told == content:
        return True
    return all(_folded(word) in _folded(told) for word in words)


def _folded(text: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(each))


def forget_deleted() -> None:
    """Have the index itself lose what was deleted: SQLite only marks it there until it merges what is written."""
    if connection.vendor != "sqlite":
        return
    pages = -500  # the first time, to have all of it merged
    while _merge(pages):
        pages = 500


def _merge(pages: int) -> bool:
    """Whether there was anything to merge, by SQLite's own rule: it then changes two rows or more."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT total_changes()")
        before = cursor.fetchone()[0]
        merge = "INSERT INTO conversations_saidwords (conversations_saidwords, rank) VALUES ('merge', %s)"
        cursor.execute(merge, [pages])
        cursor.execute("SELECT total_changes()")
        return bool(cursor.fetchone()[0] - before >= 2)
