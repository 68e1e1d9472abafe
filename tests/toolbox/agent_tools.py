"""Tools for the tests: each misbehaves, or leaves a trace, in one way."""

import asyncio
import fcntl
import os
import re
import signal
import sys
import time
from datetime import date
from pathlib import Path
from typing import IO, Any

from tests.toolbox import hostile, trouble
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
def tell_trace() -> str:
    """Tell where the call stands in a trace."""
    return os.environ.get("TRACEPARENT", "none")


@tool(effects="write", writes_to="to")
def tell_somebody(text: str, to: str = "origin") -> str:
    """Say something somewhere, which this tool only claims to.

    Args:
        text: What is said.
        to: A destination.
    """
    return f"{to} was told {text}"


@tool(effects="read", permissions=["FS_WRITE"])
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


@tool(effects="write", timeout=0.5, permissions=["FS_WRITE"])
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


@tool(effects="read", timeout=0.5)
def hang_in_c() -> bool:
    """Never come back from a function that holds the interpreter: a regular expression of exponential cost."""
    return re.match(r"(a+)+$", "a" * 64 + "b") is not None


@tool(effects="read")
def vanish() -> None:
    """Kill the process it runs in."""
    os.kill(os.getpid(), signal.SIGKILL)


@tool(effects="write", permissions=["FS_WRITE"])
def vanish_after_effect(path: str) -> None:
    """Append a line, then kill the process it runs in.

    Args:
        path: The file.
    """
    with Path(path).open("a") as file:
        file.write("done\n")
    os.kill(os.getpid(), signal.SIGKILL)


@tool(effects="read")
def whereabouts() -> dict[str, Any]:
    """Tell the process it runs in, its supervisor, the fork server, and all of its environment."""
    server = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    return {"pid": os.getpid(), "supervisor": os.getppid(), "server": server, "environment": dict(os.environ)}


@tool(effects="read", secrets=["TOOLBOX_SECRET"])
def tell_secret() -> dict[str, Any]:
    """Tell the secret it declares, backwards, and the process it runs in."""
    return {"pid": os.getpid(), "told": os.environ["TOOLBOX_SECRET"][::-1]}


@tool(effects="read")
def echo(value: Any) -> Any:
    """Return what it is given.

    Args:
        value: Anything.
    """
    return value


@tool(effects="read")
async def answer_later(seconds: float = 0) -> str:
    """Answer from a coroutine.

    Args:
        seconds: How long it waits.
    """
    await asyncio.sleep(seconds)
    return "later"


class Wordless(Exception):
    """Cannot be written."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@tool(effects="write")
def return_unusual(kind: str) -> Any:
    """Return, or raise, something that is not plain text.

    Args:
        kind: What.
    """
    circle: list[Any] = []
    circle.append(circle)
    if kind == "wordless error":
        raise Wordless
    if kind == "exit":
        sys.exit("enough")
    return {
        "nothing": None,
        "number": 0.5,
        "bytes": b"\xff\x00",
        "date": date(2025, 1, 2),
        "set": {1},
        "keys": {(1, 2): 3},
        "circle": circle,
        "nul": "a\x00b",
        "surrogate": "a\ud800b",
        "umlaut": {"stadt": "Köln"},
        "long number": 10**5000,
        "wordless": {"it": Wordless()},
    }[kind]


@tool(effects="read", permissions=["FS_WRITE"])
def meet(directory: str, name: str, number: int) -> str:
    """Come back when as many as ``number`` have come: calls that end side by side.

    Args:
        directory: Where they meet.
        name: Who comes.
        number: How many are waited for.
    """
    (Path(directory) / name).touch()
    while len(list(Path(directory).iterdir())) < number:
        time.sleep(0.001)
    return "met"


@tool(effects="read")
def reach_for_the_host() -> dict[str, str]:
    """Try to get at the host's database and its key, as a Django app's code would."""
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    from tools.models import ToolSetting

    try:
        ToolSetting.objects.update(enabled=True)
        database = "reached"
    except ImproperlyConfigured:
        database = "out of reach"
    return {"database": database, "key": settings.SECRET_KEY}


@tool(effects="read")
def imported() -> list[str]:
    """Name the modules of tools that its process has imported."""
    return sorted(name for name in sys.modules if name.endswith(".agent_tools"))


@tool(effects="read", timeout=60, permissions=["FS_WRITE"])
def wait_for(path: str, come: str) -> str:
    """Say that it has come, and come back once there is a file: a call that goes on as long as a test wants.

    Args:
        path: The file it waits for.
        come: The file it makes when it has come.
    """
    Path(come).touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return "waited"


@tool(effects="read", timeout=0.5, permissions=["FS_WRITE"])
def misbehave(way: str, path: str) -> Any:
    """Misbehave.

    Args:
        way: A function of tests/toolbox/trouble.py.
        path: A file that it holds open, as does all that it starts.
    """
    with Path(path).open("w") as file:
        _hold(file)
        return getattr(trouble, way)()


@tool(effects="write", timeout=100, permissions=["FS_WRITE"])
def misbehave_after_effect(way: str, path: str) -> Any:
    """Append a line to a file, then misbehave, with the file open.

    Args:
        way: A function of tests/toolbox/trouble.py.
        path: The file.
    """
    with Path(path).open("a") as file:
        file.write("done\n")
        file.flush()
        _hold(file)
        return getattr(trouble, way)()


@tool(effects="write", timeout=20)
def attack(way: str, told: dict[str, Any]) -> Any:
    """Attack.

    Args:
        way: A function of tests/toolbox/hostile.py.
        told: Its arguments.
    """
    return getattr(hostile, way)(**told)


def _hold(file: IO[str]) -> None:
    """Lock a file, for this process and all that it starts: as long as one of them is left, others see it."""
    fcntl.flock(file, fcntl.LOCK_SH)
    os.set_inheritable(file.fileno(), True)
