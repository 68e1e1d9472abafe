"""Tools for the tests: each misbehaves, or leaves a trace, in one way."""

import time
from pathlib import Path

from tools.registry import tool


@tool(effects="write", permissions=["FS_WRITE"])
def append_line(path: str, line: str, before: float = 0, after: float = 0) -> str:
    """Append a line to a file: a side effect that can be counted.

    Args:
        path: The file.
        line: What is appended.
        before: Seconds to wait before.
        after: Seconds to wait after.
    """
    time.sleep(before)
    with Path(path).open("a") as file:
        file.write(f"{line}\n")
    time.sleep(after)
    return f"appended {line}"


@tool(effects="read")
def look_around(path: str, seconds: float = 0) -> str:
    """Leave a mark in a file each time it starts, wait, and answer: a read whose runs can be counted.

    Args:
        path: The file.
        seconds: How long to wait.
    """
    with Path(path).open("a") as file:
        file.write("looked\n")
    time.sleep(seconds)
    return "looked around"


@tool(effects="read", timeout=0.5)
def hang() -> str:
    """Never come back."""
    while True:
        time.sleep(60)


@tool(effects="write", timeout=0.5)
def hang_after_effect(path: str) -> str:
    """Append a line, then never come back.

    Args:
        path: The file.
    """
    with Path(path).open("a") as file:
        file.write("done\n")
    while True:
        time.sleep(60)


@tool(effects="read")
def raise_error(message: str = "it broke") -> str:
    """Raise an error.

    Args:
        message: Its message.
    """
    raise RuntimeError(message)


@tool(effects="read", timeout=10)
def flood() -> str:
    """Return 50 MB."""
    return "x" * 50_000_000


@tool(effects="read", permissions=["NET_HTTP"])
def fetch(url: str) -> str:
    """Pretend to fetch an address.

    Args:
        url: The address.
    """
    return f"fetched {url}"


@tool(effects="read", permissions=["SHELL"])
def shell(command: str) -> str:
    """Declare the permission that cannot be granted.

    Args:
        command: A command; never run.
    """
    return command
