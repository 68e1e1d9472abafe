"""Turns and messages as the API shows them: in camelCase, as nsbh-spec section 4 names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from conversations.errors import BY_OPERATOR, PASSING, TurnProblem
from conversations.models import Message, Turn
from conversations.statuses import TurnStatus
from nanohost.lib.errors import NotFound, Problem
from nanohost.lib.rest import PROBLEM_TYPE, problem
from nanohost.lib.statements import Given, Rows
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
            "usage": usage_of(turn.prompt_tokens, turn.completion_tokens),
            "error": _error_of(turn),
            "retry": _retry_of(turn),
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
        reply, calls = _replies_of([turn]).get(turn.pk), calls_of(turn.pk)
        usage = usage_of(turn.prompt_tokens, turn.completion_tokens)
        return Answer(status=200, body=succeeded(turn.conversation_id, turn.pk, reply=reply, calls=calls, usage=usage))
    error = TurnProblem(turn.error_code, _told_of(turn), turnId=str(turn.pk), conversationId=str(turn.conversation_id))
    return problem_answer(error, request_id)


def succeeded(
    conversation_id: UUID, turn_id: UUID, *, reply: str | None, calls: list[dict[str, str]], usage: dict[str, int]
) -> dict[str, Any]:
    """What a chat request is answered with whose turn has succeeded."""
    return {
        "conversationId": str(conversation_id),
        "turnId": str(turn_id),
        "assistantMessage": reply,
        "toolCalls": calls,
        "usage": usage,
    }


def calls_of(turn_id: UUID) -> list[dict[str, str]]:
    """The turn's tool calls."""
    return [_call(*row) for _, *row in _calls(turn_id=turn_id)]


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
    for turn_id, *row in rows.values_list(*_CALL):
        calls[turn_id].append(_call(*row))
    return calls


_CALL = ("turn_id", "tool_name", "status", "result")
_calls = Rows[Any](lambda: ToolCall.objects.filter(turn_id=Given("turn_id")).order_by("position").values_list(*_CALL))


def _call(name: str, status: str, result: str) -> dict[str, str]:
    return {"toolName": name, "status": status, "result": result}


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Tokens, as the API shows them."""
    return {
        "promptTokens": prompt_tokens,
        "completionTokens": completion_tokens,
        "totalTokens": prompt_tokens + completion_tokens,
    }


def _error_of(turn: Turn) -> dict[str, str] | None:
    if not turn.error_code:
        return None
    return {"code": turn.error_code, "message": TurnProblem(turn.error_code, _told_of(turn)).detail}


def _retry_of(turn: Turn) -> dict[str, Any] | None:
    """Of an open turn that has failed and is tried again: why, how often, and when. ``nextTryAt`` is null while it
    runs."""
    if turn.ended or not turn.retries:
        return None
    return {
        "code": turn.retry_code,
        "message": PASSING.get(turn.retry_code, PASSING["turn_error"]),
        "tries": turn.retries,
        "since": turn.retrying_since,
        "nextTryAt": turn.run_after,
    }


def _told_of(turn: Turn) -> str:
    """What its client is told besides what the code means: the detail is for people of the house, unless one of them
    wrote it for the client."""
    return turn.error_detail if turn.error_code == BY_OPERATOR else ""
