"""Consent to calls: asked for with the call, decided by people, bound to the arguments by their hash.

A call that needs consent is WAITING, and nothing runs it. Its approval is decided once, in a transaction that also
queues the call or ends it. When the call starts, the gate looks at the approval again: what runs is what was approved.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.conf import settings

from nanohost.accounts import audit
from nanohost.lib import clock
from nanohost.lib.clock import Now, from_now
from nanohost.lib.redaction import MASK, redact_head, redact_json
from nanohost.lib.text import storable
from tools import calls
from tools.calls import Outcome
from tools.errors import AlreadyDecided, ArgumentsRefused, OwnConversation
from tools.models import Approval, ApprovalState, ApprovalVote, CallStatus, ToolCall

Decision = Literal["approve", "deny"]
APPROVE: Literal["approve"] = "approve"
DENY: Literal["deny"] = "deny"

# The rules by which calls without consent end.
DENIED, EXPIRED, MISSING, CHANGED = "consent:denied", "consent:expired", "consent:missing", "consent:changed"

ENDED = "Its call has ended meanwhile; nothing was changed."

MAX_REASON = 500

# The permission of those who decide on everybody's.
DECIDERS = "tools.decide_approval"

_CLOSED = ("state", "decided_by", "decided_at", "approved_hash", "reason", "proposed", "private_proposed")


@dataclass(frozen=True, kw_only=True)
class Voter:
    """Somebody who decides: a user's id and name."""

    pk: int
    name: str


def hash_of(arguments: str) -> str:
    """By which arguments are known: SHA-256, hexadecimal."""
    return hashlib.sha256(arguments.encode()).hexdigest()


def request(call: ToolCall, *, four_eyes: bool) -> Approval:
    """Ask for consent to a call that is stored in this transaction."""
    approval = Approval.objects.create(
        call_id=call.pk,
        conversation_id=call.conversation_id,
        turn_id=call.turn_id,
        owner_id=call.owner_id,
        agent=call.agent,
        tool_name=call.tool_name,
        rule=call.consent,
        request_id=call.request_id,
        arguments=call.arguments,
        arguments_hash=call.arguments_hash,
        four_eyes=four_eyes,
        expires_at=from_now(settings.APPROVAL_EXPIRY_SECONDS),
    )
    approval.refresh_from_db(fields=["requested_at", "expires_at"])  # by the database's clock
    said = {"turn": str(call.turn_id), "rule": call.consent, "argumentsHash": call.arguments_hash}
    by = f"agent {call.agent}"
    audit.record("consent.requested", about=approval, after=said, by=by, request_id=call.request_id)
    return approval


def standing(call: ToolCall) -> str:
    """Whether a call may run by what was decided: "" if so, or the rule that says no."""
    approval = Approval.objects.filter(call_id=call.pk, state=ApprovalState.APPROVED).first()
    if approval is None:
        return MISSING
    return "" if approval.approved_hash == hash_of(call.whole_arguments) else CHANGED


def wanted_hash(approval: Approval) -> str:
    """Of the arguments that would be approved now."""
    if approval.approved_hash or not approval.proposed:
        return approval.approved_hash or approval.arguments_hash
    return hash_of(approval.private_proposed or approval.proposed)


def locked(approval_id: UUID) -> Approval:
    """The approval, locked until the end of the transaction; raises ``Approval.DoesNotExist``."""
    return Approval.objects.select_for_update().get(pk=approval_id)


def check_decidable(approval: Approval, by: Voter) -> None:
    """Raise :class:`AlreadyDecided` if there is nothing left to decide, and :class:`OwnConversation` for whoever may
    not, since two strangers have to."""
    if approval.state != ApprovalState.PENDING:
        by_whom = f" by {approval.decided_by}" if approval.decided_by else ""
        raise AlreadyDecided(f"This was {approval.state}{by_whom} already; nothing was changed.")
    if approval.four_eyes and by.pk == approval.owner_id:
        raise OwnConversation


def is_repeat(approval: Approval, by: Voter, decision: Decision, arguments: str | None) -> bool:
    """Whether it was decided so, by them, before: an answer may have been lost on its way."""
    if approval.decided_by != by.name:
        return False
    if decision == DENY:
        return approval.state == ApprovalState.DENIED
    is_same = arguments is None or hash_of(arguments) == approval.approved_hash
    return approval.state == ApprovalState.APPROVED and is_same


def approve(approval: Approval, by: Voter, *, arguments: str | None, seen: str, reason: str) -> bool:
    """Approve a locked, pending one; True if its call is queued now, False while somebody else has to approve as well.

    ``arguments``: others than those that the model asked for; the gate has looked at them. They are what the next one
    approves, and an approval of what was proposed before no longer counts. ``seen``: the hash of those that were looked
    at, if it is known; nobody approves what somebody else has just proposed instead, nor unseen what somebody else has.
    """
    if seen and seen != wanted_hash(approval):
        raise AlreadyDecided(
            "Somebody has changed the arguments in the meantime: read them again. Nothing was decided."
        )
    call = ToolCall.objects.select_for_update().filter(pk=approval.call_id, status=CallStatus.WAITING).first()
    if call is None:
        raise AlreadyDecided(ENDED)
    if approval.proposed and arguments is None and not seen:
        raise AlreadyDecided(
            "Somebody would approve other arguments: look at them, and say by argumentsHash that you approve those."
            " Nothing was decided."
        )
    if arguments is not None:
        if MASK in arguments and MASK not in call.whole_arguments:
            raise ArgumentsRefused(
                f"The arguments hold {MASK}, which stands for a secret: approve them unchanged, or enter it again."
            )
        _propose(approval, arguments)
    wanted = approval.private_proposed or approval.proposed or call.whole_arguments
    chosen = hash_of(wanted)
    approval.votes.exclude(arguments_hash=chosen).delete()
    ApprovalVote.objects.get_or_create(
        approval=approval, voter_id=by.pk, defaults={"voter": by.name, "arguments_hash": chosen}
    )
    if approval.votes.count() < approval.voters_needed:
        approval.save(update_fields=["proposed", "private_proposed"])
        said = {"argumentsHash": chosen, "of": approval.voters_needed}
        audit.record("consent.seconded", about=approval, after=said, reason=reason)
        return False
    changed = chosen != approval.arguments_hash
    new = {"arguments": redact_json(wanted), "arguments_hash": chosen, "consent": CHANGED} if changed else {}
    if new:
        new["private_arguments"] = wanted if new["arguments"] != wanted else ""
    queued = ToolCall.objects.filter(pk=call.pk, status=CallStatus.WAITING)
    if queued.update(status=CallStatus.QUEUED, notified_at=Now(), **new) != 1:
        raise AlreadyDecided(ENDED)
    _close(approval, ApprovalState.APPROVED, by=by.name, reason=reason, approved_hash=chosen)
    return True


def _propose(approval: Approval, arguments: str) -> None:
    approval.proposed = redact_json(arguments)
    approval.private_proposed = arguments if approval.proposed != arguments else ""


def deny(approval: Approval, *, by: str, reason: str) -> ToolCall:
    """Deny a locked, pending one: its call is refused, and the model is told why."""
    reason = redact_head(reason, MAX_REASON)
    said = f"{by} has denied this call." + (f" The reason: {reason}" if reason else "")
    return _refuse(approval, ApprovalState.DENIED, DENIED, said, by=by, reason=reason)


def expire(approval: Approval) -> ToolCall:
    """Deny a locked, pending one that nobody has decided in time."""
    said = "This call was not approved in time, so it was denied."
    return _refuse(approval, ApprovalState.EXPIRED, EXPIRED, said, by="", reason="")


def _refuse(approval: Approval, state: ApprovalState, rule: str, message: str, *, by: str, reason: str) -> ToolCall:
    result = json.dumps({"status": "REJECTED", "rule": rule, "message": message}, ensure_ascii=False)
    refused = Outcome(status=CallStatus.REJECTED, result=storable(result), rule=rule)
    call = calls.end_waiting(approval.call_id, refused)
    if call is None:
        raise AlreadyDecided(ENDED)
    _close(approval, state, by=by, reason=reason)
    return call


def _close(approval: Approval, state: ApprovalState, *, by: str, reason: str, approved_hash: str = "") -> None:
    approval.state, approval.decided_by, approval.approved_hash = state, by[:200], approved_hash
    approval.reason = redact_head(reason, MAX_REASON)
    approval.private_proposed = ""
    approval.decided_at = clock.read()
    approval.save(update_fields=_CLOSED)  # it is locked
    said = {"state": str(state), "argumentsHash": approved_hash or approval.arguments_hash}
    audit.record("consent.decided", about=approval, after=said, reason=approval.reason)
