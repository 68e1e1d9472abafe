"""The step context: all that a step of a turn is decided on, read at once."""

import logging
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any

from django.utils import timezone

from agent.fixed import Fixed
from conversations.engine import snapshot
from conversations.engine.lease import Claim
from conversations.engine.snapshot import Snapshot
from conversations.taint import CLEAN, Taint
from memory import documents
from tools import gate
from tools.registry import RegisteredTool
from tools.taint import MAX_SOURCE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """A held turn, with all that is stored for its next step.

    ``tools``: those of the host that the model is told of; the caller's own stand in the claim's options. ``memory``
    and ``memory_version``: the long-term memory. ``notes``: those of the day, ``today``. ``taint``: whether untrusted
    text stands in what the model is told, and from where it came.
    """

    claim: Claim
    snapshot: Snapshot
    tools: list[dict[str, Any]]
    memory: str
    memory_version: int
    notes: str
    today: date
    taint: Taint = CLEAN

    @property
    def model(self) -> str:
        """The model that is asked: the turn's, or the one in its place."""
        return self.snapshot.fallback_model or self.claim.model

    @property
    def provider(self) -> str:
        """The provider that the agent names for it, if it names one. Those in its place say by their names whose they
        are."""
        return "" if self.snapshot.fallback_model else self.claim.agent.provider


@cache
def _as_function(tool: RegisteredTool) -> Fixed:
    return Fixed(tool.as_function())


def as_claimed(claim: Claim) -> StepContext | None:
    """What the first step of a turn that was claimed just now is decided on. None if it is to be cancelled, or could
    not be read: whoever runs it finds out, and stores what becomes of it."""
    if claim.as_claimed is None:
        return None
    try:
        return load(claim, snapshot.load(claim, claim.as_claimed))
    except Exception as error:
        logger.info("what a turn's first step is decided on is read once more (%s)", type(error).__name__)
        return None


def load(claim: Claim, stored: Snapshot | None = None) -> StepContext:
    """Read what the next step is decided on; raises :class:`conversations.errors.FenceLost`. ``stored``: what was read
    of it just now.

    The tools the model is told of are those the gate would let this agent run now.
    """
    stored = stored or snapshot.load(claim)
    has_tools = not (claim.options.is_plain or claim.options.offers_none)
    offered = gate.offered(agent_tools=claim.agent.allowed_tools(owner_id=claim.owner_id)) if has_tools else []
    today = timezone.localdate()
    known = documents.background(agent=claim.agent.name, owner_id=claim.owner_id, today=today)
    return StepContext(
        claim=claim,
        snapshot=stored,
        tools=[_as_function(tool) for tool in offered],
        memory=known.content,
        memory_version=known.version,
        notes=known.notes,
        today=today,
        taint=Taint(by=stored.tainted_by or known.tainted_by[:MAX_SOURCE], is_new=not stored.tainted_by),
    )
