"""A process with room for work that is claimed as it is stored: it only notes what it is to begin with."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Place:
    """Room in a process that only notes what it is to begin with."""

    worker = "worker-1"

    def __init__(self, begun: list[Any]) -> None:
        self.begin = begun.append


class ProcessWithRoom:
    """Such a process, with so many places."""

    def __init__(self, places: int = 1000) -> None:
        self.places = places
        self.begun: list[Any] = []
        self.notified: list[Any] = []

    def hear(self, row_id: Any) -> bool:
        self.notified.append(row_id)
        return True

    @contextmanager
    def place(self) -> Iterator[_Place | None]:
        yield _Place(self.begun) if len(self.begun) < self.places else None
