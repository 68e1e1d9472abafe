"""Branches: a conversation that shares what came before a message of another one, and goes on by itself from there.

Messages keep their numbers, so that all that refers to them by these (summaries, pins, taint, where the prompt begins)
says in the branch what it says in the other one; and their times, by which they are deleted. Nothing that the branch
shares is summarised or remembered a second time.
"""

from typing import Any
from uuid import UUID

from django.db import transaction

from conversations import taint
from conversations.attachments import store
from conversations.models import Compaction, CompactionKind, CompactionStatus, Conversation, Message
from nanohost.lib.errors import InvalidRequest, NotFound
from nanohost.lib.ids import new_id
from nanohost.lib.statements import Insert

# The newest messages, of which a prompt has 500 at most; what came before them stays in the other one.
MAX_COPIED = 1_000

_COPIED = (
    *("seq", "role", "type", "kind", "content", "reasoning", "tool_calls", "tool_call_id", "tool_name"),
    *("tainted_by", "attachments", "created_at"),
)
_insert_message = Insert(Message, "id", "conversation_id", *_COPIED, turn_id=None)


def branch(source: Conversation, message_id: UUID) -> Conversation:
    """A new conversation with what came before a message of a user's. Raises :class:`NotFound` where there is no such
    message, and :class:`InvalidRequest` if no user has said it."""
    with transaction.atomic():
        # Nobody deletes of it meanwhile.
        row = Conversation.objects.select_for_update(of=("self",)).select_related("agent").filter(pk=source.pk).first()
        asked = Message.objects.filter(pk=message_id, conversation=source, seq__isnull=False).first() if row else None
        if row is None or asked is None or asked.seq is None:
            raise NotFound("There is no message with that id in this conversation.")
        if asked.role != Message.Role.USER:
            raise InvalidRequest("before: a branch begins with something else that a user says.")
        # Before it began anew, what counted then is told by nothing any more: all of it.
        starts_at = row.starts_at_seq if row.starts_at_seq <= asked.seq else 1
        summary, consolidated_through = _summary_before(row, asked.seq, starts_at)
        said = _said_before(row, asked.seq)
        made = Conversation(
            id=(made_id := new_id()),
            key=f"api:{made_id}",
            owner_id=row.owner_id,
            agent=row.agent,
            name=row.name,
            branch_of=row.pk,
            metadata=row.metadata,
            cost=0,
            next_seq=asked.seq,
            starts_at_seq=starts_at,
            summary_seq=summary.seq if summary else None,
            consolidated_through=consolidated_through,
            erased_through=(said[0].seq or 1) - 1 if said else asked.seq - 1,
            pins=[each for each in row.pins if said and said[0].seq <= each["seq"] < asked.seq],
            **_taint_before(row, asked.seq, starts_at),
        )
        made.save(force_insert=True)
        _copy(made, [*([summary] if summary else ()), *said])
    return made


def _summary_before(row: Conversation, before: int, starts_at: int) -> tuple[Message | None, int]:
    """The summary that counted then, and the last message that it covers."""
    seq: int | None = row.summary_seq
    through: int | None = row.consolidated_through
    if seq is None or seq >= before:
        made = Compaction.objects.filter(conversation=row, kind=CompactionKind.ROLLING, status=CompactionStatus.DONE)
        made = made.filter(summary_seq__range=(starts_at, before - 1), undone_at=None)
        last = made.order_by("-summary_seq").values_list("summary_seq", "through_seq").first()
        seq, through = last or (None, starts_at - 1)
    summaries = Message.objects.filter(conversation=row, seq=seq, type=Message.Type.SUMMARY)
    summary = summaries.first() if seq else None
    return summary, (through or 0) if summary else starts_at - 1


def _said_before(row: Conversation, before: int) -> list[Message]:
    """The newest, in their order."""
    said = Message.objects.filter(conversation=row, seq__lt=before, type=Message.Type.NORMAL)
    said = said.exclude(kind__in=(Message.Kind.ROLLING, Message.Kind.DAILY))
    return list(said.order_by("-seq").only(*_COPIED)[:MAX_COPIED])[::-1]


def _taint_before(row: Conversation, before: int, starts_at: int) -> dict[str, Any]:
    """What had tainted it then; or, if it has begun anew since, what had ever entered."""
    if not (by := taint.in_message(row, before - 1)):
        return taint.NONE
    at = row.tainted_at_seq
    return {"tainted_at_seq": at if at is not None and at < before else starts_at, "tainted_by": by}


def _copy(made: Conversation, messages: list[Message]) -> None:
    copies = [{"id": new_id(), **{name: getattr(each, name) for name in _COPIED}} for each in messages]
    for each in filter(lambda each: each["attachments"], copies):
        if not store.are_there(each["attachments"]):
            each["attachments"] = None
    _insert_message.many(each | {"conversation_id": made.pk} for each in copies)
    for each in filter(lambda each: each["attachments"], copies):
        store.refer(made.pk, each["id"], each["attachments"])
