"""How a turn stands: its status, and what it waits for. Of each value: its label, what it means, who ends it.

Whatever shows, counts or ends turns reads it here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from django.db import models


class TurnStatus(models.TextChoices):
    """Where a turn stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class WaitingFor(models.TextChoices):
    """What a waiting turn waits for."""

    TOOLS = "tools"
    # Of calls that need somebody's consent; it may take days.
    APPROVAL = "approval"
    # Of a question that somebody has to answer; it may take days.
    ANSWER = "answer"
    # Of calls that whoever asked has to run; it may take days.
    CALLER = "caller"
    RETRY = "retry"
    # Of a queued one, which was stored while the intake was paused; it is taken away at the resume.
    INTAKE = "intake"


class EndedBy(Enum):
    """Who ends a turn that is to be cancelled."""

    # Nobody works on it: the one who cancels it ends it, at once.
    CANCELLER = auto()
    # It is flagged, and whoever holds it ends it, within seconds.
    WORKER = auto()
    # It has ended.
    NOBODY = auto()


@dataclass(frozen=True, kw_only=True)
class Description:
    """``label``: the word for it in the console and the metrics. ``words``: what it means, a sentence without its full
    stop, so that more can be said in it."""

    label: str
    words: str
    ended_by: EndedBy

    @property
    def is_open(self) -> bool:
        """Whether a turn that stands so has no outcome yet."""
        return self.ended_by != EndedBy.NOBODY


# By the values of TurnStatus.
TURN_STATUSES: Mapping[str, Description] = {
    TurnStatus.QUEUED: Description(label="queued", words="It waits for a worker", ended_by=EndedBy.CANCELLER),
    TurnStatus.RUNNING: Description(
        label="running", words="Its worker works on it, and renews its lease", ended_by=EndedBy.WORKER
    ),
    TurnStatus.WAITING: Description(
        label="waiting", words="It waits for tools, or to be tried again", ended_by=EndedBy.CANCELLER
    ),
    TurnStatus.SUCCEEDED: Description(label="succeeded", words="It was answered", ended_by=EndedBy.NOBODY),
    TurnStatus.FAILED: Description(
        label="failed", words="It ended without an answer; its error says why", ended_by=EndedBy.NOBODY
    ),
    TurnStatus.CANCELLED: Description(
        label="cancelled", words="It was cancelled before it was answered", ended_by=EndedBy.NOBODY
    ),
}

# By the values of WaitingFor.
WAITING_FOR: Mapping[str, Description] = {
    WaitingFor.TOOLS: Description(label="waiting", words="It waits for its tool calls", ended_by=EndedBy.CANCELLER),
    WaitingFor.APPROVAL: Description(
        label="waiting", words="It waits for somebody to approve a tool call", ended_by=EndedBy.CANCELLER
    ),
    WaitingFor.ANSWER: Description(
        label="waiting", words="It waits for somebody to answer a question", ended_by=EndedBy.CANCELLER
    ),
    WaitingFor.CALLER: Description(
        label="waiting", words="It waits for its caller to run the caller's tools", ended_by=EndedBy.CANCELLER
    ),
    WaitingFor.RETRY: Description(label="waiting", words="It is to be taken up again", ended_by=EndedBy.CANCELLER),
    WaitingFor.INTAKE: Description(
        label="held",
        words="It was stored while the intake was paused, by the clock or by hand, and waits for the resume",
        ended_by=EndedBy.CANCELLER,
    ),
}

OPEN = tuple(status for status in TurnStatus if TURN_STATUSES[status].is_open)
FINAL = tuple(status for status in TurnStatus if not TURN_STATUSES[status].is_open)
# Those that nobody holds.
AT_REST = tuple(status for status in TurnStatus if TURN_STATUSES[status].ended_by == EndedBy.CANCELLER)
# Those that have begun: one a conversation.
ACTIVE = (TurnStatus.RUNNING, TurnStatus.WAITING)

# As a serializer takes them.
CHOICES = [(status.value, f"{TURN_STATUSES[status].words}.") for status in TurnStatus]


def describe(status: str, waiting_for: str) -> Description:
    """How a turn stands, by its two columns. What it waits for says more than its status, unless a newer version has
    written it."""
    described = TURN_STATUSES[status]
    return WAITING_FOR.get(waiting_for, described) if status in AT_REST else described
