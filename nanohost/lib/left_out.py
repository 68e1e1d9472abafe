"""Packages that libraries load because they are there, for something that no host does: 18 MiB of a process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_UNUSED = (
    # structlog draws tracebacks with it.
    "rich",
    # REST framework has a client for tests on the one, and colours code on pages of its own with the other.
    *("requests", "pygments"),
    # REST framework and the console's theme know fields of PostgreSQL's types, which no table here has. With a database
    # on PostgreSQL it is loaded already.
    *("psycopg", "psycopg2"),
)


@contextmanager
def left_out() -> Iterator[None]:
    """Libraries that are imported inside find none of these packages, unless they are loaded already. As a process
    starts, and in the thread that starts it; whoever needs one imports it later."""
    hidden = [package for package in _UNUSED if package not in sys.modules]
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]  # None says that there is none
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for package in hidden:
            del modules[package]
