"""Making and changing schedules: one way for the API, the shell, the admin and tools.

Each function changes what is to come. What has fired stays as it is, in the ledger and in the conversation.
"""

import hashlib
from datetime import datetime
from typing import Any, TypedDict, Unpack
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.forms.models import model_to_dict

from agent.models import DEFAULT_AGENT, Agent
from conversations.engine import outgoing
from conversations.errors import UnknownDestination
from conversations.models import Conversation
from nanohost.accounts import audit
from nanohost.lib import clock
from nanohost.lib.errors import NotFound
from nanohost.lib.text import UNSTORABLE
from scheduler import runs, times
from scheduler.errors import BadSchedule, ScheduleEnded
from scheduler.models import Kind, Missed, RunState, Schedule, ScheduleRun
from tools.registry import ORIGIN

MAX_MADE_UP_FOR, MAX_RUNS = 100, 1_000_000


class ScheduleInput(TypedDict, total=False):
    """What can be wished of a schedule, as people and models write it. Exactly one of ``at``, ``every_seconds`` and
    ``cron`` makes its times; ``at`` and ``ends_at`` are ISO 8601, in ``zone`` unless they name an offset.
    ``deliver_to``: ``{"destination": name}``, one of the agent's; ``{}`` or its origin: only where it speaks."""

    description: str
    prompt: str
    at: str | None
    every_seconds: int | None
    cron: str | None
    zone: str
    missed: str
    missed_most: int
    ends_at: str | None
    max_runs: int | None
    deliver_to: dict[str, Any]


# What of it stands in the audit log.
_WISHED = (
    *("agent", "owner", "conversation_id", "kind", "at", "every_seconds", "expression", "zone"),
    *("missed", "missed_most", "ends_at", "max_runs", "deliver_to"),
)

# What decides when it runs next.
_OF_TIME = {"at", "every_seconds", "cron", "zone", "ends_at", "max_runs"}


def draft(*, now: datetime | None = None, **wishes: Unpack[ScheduleInput]) -> Schedule:
    """A schedule that is not stored, without owner and agent; raises :class:`BadSchedule` as :func:`create` does."""
    now = now or clock.read()
    schedule = Schedule(zone=settings.TIME_ZONE, phase=now)
    if not _chosen(wishes):
        raise BadSchedule("A schedule needs its times: one of a time, an interval and a cron expression.")
    _apply(schedule, wishes, now=now)
    return schedule


def create(
    *,
    owner_id: int,
    agent: str = "",
    conversation_id: UUID | None = None,
    now: datetime | None = None,
    tainted_by: str = "",
    api_key_id: int | None = None,
    **wishes: Unpack[ScheduleInput],
) -> Schedule:
    """A new schedule. It speaks in a conversation of its owner's, to whose agent it then speaks, or in a new one each
    time. ``tainted_by``: where its texts were written, if untrusted text had entered there. ``api_key_id``: what it was
    asked for with; budgets of that key count what it says. Raises :class:`BadSchedule` with a sentence for whoever
    wished it."""
    schedule = draft(now=now, **wishes)
    schedule.api_key_id = api_key_id
    schedule.owner_id, schedule.conversation_id, schedule.tainted_by = owner_id, conversation_id, tainted_by
    schedule.agent = _agent(owner_id, agent, conversation_id)
    if not schedule.prompt.strip():
        raise BadSchedule("A schedule needs a prompt: the message to the agent.")
    _check_destination(schedule)
    with transaction.atomic():
        schedule.save(force_insert=True)
        _note("schedule.made", schedule, before={})
    return schedule


def _check_destination(schedule: Schedule) -> None:
    """Raises :class:`BadSchedule` if its agent was not given where its answers are to go."""
    given = outgoing.names_of_chats(schedule.agent) if schedule.destination else []
    if schedule.destination and schedule.destination not in given:
        raise BadSchedule(UnknownDestination.named(schedule.destination, given).detail)


def _agent(owner_id: int, name: str, conversation_id: UUID | None) -> Agent:
    if conversation_id:
        conversation = Conversation.objects.select_related("agent").filter(pk=conversation_id, owner=owner_id).first()
        if conversation is None:
            raise BadSchedule("There is no conversation with that id, or it is not yours.")
        if name not in ("", conversation.agent.name):
            raise BadSchedule(f"In that conversation {conversation.agent.name!r} answers, and not {name!r}.")
        return conversation.agent
    wanted = name or DEFAULT_AGENT
    agent = None if UNSTORABLE.search(wanted) else Agent.objects.filter(name=wanted).first()
    if agent is None:
        raise BadSchedule(f"There is no agent named {wanted!r}.")
    return agent


def update(
    schedule: Schedule, *, now: datetime | None = None, tainted_by: str = "", **wishes: Unpack[ScheduleInput]
) -> Schedule:
    """Change what is wished otherwise, and nothing else. One that has ended goes on if it has a time to come again.

    ``tainted_by``: as of :func:`create`. A mark stays until both of its texts are others.
    """
    with transaction.atomic():
        row, now = _locked(schedule), now or clock.read()
        before = _as_wished(row)
        texts_before = row.prompt, row.description
        if _OF_TIME & wishes.keys():
            _drop_what_is_due(row, because="It was changed before it ran.", now=now)
            ended = row.state == "ended"
            _apply(row, wishes, now=now)
            if ended:
                row.active, row.paused_because = True, ""
        else:
            _apply_texts(row, wishes)
        is_other = row.prompt != texts_before[0] and row.description != (texts_before[1] or None)
        if "deliver_to" in wishes:
            _check_destination(row)
        row.tainted_by = tainted_by or ("" if is_other else row.tainted_by)
        _save(row)
        _note("schedule.changed", row, before=before)
    return row


# Why a schedule is paused that only people resume.
BY_OPERATOR = "Paused by an operator, in the console."


def pause(schedule: Schedule, *, because: str = "Paused by hand.", now: datetime | None = None) -> Schedule:
    """Have it run no more until it is resumed; what failed is not tried again. Raises :class:`ScheduleEnded`."""
    with transaction.atomic():
        row, now = _locked(schedule), now or clock.read()
        if row.state == "ended":
            raise ScheduleEnded
        if row.active:
            _drop_what_is_due(row, because="It was paused before it ran.", now=now)
            runs.pause(row, because=because, now=now)
            row.refresh_from_db()
            _note("schedule.paused", row, reason=because)
        elif because == BY_OPERATOR:
            row.paused_because = because
            _save(row)
    return row


def resume(schedule: Schedule, *, now: datetime | None = None) -> Schedule:
    """Have it run again, from its next time on. Raises :class:`ScheduleEnded`, or :class:`BadSchedule` if its time has
    passed."""
    with transaction.atomic():
        row, now = _locked(schedule), now or clock.read()
        if row.state == "ended":
            raise ScheduleEnded
        if not row.active:
            _plan(row, now=now)
            row.active, row.paused_because, row.failures = True, "", 0
            _save(row)
            _note("schedule.resumed", row)
    return row


def cancel(schedule: Schedule, *, now: datetime | None = None) -> None:
    """End it for good. Its ledger is kept for a while."""
    with transaction.atomic():
        row, now = _locked(schedule), now or clock.read()
        _drop_what_is_due(row, because="It was cancelled before it ran.", now=now)
        runs.forget_retries(row, now=now)
        row.active, row.next_at, row.cancelled_at = False, None, now
        _save(row)
        _note("schedule.cancelled", row)


def run_now(schedule: Schedule, *, now: datetime | None = None) -> ScheduleRun:
    """Run it once, out of turn, whatever its state: its times and the count of its runs stay as they are."""
    with transaction.atomic():
        row, now = _locked(schedule), now or clock.read()
        run = runs.start(row, slot=now, now=now, by_hand=True)
        _note("schedule.run_by_hand", row)
        return run or ScheduleRun.objects.get(schedule=row, slot=now)


def upcoming(schedule: Schedule, *, now: datetime | None = None) -> list[times.Preview]:
    """Its next ten times, if it is left alone; none if it has ended."""
    if schedule.state not in ("active", "paused"):
        return []
    most = 10 if schedule.max_runs is None else min(10, schedule.max_runs - schedule.runs)
    shown = times.preview(schedule.timing, now or clock.read(), most=most)
    return [each for each in shown if schedule.ends_at is None or each.at <= schedule.ends_at]


# --- the pieces --------------------------------------------------------------------------------------------------


def _locked(schedule: Schedule) -> Schedule:
    """The row as it now is, which nobody else changes meanwhile; NotFound once it was cancelled."""
    kept = Schedule.objects.kept().select_for_update(of=("self",)).select_related("agent", "owner")
    row = kept.filter(pk=schedule.pk).first()
    if row is None:
        raise NotFound("There is no schedule with that id, or it is not yours.")
    return row


def _as_wished(schedule: Schedule) -> dict[str, Any]:
    """All that people and agents set, for the audit log: of what is said to the agent, a hash, for it may be erased."""
    told = hashlib.sha256(f"{schedule.description}\n{schedule.prompt}".encode(errors="replace")).hexdigest()
    return {**model_to_dict(schedule, _WISHED), "texts": f"sha256:{told}"}


def _note(action: str, schedule: Schedule, *, before: dict[str, Any] | None = None, reason: str = "") -> None:
    """Tell the audit log, of what was changed both how it was and how it is."""
    if before is None:
        audit.record(action, about=schedule, name=str(schedule.pk), reason=reason)
        return
    after = _as_wished(schedule)
    changed = [name for name in after if before.get(name) != after[name]]
    was = {name: before[name] for name in changed if name in before}
    became = {name: after[name] for name in changed}
    audit.record(action, about=schedule, name=str(schedule.pk), before=was or None, after=became)


def _save(row: Schedule) -> None:
    row.revision += 1
    row.save(force_update=True)


def _drop_what_is_due(row: Schedule, *, because: str, now: datetime) -> None:
    """A time that has come, and was not fired, is not lost from sight."""
    if row.active and row.next_at and row.next_at <= now:
        runs.pass_over(row, [row.next_at], state=RunState.SKIPPED, because=because, now=now)


def _apply(schedule: Schedule, wishes: ScheduleInput, *, now: datetime) -> None:
    """Put wishes into a row, and see when it runs next."""
    try:
        _apply_texts(schedule, wishes)
        _apply_times(schedule, wishes, now=now)
    except times.BadTiming as error:
        raise BadSchedule(str(error)) from None
    _plan(schedule, now=now)


def _apply_texts(schedule: Schedule, wishes: ScheduleInput) -> None:
    schedule.description = wishes.get("description", schedule.description)
    schedule.prompt = wishes.get("prompt", schedule.prompt)
    if "deliver_to" in wishes:
        name = wishes["deliver_to"].get("destination", "").strip()
        schedule.deliver_to = {"destination": name} if name not in ("", ORIGIN) else {}
    schedule.missed = wishes.get("missed", schedule.missed)
    schedule.missed_most = wishes.get("missed_most", schedule.missed_most)
    if UNSTORABLE.search(schedule.prompt + schedule.description):
        raise BadSchedule("A text holds a null character or half a surrogate pair.")
    if len(schedule.description) > 200:
        raise BadSchedule("A description has 200 characters at most.")
    if "prompt" in wishes and not schedule.prompt.strip():
        raise BadSchedule("A schedule needs a prompt: the message to the agent.")
    if schedule.missed not in Missed.values:
        raise BadSchedule(f"Times that were missed are made up for by one of {', '.join(Missed.values)}.")
    if not 1 <= schedule.missed_most <= MAX_MADE_UP_FOR:
        raise BadSchedule(f"From 1 to {MAX_MADE_UP_FOR} times that were missed can be made up for.")


def _chosen(wishes: ScheduleInput) -> dict[Kind, Any]:
    given = {Kind.AT: wishes.get("at"), Kind.EVERY: wishes.get("every_seconds"), Kind.CRON: wishes.get("cron")}
    return {kind: value for kind, value in given.items() if value not in (None, "")}


def _apply_times(schedule: Schedule, wishes: ScheduleInput, *, now: datetime) -> None:
    schedule.zone = wishes.get("zone") or schedule.zone
    zone = times.zone_of(schedule.zone)
    if len(chosen := _chosen(wishes)) > 1:
        raise BadSchedule("Only one of a time, an interval and a cron expression makes its times.")
    for kind, value in chosen.items():
        schedule.kind, schedule.at, schedule.every_seconds, schedule.expression = kind, None, None, ""
        if kind == Kind.AT:
            schedule.at = times.time_of(value, zone)
        elif kind == Kind.EVERY:
            times.check_interval(value)
            schedule.every_seconds, schedule.phase = value, now
        else:
            times.check_expression(value)
            schedule.expression = " ".join(value.split())
    if "ends_at" in wishes:
        schedule.ends_at = times.time_of(wishes["ends_at"], zone) if wishes["ends_at"] else None
    if "max_runs" in wishes:
        schedule.max_runs = wishes["max_runs"]


def _plan(schedule: Schedule, *, now: datetime) -> None:
    """Set when it runs next; raises :class:`BadSchedule` if it never would."""
    if schedule.max_runs is not None and not 1 <= schedule.max_runs <= MAX_RUNS:
        raise BadSchedule(f"A schedule runs once at least, and {MAX_RUNS} times at most, or without an end.")
    if schedule.used_up:
        raise BadSchedule(f"It has run {schedule.runs} times already, and is to run {schedule.max_runs} times.")
    try:
        following = times.next_after(schedule.timing, now)
    except times.BadTiming as error:  # its zone is gone
        raise BadSchedule(str(error)) from None
    if following is None:
        assert schedule.at
        zone = times.zone_of(schedule.zone)
        shown, is_now = (f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S}" for moment in (schedule.at, now))
        raise BadSchedule(f"{shown} ({schedule.zone}) has passed; a time to come is needed. There, it is {is_now} now.")
    if schedule.ends_at and following > schedule.ends_at:
        raise BadSchedule("It would end before it runs.")
    schedule.next_at = following
