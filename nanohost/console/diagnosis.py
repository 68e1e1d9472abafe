"""How an open turn stands, in plain words: whether somebody should have come by now, and what it waits for."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import OuterRef, QuerySet, Subquery

from conversations import waits
from conversations.engine.intake import Left
from conversations.engine.sweeper import OVERLOOKED_AFTER
from conversations.kinds import KINDS, TOOLS, TURNS, Kind
from conversations.models import Turn, Worker
from conversations.statuses import TURN_STATUSES, WAITING_FOR, TurnStatus, WaitingFor, describe
from nanohost.lib import clock
from nanohost.lib.text import duration
from tools.models import CallStatus, ToolCall

# Of each kind so many turns are looked at, those first that wait longest; and of their calls.
MAX_OF_A_KIND, MAX_CALLS = 100, 1000

LATE_SECONDS = OVERLOOKED_AFTER.total_seconds()

# Of the more urgent ones first. Stuck: whoever held it is gone. Late: it is due, and nobody came.
STUCK, LATE, FINE = "stuck", "late", ""
_URGENCY = (STUCK, LATE, FINE)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """``state``: one of ``STATES``. ``words``: what it waits for. ``lease``: how long somebody holds it. ``age``:
    seconds since it was asked for."""

    turn: Turn
    state: str
    urgency: str
    words: str
    lease: str
    age: float


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Those that are alive. ``held``, ``places``: turns that they hold, and may hold at most."""

    names: frozenset[str]
    by_kind: dict[Kind, int]
    held: int
    places: int

    @property
    def why_nobody_comes(self) -> str:
        """Why a due turn waits, with a blank before it; "" if that is not known."""
        if not self.by_kind[TURNS]:
            return " No worker for turns is online: start one."
        if self.held >= self.places:
            return f" All workers are full ({self.held} of {self.places} turns): start another."
        return ""


def workers_alive(left: Left) -> Workers:
    """The workers that were heard of lately. ``left``: the open turns, of which they hold some."""
    alive = list(Worker.objects.alive().values_list("name", "queues", "turns_most"))
    return Workers(
        names=frozenset(name for name, *_ in alive),
        by_kind={kind: sum(kind.queue in queues.split(",") for _, queues, _ in alive) for kind in KINDS},
        held=sum(left.held_by(name, is_alive=True) for name, *_ in alive),
        places=sum(most for *_, most in alive),
    )


def most_urgent(states: Iterable[str], workers: Workers) -> list[Diagnosis]:
    """Open turns that stand so, the most urgent first, then the oldest."""
    now = clock.read()
    turns = {turn.pk: turn for rows in _candidates(set(states)) for turn in rows}
    waiting = [turn.pk for turn in turns.values() if turn.waiting_for in OF_CALLS]
    calls: dict[UUID, list[Any]] = defaultdict(list)
    rows = ToolCall.objects.open().filter(turn_id__in=waiting).order_by("created_at")
    for call in rows.only("turn_id", "tool_name", "status", "lease_until", "started_at", "created_at", "consent")[
        :MAX_CALLS
    ]:
        calls[call.turn_id].append(call)
    runs = any(turn.status == TurnStatus.RUNNING for turn in turns.values())
    usual = waits.usual_seconds() if runs else {}
    found = [_diagnose(turn, calls[turn.pk], workers, usual, now) for turn in turns.values()]
    return sorted(found, key=lambda each: (_URGENCY.index(each.urgency), -each.age))


# What turns wait for that have open calls.
OF_CALLS = (WaitingFor.TOOLS, WaitingFor.APPROVAL, WaitingFor.ANSWER)

# As people see them. Those that are held are queued, and wait for the intake.
RUNNING = TURN_STATUSES[TurnStatus.RUNNING].label
WAITING = TURN_STATUSES[TurnStatus.WAITING].label
QUEUED = TURN_STATUSES[TurnStatus.QUEUED].label
HELD = WAITING_FOR[WaitingFor.INTAKE].label
STATES = (RUNNING, WAITING, QUEUED, HELD)


def _candidates(states: set[str]) -> Iterable[QuerySet[Turn]]:
    """Of each kind those first that are the likeliest to be late. Each goes by the index of status and time of
    notification."""
    every = Turn.objects.prefetch_related("conversation")
    if RUNNING in states:
        yield every.filter(status=TurnStatus.RUNNING).order_by("lease_until")[:MAX_OF_A_KIND]
    if WAITING in states:
        for waiting_for in (*OF_CALLS, WaitingFor.CALLER, WaitingFor.RETRY):
            waiting = every.filter(status=TurnStatus.WAITING, waiting_for=waiting_for)
            yield waiting.order_by("notified_at")[:MAX_OF_A_KIND]
    queued = every.filter(status=TurnStatus.QUEUED)
    if HELD in states:
        yield queued.filter(waiting_for=WaitingFor.INTAKE).order_by("notified_at")[:MAX_OF_A_KIND]
    if QUEUED in states:
        in_order = _with_who_is_before(queued.exclude(waiting_for=WaitingFor.INTAKE)).order_by("notified_at")
        yield in_order.filter(notified_at=None)[:MAX_OF_A_KIND]
        # Behind a conversation that has hundreds of turns in the queue, there are others.
        yield in_order.filter(notified_at__isnull=False, before=None)[:MAX_OF_A_KIND]
        yield in_order.filter(notified_at__isnull=False)[:MAX_OF_A_KIND]


def _with_who_is_before(turns: QuerySet[Turn]) -> QuerySet[Any]:
    earlier = Turn.objects.open().filter(conversation=OuterRef("conversation"), number__lt=OuterRef("number"))
    return turns.annotate(before=Subquery(earlier.order_by("number").values("number")[:1]))


def _diagnose(turn: Turn, calls: list[ToolCall], workers: Workers, usual: dict[str, float], now: datetime) -> Diagnosis:
    urgency, words = _explain(turn, calls, workers, usual, now)
    if turn.deadline and turn.deadline < now:
        urgency = STUCK
        words += f" Its time ran out {_ago(turn.deadline, now)}: it fails when a worker picks it up."
    return Diagnosis(
        turn=turn,
        state=describe(turn.status, turn.waiting_for).label,
        urgency=urgency,
        words=words,
        lease=_lease(turn, now),
        age=(now - turn.created_at).total_seconds(),
    )


def _explain(
    turn: Turn, calls: list[ToolCall], workers: Workers, usual: dict[str, float], now: datetime
) -> tuple[str, str]:
    if turn.status == TurnStatus.RUNNING:
        return _running(turn, workers, usual, now)
    if turn.status == TurnStatus.QUEUED:
        return _queued(turn, workers, now)
    if turn.waiting_for == WaitingFor.CALLER:
        return FINE, f"{describe(turn.status, turn.waiting_for).words}, since {_since(turn.notified_at, now)}."
    if turn.waiting_for in OF_CALLS and calls:
        return _waits_for_calls(calls, workers, now)
    if turn.waiting_for in OF_CALLS:
        due, words = turn.notified_at, "Its tool calls have ended"
    elif turn.run_after and turn.run_after > now:
        if turn.retries:
            return FINE, waits.for_retry(turn, now)
        after = _in(turn.run_after, now)
        return FINE, f"Its workers died, so it will run apart from others; it is tried again {after}."
    else:
        due, words = turn.run_after, describe(turn.status, turn.waiting_for).words
    if _is_late(due, now):
        return LATE, f"{words}, and no worker has come for {_since(due, now)}.{workers.why_nobody_comes}"
    return FINE, f"{words}; a worker continues it within seconds."


def _running(turn: Turn, workers: Workers, usual: dict[str, float], now: datetime) -> tuple[str, str]:
    cancelled = " Somebody asked to cancel it." if turn.cancel_requested else ""
    if turn.lease_until and turn.lease_until < now:
        words = f"Its worker stopped answering: its lease ran out {_ago(turn.lease_until, now)}."
        if why := workers.why_nobody_comes:
            words += why
        elif _is_late(turn.lease_until, now):
            words += " A sweep should have taken it up since: requeue it, and look at the workers' log."
        else:
            words += f" The sweep takes it up within {settings.SWEEP_SECONDS:g} s."
        return STUCK, words + cancelled
    if turn.worker not in workers.names:
        return LATE, f"Its worker is offline. When its lease has expired, another takes over.{cancelled}"
    if turn.cancel_requested:
        return FINE, "It is being cancelled; its worker ends it within seconds."
    is_late, words = waits.for_model(turn, usual, now)
    return LATE if is_late else FINE, words


def _queued(turn: Any, workers: Workers, now: datetime) -> tuple[str, str]:
    words = describe(turn.status, turn.waiting_for).words
    if turn.waiting_for == WaitingFor.INTAKE:
        return FINE, f"{words}."
    if turn.before is not None:
        return FINE, f"It waits behind turn {turn.before} of its conversation."
    if _is_late(turn.notified_at or turn.created_at, now):
        notified = f"were notified {_ago(turn.notified_at, now)}" if turn.notified_at else "were never notified"
        return LATE, f"Workers {notified}, and none has come.{workers.why_nobody_comes}"
    if turn.notified_at is None:
        return FINE, f"No worker could be notified of it; the sweep finds it within {settings.SWEEP_SECONDS:g} s."
    return FINE, f"{words}.{workers.why_nobody_comes}"


def _waits_for_calls(calls: list[ToolCall], workers: Workers, now: datetime) -> tuple[str, str]:
    urgency, told = FINE, []
    for call in calls:
        name = call.tool_name or "(no name)"
        if call.status == CallStatus.WAITING:
            what = "consent" if call.consent and not call.started_at else "an answer"
            told.append(f"{name} (waiting for {what} for {_since(call.created_at, now)})")
        elif call.status == CallStatus.QUEUED:
            urgency = LATE if urgency == FINE and _is_late(call.created_at, now) else urgency
            told.append(f"{name} (queued for {_since(call.created_at, now)})")
        elif call.lease_until and call.lease_until < now:
            urgency = STUCK
            told.append(f"{name} (its worker stopped answering {_ago(call.lease_until, now)})")
        else:
            told.append(f"{name} (running for {_since(call.started_at or call.created_at, now)})")
    if len(told) > 5:
        told = [*told[:5], f"{len(told) - 5} more"]
    waits_for_people = all(call.status == CallStatus.WAITING for call in calls)
    nobody = "" if workers.by_kind[TOOLS] or waits_for_people else " No worker for tools is online: start one."
    return urgency, f"It waits for {len(calls)} tool call{'' if len(calls) == 1 else 's'}: {', '.join(told)}.{nobody}"


def _lease(turn: Turn, now: datetime) -> str:
    if turn.lease_until is None:
        return "–"
    return (
        f"ran out {_ago(turn.lease_until, now)}" if turn.lease_until < now else f"for {_since(now, turn.lease_until)}"
    )


def _is_late(due: datetime | None, now: datetime) -> bool:
    return due is not None and (now - due).total_seconds() > LATE_SECONDS


def _since(moment: datetime | None, now: datetime) -> str:
    return duration((now - moment).total_seconds() if moment else None)


def _ago(moment: datetime, now: datetime) -> str:
    return f"{_since(moment, now)} ago"


def _in(moment: datetime, now: datetime) -> str:
    return f"in {_since(now, moment)}"
