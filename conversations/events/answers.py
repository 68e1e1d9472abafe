"""Turns as ``/api/v1`` shows them: in camelCase, as nsbh-spec section 4 names them. This module is its renderer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from django.conf import settings
from django.http import JsonResponse

from agent.spending.money import as_money
from conversations.errors import PASSING, TOLD, TurnProblem
from conversations.events import Success
from conversations.events.wire import EventWire, Wire
from conversations.models import Message, Turn
from conversations.statuses import TurnStatus
from nanohost.lib.errors import NotFound, Problem
from nanohost.lib.rest import as_told
from tools import calls
from tools.models import ToolCall


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a request is answered with: a status, a JSON body and its media type, and headers of its own."""

    status: int
    body: dict[str, Any]
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


def as_response(answer: Answer, headers: dict[str, str] | None = None) -> JsonResponse:
    """The same as Django's response."""
    return JsonResponse(
        answer.body,
        status=answer.status,
        content_type=answer.content_type,
        headers={**answer.headers, **(headers or {})},
        json_dumps_params={"ensure_ascii": False, "separators": (",", ":")},  # as the gateway writes it
    )


class Renderer(Protocol):
    """How an API shows a turn that a client waits for; a view hands it to the response gateway."""

    def is_answered(self, turn: Turn) -> bool:
        """Whether there is all that the request is to be answered with: for most that is a turn that has ended."""

    def current(self, turn_id: UUID, *, request_id: str) -> Answer | None:
        """What the request that made the turn is answered with, as things stand now; read from its rows. None: it has
        to wait on."""

    def succeeded(self, success: Success) -> Answer | None:
        """What it is answered with whose turn has succeeded; None: its rows have to be read for that."""

    def wire(self) -> Wire:
        """What writes the turn's events to one reader."""


def is_answered(turn: Turn) -> bool:
    """Whether there is all that the request is to be answered with."""
    return turn.ended


def wire() -> Wire:
    """What writes the turn's events to one reader."""
    return EventWire()


def turns_as_json(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Turns as ``GET /turns/{id}`` shows them."""
    replies, called = _replies_of(turns), _calls_of(turns)
    return [
        {
            "turnId": str(turn.pk),
            "conversationId": str(turn.conversation_id),
            "status": turn.status,
            "assistantMessage": replies.get(turn.pk),
            "toolCalls": called[turn.pk],
            "usage": usage_of(turn.prompt_tokens, turn.completion_tokens, turn.cached_tokens, turn.cost),
            "error": _error_of(turn),
            "retry": _retry_of(turn),
            "model": turn.model,
            "fallback": _fallback_of(turn),
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


def current(turn_id: UUID, *, request_id: str) -> Answer:
    """What the chat request that made the turn is answered with, as things stand now."""
    turn = Turn.objects.filter(pk=turn_id).first()
    if turn is None:  # its conversation was deleted while it was waited for
        return problem_answer(NotFound(), request_id)
    if not turn.ended:
        return accepted(turn)
    if turn.status == TurnStatus.SUCCEEDED:
        return succeeded(success_of(turn, reply=_replies_of([turn]).get(turn.pk)))
    error = TurnProblem(turn.error_code, _told_of(turn), turnId=str(turn.pk), conversationId=str(turn.conversation_id))
    return problem_answer(error, request_id)


def succeeded(success: Success) -> Answer:
    """What a chat request is answered with whose turn has succeeded."""
    body = {
        "conversationId": success["conversation_id"],
        "turnId": success["turn_id"],
        "assistantMessage": success["reply"],
        "toolCalls": [_call(*each) for each in success["calls"]],
        "usage": usage_of(
            success["prompt_tokens"],
            success["completion_tokens"],
            success.get("cached_tokens", 0),
            success.get("cost"),
        ),
    }
    return Answer(status=200, body=body)


def success_of(turn: Turn, *, reply: str | None) -> Success:
    """How a turn has succeeded, from its rows."""
    return Success(
        conversation_id=str(turn.conversation_id),
        turn_id=str(turn.pk),
        reply=reply,
        calls=calls.outcomes(turn.pk),
        prompt_tokens=turn.prompt_tokens,
        completion_tokens=turn.completion_tokens,
        cached_tokens=turn.cached_tokens,
        cost=turn.cost,
    )


def problem_answer(error: Problem, request_id: str, *, path: str = "") -> Answer:
    """A problem as an answer. ``path``: the address that was asked, which tells of which API it is."""
    told = as_told(error, path=path, request_id=request_id)
    return Answer(status=error.status, body=told.body, content_type=told.content_type, headers=told.headers)


def _replies_of(turns: Sequence[Turn]) -> dict[UUID | None, str]:
    succeeded = [turn.pk for turn in turns if turn.status == TurnStatus.SUCCEEDED]
    spoken = Message.objects.filter(turn__in=succeeded, role=Message.Role.ASSISTANT, tool_calls__isnull=True)
    return dict(spoken.order_by("seq").values_list("turn_id", "content"))


def _calls_of(turns: Sequence[Turn]) -> dict[UUID, list[dict[str, str]]]:
    called: dict[UUID, list[dict[str, str]]] = {turn.pk: [] for turn in turns}
    rows = ToolCall.objects.filter(turn_id__in=called).order_by("position")
    for turn_id, *row in rows.values_list("turn_id", "tool_name", "status", "result"):
        called[turn_id].append(_call(*row))
    return called


def _call(name: str, status: str, result: str) -> dict[str, str]:
    return {"toolName": name, "status": status, "result": result}


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int, cost: int | None) -> dict[str, Any]:
    """Tokens and what they cost, as the API shows them."""
    return {
        "promptTokens": prompt_tokens,
        "completionTokens": completion_tokens,
        "totalTokens": prompt_tokens + completion_tokens,
        "cachedTokens": cached_tokens,
        "cost": as_money(cost),
        "currency": settings.CURRENCY,
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


def _fallback_of(turn: Turn) -> dict[str, str] | None:
    """The model that is asked, or has answered, in place of the turn's, and what that has failed with."""
    if not turn.fallback_model:
        return None
    return {"model": turn.fallback_model, "reason": turn.fallback_reason}


def _told_of(turn: Turn) -> str:
    """What its client is told besides what the code means."""
    return turn.error_detail if turn.error_code in TOLD else ""
