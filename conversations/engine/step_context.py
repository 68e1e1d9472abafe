"""What a step of a turn is decided on: all that is stored for it, read at once."""

from dataclasses import dataclass
from datetime import date
from typing import Any

from django.utils import timezone

from conversations.engine import snapshot
from conversations.engine.lease import Claim
from conversations.engine.snapshot import Snapshot
from memory import documents
from tools import gate


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """A held turn, with all that is stored for its next step.

    ``tools``: those the model is told of. ``memory`` and ``memory_version``: the long-term memory. ``notes``: those of
    the day, ``today``.
    """

    claim: Claim
    snapshot: Snapshot
    tools: list[dict[str, Any]]
    memory: str
    memory_version: int
    notes: str
    today: date


def load(claim: Claim) -> StepContext:
    """Read what the next step is decided on; raises :class:`conversations.errors.FenceLost`.

    The tools the model is told of are those the gate would let this agent run now.
    """
    stored = snapshot.load(claim)
    survey = gate.survey(agent_tools=claim.agent.allowed_tools())
    today = timezone.localdate()
    known = documents.background(agent=claim.agent.name, owner_id=claim.owner_id, today=today)
    return StepContext(
        claim=claim,
        snapshot=stored,
        tools=[tool.as_function() for tool, forbidden_by in survey if forbidden_by is None],
        memory=known.content,
        memory_version=known.version,
        notes=known.notes,
        today=today,
    )
