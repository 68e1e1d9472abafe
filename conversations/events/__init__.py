"""Events: what happens in a turn, published to its subscribers while it happens. The rows are the truth.

Workers, toolboxes and web nodes publish; a web node's :class:`~conversations.events.hub.Hub` follows, for all who wait
there. A transport carries the events: within the process, or over Redis. It may drop some: whoever waits looks at the
rows as well, and whoever reads is told the whole answer at the end. Publishing never waits and never fails.

What kinds there are, and their data: :mod:`conversations.events.kinds`.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NotRequired, Protocol, TypedDict
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

from conversations.events.kinds import DELTAS, EventKind
from conversations.question_models import Question
from tools.models import Approval, CallStatus, ToolCall
from tools.registry import ORIGIN


class Success(TypedDict):
    """How a turn has succeeded, as it is told with its end: what each API makes its answer of. ``calls``: of each tool
    call its tool, its status and its result."""

    conversation_id: str
    turn_id: str
    reply: str | None
    calls: list[tuple[str, str, str]]
    prompt_tokens: int
    completion_tokens: int
    # Workers of the release before do not tell these.
    cached_tokens: NotRequired[int]
    cost: NotRequired[int | None]
    # How often it has asked its caller to run tools, and whether its answer ends where it had no more tokens.
    rounds: NotRequired[int]
    is_cut: NotRequired[bool]


# The tool by which an agent says something in mid-turn.
SAYING_TOOL = "message"
# And the one by which it asks somebody.
ASKING_TOOL = "ask"

# A turn's events that are kept for readers who come late or come back; its rows tell what is older.
MAX_KEPT = 10_000
KEPT_SECONDS = 300

_ID = re.compile("[0-9]{1,20}-[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``id`` is ``<n>-<m>``, growing within its turn. ``kind``: an :class:`EventKind`, or one
    that a newer version has published, which is passed on."""

    id: str
    kind: str
    data: dict[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """Its place among those of its turn."""
        return place_of(self.id)


def place_of(event_id: str) -> tuple[int, int]:
    """The place an id stands for; raises ValueError for what is no id."""
    if not _ID.fullmatch(event_id):
        raise ValueError("no id of an event")
    first, second = event_id.split("-")
    return int(first), int(second)


class Subscriber(Protocol):
    """A subscriber to events, called on the event loop that it was attached on."""

    def on_event(self, turn_id: UUID, event: Event) -> None:
        """Something happened in a turn that was subscribed to."""

    def ended(self, turn_id: UUID, success: Success | None) -> None:
        """A turn ended, any turn; how it has succeeded, if that was told."""

    def missed_some(self) -> None:
        """Events may have been lost until now."""


class Transport(Protocol):
    """Carries events between processes, or within one."""

    def publish(self, turn_id: UUID, kind: EventKind, data: dict[str, Any], *, fence: int | None) -> None:
        """Publish an event, from any thread. One with a fence below the latest that the turn was told of is dropped:
        it comes from a worker that has lost the turn. The first piece of a message that another fence had begun is
        preceded by its reset."""

    def publish_end(self, turn_id: UUID, success: Success | None) -> None:
        """Publish that a turn has ended, from any thread, and how it succeeded, if that is known."""

    def flush(self, *, timeout: float) -> None:
        """Return once what was published was sent, or after so many seconds."""

    async def attach(self, subscriber: Subscriber) -> None:
        """Attach a subscriber, on the running event loop."""

    async def subscribe(self, turn_id: UUID) -> Sequence[Event]:
        """Tell the subscriber of this turn's events from now on; returns those that are kept. Raises OSError."""

    async def unsubscribe(self, turn_id: UUID) -> None:
        """No longer."""

    async def detach(self) -> None:
        """Detach the subscriber."""

    def is_deaf(self) -> bool:
        """Whether the subscriber, if there is one, is told nothing although things may happen. From any thread."""


@cache
def transport() -> Transport:
    """The process's transport."""
    made: Transport = import_string(settings.EVENTS_TRANSPORT)()
    return made


def publish(turn_id: UUID, kind: EventKind, data: dict[str, Any] | None = None, *, fence: int | None = None) -> None:
    """Publish an event at once; ``fence`` is the publisher's hold on the turn, if it has one."""
    transport().publish(turn_id, kind, data or {}, fence=fence)


def publish_after_commit(turn_id: UUID, kind: EventKind, data: dict[str, Any], *, fence: int | None = None) -> None:
    """Publish an event once the current transaction has committed."""
    transaction.on_commit(partial(publish, turn_id, kind, data, fence=fence))


def publish_end_after_commit(turn_id: UUID, success: Success | None = None) -> None:
    """Publish that a turn has ended, or waits for its caller, once the current transaction has committed."""
    transaction.on_commit(lambda: transport().publish_end(turn_id, success))


def _named(call: ToolCall) -> dict[str, Any]:
    return {"callId": call.call_id, "toolName": call.tool_name, "toolCallId": str(call.pk)}


def tool_output(call: ToolCall, offset: int, text: str) -> dict[str, Any]:
    """A piece of what a call's program writes, as the data of an event."""
    return _named(call) | {"offset": offset, "text": text}


def tool_events(call: ToolCall) -> list[tuple[EventKind, dict[str, Any]]]:
    """The events of a call so far."""
    named = _named(call)
    asked = {"arguments": call.arguments}
    events: list[tuple[EventKind, dict[str, Any]]] = []
    if call.started_at:  # those that the gate refused were not
        events.append((EventKind.TOOL_STARTED, named | asked))
        asked = {}
    if call.ended:
        events.append((EventKind.TOOL_FINISHED, named | asked | {"status": call.status, "result": call.result}))
    if said := _said_by(call):
        events.append((EventKind.MESSAGE_SAID, named | said))
    return events


def _said_by(call: ToolCall) -> dict[str, str] | None:
    """What a call has said in mid-turn, and where; its arguments are what is kept of that, for as long as they are."""
    if call.tool_name != SAYING_TOOL or call.status != CallStatus.SUCCESS or call.erased_at:
        return None
    given = json.loads(call.arguments)
    return {"destination": given.get("destination", ORIGIN), "text": given["content"]}


def approval_requested(approval: Approval, call: ToolCall) -> tuple[EventKind, dict[str, Any]]:
    """A call that waits for approval, as an event."""
    more = {"rule": approval.rule, "arguments": approval.arguments, "expiresAt": approval.expires_at.isoformat()}
    return EventKind.APPROVAL_REQUESTED, _of_approval(approval, call) | more


def approval_decided(approval: Approval, call: ToolCall) -> tuple[EventKind, dict[str, Any]]:
    """A decision on an approval, as an event."""
    return EventKind.APPROVAL_DECIDED, _of_approval(approval, call) | {
        "state": str(approval.state),
        "reason": approval.reason,
    }


def _of_approval(approval: Approval, call: ToolCall) -> dict[str, Any]:
    return {"approvalId": str(approval.pk), "callId": call.call_id, "toolName": call.tool_name}


def question_asked(question: Question, call: ToolCall) -> tuple[EventKind, dict[str, Any]]:
    """A question that was asked, as an event."""
    return EventKind.QUESTION_ASKED, _of_question(question, call) | {
        "text": question.text,
        "options": question.options,
        "expiresAt": question.expires_at.isoformat(),
        "isInChat": bool(question.chat_id),
    }


def question_answered(question: Question, call: ToolCall) -> tuple[EventKind, dict[str, Any]]:
    """The outcome of a question, as an event."""
    return EventKind.QUESTION_ANSWERED, _of_question(question, call) | {
        "state": str(question.state),
        "answer": question.answer,
    }


def _of_question(question: Question, call: ToolCall) -> dict[str, Any]:
    return {"questionId": str(question.pk), "callId": call.call_id, "toolName": call.tool_name}


class Attempts:
    """Of one turn: which fence is the latest, and which message it is in the midst of."""

    __slots__ = ("fence", "message")

    def __init__(self, fence: int = 0, message: int = -1) -> None:
        self.fence, self.message = fence, message

    def admit(self, kind: EventKind, data: dict[str, Any], fence: int | None) -> list[tuple[EventKind, dict[str, Any]]]:
        """What is to be told for an event: itself, maybe a reset before it, or nothing."""
        if fence is None:
            return [(kind, data)]
        if fence < self.fence:
            return []
        told = [(kind, data)]
        if kind in DELTAS:
            if fence > self.fence and data["message"] == self.message:
                told.insert(0, (EventKind.MESSAGE_RESET, {"message": self.message}))
            self.message = data["message"]
        self.fence = fence
        return told
