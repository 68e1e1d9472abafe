"""The tools an agent remembers with. They run inline, for the owner and the agent of the conversation that calls."""

from typing import Annotated

from django.conf import settings
from django.utils import timezone
from pydantic import Field

from memory import documents, log
from tools.registry import Caller, Untrusted, tool

# Of each entry that is found, in characters.
MAX_SHOWN = 3000


@tool(effects="rows", stays_inside=True)
def remember(caller: Caller, fact: str, replaces: str = "") -> str:
    """Keep a fact for good, as a line of the long-term memory that you have in every conversation with this user.

    Args:
        fact: One line that can be understood by itself, such as "Takes tea without milk."
        replaces: Part of the line that the fact takes the place of, if one is no longer true.
    """
    fact = " ".join(fact.split())
    if not fact:
        raise ValueError("There is nothing to remember: the fact is empty.")
    # Nobody rewrites it until this is committed, so what was read is what is replaced.
    head = documents.locked_head(agent=caller.agent, owner_id=caller.owner_id)
    lines = head.content.splitlines()
    if replaces.strip():
        at = _only_line(lines, replaces.strip())
        lines[at] = f"{_bullet(lines[at])}{fact}"
    elif any(line.removeprefix(_bullet(line)) == fact for line in lines):
        return "This was known already."
    else:
        lines.append(f"- {fact}")
    content = "\n".join(lines)
    if documents.is_full(content) and len(content) > len(head.content):
        raise ValueError(
            f"The long-term memory is full: it has {len(head.content)} characters, of {settings.MEMORY_MAX_CHARS}."
            " Replace a line that matters less, by naming a part of it in `replaces`."
        )
    documents.rewrite(
        agent=caller.agent,
        owner_id=caller.owner_id,
        base=head.version,
        content=content,
        source=documents.Source.REMEMBER,
        conversation_id=caller.conversation_id,
        turn_id=caller.turn_id,
        checked=False,
        tainted_by=documents.learnt_in(caller.conversation_id, caller.tainted_by),
    )
    return "Remembered."


def _only_line(lines: list[str], part: str) -> int:
    found = [at for at, line in enumerate(lines) if part.casefold() in line.casefold()]
    if not found:
        raise ValueError(f'No line of the long-term memory contains "{part}". Nothing was changed.')
    if len(found) > 1:
        raise ValueError(
            f'{len(found)} lines of the long-term memory contain "{part}", such as "{lines[found[0]]}" and'
            f' "{lines[found[1]]}". Nothing was changed; name a part that only one of them has.'
        )
    return found[0]


def _bullet(line: str) -> str:
    """What a line of a list begins with."""
    text = line.lstrip()
    return line[: len(line) - len(text) + 2] if text.startswith(("- ", "* ")) else line[: len(line) - len(text)]


@tool(effects="read")
def recall_history(caller: Caller, query: str, limit: Annotated[int, Field(ge=1, le=20)] = 5) -> str:
    """Search what happened in earlier conversations with this user, which you no longer have before you.

    Args:
        query: A few words that should stand in it. The beginnings of words are enough.
        limit: How many entries at most, the newest ones.
    """
    today = timezone.localdate()
    found = log.recall(agent=caller.agent, owner_id=caller.owner_id, query=query, limit=limit, today=today)
    text = "\n\n".join(map(_shown, found)) or "Nothing found."
    marked = next((each.tainted_by for each in found if each.tainted_by), "")
    return Untrusted(text, by=f"the history log, an entry learnt in {marked}") if marked else text


def _shown(found: log.Found) -> str:
    when = f"{timezone.localtime(found.when):%Y-%m-%d %H:%M}"
    if found.until and found.until > found.when:
        when += f" to {timezone.localtime(found.until):%Y-%m-%d %H:%M}"
    if found.conversation_id:
        when += f", conversation {found.conversation_id}"
    if found.first_seq is not None:
        when += f", messages {found.first_seq} to {found.last_seq}"
    cut = "…" if len(found.content) > MAX_SHOWN else ""
    return f"[{when}]\n{found.content[:MAX_SHOWN]}{cut}"


@tool(effects="rows", stays_inside=True)
def daily_note(caller: Caller, text: str) -> str:
    """Take a note that you have before you for the rest of this day, in every conversation with this user.

    Args:
        text: What is worth knowing today and not for good.
    """
    if not text.strip():
        raise ValueError("There is nothing to note: the text is empty.")
    log.note(
        agent=caller.agent,
        owner_id=caller.owner_id,
        text=text,
        today=timezone.localdate(),
        turn_id=caller.turn_id,
        conversation_id=caller.conversation_id,
        tainted_by=documents.learnt_in(caller.conversation_id, caller.tainted_by),
    )
    return "Noted for today."
