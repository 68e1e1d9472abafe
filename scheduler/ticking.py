"""The tick: fires what is due. Beat runs it every few seconds; any number may run at once.

A schedule is taken by a conditional update that moves its ``next_at`` on, and in the same transaction each of its times
gets its row in the ledger and its turn. So a time fires once: whoever comes second finds it moved on, and after a crash
neither has happened.
"""

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import BooleanField, DateTimeField, F, IntegerField

from nanohost.lib import clock
from nanohost.lib.statements import Given, Update
from scheduler import runs, times
from scheduler.models import Missed, RunState, Schedule

logger = logging.getLogger(__name__)

# The thread that receives a worker's notifications is held no longer; what is left is due at the next tick.
TICK_SECONDS = 3.0
# Schedules that are read at a time.
BATCH = 50
# Of times that nobody looked at, the ledger gets so many rows a schedule at most: the last ones.
MAX_PASSED_OVER = 20


def tick(*, now: datetime | None = None, seconds: float = TICK_SECONDS) -> int:
    """Fire what is due, try again what failed, see what has ended; returns how many turns were made.

    ``now``: by the database's clock, unless it is given. ``seconds``: after so many nothing more is begun.
    """
    until = time.monotonic() + seconds
    moment = now or clock.read()
    while runs.settle(now=moment) == runs.MANY and time.monotonic() < until:
        pass
    made = 0
    for run in runs.due_again(now=moment)[: runs.MANY]:
        if time.monotonic() >= until:
            break
        made += runs.retry(run, now=moment)
    failed: set[UUID] = set()
    while time.monotonic() < until and len(failed) < BATCH:
        moment = now or clock.read()
        due = Schedule.objects.filter(active=True, next_at__lte=moment).exclude(pk__in=failed)
        found = list(due.select_related("owner", "agent").order_by("next_at")[:BATCH])
        if not found:
            break
        for schedule in found:
            try:
                made += fire(schedule, now=moment)
            except Exception:
                failed.add(schedule.pk)
                logger.exception("a schedule could not be fired, and is due again at the next tick: %s", schedule.pk)
    return made


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to become of a schedule's times, in order: which were missed, which are fired, which are passed over."""

    missed: list[datetime]
    fire: list[datetime]
    skipped: list[datetime]
    following: datetime | None


def plan(schedule: Schedule, *, now: datetime) -> Plan:
    """By its rule for times that were missed; a time that is late by less than the grace was not.

    A run waits for the one before it, which may wait behind its user: what comes meanwhile is passed over, or an agent
    that is slower than its schedule would fall ever further behind. With the rule ``all`` so many may wait.
    """
    assert schedule.next_at
    made_up_for = {Missed.SKIP: 0, Missed.ONCE: 1, Missed.ALL: schedule.missed_most}[Missed(schedule.missed)]
    until = min(now, schedule.ends_at or now)
    slots = times.latest(schedule.timing, since=schedule.next_at, until=until, most=made_up_for + MAX_PASSED_OVER)
    grace = timedelta(seconds=settings.SCHEDULE_GRACE_SECONDS)
    late = sum(now - slot > grace for slot in slots)
    missed = max(0, late - made_up_for)
    room = max(1, made_up_for) - runs.count_open(schedule)
    fire, skipped = slots[missed:][: max(0, room)], slots[missed:][max(0, room) :]
    following = times.next_after(schedule.timing, now)
    if schedule.max_runs is not None and schedule.runs + len(fire) >= schedule.max_runs:
        fire, skipped, following = fire[: schedule.max_runs - schedule.runs], [], None
    if following and schedule.ends_at and following > schedule.ends_at:
        following = None
    return Plan(missed=slots[:missed], fire=fire, skipped=skipped, following=following)


def fire(schedule: Schedule, *, now: datetime) -> int:
    """Deal with all times of a schedule until now, unless somebody else does; returns how many turns were made."""
    with transaction.atomic():
        try:
            planned = plan(schedule, now=now)
        except times.BadTiming as error:  # its zone is gone
            runs.pause(schedule, because=str(error), now=now)
            return 0
        if not _move_on(schedule, planned):
            return 0
        missed = f"It was not fired within {settings.SCHEDULE_GRACE_SECONDS:g} s."
        if planned.missed and planned.missed[0] != schedule.next_at:
            missed += " It was not the first; of such times the last few have a row."
        runs.pass_over(schedule, planned.missed, state=RunState.MISSED, because=missed, now=now)
        if not schedule.owner.is_active:
            inactive = "Its owner is not active."
            runs.pass_over(schedule, planned.fire, state=RunState.SKIPPED, because=inactive, now=now)
            runs.pause(schedule, because=inactive, now=now)
            return 0
        busy = "The run before it had not ended."
        runs.pass_over(schedule, planned.skipped, state=RunState.SKIPPED, because=busy, now=now)
        made = [runs.start(schedule, slot=slot, now=now) for slot in planned.fire]
        return sum(run is not None and run.state == RunState.FIRED for run in made)


_take = Update(
    lambda: Schedule.objects.filter(pk=Given("id"), active=True, next_at=Given("next_at"), revision=Given("revision")),
    lambda: {
        "next_at": Given("following", DateTimeField()),
        "active": Given("goes_on", BooleanField()),
        "runs": F("runs") + Given("fired", IntegerField()),
    },
)


def _move_on(schedule: Schedule, planned: Plan) -> bool:
    """Take the schedule; False if it was fired, changed or paused since it was read."""
    taken: int = _take(
        id=schedule.pk,
        next_at=schedule.next_at,
        revision=schedule.revision,
        following=planned.following,
        goes_on=planned.following is not None,
        fired=len(planned.fire),
    )
    return taken == 1
