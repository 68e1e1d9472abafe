"""Runs one program in a box of its own that has an agent's workspace in it, and bounds all that it does: its time, the
memory and number of its processes, its output, and what it leaves on the disk.

The box is bubblewrap's: its namespace of processes ends with the program, and so does whatever that started, a daemon
as well. The kernel bounds each process; what they take together is looked at from outside, many times a second.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.db import close_old_connections

from nanohost.lib.one_core import all_cores
from nanohost.lib.redaction import redact
from nanohost.lib.text import storable
from tools import calls
from tools.calls import Outcome
from tools.errors import CallLost, Interrupted
from tools.inline import function_of
from tools.models import CallStatus
from tools.permissions import Permission
from tools.results import binder, cap
from tools.runners import AdmittedCall, InBox
from tools.sandbox import cgroup, modes
from tools.sandbox.box import BUBBLEWRAP, NONE, Box
from tools.sandbox.child import children_of
from tools.workspace.errors import PathRefused
from tools.workspace.store import open_workspace
from tools.workspace.usage import Bounds

# Where a program finds its workspace.
WORKSPACE = "/workspace"

# Of all processes of a command, and of its output: more ends it.
MAX_PROCESSES = 128
MAX_OUTPUT = 16 << 20
_TOO_MANY = "processes", f"it started more than {MAX_PROCESSES} processes, and was stopped"
# Of the beginning of an output and of its end; a result has less.
_KEPT = 512 << 10

# How often is looked: at its processes; at the disk; whether it is still wanted, which renews the call's lease.
LOOK_SECONDS, _DISK_SECONDS, ASK_SECONDS = 0.05, 0.1, 1.0
# What has been killed is gone within this; it is in the kernel's hands.
_END_SECONDS = 10.0

# Of what is told while it runs: so much in all, so often, and so many bytes at once.
MAX_TOLD = 64 << 10
_TELL_SECONDS, _MAX_PIECE = 0.3, 8 << 10

# What watches a command comes before all that it starts, however many these are.
_NICE = 15

_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a program ended: by itself, with a ``code``; or by ``rule``, for the reason in ``text``."""

    output: str
    code: int = 0
    rule: str = ""
    text: str = ""
    lost: bool = False


class Stopping:
    """Whether this process stops to run commands, and since when those that run have no more time."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._until = 0.0

    def begin(self, *, grace: float = 4.0) -> None:
        self._until = time.monotonic() + grace
        self._told.set()

    def over(self) -> None:
        self._told.clear()

    def __bool__(self) -> bool:
        return self._told.is_set()

    @property
    def is_late(self) -> bool:
        """Whether what still runs is to be ended."""
        return self._told.is_set() and time.monotonic() >= self._until


stopping = Stopping()


def run_in_box(runner: InBox, admitted: AdmittedCall) -> Outcome:
    """Run a call once. One that was ended on its way is UNKNOWN, with what it said until then.

    Raises :class:`Interrupted` at a shutdown, if it has not begun, and :class:`CallLost` if it was no longer wanted.
    """
    if stopping:
        raise Interrupted
    if why := why_no_box():
        return _refused("requires:bubblewrap", f"The tool {admitted.tool.name} does not run on this machine: {why}.")
    call = admitted.call
    assert call.owner_id is not None  # of a version that has this runner
    try:
        function = function_of(runner)
        program = list(function(**binder(function)(**admitted.arguments)))
    except ValueError as error:
        return _failed("arguments", str(error))
    try:
        with open_workspace(agent=call.agent, owner_id=call.owner_id) as workspace, workspace.for_command() as shut:
            close_old_connections()  # none is kept while it runs
            ended = run(
                program,
                workspace=workspace.root / "files",
                shut=shut,
                is_full=Bounds(workspace.files).excess,
                network=Permission.NET_HTTP in admitted.grants,
                seconds=admitted.timeout,
                still_wanted=admitted.still_wanted,
                tell=admitted.on_output,
                traceparent=call.traceparent,
            )
    except PathRefused as error:
        return _failed("raised", str(error))
    if ended.lost:
        raise CallLost(call.pk)
    if ended.rule:
        said = f"{calls.UNKNOWN_RESULT} ({ended.text})"
        said += f"\n[its output until then]\n{ended.output}" if ended.output else ""
        return Outcome(status=CallStatus.UNKNOWN, result=cap(said, admitted.output_bytes), rule=ended.rule)
    said = ended.output or "[no output]"
    if ended.code:
        said += f"\n[exit code {ended.code}]"
    return Outcome(status=CallStatus.SUCCESS, result=cap(said, admitted.output_bytes))


def why_no_box() -> str:
    """Why commands do not run on this machine; "" if they do."""
    try:
        sandbox = modes.in_force()
    except modes.SandboxMissing as missing:
        return str(missing).rstrip(".")
    if sandbox.mode == BUBBLEWRAP or settings.TOOL_SANDBOX == NONE:
        return ""
    return (
        "commands run in bubblewrap only, which is not in force here; TOOL_SANDBOX=none has them run without any."
        f" {sandbox.lacks}"
    ).rstrip(". ")


def run(
    program: Sequence[str],
    *,
    workspace: Path,
    shut: Sequence[str] = (),
    is_full: Callable[[], str] = lambda: "",
    network: bool = False,
    seconds: float,
    still_wanted: Callable[[], bool] = lambda: True,
    tell: Callable[[int, str], None] = lambda offset, text: None,
    traceparent: str = "",
) -> Ended:
    """Run a program to its end. ``shut``: paths in the workspace that it may not change. ``is_full``: what there is too
    much of in the workspace. ``tell``: is told of the output as it comes, and where in it each piece stands.
    ``traceparent``: where it stands in a trace, if in one."""
    box = _box(modes.in_force(), network)
    command = _command(box, program, workspace=workspace, shut=shut)
    # What starts more than it may is found by a look, and ended; this is for what is faster than looks.
    with cgroup.bounded(2 * MAX_PROCESSES, command) as bounded:
        reading, writing = os.pipe()
        try:
            with all_cores():
                process = subprocess.Popen(  # noqa: S603 -- our own module, which becomes what the tool's function names
                    bounded.command,
                    cwd=settings.BASE_DIR,  # from which it imports; the workspace may hold a module of any name
                    env=_environment(box, workspace) | ({"TRACEPARENT": traceparent} if traceparent else {}),
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=writing,
                    start_new_session=True,
                )
        except OSError as error:
            os.close(reading)
            return Ended(output="", rule="crashed", text=f"it could not be started: {error.strerror}")
        finally:
            os.close(writing)
        watched = _Watched(process, reading, _Output(tell), seconds=seconds, bounded=bounded)
        try:
            return watched.watch(is_full, still_wanted)
        finally:
            watched.end()
            os.close(reading)


@lru_cache
def _box(sandbox: modes.Sandbox, network: bool) -> Box:
    """Made once: which files are code is looked up for it, which takes 10 ms."""
    return modes.box(sandbox, [Permission.NET_HTTP] if network else [])


def _command(box: Box, program: Sequence[str], *, workspace: Path, shut: Sequence[str]) -> list[str]:
    folder = WORKSPACE if box.mode == BUBBLEWRAP else str(workspace)
    told = {"box": asdict(box), "memory": settings.TOOL_MEMORY_MB << 20, "processes": MAX_PROCESSES}
    told |= {"folder": folder, "nice": _NICE}
    launch = [sys.executable, "-S", "-m", "tools.sandbox.launch", json.dumps(told), *program]
    if box.mode != BUBBLEWRAP:
        return launch
    bound = [("--bind", str(workspace), WORKSPACE)]
    for path in shut:
        # What is a place of a mount is neither renamed nor deleted: so each folder above it is one.
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        bound += [("--bind", f"{workspace}/{each}", f"{WORKSPACE}/{each}") for each in above]
        bound.append(("--ro-bind", f"{workspace}/{path}", f"{WORKSPACE}/{path}"))
    bound += [("--ro-bind-try", folder, folder) for folder in settings.EXEC_PATH_APPEND]
    return box.command(launch, cwd=settings.BASE_DIR, bound=list(dict.fromkeys(bound)))


def _environment(box: Box, workspace: Path) -> dict[str, str]:
    """All that a program is told: no secret, and nothing of the host's."""
    path = os.pathsep.join([os.path.dirname(sys.executable), *_PATH, *settings.EXEC_PATH_APPEND])
    home = WORKSPACE if box.mode == BUBBLEWRAP else str(workspace)
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb", "TZ": settings.TIME_ZONE}


class _Watched:
    """A program that runs, and what it may still do."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        reading: int,
        output: "_Output",
        *,
        seconds: float,
        bounded: cgroup.Bounded,
    ) -> None:
        self._process, self._reading, self._output, self._bounded = process, reading, output, bounded
        self._seconds, self._began = seconds, time.monotonic()
        # The first of the box's processes: with it all others end, and it is the last that is gone.
        self._first: int | None = None
        os.set_blocking(reading, False)
        # What is bounded by looking is looked at by a thread that waits for nothing else: neither a disk that is slow
        # nor a database lets a command grow meanwhile.
        self._excess: tuple[str, str] | None = None
        self._is_over = threading.Event()
        self._guard = threading.Thread(target=self._keep_looking, name="command", daemon=True)
        self._guard.start()

    def watch(self, is_full: Callable[[], str], still_wanted: Callable[[], bool]) -> Ended:
        """Until it ends, or has to."""
        deadline = self._began + self._seconds
        look_at = disk_at = ask_at = self._began
        ask_at += ASK_SECONDS
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        while True:
            now = time.monotonic()
            if now >= deadline:
                return self._ended("timeout", f"timed out after {self._seconds:g} s and was stopped")
            if stopping.is_late:
                return self._ended("interrupted", "stopped by a shutdown")
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                if self._excess:
                    return self._ended(*self._excess)
                if self._process.poll() is not None:
                    self._stop_looking()
                    # One that starts them faster than anybody looks may end at the kernel's bound.
                    too_much = self._excess or (_TOO_MANY if self._bounded.was_reached() else None)
                    return self._ended(*too_much) if too_much else self._by_itself(is_full)
                if self._output.size > MAX_OUTPUT:
                    return self._ended("output", f"it wrote more than {MAX_OUTPUT} bytes, and was stopped")
            if now >= disk_at:
                if excess := is_full():
                    return self._ended("disk", f"{excess}, and was stopped")
                # A tenth of the time at most is spent on it, however many files there are.
                disk_at = time.monotonic() + max(_DISK_SECONDS, 10 * (time.monotonic() - now))
            if now >= ask_at:
                ask_at = now + ASK_SECONDS
                if not still_wanted():
                    return Ended(output="", lost=True)
            # Output is read as fast as we want it: whoever writes a flood waits.
            if poll.poll(max(0.0, min(deadline - now, look_at - now)) * 1000) and not self._output.take(self._reading):
                poll.unregister(self._reading)  # closed; it may run on
            self._output.tell_some()

    def _keep_looking(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            if why := self._too_much():
                self._excess = why
                self._kill()
                return

    def _stop_looking(self) -> None:
        self._is_over.set()
        self._guard.join()

    def _too_much(self) -> tuple[str, str] | None:
        count, memory = _sum(self._process.pid)
        if self._first is None and (below := children_of(self._process.pid)):
            with suppress(OSError, AttributeError):
                self._first = os.pidfd_open(min(below))
        if count > MAX_PROCESSES + 3:  # with bubblewrap's own
            return _TOO_MANY
        if memory > settings.TOOL_MEMORY_MB << 20:
            return "memory", f"its processes had more than {settings.TOOL_MEMORY_MB} MB together, and were stopped"
        return None

    def _by_itself(self, is_full: Callable[[], str]) -> Ended:
        self.end()
        self._drain()
        self._output.tell_rest()
        code, output = self._process.returncode, self._output.text()
        if excess := is_full():
            output += f"\n[{excess}: delete some]"
        return Ended(output=output, code=code if code >= 0 else 128 - code)

    def _ended(self, rule: str, text: str) -> Ended:
        self.end()
        self._drain()
        return Ended(output=self._output.text(), rule=rule, text=text)

    def _drain(self) -> None:
        while self._output.size <= MAX_OUTPUT and select.select([self._reading], [], [], 0)[0]:
            if not self._output.take(self._reading):
                return

    def _kill(self) -> None:
        # Its group, for where there is no box; in one, all end with the first.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and all that it has started; they are gone when this returns."""
        self._stop_looking()
        self._kill()
        self._process.wait()
        if self._first is not None:
            select.select([self._first], [], [], _END_SECONDS)
            os.close(self._first)
            self._first = None


class _Output:
    """What a program has written so far: the beginning and the end of it; and how far it was told."""

    def __init__(self, tell: Callable[[int, str], None]) -> None:
        self.size = 0
        self._head, self._tail = bytearray(), bytearray()
        self._tell, self._told, self._tell_at = tell, "", 0.0

    def take(self, reading: int) -> bool:
        """Read what there is; False at the end."""
        try:
            chunk = os.read(reading, 1 << 16)
        except BlockingIOError:
            return True
        self.size += len(chunk)
        room = _KEPT - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[max(room, 0) :]
        del self._tail[:-_KEPT]
        return bool(chunk)

    def text(self) -> str:
        """What is kept of it."""
        left_out = self.size - len(self._head) - len(self._tail)
        between = f"\n[{left_out} bytes are left out]\n" if left_out else ""
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        if not between:
            return storable(bytes(self._head + self._tail).decode("utf-8", "replace"))
        return storable(f"{head}{between}{tail}")

    def tell_some(self) -> None:
        """Tell of whole lines, now and then."""
        now = time.monotonic()
        if now >= self._tell_at and len(self._told) < MAX_TOLD:
            self._tell_at = now + _TELL_SECONDS
            self._tell_until(bytes(self._head[:MAX_TOLD]).rpartition(b"\n")[0])

    def tell_rest(self) -> None:
        """Tell of what is left of a program that has ended."""
        if len(self._told) < MAX_TOLD:
            self._tell_until(bytes(self._head[:MAX_TOLD]))

    def _tell_until(self, raw: bytes) -> None:
        # The whole of it is looked through each time: a secret may stand across two pieces.
        text = redact(storable(raw.decode("utf-8", "replace")))
        if not text.startswith(self._told):
            self._told = " " * MAX_TOLD  # what comes shows that what was told would be hidden: no more is told
            return
        while piece := text[len(self._told) :][:_MAX_PIECE]:
            self._tell(len(self._told), piece)
            self._told += piece


def _sum(pid: int) -> tuple[int, int]:
    """How many processes are below one, and bytes of memory of their own; no further than there may be."""
    count, memory, look = 0, 0, [pid]
    page = os.sysconf("SC_PAGE_SIZE")
    while look and count <= MAX_PROCESSES + 3:
        below = children_of(look.pop())
        look += below
        count += len(below)
        for each in below:
            with suppress(OSError, ValueError, IndexError):
                resident, shared = Path(f"/proc/{each}/statm").read_bytes().split()[1:3]
                memory += (int(resident) - int(shared)) * page
    return count, memory


def _refused(rule: str, message: str) -> Outcome:
    said = json.dumps({"status": "REJECTED", "rule": rule, "message": message}, ensure_ascii=False)
    return Outcome(status=CallStatus.REJECTED, result=storable(said), rule=rule)


def _failed(rule: str, text: str) -> Outcome:
    return Outcome(status=CallStatus.FAILED, result=f"FAILED: {cap(text, 2000)}", rule=rule)
