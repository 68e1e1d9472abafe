"""Waiting for conditions."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], *, seconds: float = 60) -> None:
    """Return once ``holds`` does; fails if that takes too long."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + seconds:
            raise AssertionError(f"not within {seconds} s: {holds}")
        rest(began)


def rest(began: float) -> None:
    """Pause before a further look: longer, the longer one has waited, as each look costs whoever is looked at."""
    time.sleep(min(1.0, max(0.01, (time.monotonic() - began) / 8)))
