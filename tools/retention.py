"""What a call was made with and what it answered is deleted by its age. What else its row says stays: it is the
audit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from nanohost.lib.clock import Now
from nanohost.lib.erasing import Erased, table_of
from tools.models import OPEN_CALL, Approval, ToolCall, ToolCallQuerySet

TABLE = table_of(ToolCall)

# Calls that are looked at in one statement.
PAGE = 500


@dataclass(frozen=True, kw_only=True)
class Found:
    """A call that is old enough, and whose it is."""

    id: UUID
    created_at: datetime
    turn_id: UUID
    conversation_id: UUID
    owner_id: int | None


def page(agent: str, *, before: datetime, after: tuple[datetime, UUID] | None) -> list[Found]:
    """Some of an agent's ended calls that still have what they were made with, those behind one of them."""
    rows = ToolCall.objects.filter(agent=agent, erased_at=None, created_at__lt=before)
    if after:
        at, pk = after
        rows = rows.filter(Q(created_at__gt=at) | Q(created_at=at, pk__gt=pk), created_at__gte=at)
    found = rows.exclude(status__in=OPEN_CALL).order_by("created_at", "pk")
    columns = ("pk", "created_at", "turn_id", "conversation_id", "owner_id")
    return [
        Found(id=pk, created_at=created_at, turn_id=turn_id, conversation_id=conversation_id, owner_id=owner_id)
        for pk, created_at, turn_id, conversation_id, owner_id in found.values_list(*columns)[:PAGE]
    ]


def of_owner(owner_id: int) -> ToolCallQuerySet:
    """The calls of somebody that still have what they were made with; but for those of an earlier version, which name
    only their conversation."""
    return ToolCall.objects.filter(owner_id=owner_id, erased_at=None)


def of_conversation(conversation_id: UUID) -> ToolCallQuerySet:
    """The calls of a conversation that still have what they were made with."""
    return ToolCall.objects.filter(conversation_id=conversation_id, erased_at=None)


def erase(call_ids: Sequence[UUID], *, erased: Erased) -> None:
    """Delete what these calls were made with and what they answered, in the caller's transaction; of each once."""
    mine = ToolCall.objects.select_for_update().filter(pk__in=call_ids, erased_at=None)
    for call in mine.exclude(status__in=OPEN_CALL).order_by("pk"):
        erased.add(ToolCall, call.pk, call.arguments, call.result)
        ToolCall.objects.filter(pk=call.pk).update(arguments="", private_arguments="", result="", erased_at=Now())
        if call.consent:
            # Who has decided what, and the hashes, are the audit as well.
            Approval.objects.filter(call_id=call.pk).update(arguments="", proposed="", private_proposed="")
