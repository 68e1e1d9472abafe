"""A response: a part of a turn, as the Responses API shows it. All but what it was asked with is the turn's own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from conversations.errors import TOLD, TurnProblem
from conversations.events import Success
from conversations.events.answers import Answer, problem_answer
from conversations.models import MAX_ANSWERS, CallerRound, Message, StoredResponse, Turn
from conversations.openai_api import ids
from conversations.openai_api.errors import ResponseNotFound
from conversations.openai_api.items import COMPLETED, FAILED, IN_PROGRESS, INCOMPLETE, Item, as_pairs, items_of
from conversations.openai_api.response_events import ResponseWire, Stretch
from conversations.openai_api.response_request import MCP_CALL, PAIRS
from conversations.openai_api.turn_parts import first_message, is_over
from conversations.statuses import TurnStatus
from nanohost.lib.openai_errors import PREFIX

QUEUED, CANCELLED = "queued", "cancelled"

# What is told of what was not asked for; strict clients want it all.
_DEFAULTS: dict[str, Any] = {
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "text": {"format": {"type": "text"}},
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": None,
}
# The codes of the API, which are few, for ours.
_CODES = {
    "llm_rate_limited": "rate_limit_exceeded",
    "llm_context_too_long": "invalid_prompt",
    "llm_content_filter": "invalid_prompt",
}
SERVER_ERROR = "server_error"


@dataclass(frozen=True, kw_only=True)
class ResponseView:
    """Renders a part of a turn as a response. ``asked``: what it was asked with. ``conversation``: the id of the one
    that stays. ``raises``: whether a turn without an answer is an error, as for who waits for it. ``starting_after``:
    of the last event that a reader has seen."""

    turn_id: UUID
    number: int
    asked: dict[str, Any]
    created: float
    previous_id: UUID | None = None
    conversation: str = ""
    is_background: bool = False
    is_stored: bool = True
    raises: bool = False
    starting_after: int | None = None
    last_number: int | None = None
    stretch: Stretch = field(default_factory=Stretch)

    @classmethod
    def of(cls, row: StoredResponse, **more: Any) -> "ResponseView":
        """That of a response that is kept; with its turn and conversation."""
        conversation = row.turn.conversation
        return cls(
            turn_id=row.turn_id,
            number=row.number,
            asked=row.asked,
            created=row.created_at.timestamp(),
            previous_id=row.previous_id,
            conversation="" if conversation.is_transient else ids.shown(ids.CONVERSATION, conversation.pk),
            is_background=row.is_background,
            last_number=row.last_sequence_number,
            **more,
        )

    @property
    def id(self) -> UUID:
        return StoredResponse.id_of(self.turn_id, self.number)

    @property
    def has_pairs(self) -> bool:
        """Whether calls of the host's tools are shown as calls of functions, each with its output."""
        return bool(self.asked.get("metadata", {}).get("tool_items", MCP_CALL) == PAIRS)

    # --- what the gateway asks for --------------------------------------------------------------------------------

    def is_answered(self, turn: Turn) -> bool:
        return is_over(turn, self.number)

    def current(self, turn_id: UUID, *, request_id: str) -> Answer | None:
        turn = Turn.objects.filter(pk=turn_id).first()
        if turn is None:
            return problem_answer(ResponseNotFound("The response was deleted."), request_id, path=PREFIX)
        if not self.is_answered(turn):
            return None
        body = self.body(turn)
        if self.raises and body["status"] in (FAILED, CANCELLED):
            return problem_answer(_problem_of(turn), request_id, path=PREFIX)
        return Answer(status=200, body=body)

    def succeeded(self, success: Success) -> Answer | None:
        return None  # its items are in the rows

    def wire(self) -> ResponseWire:
        return ResponseWire(
            head=self.shown(QUEUED if self.is_background and not self.number else IN_PROGRESS),
            row_id=self.id,
            turn_id=self.turn_id,
            stretch=self.stretch,
            has_pairs=self.has_pairs,
            starting_after=self.starting_after,
            last_number=self.last_number,
        )

    # --- how it looks ---------------------------------------------------------------------------------------------

    def shown(self, status: str, output: Sequence[Item] = (), **more: Any) -> dict[str, Any]:
        """A response that stands so."""
        told = {name: value for name, value in self.asked.items() if name in _DEFAULTS or name == "model"}
        return {
            "id": ids.shown(ids.RESPONSE, self.id),
            "object": "response",
            "created_at": int(self.created),
            "completed_at": None,
            "status": status,
            "background": self.is_background,
            "store": self.is_stored,
            "error": None,
            "incomplete_details": None,
            "previous_response_id": ids.shown(ids.RESPONSE, self.previous_id) if self.previous_id else None,
            "conversation": {"id": self.conversation} if self.conversation else None,
            **_DEFAULTS,
            **told,
            "output": list(output),
            "usage": None,
            **more,
        }

    def body(self, turn: Turn) -> dict[str, Any]:
        """As it stands now."""
        rounds = list(CallerRound.objects.filter(turn=turn, number__in=(self.number - 1, self.number)))
        before = next((each for each in rounds if each.number == self.number - 1), None)
        asks = next((each for each in rounds if each.number == self.number), None)
        said = list(answers_of(turn, self.number, asks))
        output = items_of(said, without_callers=asks is None)
        if self.has_pairs:
            output = as_pairs(output)
        if asks is None and not turn.ended:
            is_queued = turn.status == TurnStatus.QUEUED and not self.number
            return self.shown(QUEUED if is_queued else IN_PROGRESS, output)
        ended_at = asks.created_at if asks else turn.ended_at
        used = usage_of(asks or turn, before, said)
        more: dict[str, Any] = {"completed_at": int(ended_at.timestamp()) if ended_at else None, "usage": used}
        if asks is None and turn.status != TurnStatus.SUCCEEDED:
            return self._unanswered(turn, output, more)
        if asks is None and said and (said[-1].usage or {}).get("cut"):
            reason = {"reason": "max_output_tokens"}
            return self.shown(INCOMPLETE, output, incomplete_details=reason, **more)
        return self.shown(COMPLETED, output, **more)

    def _unanswered(self, turn: Turn, output: list[Item], more: dict[str, Any]) -> dict[str, Any]:
        more["completed_at"] = None
        if turn.status == TurnStatus.CANCELLED:
            return self.shown(CANCELLED, output, **more)
        detail = f"{_problem_of(turn).detail} ({turn.error_code})"
        return self.shown(
            FAILED, output, error={"code": _CODES.get(turn.error_code, SERVER_ERROR), "message": detail}, **more
        )


def _problem_of(turn: Turn) -> TurnProblem:
    told = turn.error_detail if turn.error_code in TOLD else ""
    return TurnProblem(turn.error_code, told, turnId=str(turn.pk))


def answers_of(turn: Turn, number: int, asks: CallerRound | None) -> QuerySet[Message]:
    """The answers of a model that are a part of a turn, as far as they are stored."""
    first, last = first_message(turn, number), asks.messages if asks else MAX_ANSWERS
    own = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT, seq__isnull=False)
    return own.filter(pk__gte=Message.id_in(turn.pk, first), pk__lt=Message.id_in(turn.pk, last)).order_by("seq")


def stretch_of(turn: Turn, number: int) -> Stretch:
    """Which of a turn's events tell of a part; and, of one that is over, where they end."""
    asks = CallerRound.objects.filter(turn=turn, number=number).first()
    first = first_message(turn, number)
    said = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT, seq__isnull=False, tool_calls__isnull=False)
    before = said.filter(pk__lt=Message.id_in(turn.pk, first), pk__gt=turn.pk)
    behind = said.filter(pk__gte=Message.id_in(turn.pk, asks.messages)) if asks else said.none()
    calls = {call["id"] for each in (*before, *behind) for call in each.tool_calls or ()}
    return Stretch(first=first, last=asks.messages if asks else None, others=frozenset(calls))


def usage_of(at_its_end: Turn | CallerRound, before: CallerRound | None, said: Sequence[Message]) -> dict[str, Any]:
    """Tokens of all that was asked of models for a part."""

    prompt, completion, cached = _counted(at_its_end)
    if before:
        earlier = _counted(before)
        prompt, completion, cached = prompt - earlier[0], completion - earlier[1], cached - earlier[2]
    written = sum((each.usage or {}).get("written", 0) for each in said)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": completion,
        # Providers that tell them count them in.
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }


def _counted(row: Turn | CallerRound) -> tuple[int, int, int]:
    return row.prompt_tokens, row.completion_tokens, row.cached_tokens
