"""What webhooks and e-mails are sent of turns and approvals: facts and ids, by the names that the API has for them; no
contents, no secrets."""

from typing import Any

from conversations.models import Turn
from tools.models import Approval


def of_turn(turn: Turn, status: str, *, error_code: str = "") -> dict[str, Any]:
    """Of a turn that ends with this status. ``error_code``: unless its row has it."""
    return {
        "turnId": str(turn.pk),
        "conversationId": str(turn.conversation_id),
        "ownerId": turn.owner_id,
        "agent": turn.conversation.agent.name,
        "model": turn.model,
        "status": status,
        "errorCode": error_code or turn.error_code or None,
        "promptTokens": turn.prompt_tokens,
        "completionTokens": turn.completion_tokens,
        "requestId": turn.request_id,
    }


def of_approval(approval: Approval) -> dict[str, Any]:
    """Of a call that waits for consent, or on which was decided."""
    return {
        "approvalId": str(approval.pk),
        "turnId": str(approval.turn_id),
        "conversationId": str(approval.conversation_id),
        "ownerId": approval.owner_id,
        "agent": approval.agent,
        "toolName": approval.tool_name,
        "rule": approval.rule,
        "state": str(approval.state),
        "decidedBy": approval.decided_by or None,
        "expiresAt": approval.expires_at.isoformat(),
        "requestId": approval.request_id,
    }
