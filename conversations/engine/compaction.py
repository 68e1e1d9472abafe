"""Compaction: what a conversation's prompt has no room for goes into its summary, the long-term memory and the log.

A turn that leaves its conversation too long stores a :class:`Compaction` with its end, and notifies the workers. It is
a piece of work like a turn: claimed by a conditional update that raises its fence, kept by a lease, found by the sweep.
A model is asked without any transaction held; what it makes is stored whole or not at all, with the pointer that says
how far the conversation is consolidated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, IntegerField, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from agent import tokens
from agent.errors import LlmError
from agent.llm.base import Completion
from agent.models import Agent
from agent.prompt import shorten
from agent.spending import budgets
from agent.spending.bills import Bill
from conversations.attachments import prompts as attachments
from conversations.engine import doorbell, transcript
from conversations.engine.fallbacks import is_worth_another
from conversations.engine.lease import RETRYING_FOR
from conversations.errors import FenceLost, Overtaken
from conversations.kinds import COMPACTIONS
from conversations.models import Compaction, CompactionStatus, Conversation, Message
from memory import documents, log
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
from memory.errors import MemoryChanged
from memory.models import MemoryVersion
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from nanohost.lib.lease import RELEASED, backoff, rescheduled
from nanohost.lib.redaction import redact, redact_head
from tools.taint import MAX_SOURCE

# After so many answers of no use, or workers that died, in a row, a stub takes the summary's place.
MAX_FAILURES = 3

# How often what was made is made again, because the conversation or the memory was changed meanwhile.
MAX_CLASHES = 5

# Seconds before another try: after an answer of no use, doubled each time; and while the provider cannot answer.
RETRY_FIRST, RETRY_LONGEST, RETRY_WHILE_AWAY = 10.0, 60.0, 30.0

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


def request(conversation_id: UUID, turn_id: UUID | None, *, keep_tokens: int) -> None:
    """Have a conversation compacted, once the current transaction has committed; one that is under way is enough.

    ``keep_tokens``: of the newest messages, so many stay at most, by an estimate that is not corrected.
    """
    row = Compaction(
        conversation_id=conversation_id, turn_id=turn_id, keep_tokens=keep_tokens, notified_at=Now(), cost=0
    )
    Compaction.objects.bulk_create([row], ignore_conflicts=True)
    doorbell.notify(COMPACTIONS, row.pk)  # which finds nothing if another is under way


# --- taking hold -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A held compaction."""

    id: UUID
    conversation_id: UUID
    turn_id: UUID | None
    owner_id: int
    agent: Agent
    keep_tokens: int
    fence: int
    failures: int
    kind: str
    since: datetime | None
    until: datetime | None
    made_so_far: dict[str, Any] | None = None
    fallback_model: str = ""
    retries: int = 0
    retrying_for: float = 0.0

    @property
    def model(self) -> str:
        """The model that is asked: its agent's own, or one in its place."""
        return self.fallback_model or self.agent.own_model()

    @property
    def provider(self) -> str:
        """The provider that the agent names for it, if it names one. Those in its place say by their names whose they
        are."""
        return "" if self.fallback_model else self.agent.provider

    def model_after(self, error: LlmError) -> str:
        """The model that is asked in the place of this one, which has failed; empty: this one is tried again."""
        gives_up = error.transient and self.failures + 1 >= MAX_FAILURES
        if not gives_up and not is_worth_another(error, retries=self.retries, retrying_for=self.retrying_for):
            return ""
        return self.agent.model_after(self.model, own=self.agent.own_model())


def claim(compaction_id: UUID, *, worker: str) -> Hold | None:
    """Claim a compaction; None if it is not claimable. One whose worker died counts that as a failure."""
    with transaction.atomic():
        taken = Compaction.objects.due().filter(pk=compaction_id)
        changed = taken.update(
            failures=Case(
                When(status=CompactionStatus.RUNNING, then=F("failures") + 1),
                default=F("failures"),
                output_field=IntegerField(),
            ),
            run_after=None,
            **Compaction.claimed(worker=worker, lease=settings.TURN_LEASE_SECONDS),
        )
        if changed != 1:
            return None
        rows = Compaction.objects.select_related("conversation__agent").annotate(retrying_for=RETRYING_FOR)
        row = rows.get(pk=compaction_id)
        retrying_for = row.retrying_for  # type: ignore[attr-defined]  # annotated above
    return Hold(
        id=row.pk,
        conversation_id=row.conversation_id,
        turn_id=row.turn_id,
        owner_id=row.conversation.owner_id,
        agent=row.conversation.agent,
        keep_tokens=row.keep_tokens,
        fence=row.fence,
        failures=row.failures,
        kind=row.kind,
        since=row.since,
        until=row.until,
        made_so_far=row.made_so_far,
        fallback_model=row.fallback_model,
        retries=row.retries,
        retrying_for=retrying_for.total_seconds() if retrying_for else 0.0,
    )


def _held(hold: Hold) -> Any:
    return Compaction.objects.held(hold.id, hold.fence)


def keep(hold: Hold) -> bool:
    """Renew the lease; False if it is no longer ours."""
    return bool(_held(hold).update(lease_until=from_now(settings.TURN_LEASE_SECONDS)))


def charge(hold: Hold, completion: Completion, bill: Bill) -> None:
    """Store what an answer has cost, whatever becomes of it and of the compaction."""
    used = completion.usage
    with transaction.atomic():
        Conversation.objects.filter(pk=hold.conversation_id).update(
            cost=None if bill.cost is None else F("cost") + bill.cost
        )
        Compaction.objects.filter(pk=hold.id).update(
            model=hold.model,
            prompt_tokens=F("prompt_tokens") + used.prompt_tokens,
            completion_tokens=F("completion_tokens") + used.completion_tokens,
            cached_tokens=F("cached_tokens") + used.cached_tokens,
            cost=None if bill.cost is None else F("cost") + bill.cost,
            model_calls=F("model_calls") + 1,
            retries=0,
            retrying_since=None,
        )
        budgets.settle(bill)


def release(hold: Hold) -> None:
    """Let go of it at a shutdown: whoever comes next takes it, at no cost."""
    _held(hold).update(status=CompactionStatus.QUEUED, **RELEASED)


def drop(hold: Hold) -> None:
    """There is nothing to do."""
    _held(hold).update(status=CompactionStatus.DROPPED, lease_until=None, ended_at=Now())


def fail(hold: Hold) -> None:
    """Nothing more is tried; what went wrong last stays on the row."""
    _held(hold).update(status=CompactionStatus.FAILED, lease_until=None, ended_at=Now())


def fall_back(hold: Hold, *, model: str, reason: str) -> Hold:
    """Have another model asked in place of one that has failed; its failures are counted anew. Raises
    :class:`FenceLost`."""
    changed: dict[str, Any] = {"failures": 0, "retries": 0, "retrying_since": None}
    changed |= {"fallback_model": model, "fallback_reason": redact_head(reason, 200)}
    if _held(hold).update(**changed) != 1:
        raise FenceLost
    so_far = Compaction.objects.values_list("made_so_far", flat=True).get(pk=hold.id)
    return replace(hold, fallback_model=model, failures=0, retries=0, retrying_for=0.0, made_so_far=so_far)


def reschedule(
    hold: Hold, *, error: str, counts: bool, seconds: float | None = None, of_provider: bool = False
) -> None:
    """Let go of it for a while. ``counts``: as a failure, of which there may be three in a row. ``of_provider``: it is
    the provider's, who may recover."""
    again = backoff(hold.failures, first=RETRY_FIRST, longest=RETRY_LONGEST) if counts else RETRY_WHILE_AWAY
    _held(hold).update(
        status=CompactionStatus.QUEUED,
        failures=F("failures") + int(counts),
        error=error[:500],
        **({"retries": F("retries") + 1, "retrying_since": Coalesce("retrying_since", Now())} if of_provider else {}),
        **rescheduled(seconds or again),
    )


# --- reading -----------------------------------------------------------------------------------------------------


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


def read(conversation_id: UUID, *, agent: Agent, keep_tokens: int | None) -> Part | None:
    """The part of a conversation that is to be consolidated now; None if there is none.

    ``keep_tokens``: of the newest messages, so many stay at most; None: nothing stays.
    """
    conversation = Conversation.objects.filter(pk=conversation_id).first()
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


def _lines(conversation: Conversation, *, most: int | None) -> Sequence[Line]:
    first = max(conversation.consolidated_through + 1, conversation.starts_at_seq)
    said = Message.objects.transcript().filter(
        conversation=conversation, seq__gte=first, type=Message.Type.NORMAL, kind=Message.Kind.SAID
    )
    return [line_of(message) for message in said[:most]]


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


def _summary(conversation: Conversation) -> str:
    latest = Message.objects.filter(conversation=conversation, seq=conversation.summary_seq)
    return latest.values_list("content", flat=True).first() or "" if conversation.summary_seq else ""


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
            "base": _base_of(part),
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


def _base_of(part: Part) -> list[int]:
    return [part.starts_at, part.consolidated_through, part.memory_version]


def made_so_far(part: Part, kept: dict[str, Any] | None, *, model: str) -> Result:
    """What an earlier try made of the part's first chunks; of a part that is another by now, nothing."""
    if not kept or kept["base"] != _base_of(part):
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


def keep_so_far(hold: Hold, part: Part, result: Result) -> None:
    """Keep what was made of the first chunks: it is paid for, whatever becomes of the others. Raises
    :class:`FenceLost`."""
    if _held(hold).update(made_so_far=result.as_json(part)) != 1:
        raise FenceLost


def keep_memory(part: Part, memory: str, *, model: str, turn_id: UUID | None, hold: Hold | None = None) -> None:
    """Store the long-term memory of an answer of which nothing else is of use; if it was rewritten meanwhile, it is
    kept aside for a person to decide on. Raises :class:`FenceLost`."""
    came_from: dict[str, Any] = {"conversation_id": part.conversation_id, "turn_id": turn_id, "model": model}
    came_from |= {"agent": part.agent, "owner_id": part.owner_id, "source": "compaction", "content": memory}
    came_from |= {"first_seq": part.lines[0].seq, "last_seq": part.through, "tainted_by": part.learnt_in}
    with transaction.atomic():
        try:
            version = documents.rewrite(base=part.memory_version, **came_from)
        except MemoryChanged:
            head = documents.locked_head(agent=part.agent, owner_id=part.owner_id)
            version = documents.rewrite(base=head.version, doubt="The memory was rewritten meanwhile.", **came_from)
        if hold and _held(hold).update(made_so_far=_on_version(hold, part, version)) != 1:
            raise FenceLost


def _on_version(hold: Hold, part: Part, version: MemoryVersion | None) -> dict[str, Any] | None:
    """What was made of the first chunks, as based on the version of the memory that has come of it, if any."""
    kept: dict[str, Any] | None = Compaction.objects.values_list("made_so_far", flat=True).get(pk=hold.id)
    if kept is None or version is None or version.number is None or kept["base"] != _base_of(part):
        return kept
    return kept | {"base": [part.starts_at, part.consolidated_through, version.number], "memory": None}


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


# --- storing -----------------------------------------------------------------------------------------------------


def store(hold: Hold, part: Part, result: Result) -> None:
    """Store all of it in one transaction, or nothing.

    Raises :class:`FenceLost` if the compaction is no longer ours, :class:`Overtaken` if the conversation was moved on
    meanwhile, and :class:`memory.errors.MemoryChanged` if the long-term memory was.
    """
    with transaction.atomic():
        # Conversation, then what belongs to it: the order in which locks are taken everywhere.
        seq = transcript.take_seqs(part.conversation_id, 1, marks=[part.tainted_by])
        _pass_on(part, summary_seq=seq)
        memory_version = apply(part, result, turn_id=hold.turn_id)
        before: dict[str, Any] = {"before_through": part.consolidated_through, "before_summary": part.summary_seq}
        made: dict[str, Any] = {"seq": seq, "kind": Message.Kind.ROLLING, "tainted_by": part.tainted_by}
        end(hold, part.lines, result, **made, memory_version=memory_version, **before)
        if len(part.lines) >= MAX_LINES - hold.agent.window():
            request(part.conversation_id, hold.turn_id, keep_tokens=hold.keep_tokens)


def end(
    hold: Hold,
    lines: Sequence[Line],
    result: Result,
    *,
    seq: int,
    kind: str,
    tainted_by: str = "",
    **more: int | None,
) -> None:
    """Store the summary as a message, and that the compaction is done, in the caller's transaction. ``more``: what else
    its row is to tell. ``tainted_by``: from where untrusted text came that the summary may be made of."""
    done = _held(hold).update(
        status=CompactionStatus.DONE,
        lease_until=None,
        ended_at=Now(),
        error="",
        first_seq=lines[0].seq,
        through_seq=lines[-1].seq,
        summary_seq=seq,
        is_stub=result.is_stub,
        made_so_far=None,
        model=result.model,
        **more,
    )
    if done != 1:
        raise FenceLost
    Message.objects.create(
        id=new_id(),
        conversation_id=hold.conversation_id,
        seq=seq,
        role=Message.Role.SYSTEM,
        type=Message.Type.SUMMARY,
        kind=kind,
        content=redact(result.summary),
        tainted_by=tainted_by or None,
    )


def _pass_on(part: Part, *, summary_seq: int) -> None:
    """Move the conversation's pointer, if it still stands where it was read."""
    moved = Conversation.objects.filter(
        pk=part.conversation_id, consolidated_through=part.consolidated_through, starts_at_seq=part.starts_at
    ).update(summarise_from_seq=0, consolidated_through=part.through, summary_seq=summary_seq)
    if moved != 1:
        raise Overtaken


def apply(part: Part, result: Result, *, turn_id: UUID | None) -> int | None:
    """Store what a part adds to the memory and the log, in the caller's transaction.

    Returns the version of the long-term memory that it made, if any. Raises :class:`memory.errors.MemoryChanged`.
    """
    whose: dict[str, Any] = {"agent": part.agent, "owner_id": part.owner_id}
    came_from: dict[str, Any] = {"conversation_id": part.conversation_id, "turn_id": turn_id, "model": result.model}
    came_from["tainted_by"] = part.learnt_in
    for entry in result.entries:
        log.append(
            **whose,
            **came_from,
            content=entry.content,
            kind=entry.kind,
            first_seq=entry.lines[0].seq,
            last_seq=entry.lines[-1].seq,
            happened_at=entry.lines[0].at,
            happened_until=entry.lines[-1].at,
        )
    if result.memory is None:
        return None
    version = documents.rewrite(
        **whose,
        **came_from,
        base=part.memory_version,
        content=result.memory,
        source="compaction",
        first_seq=part.lines[0].seq,
        last_seq=part.through,
    )
    return version.number if version else None
