"""What a compaction takes in, and what is made of it: read, asked for chunk by chunk, and put together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils import timezone

from agent import tokens
from agent.models import Agent
from agent.prompt import shorten
from conversations.attachments import prompts as attachments
from conversations.models import Conversation, Message
from memory import documents
from memory.consolidation import (
    RAW_ENTRY_CHARS,
    SAVE_MEMORY,
    Consolidated,
    Line,
    chunks,
    in_parts,
    older_part,
    prompt,
    stub,
)
from nanohost.lib.redaction import redact
from nanohost.lib.statements import Given, Rows
from tools.taint import MAX_SOURCE

if TYPE_CHECKING:
    from django.db.models import QuerySet

# Messages that are taken in at once. What is left over is compacted next.
MAX_LINES = 2000

# Of a tool's result, and of the arguments of a call.
MAX_RESULT_CHARS, MAX_ARGUMENT_CHARS = 2000, 500
# And of what files said that came with a message.
MAX_FILES_CHARS = 2000

# Bytes of the conversation that one call of the model is given, at least and at most; in between, half of what its
# context has room for, since estimates are not exact, or USUAL of them if there is room for no more.
LEAST_CHUNK, USUAL_CHUNK, MAX_CHUNK = 300, 2000, 200_000

# An estimate is never exact: so much of what fits is used.
USED_SHARE = 0.95

# Of the room for a chunk and for what is known so far, the summary gets so much at most; a long-term memory that takes
# more than half of it is shown in part, and added to instead of rewritten.
SUMMARY_SHARE, MEMORY_SHARE, PART_SHARE = 0.25, 0.5, 0.25


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is to be taken in, and what it is based on.

    ``consolidated_through`` and ``starts_at`` are the conversation's as they were read: whoever moves them first wins.
    ``tainted_by``: from where untrusted text came, if there may be some in what it is made of.
    """

    conversation_id: UUID
    owner_id: int
    agent: str
    starts_at: int
    consolidated_through: int
    summary_seq: int | None
    summary: str
    memory_version: int
    memory: str
    lines: Sequence[Line]
    tainted_by: str = ""

    @property
    def learnt_in(self) -> str:
        """The mark of what is learnt of it."""
        return documents.learnt_in(self.conversation_id, self.tainted_by)

    @property
    def through(self) -> int:
        """The last message it takes in."""
        return self.lines[-1].seq


_conversation = Rows(lambda: Conversation.objects.filter(pk=Given("id")))


def read(conversation_id: UUID, *, agent: Agent, keep_tokens: int | None) -> Part | None:
    """The part of a conversation that is to be consolidated now; None if there is none.

    ``keep_tokens``: of the newest messages, so many stay at most; None: nothing stays.
    """
    conversation = next(iter(_conversation(id=conversation_id)), None)
    if conversation is None:
        return None
    lines = (
        _lines(conversation, most=None) if keep_tokens is None else _older(conversation, agent.window(), keep_tokens)
    )
    if not lines:
        return None
    known = documents.background(agent=agent.name, owner_id=conversation.owner_id, today=timezone.localdate())
    entered = conversation.tainted_at_seq is not None and conversation.tainted_at_seq <= lines[-1].seq
    return Part(
        conversation_id=conversation_id,
        owner_id=conversation.owner_id,
        agent=agent.name,
        starts_at=conversation.starts_at_seq,
        consolidated_through=conversation.consolidated_through,
        summary_seq=conversation.summary_seq,
        summary=_summary(conversation),
        memory_version=known.version,
        memory=known.content,
        lines=lines,
        tainted_by=(conversation.tainted_by if entered else known.tainted_by)[:MAX_SOURCE],
    )


def _older(conversation: Conversation, window: int, keep_tokens: int) -> Sequence[Line]:
    """What is older than the window; of a turn that is longer than what is read at once, all of it."""
    most = MAX_LINES
    while True:
        lines = _lines(conversation, most=most)
        part = older_part(lines, window=window, keep_tokens=keep_tokens)
        if part or len(lines) < most:
            return part
        most *= 2


def _said(conversation_id: Any, first: Any, most: int | None) -> "QuerySet[Message]":
    said = {"type": Message.Type.NORMAL, "kind": Message.Kind.SAID}
    return Message.objects.transcript().filter(conversation_id=conversation_id, seq__gte=first, **said)[:most]


_usually_said = Rows(lambda: _said(Given("id"), Given("first"), MAX_LINES))


def _lines(conversation: Conversation, *, most: int | None) -> Sequence[Line]:
    first = max(conversation.consolidated_through + 1, conversation.starts_at_seq)
    usual = most == MAX_LINES
    said = _usually_said(id=conversation.pk, first=first) if usual else _said(conversation.pk, first, most)
    return [line_of(message) for message in said]


def line_of(message: Message, *, whole: bool = False) -> Line:
    """A message as a model is shown it that summarises: results and arguments are shortened, unless it is to be
    ``whole``."""
    chat, role = message.as_chat(), message.role
    if message.attachments:
        chat = attachments.with_texts(chat, attachments.texts_of([message.attachments]))
    content = str(chat["content"])
    if message.attachments and not whole:
        content = shorten(content, len(message.content) + MAX_FILES_CHARS)
    if message.role == Message.Role.TOOL:
        content = content if whole else shorten(content, MAX_RESULT_CHARS)
        role = f"tool {message.tool_name}".strip()
    for call in message.tool_calls or ():
        arguments = call["function"]["arguments"]
        arguments = arguments if whole else shorten(arguments, MAX_ARGUMENT_CHARS)
        content = f"{content}\n(calls {call['function']['name']} with {arguments})".strip()
    assert message.seq is not None  # it is part of the transcript
    return Line(
        seq=message.seq,
        at=timezone.localtime(message.created_at),
        role=role,
        content=content,
        tokens=tokens.estimated_message(chat),
    )


_content = Rows(
    lambda: Message.objects.filter(conversation_id=Given("id"), seq=Given("seq")).values_list("content", flat=True)
)


def _summary(conversation: Conversation) -> str:
    seq = conversation.summary_seq
    return next(iter(_content(id=conversation.pk, seq=seq)), "") if seq else ""


# --- asking, chunk by chunk --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry for the history log, and the lines it is of."""

    content: str
    lines: Sequence[Line]
    kind: str = "entry"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was made of a part. ``memory`` is None where the long-term memory stays as it is."""

    summary: str
    memory: str | None = None
    entries: Sequence[Entry] = ()
    model: str = ""
    is_stub: bool = False
    # How far it goes: the last message, and how many of its characters.
    through: int = 0
    chars: int = 0

    def folded(self, made: Consolidated, lines: Sequence[Line]) -> "Result":
        """The result with one more chunk taken in."""
        last = lines[-1].seq
        chars = sum(len(line.content) for line in lines if line.seq == last)
        return replace(
            self,
            summary=made.summary,
            memory=self.memory if made.memory is None else made.memory,
            entries=[*self.entries, *(Entry(content=part, lines=lines) for part in in_parts(made.entry))],
            through=last,
            chars=chars + (self.chars if last == self.through else 0),
        )

    def left_of(self, lines: Sequence[Line]) -> list[Line]:
        """What of these lines is not in it yet."""
        left = [line for line in lines if line.seq >= self.through]
        if left and left[0].seq == self.through:
            begun = replace(left[0], content=left[0].content[self.chars :])
            left[:1] = [begun] if begun.content else []
        return left

    def as_json(self, part: Part) -> dict[str, Any]:
        """What is kept of it while it is not whole, with what it is based on."""
        return {
            "base": base_of(part),
            "summary": redact(self.summary),
            "memory": None if self.memory is None else redact(self.memory),
            "entries": [
                [redact(each.content), *((line.seq, line.at.isoformat()) for line in (each.lines[0], each.lines[-1]))]
                for each in self.entries
            ],
            "model": self.model,
            "usage": [0, 0],  # which nodes of the release before read
            "through": self.through,
            "chars": self.chars,
        }


def base_of(part: Part) -> list[int]:
    """What the part was when it was read: what is made of it counts while that stands."""
    return [part.starts_at, part.consolidated_through, part.memory_version]


def made_so_far(part: Part, kept: dict[str, Any] | None, *, model: str) -> Result:
    """What an earlier try made of the part's first chunks; of a part that is another by now, nothing."""
    if not kept or kept["base"] != base_of(part):
        return Result(summary=part.summary, model=model)
    return Result(
        summary=kept["summary"],
        memory=kept["memory"],
        entries=[
            Entry(
                content=content,
                lines=[Line(seq=seq, at=datetime.fromisoformat(at), role="", content="") for seq, at in ends],
            )
            for content, *ends in kept["entries"]
        ],
        model=kept["model"],
        through=kept["through"],
        chars=kept["chars"],
    )


@dataclass(frozen=True, kw_only=True)
class Asking:
    """What a model is asked next: some of the lines, with what is known so far as far as it has room for that.

    ``is_part``: the memory is shown in part only, and is added to instead of rewritten.
    """

    lines: Sequence[Line]
    summary: str
    memory: str = ""
    is_part: bool = False


def next_chunk(
    lines: Sequence[Line], *, agent: Agent, model: str, besides: int, summary: str, memory: str = ""
) -> Asking:
    """The first of these lines, as many as one call of the model has room for. ``besides``: tokens, estimated, of what
    else it is told."""
    # No provider makes it larger by reporting few: some leave out what they had cached.
    room = int(USED_SHARE * agent.prompt_tokens() / max(tokens.correction.ratio(model), 1.0)) - besides
    room = max(room, 0) * tokens.BYTES_A_TOKEN
    summary = _within(summary, int(SUMMARY_SHARE * room))
    is_part = tokens.estimated(memory) * tokens.BYTES_A_TOKEN > MEMORY_SHARE * room
    shown = _within(memory, int(PART_SHARE * room)) if is_part else memory
    left = room - (tokens.estimated(shown) + tokens.estimated(summary)) * tokens.BYTES_A_TOKEN
    most = min(max(left // 2, min(left, USUAL_CHUNK), LEAST_CHUNK), MAX_CHUNK)
    return Asking(lines=next(chunks(lines, most_bytes=most)), summary=summary, memory=shown, is_part=is_part)


def _within(text: str, most_bytes: int) -> str:
    """A text, its middle left out if it is longer than that."""
    size = tokens.estimated(text) * tokens.BYTES_A_TOKEN
    return text if size <= most_bytes else shorten(text, max(len(text) * most_bytes // size - 60, 0))


def told_besides(tool: dict[str, Any], messages: Sequence[dict[str, Any]]) -> int:
    """Tokens, estimated, of a prompt without its lines."""
    return tokens.estimated_tools([tool]) + sum(map(tokens.estimated_message, messages))


# What a model is told in any case when it is to consolidate; with the longest of the words about its memory.
BESIDES = told_besides(SAVE_MEMORY, prompt(memory="", summary="", lines=[], is_part=True))


def stub_of(part: Part, made: Result | None = None) -> Result:
    """What stands in where no model could make anything of what is ``made`` not yet: the log gets the messages as they
    are."""
    made = made or Result(summary=part.summary)
    left = made.left_of(part.lines)
    if not left:
        return made
    said = Message.objects.transcript().filter(
        conversation=part.conversation_id,
        seq__range=(left[0].seq, part.through),
        type=Message.Type.NORMAL,
        kind=Message.Kind.SAID,
    )
    whole = [line_of(message, whole=True) for message in said]
    raw = [
        Entry(content="\n".join(map(str, lines)), lines=lines, kind="raw")
        for lines in chunks(whole, most_bytes=RAW_ENTRY_CHARS)
    ]
    summary = stub(made.summary, left)
    model = made.model if made.entries else ""
    return replace(made, summary=summary, entries=[*made.entries, *raw], model=model, is_stub=True)
