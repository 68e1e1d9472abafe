"""What webhooks can be told of: the kinds of events, each with what it means.

A kind that is added here can be chosen in the console; whoever decides on it calls
:func:`conversations.engine.announcements.announce`.
"""

from collections.abc import Mapping

from conversations.statuses import FINAL, TURN_STATUSES, TurnStatus

# By the status that a turn has ended with.
TURN_ENDED: Mapping[str, str] = {status.value: f"turn.{status.value}" for status in FINAL}
# Of responses in the background, as OpenAI names them.
RESPONSE_COMPLETED, RESPONSE_INCOMPLETE = "response.completed", "response.incomplete"
RESPONSE_ENDED: Mapping[str, str] = {
    TurnStatus.SUCCEEDED: RESPONSE_COMPLETED,
    TurnStatus.FAILED: "response.failed",
    TurnStatus.CANCELLED: "response.cancelled",
}
RESPONSES = frozenset({*RESPONSE_ENDED.values(), RESPONSE_INCOMPLETE})
SCHEDULE_FAILED = "schedule.failed"
# Streams have events of these names as well, with data of their own.
APPROVAL_REQUESTED, APPROVAL_DECIDED = (f"approval.{what}" for what in ("requested", "decided"))
BUDGET_WARNING, BUDGET_EXCEEDED = "budget.warning", "budget.exceeded"
AUDIT_HEAD = "audit.head"

# What an endpoint may choose.
KINDS: Mapping[str, str] = {
    **{kind: f"A turn has ended as {TURN_STATUSES[status].label}." for status, kind in TURN_ENDED.items()},
    **{kind: f"A response in the background has ended as {kind.partition('.')[2]}." for kind in sorted(RESPONSES)},
    SCHEDULE_FAILED: "A schedule's run has failed, for good.",
    APPROVAL_REQUESTED: "A call of a tool waits for consent.",
    APPROVAL_DECIDED: "Such a call was decided on.",
    BUDGET_WARNING: "Most of a budget is spent.",
    BUDGET_EXCEEDED: "A budget is spent.",
    AUDIT_HEAD: "How far the audit log has come, once a minute at most: keep it elsewhere.",
}

# What an endpoint is sent that somebody tries.
TEST = "webhook.test"
