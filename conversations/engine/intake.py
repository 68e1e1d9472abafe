"""The intake of new turns, and its pause: for a deploy, or while something is mended.

While it is paused the API refuses new turns with 503, and what comes of itself (schedules, messages with a time) is
stored and begins when it is resumed. What was taken in before is worked off: the host drains.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Count

from conversations.models import MAX_REASON, IntakePause, Turn
from conversations.statuses import TurnStatus, WaitingFor, describe
from nanohost.accounts import audit
from nanohost.lib import clock
from nanohost.lib.redaction import redact_head

logger = logging.getLogger(__name__)

# What the audit log calls it.
_NAME = "the intake of new turns"


@dataclass(frozen=True, kw_only=True)
class Left:
    """Turns that have not ended, each in one of four states: ``waiting`` are those that wait for tools or a retry,
    ``held`` those that wait until the intake is resumed. ``by_worker``: those that run, by the worker that claimed
    them."""

    running: int
    waiting: int
    queued: int
    held: int
    by_worker: Mapping[str, int]

    def held_by(self, worker: str, *, is_alive: bool) -> int:
        """How many turns a worker holds. One that is dead holds nothing: what it held is taken up by others."""
        return self.by_worker.get(worker, 0) if is_alive else 0

    def __str__(self) -> str:
        held = f", {self.held} held until the intake is resumed" if self.held else ""
        return f"{self.running} running, {self.waiting} waiting, {self.queued} queued{held}"

    @property
    def by_state(self) -> dict[str, int]:
        """How many there are in each state."""
        return {"queued": self.queued, "running": self.running, "waiting": self.waiting, "held": self.held}

    @property
    def drained(self) -> bool:
        """Whether all that was taken in before the pause is done."""
        return not (self.running or self.waiting or self.queued)


def pause(*, by: str, because: str) -> bool:
    """Take no new turns in, from the commit on; False if it is paused already: that pause stays as it is."""
    because = redact_head(because, MAX_REASON)
    with transaction.atomic():
        pause, paused = IntakePause.objects.get_or_create(
            pk=IntakePause.ONLY, defaults={"paused_at": clock.read(), "paused_by": by[:150], "because": because}
        )
        if paused:
            audit.record("intake.paused", about=pause, name=_NAME, after={"by": by}, reason=because)
    if paused:
        logger.warning("the intake of new turns is paused", extra={"by": by})
    return paused


def resume(*, by: str) -> bool:
    """Take new turns in again; False if it was not paused. Sweeps find what was held, within seconds."""
    with transaction.atomic():
        pause = IntakePause.objects.current().select_for_update().first()
        resumed = bool(pause and pause.delete()[0])
        if pause and resumed:
            was = {"by": pause.paused_by, "because": pause.because}
            audit.record(
                "intake.resumed", kind=pause._meta.label_lower, key=pause.ONLY, name=_NAME, before=was, after={"by": by}
            )
            # Taken in from here on: the next pause would hold them again, with all that waits behind them by then. One
            # that is locked, or stored at this moment, is let in all the same (see TurnQuerySet.due).
            held = Turn.objects.filter(status=TurnStatus.QUEUED, waiting_for=WaitingFor.INTAKE)
            found = list(held.select_for_update(skip_locked=True).values_list("pk", flat=True))
            held.filter(pk__in=found).update(waiting_for="")
    if resumed:
        logger.warning("the intake of new turns is resumed", extra={"by": by})
    return resumed


def current_pause() -> IntakePause | None:
    """The pause there is; None while new turns are taken in."""
    return IntakePause.objects.current().first()


def left() -> Left:
    """What is not done yet, read at once: whoever shows two of these numbers shows two that agree."""
    counted = Turn.objects.open().order_by().values_list("status", "waiting_for", "worker").annotate(n=Count("pk"))
    numbers: Counter[str] = Counter()
    by_worker: Counter[str] = Counter()
    for status, waiting_for, worker, number in counted:
        numbers[describe(status, waiting_for).label] += number
        if status == TurnStatus.RUNNING:
            by_worker[worker] += number
    return Left(by_worker=by_worker, **{state: numbers[state] for state in ("running", "waiting", "queued", "held")})
