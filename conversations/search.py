"""Finds conversations by words that were said in them.

Each database keeps an index of what users and agents have said (migration 0037): PostgreSQL a GIN index over
``to_tsvector``, SQLite a full-text table. There, a trigger has what is said wait (migration 0057); each sweep takes it
into the index, and so does whoever searches. A word is found by its beginning; all words have to stand in one message.
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

# SQLite takes in so many of those that wait in one transaction; rows of messages get new, higher numbers.
MAX_TAKEN = 200
_WAIT = f"(SELECT id, message_id FROM conversations_unsaid ORDER BY id LIMIT {MAX_TAKEN})"  # noqa: S608 -- constants
_LAST = f"SELECT max(id), count(*) FROM {_WAIT}"  # noqa: S608 -- constants
_HIGHEST = "SELECT coalesce(max(id), 0) FROM conversations_said"
_NUMBER = f"""INSERT OR IGNORE INTO conversations_said (message_id, owner_id)
    SELECT message.id, owner_id FROM {_WAIT} waiting
    JOIN conversations_message message ON message.id = waiting.message_id
    JOIN conversations_conversation whose ON whose.id = message.conversation_id ORDER BY waiting.id
"""  # noqa: S608 -- constants
_INDEX = """INSERT INTO conversations_saidwords (rowid, content) SELECT said.id, substr(content, 1, 100000)
    FROM conversations_said said JOIN conversations_message message ON message.id = said.message_id
    WHERE said.id > %s ORDER BY said.id
"""


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
    take_in()
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


def take_in() -> None:
    """Have all that was said in the index."""
    if connection.vendor == "sqlite":
        while _take_some_in() == MAX_TAKEN:
            pass


def _take_some_in() -> int:
    """How many have waited, of those that were looked at."""
    with connection.cursor() as cursor:
        if not cursor.execute("SELECT EXISTS (SELECT 1 FROM conversations_unsaid)").fetchone()[0]:
            return 0  # without waiting for whoever writes
        with transaction.atomic():
            last, count = cursor.execute(_LAST).fetchone()
            (highest,) = cursor.execute(_HIGHEST).fetchone()
            cursor.execute(_NUMBER)
            cursor.execute(_INDEX, [highest])
            cursor.execute("DELETE FROM conversations_unsaid WHERE id <= %s", [last])
    return int(count)


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
