"""Tokens that platforms give an app for a while: a process keeps each until shortly before it ends."""

import hashlib
import json
import threading
import time
from collections.abc import Callable

MAX_KEPT = 100
# Seconds before its end from which one is not used any more.
SPARE = 60.0


class Tokens:
    """Those of one platform, by what they are asked for with."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def of(self, *asked_with: str, ask: Callable[[], tuple[str, float]]) -> str:
        """The token that is kept, or what ``ask`` returns: a new one, and how many seconds it lasts."""
        holder = _digest(asked_with)
        with self._lock:
            token, ends = self._kept.get(holder, ("", 0.0))
        if time.monotonic() < ends:
            return token
        token, lasts = ask()
        with self._lock:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[holder] = token, time.monotonic() + lasts - SPARE
        return token

    def forget(self, *asked_with: str) -> None:
        """The platform takes it no more."""
        with self._lock:
            self._kept.pop(_digest(asked_with), None)


def _digest(asked_with: tuple[str, ...]) -> str:
    """No secret lies in memory for longer than it is needed."""
    return hashlib.sha256(json.dumps(asked_with).encode()).hexdigest()
