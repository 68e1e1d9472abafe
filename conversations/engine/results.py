"""What has become of a turn's tool calls, as the messages that answer them in the transcript."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Case, Exists, F, OuterRef, Subquery, TextField, Value, When

from agent.history import INTERRUPTED
from agent.loop import ChatMessage
from conversations.models import Message, Turn
from conversations.statuses import TurnStatus
from nanohost.lib.statements import Given, Rows
from tools import approvals
from tools.models import OPEN_CALL, ToolCall

# What was approved with other arguments than the model asked for: those.
_changed_to = Case(When(consent=approvals.CHANGED, then=F("arguments")), default=Value(""), output_field=TextField())
_results = Rows[Any](
    lambda: ToolCall.objects.filter(turn_id=Given("turn_id")).values_list(
        "call_id", "result", "tainted_by", _changed_to
    )
)


def _unanswered() -> Any:
    """Calls that the transcript does not answer; with the fence of their turn if it waits for them.

    It has no fence here if it was claimed since, is to be cancelled, or has cost a worker: whoever holds it then looks
    itself at what is to be answered.
    """
    waiting = Turn.objects.filter(
        pk=Given("turn_id"),
        status=TurnStatus.WAITING,
        cancel_requested=False,
        attempts=0,
        stepped_at__lte=OuterRef("created_at"),
    )
    answers = Message.objects.filter(
        conversation_id=OuterRef("conversation_id"), turn_id=OuterRef("turn_id"), tool_call_id=OuterRef("call_id")
    )
    calls = ToolCall.objects.filter(~Exists(answers), turn_id=Given("turn_id")).order_by("position")
    return calls.values_list(
        *("conversation_id", Subquery(waiting.values("fence")), "status"),
        *("call_id", "tool_name", "result", "tainted_by", _changed_to),
    )


_to_answer = Rows[Any](_unanswered)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the transcript of a turn that waits still lacks: the ``messages`` that answer its calls, and from where
    untrusted text in each came, as its ``marks``. They were read while the turn had this ``fence``."""

    conversation_id: UUID
    fence: int
    messages: list[ChatMessage]
    marks: list[str]


def answers_of(turn_id: UUID) -> Answers | None:
    """The answers to the calls that a turn has waited for, to be stored with its claim. None if there are none, or not
    all of them are to be stored now: then :func:`conversations.engine.steps.store_results` does so."""
    rows = [row for row in _to_answer(turn_id=turn_id) if row[1] is not None]
    if not rows or any(status in OPEN_CALL for _, _, status, *_ in rows):
        return None
    conversation_id, fence, *_ = rows[0]
    messages = [_answer(call_id, name, _told(result, other)) for *_, call_id, name, result, _, other in rows]
    marks = [marked for *_, marked, _ in rows]
    return Answers(conversation_id=conversation_id, fence=fence, messages=messages, marks=marks)


def results_of(turn_id: UUID, unanswered: Sequence[dict[str, Any]]) -> tuple[list[ChatMessage], list[str]]:
    """The outcomes of these calls as messages; and of each, from where untrusted text in it came."""
    results = {call_id: (_told(result, other), marked) for call_id, result, marked, other in _results(turn_id=turn_id)}
    found = [results.get(call["id"], (INTERRUPTED, "")) for call in unanswered]
    messages = [
        _answer(call["id"], call["function"]["name"], result)
        for call, (result, _) in zip(unanswered, found, strict=True)
    ]
    return messages, [marked for _, marked in found]


def ids_of_calls(turn_id: UUID) -> set[str]:
    """The ids that a turn's calls have, as the model knows them."""
    return {call_id for call_id, *_ in _results(turn_id=turn_id)}


def _told(result: str, other: str) -> str:
    return f"[A person has approved this call with other arguments: {other}]\n{result}" if other else result


def _answer(call_id: str, name: str, content: str) -> ChatMessage:
    return {"role": "tool", "tool_call_id": call_id, "name": name[:128], "content": content}
