"""What becomes of a schedule's times: each gets its row in the ledger, and one turn for each attempt.

Locks are taken in the order schedule, conversation, turn. A schedule's runs are written under its lock, but for those
that merely end well.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, OuterRef, Q, QuerySet, Subquery

from conversations.announced import SCHEDULE_FAILED
from conversations.engine import inbox, outgoing, transcript
from conversations.engine.announcements import announce
from conversations.engine.incoming import Incoming
from conversations.errors import RESTORED, UnknownDestination
from conversations.models import Conversation, Turn
from conversations.statuses import FINAL, TurnStatus
from nanohost.accounts import holds
from nanohost.accounts.holds import Holds
from nanohost.accounts.models import ApiKey
from nanohost.lib.clock import from_now
from nanohost.lib.errors import NotFound, Problem
from nanohost.lib.ids import new_id
from nanohost.lib.statements import Given, Insert, Rows
from scheduler.models import CheckIn, RunState, Schedule, ScheduleRun
from tools.taint import MAX_SOURCE

logger = logging.getLogger(__name__)

# How long after a failure a run is tried again; then it has failed.
RETRY_AFTER = (timedelta(minutes=1), timedelta(minutes=5))
# Of ended runs.
KEPT_FOR = timedelta(days=90)
# So many rows are looked at, or deleted, in one go.
MANY = 500

# What the request id of a turn of the clock begins with, for people who read logs; behind it stands its row's id.
BY_SCHEDULE, BY_CHECK_IN = "schedule:", "heartbeat:"


def is_scheduled(turn_id: UUID) -> bool:
    """Whether an open turn was made by the clock, and not by somebody who asked for it: then a run or a check-in names
    it, which ends after it does. Its request id says nothing: clients may name any."""
    ledgers: tuple[QuerySet[Any], ...] = (ScheduleRun.objects.all(), CheckIn.objects.all())
    return any(rows.filter(ended_at=None, turn_id=turn_id).exists() for rows in ledgers)


class _CannotBeTold(Exception):
    """A turn of the conversation is active; its owner is told when it has ended."""


def open_runs(schedule: Schedule) -> QuerySet[ScheduleRun]:
    """Runs whose outcome was not seen yet."""
    return ScheduleRun.objects.filter(ended_at=None, schedule=schedule)


# What every firing does is written once.
_open_slots = Rows(
    lambda: ScheduleRun.objects.filter(ended_at=None, schedule_id=Given("schedule_id")).values_list("slot", flat=True)
)
_at_slot = Rows(
    lambda: ScheduleRun.objects.filter(schedule_id=Given("schedule_id"), slot=Given("slot")).values_list(
        "pk", flat=True
    )
)
_ROW = [field.attname for field in ScheduleRun._meta.concrete_fields]
_insert_run = Insert(ScheduleRun, *_ROW)


def count_open(schedule: Schedule) -> int:
    """How many runs of a schedule have not ended."""
    return len(_open_slots(schedule_id=schedule.pk))


# --- a time that has come ----------------------------------------------------------------------------------------


def start(schedule: Schedule, *, slot: datetime, now: datetime, by_hand: bool = False) -> ScheduleRun | None:
    """Give a time its row and its turn, under the schedule's lock; None if it has its row."""
    if _at_slot(schedule_id=schedule.pk, slot=slot):
        return None
    run = ScheduleRun(schedule=schedule, slot=slot, by_hand=by_hand, lag_ms=(now - slot) // timedelta(milliseconds=1))
    problem = ""
    try:
        with transaction.atomic():
            _speak(run, schedule)
    except Problem as refused:
        run.lag_ms, problem = None, refused.detail
        _has_failed(run, error=problem, now=now)
    run.created_at = now
    _insert_run(**{name: getattr(run, name) for name in _ROW})
    if problem:
        _tell_failure(run, schedule)
        _pause_if_active(schedule, because=problem, now=now)
    return run


def pass_over(schedule: Schedule, slots: list[datetime], *, state: RunState, because: str, now: datetime) -> None:
    """Write down that a schedule did not run at these times."""
    if not slots:
        return
    ScheduleRun.objects.bulk_create(
        [ScheduleRun(schedule=schedule, slot=slot, state=state, error=because, ended_at=now) for slot in slots],
        ignore_conflicts=True,
    )


def _speak(run: ScheduleRun, schedule: Schedule) -> None:
    """Make the turn of the run's next attempt."""
    conversation = _conversation(run, schedule)
    source = f"a schedule, made in {schedule.tainted_by}"[:MAX_SOURCE] if schedule.tainted_by else ""
    turn = inbox.receive(
        Incoming(schedule.prompt, tainted_by=source),
        conversation=conversation,
        idempotency_key=f"schedule:{schedule.pk}:{run.slot:%Y%m%dT%H%M%S.%fZ}:{run.attempts + 1}",
        request_id=f"{BY_SCHEDULE}{run.pk}",
        turn_id=new_id(),
        key=ApiKey.objects.filter(pk=schedule.api_key_id).first() if schedule.api_key_id else None,
    )
    run.conversation_id, run.turn_id = conversation.pk, turn.pk
    run.state, run.retry_at, run.attempts = RunState.FIRED, None, run.attempts + 1


def _conversation(run: ScheduleRun, schedule: Schedule) -> Conversation:
    if wanted := run.conversation_id or schedule.conversation_id:
        mine = Conversation.objects.select_related("agent").filter(owner_id=schedule.owner_id)
        if found := mine.filter(pk=wanted).first():
            return found
        raise NotFound("Its conversation was deleted.")
    return inbox.start_conversation(
        owner_id=schedule.owner_id,
        agent=schedule.agent.name,
        metadata={"scheduleId": str(schedule.pk), "slot": run.slot.isoformat()},
    )


# --- its outcome -------------------------------------------------------------------------------------------------


def settle(*, now: datetime) -> int:
    """See what has become of turns that schedules made; returns how many had ended."""
    turn = Turn.objects.filter(pk=OuterRef("turn_id"))
    opened = ScheduleRun.objects.filter(ended_at=None, state=RunState.FIRED)
    opened = opened.annotate(outcome=Subquery(turn.values("status")), code=Subquery(turn.values("error_code")))
    ended: QuerySet[Any] = opened.filter(Q(outcome__in=FINAL) | Q(outcome=None)).select_related("schedule")[:MANY]
    well: list[Any] = []
    others: list[Any] = []
    for run in ended:
        # A schedule that has failed before is written as well, and an answer is sent on.
        plain = run.outcome == TurnStatus.SUCCEEDED and not run.schedule.failures and not run.schedule.destination
        (well if plain else others).append(run)
    if well:
        with transaction.atomic():
            # Another tick's are passed over, which also keeps two from waiting for each other.
            mine = ScheduleRun.objects.select_for_update(skip_locked=True, of=("self",))
            found = list(mine.filter(pk__in=[run.pk for run in well]).values_list("pk", flat=True))
            ScheduleRun.objects.filter(pk__in=found, ended_at=None).update(ended_at=now)
    return len(well) + sum(_is_settled(run, now=now) for run in others)


def _is_settled(run: Any, *, now: datetime) -> bool:
    try:
        _settle(run, outcome=run.outcome, error=run.code or "", now=now)
    except _CannotBeTold:
        return False
    except Exception:
        logger.exception("the outcome of a schedule's run could not be stored, and is looked at again: %s", run.pk)
        return False
    return True


def _settle(run: ScheduleRun, *, outcome: str | None, error: str, now: datetime) -> None:
    with transaction.atomic():
        schedule = Schedule.objects.select_for_update().get(pk=run.schedule_id)
        seen = run.attempts
        if outcome == TurnStatus.SUCCEEDED:
            run.ended_at = now
            if problem := _send_on(run, schedule):
                _has_failed(run, error=problem, now=now)
        elif outcome != TurnStatus.FAILED:
            run.ended_at, run.error = now, error or "The conversation was deleted."
        elif error != RESTORED and run.attempts <= len(RETRY_AFTER) and _may_be_tried_again(run, schedule):
            run.state, run.error, run.retry_at = RunState.DUE, error, now + RETRY_AFTER[run.attempts - 1]
        else:
            _has_failed(run, error=error, now=now)
        if not _store(run, was=RunState.FIRED, attempts=seen):
            transaction.set_rollback(True)
            return
        if run.state == RunState.FAILED:
            _tell_failure(run, schedule)
            _count_failure(run, schedule, now=now)
        elif outcome == TurnStatus.SUCCEEDED:
            Schedule.objects.filter(pk=schedule.pk).update(failures=0)


def _send_on(run: ScheduleRun, schedule: Schedule) -> str:
    """Have a run's answer sent to where its schedule says, in the transaction that sees how it has ended; returns why
    not, if its agent is no longer given that destination."""
    if run.turn_id is None or not schedule.destination:
        return ""
    turn = Turn.objects.select_related("conversation__agent").get(pk=run.turn_id)
    answer = transcript.answer_of(turn)
    try:
        outgoing.pass_on(turn.conversation, answer, destination=schedule.destination, turn_id=turn.pk)
    except UnknownDestination as error:
        return f"Its answer was not sent on. {error.detail}"
    return ""


def _tell_failure(run: ScheduleRun, schedule: Schedule) -> None:
    """Tell webhooks of a run that has failed for good, in the transaction that stores it."""
    told = {
        "scheduleId": str(schedule.pk),
        "runId": str(run.pk),
        "slot": run.slot.isoformat(),
        "ownerId": schedule.owner_id,
        "conversationId": str(run.conversation_id) if run.conversation_id else None,
        "turnId": str(run.turn_id) if run.turn_id else None,
        "attempts": run.attempts,
        "error": run.error,
    }
    announce(SCHEDULE_FAILED, told, owner_id=schedule.owner_id)


def _may_be_tried_again(run: ScheduleRun, schedule: Schedule) -> bool:
    """One that has ended had its last time, and this may be the run of it."""
    return not schedule.cancelled_at and (schedule.state != "paused" or run.by_hand)


def _count_failure(run: ScheduleRun, schedule: Schedule, *, now: datetime) -> None:
    """One more in a row. At the last that is borne, the schedule is paused, and its owner is told where it spoke; at
    once, if no time is to come at which it could do better."""
    failures = schedule.failures + 1
    Schedule.objects.filter(pk=schedule.pk).update(failures=failures)
    if schedule.state == "ended":
        told = f"The schedule “{schedule}” has ended, and its last run failed with {run.error}. Run it again by hand."
    elif failures >= settings.SCHEDULE_MAX_FAILURES and schedule.active:
        because = f"It failed {failures} times in a row, the last time with {run.error}."
        pause(schedule, because=because, now=now)
        told = f"The schedule “{schedule}” is paused. {because} Resume it when the cause is gone."
    else:
        return
    if run.conversation_id and not inbox.note(conversation_id=run.conversation_id, content=told):
        raise _CannotBeTold


def pause(schedule: Schedule, *, because: str, now: datetime) -> None:
    """Have it run no more until it is resumed; what was to be tried again is not."""
    Schedule.objects.filter(pk=schedule.pk).update(
        active=False, paused_because=because[:500], revision=F("revision") + 1
    )
    forget_retries(schedule, now=now)


def _pause_if_active(schedule: Schedule, *, because: str, now: datetime) -> None:
    if schedule.active:
        pause(schedule, because=because, now=now)


def forget_retries(schedule: Schedule, *, now: datetime) -> None:
    """Runs that wait to be tried again have failed."""
    waiting = open_runs(schedule).filter(state=RunState.DUE)
    for run in waiting:
        _tell_failure(run, schedule)
    waiting.update(state=RunState.FAILED, ended_at=now, retry_at=None)


# --- another attempt ---------------------------------------------------------------------------------------------


def due_again(*, now: datetime) -> QuerySet[ScheduleRun]:
    """Runs that are to be tried again now."""
    return ScheduleRun.objects.filter(ended_at=None, state=RunState.DUE, retry_at__lte=now)


def retry(run: ScheduleRun, *, now: datetime) -> bool:
    """Try a run again, unless somebody else has; whether it was."""
    try:
        return _retry(run, now=now)
    except Exception:
        logger.exception("a schedule's run could not be tried again, and is due at the next tick: %s", run.pk)
        return False


def _retry(run: ScheduleRun, *, now: datetime) -> bool:
    with transaction.atomic():
        schedule = Schedule.objects.select_for_update(of=("self",)).select_related("agent").get(pk=run.schedule_id)
        seen, problem = run.attempts, ""
        try:
            with transaction.atomic():
                _speak(run, schedule)
        except Problem as refused:
            problem = refused.detail
            _has_failed(run, error=problem, now=now)
        if not _store(run, was=RunState.DUE, attempts=seen):
            transaction.set_rollback(True)
            return False
        if problem:
            _tell_failure(run, schedule)
            _pause_if_active(schedule, because=problem, now=now)
    return not problem


def _has_failed(run: ScheduleRun, *, error: str, now: datetime) -> None:
    run.state, run.error, run.ended_at, run.retry_at = RunState.FAILED, error[:500], now, None


def _store(run: ScheduleRun, *, was: RunState, attempts: int) -> bool:
    """Write the run as it now is; False if it is no longer what was seen: somebody else was first."""
    seen = ScheduleRun.objects.filter(pk=run.pk, ended_at=None, state=was, attempts=attempts)
    changed = seen.update(
        state=run.state,
        conversation_id=run.conversation_id,
        turn_id=run.turn_id,
        attempts=run.attempts,
        retry_at=run.retry_at,
        error=run.error,
        ended_at=run.ended_at,
    )
    return changed == 1


# --- what is old -------------------------------------------------------------------------------------------------


def forget_old() -> int:
    """Delete what is written of times long past, and schedules that were cancelled then, but for what a legal hold
    keeps; returns how many rows."""
    gone = 0
    for find in (_old_runs, _old_check_ins, _old_schedules):
        # In parts: a table that nobody has cleared for long is not cleared within one statement's time.
        while deleted := _delete_some(find):
            gone += deleted
    return gone


def _delete_some(find: Callable[[Holds], QuerySet[Any]]) -> int:
    with transaction.atomic():
        rows = find(holds.placed_until_the_end())
        found = list(rows.values_list("pk", flat=True)[:MANY])
        return int(rows.model._default_manager.filter(pk__in=found).delete()[0]) if found else 0


def _old_runs(placed: Holds) -> QuerySet[Any]:
    owners, agents = placed.owners_and_agents()
    held = Q(schedule__owner__in=owners) | Q(schedule__agent__name__in=agents)
    return ScheduleRun.objects.filter(ended_at__lt=_long_ago()).exclude(held)


def _old_check_ins(placed: Holds) -> QuerySet[Any]:
    return CheckIn.objects.filter(ended_at__lt=_long_ago()).exclude(_of_held(placed))


def _old_schedules(placed: Holds) -> QuerySet[Any]:
    return Schedule.objects.filter(cancelled_at__lt=_long_ago()).exclude(_of_held(placed))


def _of_held(placed: Holds) -> Q:
    owners, agents = placed.owners_and_agents()
    return Q(owner__in=owners) | Q(agent__name__in=agents)


def _long_ago() -> Any:
    return from_now(-KEPT_FOR.total_seconds())
