"""Deeds side by side, each in a thread with a connection of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection


def in_threads(deeds: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do them all at once; what each has returned. Raises the first failure once all have ended."""

    def do(deed: Callable[[], Any]) -> Any:
        try:
            return deed()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(deeds)) as threads:
        doing = [threads.submit(do, deed) for deed in deeds]
    return [each.result() for each in doing]
