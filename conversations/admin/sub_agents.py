"""A conversation's sub-agents, and theirs, as a tree; and through which conversations it was started itself."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Subquery

from conversations.models import Conversation, Turn
from nanohost.lib.admin import shown

# A page shows so many sub-agents, of so many levels; there are no more levels than SPAWN_MAX_DEPTH had.
MAX_SHOWN, MAX_LEVELS = 100, 16


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A sub-agent: what it is called, how the turn of its task stands, and those that it has started."""

    pk: UUID
    name: str
    status: str
    below: list["Branch"]


def around(conversation: Conversation) -> dict[str, Any]:
    """What a page tells of both."""
    found = _found_below(conversation)
    above = _above(conversation)
    return {"started_in": above, "sub_agents": _tree(conversation.pk, found), "cut_at": MAX_SHOWN, **_is_cut(found)}


def _above(conversation: Conversation) -> list[Branch]:
    """Through which conversations it was started, the first one first; those that were deleted are passed over."""
    chain: list[Branch] = []
    while conversation.spawned_in and len(chain) < MAX_LEVELS:
        found = Conversation.objects.filter(pk=conversation.spawned_in).first()
        if found is None:
            break
        chain.insert(0, Branch(pk=found.pk, name=shown(found.name or found.key), status="", below=[]))
        conversation = found
    return chain


def _found_below(conversation: Conversation) -> dict[UUID, list[dict[str, Any]]]:
    """The sub-agents of each conversation beneath, a level at a time, the oldest first."""
    task = Turn.objects.filter(conversation=OuterRef("pk"), number=1).values("status")[:1]
    found: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    level, left = [conversation.pk], MAX_SHOWN + 1
    for _ in range(MAX_LEVELS):
        started: Any = Conversation.objects.filter(spawned_in__in=level).annotate(status=Subquery(task))
        rows = list(started.order_by("pk").values("pk", "name", "spawned_in", "status")[:left])
        for row in rows:
            found[row["spawned_in"]].append(row)
        level, left = [row["pk"] for row in rows], left - len(rows)
        if not level or not left:
            break
    return found


def _tree(pk: UUID, found: dict[UUID, list[dict[str, Any]]]) -> list[Branch]:
    return [
        Branch(pk=row["pk"], name=shown(row["name"]), status=row["status"] or "", below=_tree(row["pk"], found))
        for row in found.get(pk, ())
    ]


def _is_cut(found: dict[UUID, list[dict[str, Any]]]) -> dict[str, bool]:
    return {"is_cut": sum(map(len, found.values())) > MAX_SHOWN}
