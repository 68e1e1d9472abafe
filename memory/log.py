"""The history log: what happened, entry by entry, and the notes of each day. Nothing in it is ever changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from memory import documents, index
from memory.models import HistoryEntry, Memory
from memory.words import words_of
from nanohost.lib.redaction import redact
from nanohost.lib.text import storable

Kind = HistoryEntry.Kind

# Notes are of their day; they are found for so many.
NOTES_DAYS = 7

# Of a question, in characters and in words; of one that nothing answers whole, words that are looked for one by one.
MAX_ASKED, MAX_WORDS_ASKED, MAX_WORDS_APART = 4000, 16, 8

# Entries that one search finds.
MAX_FOUND = 50

# What a prompt has of a day's notes, in characters: the latest. The log has all.
MAX_NOTES = 4000


def append(
    *,
    agent: str,
    owner_id: int,
    content: str,
    kind: str = Kind.ENTRY,
    conversation_id: UUID | None = None,
    first_seq: int | None = None,
    last_seq: int | None = None,
    turn_id: UUID | None = None,
    model: str = "",
    happened_at: datetime,
    happened_until: datetime | None = None,
    day: date | None = None,
    tainted_by: str = "",
) -> HistoryEntry:
    """Add an entry, in the caller's transaction if there is one. ``day`` is for notes. ``tainted_by``: where it was
    learnt, if untrusted text had entered there."""
    content = storable(redact(content))
    return HistoryEntry.objects.create(
        agent=agent,
        owner_id=owner_id,
        kind=kind,
        content=content,
        words=index.indexed(content, agent=agent, owner_id=owner_id),
        conversation_id=conversation_id,
        first_seq=first_seq,
        last_seq=last_seq,
        turn_id=turn_id,
        model=model,
        happened_at=happened_at,
        happened_until=happened_until,
        day=day,
        tainted_by=tainted_by or None,
    )


def note(
    *,
    agent: str,
    owner_id: int,
    text: str,
    today: date,
    turn_id: UUID | None = None,
    conversation_id: UUID | None = None,
    tainted_by: str = "",
) -> HistoryEntry:
    """Add a line to the day's notes, which are in every prompt of that day, and to the log. ``tainted_by``: as in
    :func:`append`."""
    with transaction.atomic():
        # First: entries have the order that their lines have in the notes.
        head = documents.locked_head(agent=agent, owner_id=owner_id)
        entry = append(
            agent=agent,
            owner_id=owner_id,
            content=text,
            kind=Kind.NOTE,
            turn_id=turn_id,
            conversation_id=conversation_id,
            happened_at=timezone.now(),
            day=today,
            tainted_by=tainted_by,
        )
        earlier, marked = (head.notes.splitlines(), head.notes_tainted_by) if head.notes_on == today else ([], "")
        changes: dict[str, Any] = {"notes_on": today, "notes": _with_line(earlier, entry.content)}
        changes["notes_tainted_by"] = marked or tainted_by
        Memory.objects.filter(pk=head.pk).update(**changes, updated_at=timezone.now())
    return entry


def notes_as_they_were(*, agent: str, owner_id: int, day: date) -> Iterator[str]:
    """What a prompt had of a day's notes, after each line that was added to them."""
    noted = HistoryEntry.objects.filter(owner_id=owner_id, agent=agent, kind=Kind.NOTE, day=day).order_by("pk")
    notes = ""
    for content in noted.values_list("content", flat=True):
        notes = _with_line(notes.splitlines(), content)
        yield notes


def _with_line(lines: list[str], content: str) -> str:
    return newest_lines([*lines, " ".join(content.split())])


def newest_lines(lines: list[str]) -> str:
    """The last of the lines that fit, together; of one that is too long by itself, its beginning."""
    while len(lines) > 1 and sum(len(line) + 1 for line in lines) > MAX_NOTES + 1:
        del lines[0]
    return "\n".join(lines)[:MAX_NOTES]


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry that was found: when what it tells of began and ended, and the messages it tells of. ``tainted_by``:
    where it was learnt, if untrusted text had entered there."""

    when: datetime
    until: datetime | None
    conversation_id: UUID | None
    first_seq: int | None
    last_seq: int | None
    kind: str
    content: str
    tainted_by: str = ""


def recall(*, agent: str, owner_id: int, query: str, today: date, limit: int = 10) -> list[Found]:
    """The newest entries that have all words of the query, or words that begin with them. If none has, those that have
    most of its words: of each word, the newest few are looked at. The query is words, and nothing in it is syntax."""
    words = words_of(query[:MAX_ASKED])[:MAX_WORDS_ASKED]
    limit = max(1, min(limit, MAX_FOUND))

    def find(wanted: list[str]) -> list[int]:
        notes_after = today - timedelta(days=NOTES_DAYS)
        return index.find(wanted, agent=agent, owner_id=owner_id, notes_after=notes_after, limit=limit)

    if not words:
        return []
    ids = find(words)
    telling = sorted(words, key=len, reverse=True)[:MAX_WORDS_APART]
    if not ids and len(words) > 1:
        ids = [pk for word in telling for pk in find([word])]
    held = index.marked(telling, agent=agent, owner_id=owner_id)

    def rank(entry: HistoryEntry) -> tuple[int, datetime, int]:
        return sum(word in entry.words for word in held), entry.happened_at, entry.pk

    # By their ids alone, and sorted here: asked for more, SQLite walks through all that an owner has.
    found = sorted(HistoryEntry.objects.in_bulk(ids).values(), key=rank, reverse=True)[:limit]
    return [
        Found(
            when=entry.happened_at,
            until=entry.happened_until,
            conversation_id=entry.conversation_id,
            first_seq=entry.first_seq,
            last_seq=entry.last_seq,
            kind=entry.kind,
            content=entry.content,
            tainted_by=entry.tainted_by or "",
        )
        for entry in found
    ]
