"""Lets a secret out while the host runs, past everything that handles errors."""

import os
import threading

from django.apps import AppConfig


class Leaks(AppConfig):
    name = "tests.leaks"

    def ready(self) -> None:
        if os.environ.get("LEAK_PAST_HANDLERS"):
            threading.Thread(target=_raise_in_a_thread).start()
            _RaisesWhenItIsDropped()


def _raise_in_a_thread() -> None:
    raise RuntimeError(f"thread: {os.environ['LEAK_PAST_HANDLERS']}")


class _RaisesWhenItIsDropped:
    def __del__(self) -> None:
        raise RuntimeError(f"dropped: {os.environ['LEAK_PAST_HANDLERS']}")
