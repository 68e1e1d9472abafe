"""Making what there is older than it is, and counting it."""

from collections import Counter
from datetime import timedelta
from typing import Any

from django.db.models import F

from agent.models import Agent, AgentVersion, DeletedAgent
from conversations.models import Compaction, DeferredMessage, Message, Turn
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.lib import clock
from scheduler import retention
from tools.models import ToolCall

_TIMES: dict[Any, tuple[str, ...]] = {
    Message: ("created_at",),
    Turn: ("created_at", "started_at", "ended_at"),
    ToolCall: ("created_at", "ended_at"),
    Compaction: ("created_at", "ended_at"),
    DeferredMessage: ("created_at",),
    MemoryVersion: ("created_at",),
    HistoryEntry: ("happened_at", "happened_until", "created_at"),
    AgentVersion: ("created_at",),
    DeletedAgent: ("deleted_at",),
    Memory: ("updated_at",),
}


def age(days: float) -> None:
    """All that there is becomes older."""
    for model, names in _TIMES.items():
        model.objects.update(**{name: F(name) - timedelta(days=days) for name in names})
    for head in Memory.objects.exclude(notes_on=None):
        Memory.objects.filter(pk=head.pk).update(notes_on=head.notes_on - timedelta(days=int(days)))


def keep(agent: Agent, **days: int) -> None:
    """An agent keeps these for so many days."""
    agent.retention = days
    agent.save_version(by="anna")


def would_go(agent: str = "") -> Counter[tuple[str, str]]:
    """What a run counts before it deletes."""
    counts = Counter[tuple[str, str]]()
    for rule in retention.rules(now=clock.read(), agent=agent):
        counts[rule.agent.name, rule.kind] += retention.count(rule).rows.total()
    return +counts


def go() -> Counter[tuple[str, str]]:
    """A whole run."""
    erased, position = retention.run(now=clock.read())
    assert position is None
    return erased
