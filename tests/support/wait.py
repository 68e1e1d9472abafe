"""Waiting for conditions."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], *, seconds: float = 60) -> None:
    """Return once ``holds`` does; fails if that takes too long."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s: {holds}")
        time.sleep(0.01)
