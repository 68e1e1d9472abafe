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

from django.db import transaction
from django.db.models import BigIntegerField, Case, DurationField, F, IntegerField, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from agent.errors import LlmError
from agent.llm.base import Completion
from agent.models import Agent
from agent.spending import budgets
from agent.spending.bills import Bill
from conversations.engine import doorbell, transcript
from conversations.engine.compacting.parts import MAX_LINES, Part, Result, base_of
from conversations.engine.fallbacks import is_worth_another
from conversations.engine.lease import RETRYING_FOR
from conversations.errors import FenceLost, Overtaken
from conversations.kinds import COMPACTIONS
from conversations.models import Compaction, CompactionQuerySet, CompactionStatus, Conversation, Message
from memory import documents, log
from memory.consolidation import (
    Line,
)
from memory.errors import MemoryChanged
from memory.models import MemoryVersion
from nanohost.lib.clock import Now
from nanohost.lib.ids import new_id
from nanohost.lib.lease import backoff, lease_length
from nanohost.lib.redaction import redact, redact_head
from nanohost.lib.statements import Given, Insert, Rows, Update

# After so many answers of no use, or workers that died, in a row, a stub takes the summary's place.
MAX_FAILURES = 3

# How often what was made is made again, because the conversation or the memory was changed meanwhile.
MAX_CLASHES = 5

# Seconds before another try: after an answer of no use, doubled each time; and while the provider cannot answer.
RETRY_FIRST, RETRY_LONGEST, RETRY_WHILE_AWAY = 10.0, 60.0, 30.0


def request(conversation_id: UUID, turn_id: UUID | None, *, keep_tokens: int) -> None:
    """Have a conversation compacted, once the current transaction has committed; one that is under way is enough.

    ``keep_tokens``: of the newest messages, so many stay at most, by an estimate that is not corrected.
    """
    row = Compaction(
        conversation_id=conversation_id, turn_id=turn_id, keep_tokens=keep_tokens, notified_at=Now(), cost=0
    )
    Compaction.objects.bulk_create([row], ignore_conflicts=True)
    doorbell.notify(COMPACTIONS, row.pk)  # which finds nothing if another is under way


def request_after(summary_seq: int | None, conversation_id: UUID, turn_id: UUID, *, keep_tokens: int) -> None:
    """The same, in the transaction of a turn that has taken its place in the transcript, unless the conversation has
    another summary by now: it was compacted while the turn ran, and is not as long as the turn has read it."""
    if Conversation.objects.filter(pk=conversation_id, summary_seq=summary_seq).exists():
        request(conversation_id, turn_id, keep_tokens=keep_tokens)


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


_claim = Update(
    lambda: Compaction.objects.due().filter(pk=Given("id")),
    lambda: {
        **Compaction.claimed(worker=Given("worker"), lease=Given("lease", DurationField())),
        "failures": Case(
            When(status=CompactionStatus.RUNNING, then=F("failures") + 1),
            default=F("failures"),
            output_field=IntegerField(),
        ),
        "run_after": None,
    },
)
_claimed = Rows(
    lambda: (
        Compaction.objects.select_related("conversation__agent")
        .annotate(retrying_for=RETRYING_FOR)
        .filter(pk=Given("id"))
    )
)


def claim(compaction_id: UUID, *, worker: str) -> Hold | None:
    """Claim a compaction; None if it is not claimable. One whose worker died counts that as a failure."""
    with transaction.atomic():
        if _claim(id=compaction_id, worker=worker, lease=lease_length()) != 1:
            return None
        (row,) = _claimed(id=compaction_id)
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


def _held(hold: Hold) -> CompactionQuerySet:
    return Compaction.objects.held(hold.id, hold.fence)


def renew(hold: Hold) -> bool:
    """Renew the lease; False if it is no longer ours."""
    return bool(_held(hold).renew())


# A cost that is not known, which is given as None, makes a sum that is not known.
_charge_conversation = Update(
    lambda: Conversation.objects.filter(pk=Given("id")), lambda: {"cost": F("cost") + Given("cost", BigIntegerField())}
)
_charge = Update(
    lambda: Compaction.objects.filter(pk=Given("id")),
    lambda: {
        "model": Given("model"),
        "prompt_tokens": F("prompt_tokens") + Given("prompt_tokens"),
        "completion_tokens": F("completion_tokens") + Given("completion_tokens"),
        "cached_tokens": F("cached_tokens") + Given("cached_tokens"),
        "cost": F("cost") + Given("cost", BigIntegerField()),
        "model_calls": F("model_calls") + 1,
        "retries": 0,
        "retrying_since": None,
    },
)


def charge(hold: Hold, completion: Completion, bill: Bill) -> None:
    """Store what an answer has cost, whatever becomes of it and of the compaction."""
    used = completion.usage
    with transaction.atomic():
        _charge_conversation(id=hold.conversation_id, cost=bill.cost)
        _charge(
            id=hold.id,
            model=hold.model,
            prompt_tokens=used.prompt_tokens,
            completion_tokens=used.completion_tokens,
            cached_tokens=used.cached_tokens,
            cost=bill.cost,
        )
        budgets.settle(bill)


def release(hold: Hold) -> None:
    """Let go of it at a shutdown: whoever comes next takes it, at no cost."""
    _held(hold).release()


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
    _held(hold).reschedule(
        seconds or again,
        failures=F("failures") + int(counts),
        error=error[:500],
        **({"retries": F("retries") + 1, "retrying_since": Coalesce("retrying_since", Now())} if of_provider else {}),
    )


# --- storing -----------------------------------------------------------------------------------------------------


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
    if kept is None or version is None or version.number is None or kept["base"] != base_of(part):
        return kept
    return kept | {"base": [part.starts_at, part.consolidated_through, version.number], "memory": None}


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


_end = Update(
    lambda: Compaction.objects.held(Given("id"), Given("fence")),
    lambda: {
        "status": CompactionStatus.DONE,
        "lease_until": None,
        "ended_at": Now(),
        "error": "",
        "made_so_far": None,
        **{name: Given(name) for name in ("first_seq", "through_seq", "summary_seq", "is_stub", "model")},
        **{name: Given(name) for name in ("memory_version", "before_through", "before_summary")},
    },
)
_insert_summary = Insert(
    Message,
    *("id", "conversation_id", "seq", "kind", "content", "tainted_by", "created_at"),
    role=Message.Role.SYSTEM,
    type=Message.Type.SUMMARY,
)


def end(
    hold: Hold,
    lines: Sequence[Line],
    result: Result,
    *,
    seq: int,
    kind: str,
    tainted_by: str = "",
    memory_version: int | None = None,
    before_through: int | None = None,
    before_summary: int | None = None,
) -> None:
    """Store the summary as a message, and that the compaction is done, in the caller's transaction. ``tainted_by``:
    from where untrusted text came that the summary may be made of. ``before_through``, ``before_summary``: how far the
    summary before it reached, and its message."""
    done = _end(
        id=hold.id,
        fence=hold.fence,
        first_seq=lines[0].seq,
        through_seq=lines[-1].seq,
        summary_seq=seq,
        is_stub=result.is_stub,
        model=result.model,
        memory_version=memory_version,
        before_through=before_through,
        before_summary=before_summary,
    )
    if done != 1:
        raise FenceLost
    _insert_summary(
        id=new_id(),
        conversation_id=hold.conversation_id,
        seq=seq,
        kind=kind,
        content=redact(result.summary),
        tainted_by=tainted_by or None,
        created_at=timezone.now(),
    )


_move = Update(
    lambda: Conversation.objects.filter(
        pk=Given("id"), consolidated_through=Given("consolidated_through"), starts_at_seq=Given("starts_at")
    ),
    lambda: {"summarise_from_seq": 0, "consolidated_through": Given("through"), "summary_seq": Given("summary_seq")},
)


def _pass_on(part: Part, *, summary_seq: int) -> None:
    """Move the conversation's pointer, if it still stands where it was read."""
    moved = _move(
        id=part.conversation_id,
        consolidated_through=part.consolidated_through,
        starts_at=part.starts_at,
        through=part.through,
        summary_seq=summary_seq,
    )
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
