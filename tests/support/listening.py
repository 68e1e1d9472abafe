"""Listening to the events of turns."""

import asyncio
from collections.abc import Callable
from uuid import UUID

from conversations.events import Event


class HeardListener:
    """A subscriber that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.over: dict[UUID, object] = {}

    def on_event(self, turn_id: UUID, event: Event) -> None:
        self.heard.append(event)

    def ended(self, turn_id: UUID, answer: object) -> None:
        self.over[turn_id] = answer

    def missed_some(self) -> None:
        pass


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)
