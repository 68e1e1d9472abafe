"""Telling of an answer while the model gives it: its pieces as events, without the secrets that are known."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from agent.llm.base import Delta
from conversations.events.kinds import DELTAS, EventKind
from nanohost.lib.redaction import LARGE, RedactedPieces


class Telling:
    """Tells of the pieces of one answer, in order: at once, unless one is so large that the event loop would stand
    still while it is read for secrets. Such a piece is read in a thread, and those behind it wait.

    ``publish``: tells of an event of the turn. ``message``: how many answers of the turn came before.
    """

    def __init__(self, publish: Callable[[EventKind, dict[str, Any]], None], *, message: int) -> None:
        self._publish, self._message = publish, message
        self._pieces = {kind: RedactedPieces() for kind in DELTAS}
        self._offsets = dict.fromkeys(DELTAS, 0)
        self._waiting: deque[tuple[EventKind, str]] = deque()
        self._reading: asyncio.Task[None] | None = None

    def __call__(self, delta: Delta) -> None:
        """A piece has come."""
        for kind, text in ((EventKind.REASONING_DELTA, delta.reasoning), (EventKind.MESSAGE_DELTA, delta.content)):
            if not text:
                continue
            if self._waiting or len(text) > LARGE:
                self._waiting.append((kind, text))
            else:
                self._tell(kind, self._pieces[kind].add(text))
        if self._waiting and not self._reading:
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def end(self) -> None:
        """The answer is whole; when this returns, all of it has been told."""
        if self._reading:
            await self._reading
        for kind, pieces in self._pieces.items():
            self._tell(kind, pieces.end())

    def stop(self) -> None:
        """Nobody wants what is left of it."""
        if self._reading:
            self._reading.cancel()

    async def _read(self) -> None:
        while self._waiting:
            kind, text = self._waiting[0]
            self._tell(kind, await asyncio.to_thread(self._pieces[kind].add, text))
            self._waiting.popleft()
        self._reading = None

    def _tell(self, kind: EventKind, text: str) -> None:
        if text:
            self._publish(kind, {"message": self._message, "offset": self._offsets[kind], "text": text})
            self._offsets[kind] += len(text)
