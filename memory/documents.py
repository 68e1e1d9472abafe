"""Long-term memory: one document an agent and owner, rewritten as a whole, every version of it kept.

A rewrite says which version it is of, and counts only while that is the latest: two conversations of one owner may be
compacted at once. A model's rewrite that loses much of what was known is kept aside, for a person to decide on.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from memory.errors import MemoryChanged, MemoryTooLong
from memory.models import Memory, MemoryVersion
from memory.words import words_of
from nanohost.accounts import audit
from nanohost.lib.redaction import redact
from nanohost.lib.statements import Given, Rows
from nanohost.lib.text import storable

Source = MemoryVersion.Source

# A short memory may well be rewritten as a whole.
FEWEST_DROPPED = 4


@dataclass(frozen=True, kw_only=True)
class Background:
    """What an agent knows about an owner. ``notes``: today's, a line each; ``version`` 0: it knows nothing yet.
    ``content_from``, ``notes_from``: where some of them was learnt, if untrusted text had entered there."""

    version: int
    content: str
    notes: str
    notes_on: date | None = None
    content_from: str = ""
    notes_from: str = ""

    @property
    def tainted_by(self) -> str:
        """What of it was learnt where untrusted text had entered, and where; empty: nothing."""
        if self.content_from:
            return f"long-term memory, version {self.version}, learnt in {self.content_from}"
        return f"notes of {self.notes_on}, taken in {self.notes_from}" if self.notes_from else ""


_head = Rows(
    lambda: (
        Memory.objects.filter(owner_id=Given("owner_id"), agent=Given("agent"))
        .order_by()
        .values_list("version", "content", "notes_on", "notes", "tainted_by", "notes_tainted_by")
    )
)


def background(*, agent: str, owner_id: int, today: date) -> Background:
    """What there is of the memory on this day, in one read."""
    for version, content, notes_on, notes, content_from, notes_from in _head(agent=agent, owner_id=owner_id):
        known = Background(version=version, content=content, notes="", content_from=content_from)
        if notes and notes_on == today:
            return replace(known, notes=notes, notes_on=today, notes_from=notes_from)
        return known
    return Background(version=0, content="", notes="")


def is_full(content: str) -> bool:
    """Whether whoever rewrites it is to be asked to shorten it."""
    return len(content) > settings.MEMORY_MAX_CHARS


def learnt_in(conversation_id: UUID | None, tainted_by: str) -> str:
    """The mark of what is learnt in a conversation; empty unless untrusted text has entered there."""
    if not tainted_by:
        return ""
    return f"conversation {conversation_id}" if conversation_id else tainted_by


def locked_head(*, agent: str, owner_id: int) -> Memory:
    """The head, made if there is none, which nobody else writes until the caller's transaction ends."""
    _make_head(agent=agent, owner_id=owner_id)
    return Memory.objects.select_for_update().get(owner_id=owner_id, agent=agent)


def _make_head(*, agent: str, owner_id: int) -> None:
    """Of those who do so at once, one is first, and the others wait for it."""
    Memory.objects.bulk_create([Memory(agent=agent, owner_id=owner_id)], ignore_conflicts=True)


def rewrite(
    *,
    agent: str,
    owner_id: int,
    base: int,
    content: str,
    source: str,
    conversation_id: UUID | None = None,
    turn_id: UUID | None = None,
    first_seq: int | None = None,
    last_seq: int | None = None,
    model: str = "",
    made_by: str = "",
    checked: bool = True,
    doubt: str = "",
    tainted_by: str = "",
    anew: bool = False,
) -> MemoryVersion | None:
    """Make this the content, in the caller's transaction if there is one; returns the new version.

    ``base`` is the number of the version that was read (0: there was none); raises :class:`MemoryChanged` if it is no
    longer the latest. Returns None if that already has the same content. With ``checked``, as models' rewrites are,
    one that loses too much or is far too long is kept aside: what comes back has no number, and ``aside_because`` says
    why; so is one with a ``doubt`` of its own. Without, as people's are, only the length counts: raises
    :class:`MemoryTooLong`.

    ``tainted_by``: where it was learnt, if untrusted text had entered there. A mark of the base stays, for what it is
    of may still be in the text; unless that was written ``anew``.
    """
    content = storable(redact(content))
    with transaction.atomic():
        if not base:
            _make_head(agent=agent, owner_id=owner_id)
        head = Memory.objects.filter(owner_id=owner_id, agent=agent, version=base)
        read = head.values_list("content", "tainted_by").first()
        if read is None:
            raise MemoryChanged
        before, marked = read
        tainted_by = tainted_by if anew else marked or tainted_by
        if content == before:
            return None
        doubts = doubt or too_long(content)
        if doubts and not checked:
            raise MemoryTooLong(doubts)
        if checked:
            doubts = doubts or _too_much_lost(before=before, after=content, by_model=source == Source.COMPACTION)
        changes = {"version": base + 1, "content": content, "updated_at": timezone.now()}
        # Before the version's row, whose number somebody else may have taken: here is where the first one wins.
        if not doubts and head.update(**changes, tainted_by=tainted_by) != 1:
            raise MemoryChanged
        return MemoryVersion.objects.create(
            agent=agent,
            owner_id=owner_id,
            number=None if doubts else base + 1,
            content=content,
            base=base,
            source=source,
            conversation_id=conversation_id,
            turn_id=turn_id,
            first_seq=first_seq,
            last_seq=last_seq,
            model=model,
            made_by=made_by[:200],
            tainted_by=tainted_by,
            aside_because=doubts,
        )


def take_in(*, agent: str, owner_id: int, content: str) -> MemoryVersion | None:
    """Make a memory that was written elsewhere the content, if nothing but an import has written here; otherwise, or if
    it is doubtful, it is kept aside. Returns None for one that is empty, or that has been here before."""
    content = storable(redact(content)).strip()
    if not content:
        return None
    with transaction.atomic():
        head = locked_head(agent=agent, owner_id=owner_id)
        versions = MemoryVersion.objects.filter(owner_id=owner_id, agent=agent)
        was_here = versions.filter(content=content)
        is_ours = head.version > 0 and not versions.filter(number=head.version, source=Source.IMPORT).exists()
        if content == head.content.strip() or (was_here if is_ours else was_here.filter(number=None)).exists():
            return None
        doubt = "" if not is_ours else "The memory was written here since; an import does not take its place."
        return rewrite(
            agent=agent, owner_id=owner_id, base=head.version, content=content, source=Source.IMPORT, doubt=doubt
        )


def too_long(content: str) -> str:
    """Why a content is longer than a memory may be; "" if it is not."""
    most = 2 * settings.MEMORY_MAX_CHARS
    return f"It has {len(content)} characters; {most} is the most a memory may have." if len(content) > most else ""


def _too_much_lost(*, before: str, after: str, by_model: bool) -> str:
    """Why a rewrite is doubtful; "" if it is not. A few lines may well go, but not all there are by a model's word."""
    lines = [words for line in before.splitlines() if (words := words_of(line))]
    lines_with = Counter(word for words in lines for word in words)
    left = set(words_of(after))
    lost = sum(not _is_told(words, lines_with, left) for words in lines)
    few = lost < FEWEST_DROPPED or lost <= settings.MEMORY_MOST_DROPPED * len(lines)
    if few and not (by_model and lines and lost == len(lines)):
        return ""
    return f"It drops {lost} of {len(lines)} lines; MEMORY_MOST_DROPPED allows {settings.MEMORY_MOST_DROPPED:.0%}."


def _is_told(words: list[str], lines_with: Mapping[str, int], left: set[str]) -> bool:
    """Whether a line's words are still there, maybe among others: at least half of those that tell it from other
    lines, which are those that stand in the fewest."""
    fewest = min(lines_with[word] for word in words)
    telling = [word for word in words if lines_with[word] == fewest]
    return 2 * sum(word in left for word in telling) >= len(telling)


def restore(version: MemoryVersion, *, by: str) -> MemoryVersion | None:
    """Make an older version, or one that was kept aside, the latest: a new one with its content and its provenance.
    Returns None if the latest has the same content."""
    with transaction.atomic():
        head = locked_head(agent=version.agent, owner_id=version.owner_id)
        restored = rewrite(
            agent=version.agent,
            owner_id=version.owner_id,
            base=head.version,
            content=version.content,
            source=Source.RESTORE,
            conversation_id=version.conversation_id,
            turn_id=version.turn_id,
            first_seq=version.first_seq,
            last_seq=version.last_seq,
            model=version.model,
            made_by=by,
            checked=False,
            tainted_by=version.tainted_by,
            anew=True,
        )
        _settle(version, by=by)
        if restored:
            was = {"version": head.version, "taintedBy": head.tainted_by}
            became = {"version": restored.number, "content of": version.pk, "taintedBy": version.tainted_by}
            audit.record("memory.restored", about=head, name=str(head), before=was, after=became)
    return restored


def trust(*, agent: str, owner_id: int) -> bool:
    """Take what is known, and the day's notes, for trusted: somebody has read them. False if nothing was marked."""
    with transaction.atomic():
        head = locked_head(agent=agent, owner_id=owner_id)
        marks = {"taintedBy": head.tainted_by, "notesTaintedBy": head.notes_tainted_by}
        if not any(marks.values()):
            return False
        Memory.objects.filter(pk=head.pk).update(tainted_by="", notes_tainted_by="")
        audit.record("memory.trusted", about=head, name=str(head), before=marks, after={"version": head.version})
    return True


def dismiss(version: MemoryVersion, *, by: str) -> None:
    """Leave a version aside for good; it is kept."""
    with transaction.atomic():
        if _settle(version, by=by):
            audit.record("memory.dismissed", about=version)


def _settle(version: MemoryVersion, *, by: str) -> bool:
    open_question = MemoryVersion.objects.filter(pk=version.pk, number=None, settled_at=None)
    return bool(open_question.update(settled_at=timezone.now(), settled_by=by[:200]))
