"""Which sandbox is in force: tried once a process, from inside, and told to whoever asks.

``TOOL_SANDBOX`` demands one; ``auto`` takes the best there is.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from django.conf import settings

from tools.sandbox import bubblewrap, landlock, paths, probe, seccomp
from tools.sandbox.box import BUBBLEWRAP, LANDLOCK, NONE, TOOLS_USER, Box

AUTO = "auto"

_GET_IT = "install bubblewrap 0.8 or newer (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"

# What must hold for a mode to count. Landlock keeps signals in only on newer kernels, and otherwise says so.
_DEMANDED = {
    BUBBLEWRAP: {probe.FILES, probe.PROCESSES, probe.SIGNALS, probe.NETWORK, probe.NAMESPACES},
    LANDLOCK: {probe.FILES, probe.PROCESSES, probe.NETWORK, probe.NAMESPACES},
}
_PROBE_SECONDS = 20


class SandboxMissing(Exception):
    """The sandbox that ``TOOL_SANDBOX`` demands cannot be had; says why, and what helps."""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The one in force. ``user``: whom tools run as, None for the host's own. ``signals``: whether tools are kept from
    signalling others. ``lacks``: why it is not a better one; "" if there is none."""

    mode: str
    user: int | None = None
    signals: bool = True
    lacks: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it is the one that holds everywhere."""
        return self.mode == BUBBLEWRAP

    @property
    def words(self) -> str:
        """In a few words, as a table has room for."""
        if self.mode != LANDLOCK:
            return self.mode
        return LANDLOCK + (", a user of its own" if self.user else "") + ("" if self.signals else ", signals get out")

    @property
    def sentence(self) -> str:
        """What it means, and what is missing."""
        means = {
            BUBBLEWRAP: "bubblewrap: tools see code, and no file, process or network of this machine unless granted",
            LANDLOCK: f"{self.words}: tools cannot read files or reach the network unless granted; they see that"
            " other processes are there",
            NONE: "none: a tool can read, write and end whatever this user can",
        }[self.mode]
        return f"{means}.{f' {self.lacks}' if self.lacks else ''}"


def in_force() -> Sandbox:
    """The sandbox of this process's tools. Raises :class:`SandboxMissing` if the one that is demanded cannot be had."""
    return having(settings.TOOL_SANDBOX)


@cache
def having(wanted: str) -> Sandbox:
    """The sandbox that is had where this one is wanted. Raises :class:`SandboxMissing` if it cannot be had."""
    reasons: list[str] = []
    for mode, attempt in ((BUBBLEWRAP, _bubblewrap), (LANDLOCK, _landlock)):
        if wanted not in (AUTO, mode):
            continue
        found = attempt()
        if isinstance(found, Sandbox):
            _refuse_folders_among_code(found)
            return replace(found, lacks=" ".join(filter(None, (found.lacks, *reasons))))
        reasons.append(found)
    if wanted in (AUTO, NONE):
        return Sandbox(mode=NONE, signals=False, lacks=" ".join(reasons))
    raise SandboxMissing(f"TOOL_SANDBOX={wanted} is not available here. {' '.join(reasons)}")


def _refuse_folders_among_code(sandbox: Sandbox) -> None:
    """Data that every tool could read, and code that one with FS_WRITE could change, for the host too."""
    for seen in box(sandbox, ()).seen():
        for folder in settings.TOOL_FOLDERS:
            outer, inner = sorted((seen.resolve(), Path(folder).resolve()), key=lambda path: len(path.parts))
            if inner.is_relative_to(outer):
                raise SandboxMissing(
                    f"TOOL_FOLDERS: with {folder}, tools that are granted FS_WRITE could change {seen}, which this host"
                    " runs. Choose another folder, or TOOL_SANDBOX=none."
                )
        if settings.DATA_DIR.is_relative_to(seen.resolve()):
            raise SandboxMissing(
                f"DATA_DIR={settings.DATA_DIR} lies in {seen}, which every tool can read: it is taken for code. Choose"
                " another folder, or TOOL_SANDBOX=none."
            )


def box(sandbox: Sandbox, permissions: Iterable[str]) -> Box:
    """The box for tools that were granted these permissions."""
    granted = set(permissions)
    folders = tuple(settings.TOOL_FOLDERS)
    code = () if sandbox.mode == NONE else tuple(map(str, paths.code(settings.BASE_DIR, settings.NANOHOST_EXTRA_APPS)))
    return Box(
        mode=sandbox.mode,
        code=code,
        read=folders if "FS_READ" in granted else (),
        write=folders if "FS_WRITE" in granted else (),
        network="NET_HTTP" in granted,
        user=sandbox.user,
    )


def _bubblewrap() -> Sandbox | str:
    """It, or why it cannot be had."""
    if sys.platform != "linux":
        return "bubblewrap needs Linux."
    if not bubblewrap.program():
        return f"For the best one, {_GET_IT}."
    if why_not := _tried(Sandbox(mode=BUBBLEWRAP)):
        return f"bubblewrap makes no sandbox here ({why_not}): it needs version 0.8 and user namespaces."
    return Sandbox(mode=BUBBLEWRAP)


def _landlock() -> Sandbox | str:
    if sys.platform != "linux" or not landlock.abi():
        return "Landlock needs Linux 5.13 or newer, with landlock among its security modules."
    if not seccomp.knows_this_machine():
        return f"For Landlock's mode there is no filter of system calls on {os.uname().machine}."
    lacks = ""
    if os.geteuid() == 0:
        own = Sandbox(mode=LANDLOCK, user=TOOLS_USER)
        if not (why_not := _tried(own)):
            return own
        lacks = f"Tools are root, since as another user they cannot run here ({why_not}): have all users read the code."
    found = Sandbox(mode=LANDLOCK, signals=landlock.keeps_signals_in(), lacks=lacks)
    return f"Landlock makes no sandbox here ({why_not})." if (why_not := _tried(found)) else found


def _tried(sandbox: Sandbox) -> str:
    """Try it from inside; what is wrong with it, or "" if it holds."""
    tried = box(sandbox, ())
    with tempfile.NamedTemporaryFile() as file, closing(socket.create_server(("127.0.0.1", 0))) as listener:
        asked = {"box": asdict(tried), "file": file.name, "host": os.getpid(), "port": listener.getsockname()[1]}
        try:
            ran = subprocess.run(  # noqa: S603 -- our own module, no shell
                tried.command(
                    [sys.executable, "-S", "-m", "tools.sandbox.probe", json.dumps(asked)], cwd=settings.BASE_DIR
                ),
                cwd=settings.BASE_DIR,
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PROBE_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return " ".join(str(error).split())
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or [f"it ended with {ran.returncode}"])[-1]
    held = {name for name, holds in json.loads(ran.stdout).items() if holds}
    return f"it lets out: {', '.join(sorted(missing))}" if (missing := _DEMANDED[sandbox.mode] - held) else ""
