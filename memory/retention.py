"""What agents remember is deleted by its age: versions of the memory that another has replaced, notes, and the log.

What is known now stays, however old it is; but not for ever after its agent was deleted.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import Max, Q, QuerySet

from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.lib.erasing import Erased

Kind = HistoryEntry.Kind


def count_memory(owner_id: int, agent: str, *, before: datetime) -> Counter[str]:
    """How many rows would go, or be emptied, by table."""
    return _counted(
        _replaced(owner_id, agent, before), _notes(owner_id, agent, before), _noted(owner_id, agent, before)
    )


def count_history(owner_id: int, agent: str, *, before: datetime) -> Counter[str]:
    """How many entries of the log would go."""
    return _counted(_entries(owner_id, agent, before))


def erase_memory(owner_id: int, agent: str, *, before: datetime, rows: int, erased: Erased) -> bool:
    """Delete versions that were replaced before then, those that were kept aside, and notes; True if there are more."""
    left = rows
    versions = list(_replaced(owner_id, agent, before).select_for_update().order_by("pk")[:left])
    left -= _delete(versions, erased)
    if left:
        left -= _delete(list(_notes(owner_id, agent, before).select_for_update().order_by("pk")[:left]), erased)
    for head in _noted(owner_id, agent, before).select_for_update():
        erased.add(Memory, head.pk, head.notes)
        Memory.objects.filter(pk=head.pk).update(notes="", notes_on=None)
    return left <= 0


def erase_history(owner_id: int, agent: str, *, before: datetime, rows: int, erased: Erased) -> bool:
    """Delete the oldest entries of the log; True if there are more."""
    return _delete(list(_entries(owner_id, agent, before).select_for_update().order_by("pk")[:rows]), erased) == rows


def count_known(owner_id: int, agent: str, *, before: datetime) -> Counter[str]:
    """How many rows there are of what was known last: where an agent was deleted before then, nothing has replaced it,
    and yet nobody knows it any more."""
    return _counted(*_known(owner_id, agent, before))


def erase_known(owner_id: int, agent: str, *, before: datetime, rows: int, erased: Erased) -> bool:
    """Delete it, the memory itself last; True if there are more."""
    versions, heads = _known(owner_id, agent, before)
    if _delete(list(versions.select_for_update().order_by("pk")[:rows]), erased) == rows:
        return True
    for head in heads.select_for_update():
        erased.add(Memory, head.pk, head.content, head.notes)
        head.delete()
    return False


def _known(owner_id: int, agent: str, before: datetime) -> tuple[QuerySet[Any], QuerySet[Any]]:
    """Versions that no other has replaced, and the memory; neither is of an agent that was made again since."""
    whose: dict[str, Any] = {"owner_id": owner_id, "agent": agent}
    replaced = _replaced(owner_id, agent, before).values("pk")
    versions = MemoryVersion.objects.filter(**whose, created_at__lt=before).exclude(pk__in=replaced)
    return versions, Memory.objects.filter(**whose, updated_at__lt=before)


def _delete(rows: list[Any], erased: Erased) -> int:
    for row in rows:
        erased.add(type(row), row.pk, row.content)
    if rows:
        type(rows[0]).objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


def _counted(*found: QuerySet[Any]) -> Counter[str]:
    counts = Counter[str]()
    for rows in found:
        counts[rows.model._meta.db_table] += rows.count()
    return +counts


def _replaced(owner_id: int, agent: str, before: datetime) -> QuerySet[MemoryVersion]:
    """A version was replaced when the one after it was made: so those below the last that was made before then."""
    versions = MemoryVersion.objects.filter(owner_id=owner_id, agent=agent)
    old = versions.filter(created_at__lt=before)
    last = old.aggregate(last=Max("number"))["last"] or 0
    return versions.filter(Q(number__lt=last) | Q(number=None, created_at__lt=before))


def _noted(owner_id: int, agent: str, before: datetime) -> QuerySet[Memory]:
    return Memory.objects.filter(owner_id=owner_id, agent=agent, notes_on__lt=before.date())


def _notes(owner_id: int, agent: str, before: datetime) -> QuerySet[HistoryEntry]:
    return _of_log(owner_id, agent, before, [Kind.NOTE])


def _entries(owner_id: int, agent: str, before: datetime) -> QuerySet[HistoryEntry]:
    ended = Q(happened_until=None) | Q(happened_until__lt=before)
    return _of_log(owner_id, agent, before, [Kind.ENTRY, Kind.RAW]).filter(ended)


def _of_log(owner_id: int, agent: str, before: datetime, kinds: Iterable[str]) -> QuerySet[HistoryEntry]:
    return HistoryEntry.objects.filter(owner_id=owner_id, agent=agent, happened_at__lt=before, kind__in=kinds)
