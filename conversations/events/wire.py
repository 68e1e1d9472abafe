"""How a turn's events are written to a reader: as ``/api/v1`` does, or in the ways of other APIs."""

import json
from collections.abc import Callable
from typing import Any, Protocol

from conversations.events.kinds import EventKind

# A browser that is cut off comes back after so many milliseconds.
RETRY = b"retry: 1000\n\n"

# The ids of the first event and of the last, which are told from the rows. So are those that follow a turn.reset: their
# ids, 0-1 and so on, are never among those kept, so that who is cut off among them is told them all again.
FIRST, LAST = "0-0", "end"


def as_sse(kind: str, data: object, event_id: str | None = None) -> bytes:
    """An event in the format of text/event-stream."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {as_line(data)}\n\n".encode()


def as_line(data: object) -> str:
    """JSON without a line break."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


ToStore = Callable[[], None] | None


class Wire(Protocol):
    """Writes a turn's events to one reader, in their order; an event that it does not tell is empty. ``to_store``: what
    is to be stored before what it has written last is sent."""

    to_store: ToStore

    def begin(self, queued: dict[str, Any], *, last_id: str) -> bytes:
        """The first that is sent. ``queued``: the turn and its conversation. ``last_id``: of the last event that the
        reader has seen before, if it comes back."""

    def event(self, kind: str, data: dict[str, Any], *, line: bytes = b"", event_id: str = "") -> bytes:
        """One event. ``line``: as ``/api/v1`` writes it, where that was done before, for all its readers."""

    def end(self, kind: EventKind, body: dict[str, Any]) -> bytes:
        """The last: how the turn has ended, and the body that the request would be answered with."""

    def cut_off(self) -> bytes:
        """The last, where the turn goes on without the reader."""


class EventWire:
    """As ``/api/v1`` writes them: docs/api.md lists them."""

    to_store: ToStore = None

    def begin(self, queued: dict[str, Any], *, last_id: str) -> bytes:
        return RETRY if last_id else RETRY + as_sse(EventKind.TURN_QUEUED, queued, FIRST)

    def event(self, kind: str, data: dict[str, Any], *, line: bytes = b"", event_id: str = "") -> bytes:
        return line or as_sse(kind, data, event_id)

    def end(self, kind: EventKind, body: dict[str, Any]) -> bytes:
        return as_sse(kind, body, LAST)

    def cut_off(self) -> bytes:
        """Its reader comes back by itself."""
        return b""
