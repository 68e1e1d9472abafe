"""The life of a call: asked for, claimed, ended. Each write is conditional, so that the first to end a call wins.

    [WAITING →] QUEUED → RUNNING [→ WAITING] → SUCCESS | FAILED | REJECTED | UNKNOWN

A call is stored as started before it runs and as done after. When its worker dies in between, a tool that only reads
is run again; one with side effects becomes UNKNOWN, since nobody knows how far it came. One whose effects are rows of
this database has them stored in one transaction with its outcome: while there is no outcome there are none, and it is
run again.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Case, DurationField, F, Q, Value, When
from django.utils import timezone

from nanohost.accounts import audit
from nanohost.lib import clock
from nanohost.lib.clock import Now
from nanohost.lib.database import one_statement
from nanohost.lib.lease import RELEASED, lease_length
from nanohost.lib.redaction import redact, redact_json
from nanohost.lib.statements import Given, Insert, Rows, Update
from nanohost.lib.text import storable
from tools.errors import CallLost
from tools.models import Approval, ApprovalState, CallStatus, ToolCall, ToolCallQuerySet
from tools.registry import REPEATABLE


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a call ended. ``result`` is what the model is told; ``rule`` names what refused or ended it. ``stored``: it
    already is, together with what the call has changed. ``tainted_by``: from where untrusted text in the result came,
    if there is some."""

    status: CallStatus
    result: str
    rule: str = ""
    stored: bool = False
    tainted_by: str = ""


UNKNOWN_RESULT = (
    "UNKNOWN: the tool was started and interrupted; whether it took effect is not known. It was not run again."
)

CRASHED_RESULT = "FAILED: each time the tool was run, the worker that ran it died."


def new_call(
    *,
    conversation_id: UUID,
    turn_id: UUID,
    owner_id: int,
    agent: str,
    request_id: str,
    call_id: str,
    position: int,
    tool_name: str,
    arguments: str,
    effects: str,
    refused: Outcome | None,
    rate_limited: bool,
    consent: str = "",
) -> ToolCall:
    """An unsaved call: queued, or ended at once if the gate refuses it. ``consent``: the rule for which it waits."""
    call = ToolCall(
        conversation_id=conversation_id,
        turn_id=turn_id,
        owner_id=owner_id,
        agent=agent,
        request_id=request_id,
        call_id=call_id,
        position=position,
        tool_name=tool_name[:128],
        arguments=redact_json(arguments),
        arguments_hash=hashlib.sha256(arguments.encode()).hexdigest(),
        effects=effects,
        notified_at=Now(),
    )
    if call.arguments != arguments:
        call.private_arguments = arguments
    call.rate_limited = rate_limited
    if refused:
        refuse(call, refused)
    elif consent:
        call.status, call.consent = CallStatus.WAITING, consent
    return call


def refuse(call: ToolCall, refused: Outcome) -> None:
    """End an unsaved call."""
    call.status, call.result, call.rule = refused.status, refused.result, refused.rule
    call.private_arguments = ""
    call.ended_at, call.duration_ms = Now(), 0


def may_be_claimed_as_stored(call: ToolCall) -> bool:
    """Whether an unsaved call may be stored as one that somebody has claimed: they may die before they begin, and then
    it is run again. Whether a rate limit leaves a place for it is decided later."""
    return call.status == CallStatus.QUEUED and call.effects in REPEATABLE and not call.rate_limited


def claim_as_stored(call: ToolCall, *, worker: str) -> None:
    """Have an unsaved call stored as claimed."""
    call.status, call.worker, call.fence, call.attempts = CallStatus.RUNNING, worker, 1, 1
    # What is stored is the database's time.
    call.created_at = call.started_at = timezone.now()


# Those of a call, as it is asked for.
_ASKED = (
    *("id", "conversation_id", "turn_id", "owner_id", "agent", "request_id", "call_id", "position", "tool_name"),
    *("arguments", "private_arguments", "arguments_hash", "effects"),
)
_insert = Insert(ToolCall, *_ASKED, status=CallStatus.QUEUED, notified_at=Now(), created_at=Now())
_insert_claimed = Insert(
    ToolCall,
    *_ASKED,
    "worker",
    status=CallStatus.RUNNING,
    fence=1,
    attempts=1,
    lease_until=clock.from_now(Given("lease", DurationField())),
    notified_at=Now(),
    created_at=Now(),
    started_at=Now(),
)


def store(requested: Sequence[ToolCall]) -> None:
    """Save requested calls. Most are queued or claimed, and their statements are written once."""
    for call in requested:
        asked = {
            "id": call.pk,
            "conversation_id": call.conversation_id,
            "turn_id": call.turn_id,
            "owner_id": call.owner_id,
            "agent": call.agent,
            "request_id": call.request_id,
            "call_id": call.call_id,
            "position": call.position,
            "tool_name": call.tool_name,
            "arguments": call.arguments,
            "private_arguments": call.private_arguments,
            "arguments_hash": call.arguments_hash,
            "effects": call.effects,
        }
        if call.status == CallStatus.QUEUED:
            _insert(**asked)
        elif call.status == CallStatus.RUNNING:
            _insert_claimed(**asked, worker=call.worker, lease=lease_length())
    if others := [call for call in requested if call.status not in (CallStatus.QUEUED, CallStatus.RUNNING)]:
        ToolCall.objects.bulk_create(others)
    for call in requested:
        if call.status != CallStatus.WAITING:  # of which its approval tells
            _note("tool.refused" if call.ended else "tool.admitted", call)


def _note(action: str, call: ToolCall) -> None:
    """Record a decision or an end in the audit log, in the transaction that stores it: with the hash of the arguments,
    and not what is in them, which may be erased."""
    said = {"turn": str(call.turn_id), "argumentsHash": call.arguments_hash}
    if call.ended:
        said |= {"status": str(call.status), "rule": call.rule}
    by = f"agent {call.agent}"
    audit.record(action, about=call, name=call.tool_name, after=said, by=by, request_id=call.request_id)


def _again() -> Q:
    """Of what was started: not one that has cost too many workers, nor one whose effects may have happened."""
    return Q(effects__in=REPEATABLE, attempts__lt=Given("most_attempts"))


def _may_run() -> ToolCallQuerySet:
    return ToolCall.objects.due().filter(Q(status=CallStatus.QUEUED) | _again(), pk=Given("id"))


_by_failing = When(effects__in=REPEATABLE, then=Value(CallStatus.FAILED.value))
_claim = Update(
    _may_run,
    lambda: {
        **ToolCall.claimed(worker=Given("worker"), lease=Given("lease", DurationField())),
        "attempts": F("attempts") + 1,
        "started_at": Now(),
    },
    returning_rows=True,
)
_end_crashed = Update(
    # Its lease may have run out since it was looked at.
    lambda: ToolCall.objects.filter(ToolCall.expired(), ~_again(), pk=Given("id")),
    lambda: {
        "status": Case(_by_failing, default=Value(CallStatus.UNKNOWN.value)),
        "result": Case(When(effects__in=REPEATABLE, then=Value(CRASHED_RESULT)), default=Value(UNKNOWN_RESULT)),
        "rule": "crashed",
        "private_arguments": "",
        "fence": F("fence") + 1,
        "lease_until": None,
        "ended_at": Now(),
    },
    returning_rows=True,
)


def claim(call_id: UUID, *, worker: str) -> ToolCall | None:
    """Take a call that waits, or a repeatable one whose worker is gone; None if it is not claimable.

    A call with side effects whose worker is gone is ended as UNKNOWN here, and a repeatable one that has cost
    ``TURN_MAX_ATTEMPTS`` workers as FAILED: such a call comes back ended.
    """
    most = {"id": call_id, "most_attempts": settings.TURN_MAX_ATTEMPTS}
    with one_statement():
        claimed: list[ToolCall] = _claim(**most, worker=worker, lease=lease_length())
    if claimed:
        return claimed[0]
    with transaction.atomic():
        crashed: list[ToolCall] = _end_crashed(**most)
        for call in crashed:
            _note("tool.ended", call)
    return next(iter(crashed), None)


def _held() -> ToolCallQuerySet:
    return ToolCall.objects.held(Given("id"), Given("fence"))


_keep = Update(_held, lambda: ToolCall.renewed(lease=Given("lease", DurationField())))
_end = Update(
    _held,
    lambda: {
        "status": Given("status"),
        "rule": Given("rule"),
        "result": Given("result"),
        "tainted_by": Given("tainted_by"),
        "private_arguments": "",
        "duration_ms": Given("duration_ms"),
        "ended_at": Now(),
        "lease_until": None,
    },
)
# Whoever takes a call over, or ends it for us, raises its fence.
_ended_by_us = Rows(
    lambda: ToolCall.objects.filter(pk=Given("id"), fence=Given("fence"), ended_at__isnull=False).values_list("pk")
)
_outcomes = Rows[tuple[str, str, str]](
    lambda: (
        ToolCall.objects.filter(turn_id=Given("turn_id"))
        .order_by("position")
        .values_list("tool_name", "status", "result")
    )
)
_release = Update(
    _held,
    lambda: {
        **RELEASED,
        "status": CallStatus.QUEUED,
        "fence": F("fence") + 1,
        "attempts": F("attempts") - 1,
    },
)


def keep(call: ToolCall) -> bool:
    """Renew the lease of a running call; False if another worker has it, or it has ended."""
    return bool(_keep(id=call.pk, fence=call.fence, lease=lease_length()))


def end(call: ToolCall, outcome: Outcome, *, duration_ms: int) -> None:
    """Store how a call of ours ended; raises :class:`CallLost` if somebody else ended it or took it over. To store it
    again changes nothing."""
    result = storable(redact(outcome.result))
    ends = {"status": outcome.status, "rule": outcome.rule, "result": result, "duration_ms": duration_ms}
    ends["tainted_by"] = outcome.tainted_by
    with transaction.atomic():
        ended = _end(id=call.pk, fence=call.fence, **ends)
        call.status, call.rule, call.result = outcome.status, outcome.rule, result
        if ended:
            _note("tool.refused" if outcome.status == CallStatus.REJECTED else "tool.ended", call)
        elif not _ended_by_us(id=call.pk, fence=call.fence):
            raise CallLost(call.pk)


def suspend(call: ToolCall) -> None:
    """Have a call of ours wait for what people say, in the caller's transaction; raises :class:`CallLost` if somebody
    else has it by now."""
    held = ToolCall.objects.held(call.pk, call.fence)
    if held.update(status=CallStatus.WAITING, lease_until=None) != 1:
        raise CallLost(call.pk)
    call.status = CallStatus.WAITING


def end_waiting(call_id: UUID, ended: Outcome) -> ToolCall | None:
    """End a call that was not approved, or that has waited for people; None if it has ended otherwise. In the caller's
    transaction."""
    ends = {"status": ended.status, "rule": ended.rule, "result": ended.result, "private_arguments": ""}
    ends["tainted_by"] = ended.tainted_by
    waiting = ToolCall.objects.filter(pk=call_id, status=CallStatus.WAITING)
    if waiting.update(**ends, ended_at=Now(), duration_ms=0) != 1:
        return None
    call = ToolCall.objects.get(pk=call_id)
    _note("tool.refused" if call.status == CallStatus.REJECTED else "tool.ended", call)
    return call


def outcomes(turn_id: UUID) -> list[tuple[str, str, str]]:
    """Of each of a turn's calls, in their order: the tool, the status and the result."""
    return _outcomes(turn_id=turn_id)


def release(call: ToolCall) -> None:
    """Put a call back in the queue that a shutdown interrupted (if it only reads) or kept from starting, at no cost."""
    _release(id=call.pk, fence=call.fence)


def doubt_queued(turn_ids: Iterable[UUID]) -> None:
    """Treat queued calls as started: after a restore, nobody knows whether they were. Those with side effects then end
    as UNKNOWN."""
    queued = ToolCall.objects.filter(status=CallStatus.QUEUED, turn_id__in=turn_ids)
    queued.update(status=CallStatus.RUNNING, started_at=Now())


def end_open(turn_ids: Iterable[UUID], *, rule: str, reason: str) -> tuple[list[ToolCall], list[Approval]]:
    """End the open calls of turns that no longer want them: those that may have had an effect are UNKNOWN.

    Returns the calls that this ended, and the approvals that nobody has to give any more; a call that ends by itself
    at the same moment is not among them.
    """
    with transaction.atomic(savepoint=False):
        return _end_open(turn_ids, rule=rule, reason=reason)


def _end_open(turn_ids: Iterable[UUID], *, rule: str, reason: str) -> tuple[list[ToolCall], list[Approval]]:
    started_write = {"status": CallStatus.RUNNING, "effects": "write"}
    statuses = dict(ToolCall.objects.open().filter(turn_id__in=turn_ids).values_list("pk", "status"))
    if not statuses:
        return [], []
    open_calls = list(statuses)
    waiting = [pk for pk, status in statuses.items() if status == CallStatus.WAITING]
    withdrawn = _withdraw(waiting, reason=reason) if waiting else []
    ToolCall.objects.open().filter(pk__in=open_calls).update(
        status=Case(
            When(**started_write, then=Value(CallStatus.UNKNOWN.value)), default=Value(CallStatus.FAILED.value)
        ),
        result=Case(
            When(**started_write, then=Value(f"{UNKNOWN_RESULT} ({reason})")), default=Value(f"FAILED: {reason}")
        ),
        rule=rule,
        private_arguments="",
        fence=F("fence") + 1,
        ended_at=Now(),
        lease_until=None,
    )
    ended = list(ToolCall.objects.filter(pk__in=open_calls, rule=rule))
    for call in ended:
        _note("tool.ended", call)
    return ended, withdrawn


def _withdraw(call_ids: Sequence[UUID], *, reason: str) -> list[Approval]:
    """Nobody has to consent any more to calls that end otherwise. In the order of their ids, as they were asked for."""
    pending = Approval.objects.select_for_update().filter(call_id__in=call_ids, state=ApprovalState.PENDING)
    withdrawn = list(pending.order_by("pk"))
    now = clock.read() if withdrawn else None
    for approval in withdrawn:
        approval.state, approval.private_proposed = ApprovalState.WITHDRAWN, ""
        approval.decided_at, approval.reason = now, reason
        approval.save(update_fields=["state", "private_proposed", "decided_at", "reason"])  # it is locked
        audit.record("consent.withdrawn", about=approval, after={"state": str(approval.state)}, reason=reason)
    return withdrawn
