"""What waits now, and who works on it: figures of this moment, each by index."""

from dataclasses import dataclass

from django.db.models import Count, Min
from django.utils import timezone

from conversations.engine import intake
from conversations.models import Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.console.diagnosis import workers_alive
from tools.models import OPEN_CALL, ToolCall


@dataclass(frozen=True, kw_only=True)
class Queue:
    """``turns`` that are open, by state, and ``calls``, by status; the age of the oldest queued turn; live workers by
    queue."""

    turns: dict[str, int]
    calls: dict[str, int]
    oldest_seconds: float
    workers: dict[str, int]


def look() -> Queue:
    """Look at what is open now."""
    calls = ToolCall.objects.filter(status__in=OPEN_CALL).order_by().values_list("status").annotate(n=Count("pk"))
    # Counted as well: to find the least alone, PostgreSQL would walk through all turns there ever were, by their time.
    # What is held until the intake is resumed waits on purpose.
    waiting = Turn.objects.filter(status=TurnStatus.QUEUED).exclude(waiting_for=WaitingFor.INTAKE)
    left = intake.left()
    queued = waiting.aggregate(n=Count("pk"), since=Min("created_at"))
    return Queue(
        turns=left.by_state,
        calls={str(status): 0 for status in OPEN_CALL} | dict(calls),
        oldest_seconds=(timezone.now() - queued["since"]).total_seconds() if queued["since"] else 0.0,
        workers={kind.queue: count for kind, count in workers_alive(left).by_kind.items()},
    )
