"""Turns and messages as the API shows them: in camelCase, as nsbh-spec section 4 names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from conversations.errors import TurnProblem
from conversations.models import Message, Turn, TurnStatus
from nanohost.lib.errors import NotFound, Problem
from nanohost.lib.rest import PROBLEM_TYPE, problem
from tools.models import ToolCall


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a request is answered with: a status, a JSON body and its media type, and headers of its own."""

    status: int
    body: dict[str, Any]
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


def turns_as_json(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Turns as ``GET /turns/{id}`` shows them."""
    replies, calls = _replies_of(turns), _calls_of(turns)
    return [
        {
            "turnId": str(turn.pk),
            "conversationId": str(turn.conversation_id),
            "status": turn.status,
            "assistantMessage": replies.get(turn.pk),
            "toolCalls": calls[turn.pk],
            "usage": _usage_of(turn),
            "error": _error_of(turn),
            "createdAt": turn.created_at,
            "startedAt": turn.started_at,
            "endedAt": turn.ended_at,
        }
        for turn in turns
    ]


def accepted(turn: Turn) -> Answer:
    """What a request is answered with whose turn is not done."""
    return Answer(
        status=202,
        body={"turnId": str(turn.pk), "conversationId": str(turn.conversation_id), "status": turn.status},
        headers={"Location": f"/api/v1/turns/{turn.pk}"},
    )


def chat_answer(turn_id: UUID, *, request_id: str) -> Answer:
    """What the chat request that made the turn is answered with, as things stand now."""
    turn = Turn.objects.filter(pk=turn_id).first()
    if turn is None:  # its conversation was deleted while it was waited for
        return problem_answer(NotFound(), request_id)
    if not turn.ended:
        return accepted(turn)
    if turn.status == TurnStatus.SUCCEEDED:
        body = {
            "conversationId": str(turn.conversation_id),
            "turnId": str(turn.pk),
            "assistantMessage": _replies_of([turn]).get(turn.pk),
            "toolCalls": _calls_of([turn])[turn.pk],
            "usage": _usage_of(turn),
        }
        return Answer(status=200, body=body)
    error = TurnProblem(turn.error_code, turnId=str(turn.pk), conversationId=str(turn.conversation_id))
    return problem_answer(error, request_id)


def problem_answer(error: Problem, request_id: str) -> Answer:
    """A problem as an answer."""
    return Answer(
        status=error.status, body=problem(error, request_id), content_type=PROBLEM_TYPE, headers=error.headers
    )


def _replies_of(turns: Sequence[Turn]) -> dict[UUID | None, str]:
    succeeded = [turn.pk for turn in turns if turn.status == TurnStatus.SUCCEEDED]
    spoken = Message.objects.filter(turn__in=succeeded, role=Message.Role.ASSISTANT, tool_calls__isnull=True)
    return dict(spoken.order_by("seq").values_list("turn_id", "content"))


def _calls_of(turns: Sequence[Turn]) -> dict[UUID, list[dict[str, str]]]:
    calls: dict[UUID, list[dict[str, str]]] = {turn.pk: [] for turn in turns}
    rows = ToolCall.objects.filter(turn_id__in=calls).order_by("position")
    for turn_id, name, status, result in rows.values_list("turn_id", "tool_name", "status", "result"):
        calls[turn_id].append({"toolName": name, "status": status, "result": result})
    return calls


def _usage_of(turn: Turn) -> dict[str, int]:
    return {
        "promptTokens": turn.prompt_tokens,
        "completionTokens": turn.completion_tokens,
        "totalTokens": turn.prompt_tokens + turn.completion_tokens,
    }


def _error_of(turn: Turn) -> dict[str, str] | None:
    if not turn.error_code:
        return None
    return {"code": turn.error_code, "message": TurnProblem(turn.error_code).detail}
