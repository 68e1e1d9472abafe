"""Decisions on calls that wait for consent: each is made once, and the turn goes on with it.

The turn is locked first, then the approval and the call (locks are taken in the order conversation, turn, call): two
who decide at once come one after the other, and so do a decision and whoever cancels the turn.
"""

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from django.db import transaction

from conversations import announced, events
from conversations.engine import announcements, doorbell
from conversations.engine.allowed_tools import tools_of_agent
from conversations.engine.consent import approval_notices, resuming
from conversations.engine.tracing import context_of
from conversations.kinds import TOOLS, TURNS
from conversations.models import Turn
from nanohost.lib import clock, traces
from nanohost.lib.clock import Now
from nanohost.lib.errors import NotFound
from nanohost.lib.statements import Rows
from tools import approvals, gate
from tools.approvals import DENY, Decision, Voter
from tools.errors import AlreadyDecided, ArgumentsRefused
from tools.models import Approval, ApprovalState, ToolCall

# Found by one sweep.
MAX_FOUND = 100


def decide(
    approval_id: UUID,
    *,
    by: Voter,
    decision: Decision,
    arguments: str | None = None,
    seen: str = "",
    reason: str = "",
    still: Callable[[], None] = lambda: None,
) -> Approval:
    """Approve or deny a call, and have its turn go on; the approval as it then is, pending still if somebody
    else has to approve as well. What is decided in the same way by the same person again stays as it is.

    ``arguments``: JSON, if the call is to run with others than those it was asked for. ``seen``: the hash of those that
    were looked at, if that is known. ``still``: raises for who may decide no more; it is asked once nobody else can
    decide, since whoever was waited for may have taken that away. Raises :class:`NotFound`,
    :class:`AlreadyDecided`, :class:`OwnConversation` and :class:`ArgumentsRefused`; then nothing is changed.
    """
    with transaction.atomic():
        approval = _locked(approval_id)
        still()
        if approvals.is_repeat(approval, by, decision, arguments):
            return approval
        approvals.check_decidable(approval, by)
        is_late = approval.expires_at <= clock.read()
        if is_late:
            _go_on(approval, approvals.expire(approval))
        elif decision == DENY:
            _go_on(approval, approvals.deny(approval, by=by.name, reason=reason))
        else:
            if arguments is not None:
                _check(approval, arguments)
            if approvals.approve(approval, by, arguments=arguments, seen=seen, reason=reason):
                _go_on(approval, ToolCall.objects.get(pk=approval.call_id))
    if traces.is_on and approval.state != ApprovalState.PENDING:
        _trace(approval)
    if is_late:
        raise AlreadyDecided("Its time was over, so it was denied.")
    return approval


def _trace(approval: Approval) -> None:
    """The span of the time for which a call has waited for people."""
    if span := traces.begin(context_of(approval.turn_id), at=_nanoseconds(approval.requested_at)):
        told, at = (approval.pk, approval.tool_name, str(approval.state)), _nanoseconds(approval.decided_at)
        traces.end(span, traces.APPROVAL, *told, about=approval.tool_name, at=at)


def _nanoseconds(moment: datetime | None) -> int:
    return int(moment.timestamp() * 1e9) if moment else 0


_overdue = Rows(
    lambda: (
        Approval.objects.filter(state=ApprovalState.PENDING, expires_at__lte=Now())
        .order_by("expires_at")
        .values_list("pk", flat=True)[:MAX_FOUND]
    )
)


def expire_due() -> None:
    """Deny what nobody has decided in time. Each in a transaction of its own; whoever else sweeps finds none left."""
    for approval_id in _overdue():
        with transaction.atomic():
            approval = _locked(approval_id)
            if approval.state == ApprovalState.PENDING:
                _go_on(approval, approvals.expire(approval))


def _locked(approval_id: UUID) -> Approval:
    turn_id = Approval.objects.filter(pk=approval_id).values_list("turn_id", flat=True).first()
    if turn_id is None:
        raise NotFound("There is no approval with that id, or it is not yours.")
    list(Turn.objects.select_for_update().filter(pk=turn_id).values_list("pk"))
    return approvals.locked(approval_id)


def _check(approval: Approval, arguments: str) -> None:
    """What the gate says of changed arguments now; it decides again when the call starts."""
    call = ToolCall.objects.filter(pk=approval.call_id).first()
    if call is None:
        raise AlreadyDecided(approvals.ENDED)
    try:
        allowed = tools_of_agent(call)
        tool, setting = gate.admit(approval.tool_name, agent_tools=allowed)
        gate.check_targets(tool, allowed, gate.check_arguments(tool, setting, arguments))
        gate.check_taint(tool, allowed)
    except gate.Refused as refusal:
        raise ArgumentsRefused(str(refusal), rule=refusal.rule) from None


def _go_on(approval: Approval, call: ToolCall) -> None:
    """After a decision: the turn waits for what is left, with all of a turn's time before it; and it is told."""
    resuming.after_people(approval.turn_id)
    announcements.approval(announced.APPROVAL_DECIDED, approval)
    approval_notices.reword(approval)
    # Told before the work is notified of it, or an idle worker's "tool.started" comes first.
    for kind, data in [events.approval_decided(approval, call), *(events.tool_events(call) if call.ended else ())]:
        events.publish_after_commit(approval.turn_id, kind, data)
    if call.ended:
        doorbell.notify(TURNS, approval.turn_id)
    else:
        doorbell.notify(TOOLS, call.pk)
