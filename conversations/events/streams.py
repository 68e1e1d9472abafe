"""A turn's events as a reader is sent them: from where it left off, live, to the end.

A reader names the last event it has seen. If that is among those kept, it goes on from there, on whatever web node. If
it is not (the buffer is gone, or never was), it is told ``turn.reset``, and the turn is told again from its rows.
Either way the last event is made from the rows, and is the same for everybody.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from conversations.events import (
    ASKING_TOOL,
    approval_decided,
    approval_requested,
    place_of,
    question_answered,
    question_asked,
    tool_events,
)
from conversations.events.answers import Renderer
from conversations.events.hub import Hub, Subscription
from conversations.events.kinds import DELTAS, EventKind
from conversations.events.wire import FIRST, Wire
from conversations.models import Message, Turn
from conversations.question_models import Question, QuestionState
from conversations.statuses import TurnStatus
from tools.models import Approval, ApprovalState, ToolCall

PING_SECONDS = 15.0
PING = b": ping\n\n"

# What is sent at once, unless one event is longer: a reader that is behind has no more than that under way.
MAX_SENT_AT_ONCE = 64 * 1024

STARTED: tuple[EventKind, dict[str, Any]] = (EventKind.TURN_STARTED, {})
# The bus is behind the rows by less, unless it is away.
EVENTS_BEHIND_ROWS_SECONDS = 1.0

_FINAL = {
    TurnStatus.SUCCEEDED: EventKind.TURN_COMPLETED,
    TurnStatus.FAILED: EventKind.TURN_FAILED,
    TurnStatus.CANCELLED: EventKind.TURN_CANCELLED,
}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A turn as its rows tell it: what has happened since it was queued, and its last event if it has ended."""

    events: list[tuple[EventKind, dict[str, Any]]]
    final: tuple[EventKind, dict[str, Any]] | None


def read_replay(turn_id: UUID, *, renderer: Renderer, request_id: str) -> Replay:
    """Read a turn's rows; a turn that was deleted has failed."""
    turn = Turn.objects.filter(pk=turn_id).first()
    if turn is None:
        gone = renderer.current(turn_id, request_id=request_id)
        return Replay(events=[], final=(EventKind.TURN_FAILED, gone.body if gone else {}))
    final = None
    if renderer.is_answered(turn) and (answer := renderer.current(turn_id, request_id=request_id)):
        final = (_FINAL.get(TurnStatus(turn.status), EventKind.TURN_COMPLETED), answer.body)
    return Replay(events=_events_of(turn) if turn.started_at else [], final=final)


def _events_of(turn: Turn) -> list[tuple[EventKind, dict[str, Any]]]:
    events: list[tuple[EventKind, dict[str, Any]]] = [STARTED]
    calls = {call.call_id: call for call in ToolCall.objects.filter(turn_id=turn.pk)}
    needed = any(call.consent for call in calls.values())
    asked = {each.call_id: each for each in Approval.objects.filter(turn_id=turn.pk)} if needed else {}
    asking = any(call.tool_name == ASKING_TOOL for call in calls.values())
    put = {each.call_id: each for each in Question.objects.filter(turn_id=turn.pk)} if asking else {}
    spoken = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT, seq__isnull=False).order_by("seq")
    for number, message in enumerate(spoken):
        if message.reasoning:
            told = {"message": number, "offset": 0, "text": message.reasoning}
            events.append((EventKind.REASONING_DELTA, told))
        if message.content:
            events.append((EventKind.MESSAGE_DELTA, {"message": number, "offset": 0, "text": message.content}))
        for wanted in message.tool_calls or ():
            if call := calls.get(wanted["id"]):
                if approval := asked.get(call.pk):
                    events.append(approval_requested(approval, call))
                    if approval.state != ApprovalState.PENDING:
                        events.append(approval_decided(approval, call))
                told_of_call = tool_events(call)
                if question := put.get(call.pk):
                    told_of_call[1:1] = [question_asked(question, call)]
                    if question.state != QuestionState.PENDING:
                        told_of_call[2:2] = [question_answered(question, call)]
                events += told_of_call
    return events


class _Reader:
    """What one reader has been told, so that nothing is told twice, and no piece of a message without its beginning."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()
        self._messages = 0
        self._offsets: dict[tuple[str, int], int] = {}

    def retold(self, events: list[tuple[EventKind, dict[str, Any]]]) -> None:
        """The rows told these."""
        for kind, data in events:
            if kind in DELTAS:
                self._messages = data["message"] + 1
            else:
                self._told.add((kind, data.get("callId", "")))

    def was_told(self, kind: str, data: dict[str, Any]) -> None:
        """It was told this before it was cut off; of what came earlier, not all may be kept."""
        if kind == EventKind.MESSAGE_RESET:
            self._offsets = {}
        elif kind in DELTAS:
            self._offsets[kind, data["message"]] = data["offset"] + len(data["text"])

    def admits(self, kind: str, data: dict[str, Any]) -> bool:
        """Whether it is to be told this."""
        if kind == EventKind.MESSAGE_RESET:
            self._offsets = {}
            return bool(data["message"] >= self._messages)
        if kind in DELTAS:
            if data["message"] < self._messages:
                return False
            place = kind, data["message"]
            if data["offset"] != self._offsets.get(place, 0):
                return False  # some were dropped on their way; the last event has the whole answer
            self._offsets[place] = data["offset"] + len(data["text"])
            return True
        # What a program writes is not stored: who was told how it ended has it all.
        known_by = EventKind.TOOL_FINISHED if kind == EventKind.TOOL_OUTPUT else kind
        return (known_by, data.get("callId", "")) not in self._told


async def stream(
    hub: Hub,
    turn_id: UUID,
    subscription: Subscription,
    *,
    last_id: str,
    queued: dict[str, Any],
    replay: Replay | None,
    read: Callable[[], Awaitable[Replay]],
    renderer: Renderer,
    wire: Wire,
    is_over: Callable[[], bool],
) -> AsyncGenerator[bytes, None]:
    """The reader's events, as they come, as ``wire`` writes them; ends with what the request is answered with, or when
    it ``is_over`` before: the reader is gone, or the process drains, and the reader comes back, to another.

    ``last_id``: of the last event the reader has seen, or "". ``queued``: the first event's data. ``replay``: what the
    rows say, if that is known. ``renderer``: of the last event's data.
    """
    yield wire.begin(queued, last_id=last_id)
    await hub.load(turn_id, subscription)
    reader = _Reader()
    replay = replay or await read()
    index = _place_after(subscription, last_id)
    if index is None and replay.events == [STARTED]:
        # It has just started, and the event of it is on its way; otherwise it is lost.
        await subscription.changed(seconds=EVENTS_BEHIND_ROWS_SECONDS)
        index = _place_after(subscription, last_id)
    if index is None and replay.events:
        reader.retold(replay.events)
        if last_id not in ("", FIRST):
            yield wire.event(EventKind.TURN_RESET, {}, event_id="0-1")
        for number, (kind, data) in enumerate(replay.events, start=2):
            if told := wire.event(kind, data, event_id=f"0-{number}"):
                yield told
    for event, _ in subscription.events[: index or 0]:
        reader.was_told(event.kind, event.data)
    index, final, seen = index or 0, replay.final, 0
    del replay  # it may be large, and the stream long
    quiet_since = time.monotonic()
    while True:
        while index < len(subscription.events):
            part, index = _part(subscription, index, reader, wire)
            if part:
                yield part
                quiet_since = time.monotonic()
        if subscription.ends > seen and not final:
            seen = subscription.ends
            answer = subscription.success and renderer.succeeded(subscription.success)
            final = (EventKind.TURN_COMPLETED, answer.body) if answer else (await read()).final
            if not final:
                subscription.goes_on()
        if final:
            if index < len(subscription.events):
                continue
            yield wire.end(*final)
            return
        if is_over():
            yield wire.cut_off()
            return
        # What happens need not be told: not what a model thinks, to a client that has no words for it.
        quiet = time.monotonic() - quiet_since
        if quiet >= PING_SECONDS or not await subscription.changed(seconds=PING_SECONDS - quiet):
            yield PING
            quiet_since = time.monotonic()


def _part(subscription: Subscription, index: int, reader: _Reader, wire: Wire) -> tuple[bytes, int]:
    """What the reader is to be sent next of the events from that index on, and the index after it."""
    lines: list[bytes] = []
    length = 0
    while index < len(subscription.events):
        event, line = subscription.events[index]
        if lines and length + len(line) > MAX_SENT_AT_ONCE:
            break
        index += 1
        if reader.admits(event.kind, event.data):
            told = wire.event(event.kind, event.data, line=line)
            lines.append(told)
            length += len(told)
    return b"".join(lines), index


def _place_after(subscription: Subscription, last_id: str) -> int | None:
    """The index of the event after the one of that id; None if the turn's events up to there are not all kept."""
    events = subscription.events
    if last_id in ("", FIRST):
        return 0 if events and events[0][0].kind == EventKind.TURN_STARTED else None
    try:
        place = place_of(last_id)
    except ValueError:
        return None
    return next((index + 1 for index, (event, _) in enumerate(events) if event.place == place), None)
