"""The memory as files of the workspace: the long-term memory, and the notes of the day."""

from collections.abc import Callable
from datetime import date

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from memory import documents, log
from memory.models import Memory
from tools.registry import Caller
from tools.workspace.documents import Kept, Parts, Text

# As nanobot has them.
FOLDER, MEMORY = "memory", "MEMORY.md"

# One call takes so many notes.
MAX_NOTES = 100


def owns(parts: Parts) -> bool:
    """The memory; and the notes of any day, of which only today's are there."""
    return len(parts) == 2 and parts[0] == FOLDER and (parts[1] == MEMORY or _day(parts[1]) is not None)


def found(caller: Caller) -> dict[str, Text]:
    """Both, where there is something in them, with where it was learnt."""
    today, texts = timezone.localdate(), {}
    known = documents.background(agent=caller.agent, owner_id=caller.owner_id, today=today)
    if known.content:
        texts[f"{FOLDER}/{MEMORY}"] = Text(text=f"{known.content}\n", tainted_by=known.content_from)
    if known.notes:
        texts[f"{FOLDER}/{today}.md"] = Text(text=f"{known.notes}\n", tainted_by=known.notes_from)
    return texts


def change(caller: Caller, parts: Parts, made_of: Callable[[str], str]) -> str:
    """Rewrite the memory as a new version, or add to the notes of the day."""
    today = timezone.localdate()
    with transaction.atomic():
        # Nobody rewrites it until this is committed, so what was read is what is changed.
        head = documents.locked_head(agent=caller.agent, owner_id=caller.owner_id)
        if parts[1] == MEMORY:
            return _rewrite(caller, head, made_of(_file(head.content)))
        if _day(parts[1]) != today:
            raise ValueError(f"Notes are taken for today alone, which is {today}: {FOLDER}/{today}.md.")
        before = _file(head.notes) if head.notes_on == today else ""
        return _note(caller, before, made_of(before), today)


def _rewrite(caller: Caller, head: Memory, content: str) -> str:
    content = content.rstrip("\n")
    if documents.is_full(content) and len(content) > len(head.content):
        raise ValueError(
            f"It would have {len(content)} characters; the long-term memory has {settings.MEMORY_MAX_CHARS}."
            " Shorten what matters less."
        )
    version = documents.rewrite(
        agent=caller.agent,
        owner_id=caller.owner_id,
        base=head.version,
        content=content,
        source=documents.Source.REMEMBER,
        conversation_id=caller.conversation_id,
        turn_id=caller.turn_id,
        tainted_by=documents.learnt_in(caller.conversation_id, caller.tainted_by),
    )
    if version is None:
        return "The memory says this already."
    if version.number is None:
        return f"It was kept aside, until a person has decided on it: {version.aside_because} What was there stays."
    return f"Written: version {version.number} of the long-term memory. Earlier ones are kept."


def _note(caller: Caller, before: str, after: str, today: date) -> str:
    if not after.startswith(before):
        raise ValueError("Notes are only added to: write what is there, and new lines after it.")
    lines = [line for line in after[len(before) :].splitlines() if line.strip()]
    if len(lines) > MAX_NOTES:
        raise ValueError(f"These are {len(lines)} notes; {MAX_NOTES} are taken at once.")
    for line in lines:
        log.note(
            agent=caller.agent,
            owner_id=caller.owner_id,
            text=line,
            today=today,
            turn_id=caller.turn_id,
            conversation_id=caller.conversation_id,
            tainted_by=documents.learnt_in(caller.conversation_id, caller.tainted_by),
        )
    return f"Noted for today: {len(lines)} lines." if lines else "These notes are there already."


def _file(content: str) -> str:
    return f"{content}\n" if content else ""


def _day(name: str) -> date | None:
    """The day that a file of notes is of."""
    stem, dot, ending = name.partition(".")
    if (dot, ending) != (".", "md") or len(stem) != 10:
        return None
    try:
        return date.fromisoformat(stem)
    except ValueError:
        return None


KEPT = Kept(folder=(FOLDER,), owns=owns, found=found, change=change)
