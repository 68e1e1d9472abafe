"""Events within one process: the embedded shape's, whose worker and web share it."""

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from conversations.events import KEPT_SECONDS, MAX_KEPT, Attempts, Event, Subscriber, Success
from conversations.events.kinds import EventKind

# Turns whose events are kept at most.
MAX_TURNS = 1_000


def _tell(turn_id: UUID, event: Event, subscriber: Subscriber) -> None:
    subscriber.on_event(turn_id, event)


class _Kept:
    __slots__ = ("attempts", "events", "touched_at")

    def __init__(self) -> None:
        self.attempts = Attempts()
        self.events: deque[Event] = deque(maxlen=MAX_KEPT)
        self.touched_at = 0.0


class LocalTransport:
    """See :class:`conversations.events.Transport`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The least lately touched first.
        self._kept: OrderedDict[UUID, _Kept] = OrderedDict()
        self.subscribed: set[UUID] = set()
        self._subscriber: Subscriber | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last = 0

    def publish(self, turn_id: UUID, kind: EventKind, data: dict[str, Any], *, fence: int | None) -> None:
        with self._lock:
            kept = self._of(turn_id)
            for each_kind, each_data in kept.attempts.admit(kind, data, fence):
                # Ids of an earlier start of the host are below these: its events are gone; none is mistaken for one.
                self._last = max(self._last + 1, time.time_ns() // 1_000_000)
                event = Event(f"{self._last}-0", each_kind, each_data)
                kept.events.append(event)
                if turn_id in self.subscribed:
                    self._soon(partial(_tell, turn_id, event))

    def publish_end(self, turn_id: UUID, success: Success | None) -> None:
        self._soon(lambda subscriber: subscriber.ended(turn_id, success))

    def flush(self, *, timeout: float) -> None:
        """Nothing is on its way."""

    async def attach(self, subscriber: Subscriber) -> None:
        self._subscriber, self._loop = subscriber, asyncio.get_running_loop()

    async def subscribe(self, turn_id: UUID) -> Sequence[Event]:
        with self._lock:
            self.subscribed.add(turn_id)
            kept = self._kept.get(turn_id)
            return list(kept.events) if kept else []

    async def unsubscribe(self, turn_id: UUID) -> None:
        with self._lock:
            self.subscribed.discard(turn_id)

    async def detach(self) -> None:
        self._subscriber = self._loop = None

    def is_deaf(self) -> bool:
        return False

    def _soon(self, tell: Callable[[Subscriber], None]) -> None:
        subscriber, loop = self._subscriber, self._loop
        if subscriber and loop and not loop.is_closed():
            loop.call_soon_threadsafe(tell, subscriber)

    def _of(self, turn_id: UUID) -> _Kept:
        now = time.monotonic()
        kept = self._kept.setdefault(turn_id, _Kept())
        kept.touched_at = now
        self._kept.move_to_end(turn_id)
        oldest = next(iter(self._kept.values()))
        while len(self._kept) > MAX_TURNS or oldest.touched_at < now - KEPT_SECONDS:
            self._kept.popitem(last=False)
            oldest = next(iter(self._kept.values()))
        return kept
