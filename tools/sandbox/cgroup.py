"""A bound of the kernel's on how many processes a program may have, where the host may make one: a control group of its
own for each program.

RLIMIT_NPROC bounds the processes of a user, and does not count for root. So a host that runs as root makes a group
below its own; elsewhere the limit of the user holds, and none is made.
"""

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_NAME = "nanohost-command-"
# An empty one that is older is nobody's any more.
_LEFT_SECONDS = 60


@dataclass(frozen=True)
class Bounded:
    """A program as it is to be started, in its ``folder`` if it has a group."""

    command: list[str]
    folder: Path | None = None

    def was_reached(self) -> bool:
        """Whether the kernel has refused it a process; False where nobody can tell."""
        return self.folder is not None and any(
            line.startswith("max ") and line != "max 0" for line in _lines(self.folder / "pids.events")
        )


@contextmanager
def bounded(processes: int, program: Sequence[str]) -> Iterator[Bounded]:
    """The program as it is to be started, so that it and all that it starts are ``processes`` at most; as it is, where
    no such bound can be made. All of them have ended when this does."""
    folder = _made(processes)
    if folder is None:
        yield Bounded(list(program))
        return
    try:
        # It enters the group, and becomes the program.
        enter = ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', str(folder / "cgroup.procs")]
        yield Bounded([*enter, *program], folder)
    finally:
        # The kernel may still be at work on the last of them; what is left then is removed with the next.
        with suppress(OSError):
            folder.rmdir()


def _made(processes: int) -> Path | None:
    if (parent := _parent()) is None:
        return None
    for left in parent.glob(f"{_NAME}*"):
        with suppress(OSError):  # it is in use
            if time.time() - left.stat().st_mtime > _LEFT_SECONDS:  # else its program may be about to enter it
                left.rmdir()
    folder = parent / f"{_NAME}{secrets.token_hex(8)}"
    try:
        folder.mkdir()
        (folder / "pids.max").write_text(str(processes))
    except OSError:
        return None
    return folder


@cache
def _parent() -> Path | None:
    """The group that this process is in, if it may make others below it that bound processes."""
    if os.geteuid() != 0:
        return None
    for line in _lines(Path("/proc/self/cgroup")):
        number, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):  # of version 1
            return _writable(ROOT / "pids" / path.strip("/"))
        if number == "0":  # of version 2: groups below have what the one above hands down
            own = ROOT / path.strip("/")
            if "pids" in " ".join(_lines(own / "cgroup.subtree_control")).split():
                return _writable(own)
    return None


def _writable(folder: Path) -> Path | None:
    return folder if os.access(folder, os.W_OK) else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
