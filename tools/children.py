"""Where tools run: warm child processes with an empty environment, killed and replaced when their deadline passes.

Only the gate may use this module; a test walks the code to see that nobody else does.
"""

import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings

from tools import registry
from tools.child import LENGTH

logger = logging.getLogger(__name__)

# What a child's environment holds besides the secrets its tool declares: enough to find code, and no secret.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "DJANGO_SETTINGS_MODULE", "DATA_DIR", "NANOHOST_EXTRA_APPS")

# How often a running call asks whether it is still wanted, and renews its lease.
_ASK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of a tool. ``timeout`` in seconds; ``repeatable``: a shutdown may interrupt it, it is run again."""

    module: str
    qualname: str
    arguments: dict[str, Any]
    timeout: float
    output_bytes: int
    secrets: tuple[str, ...]
    repeatable: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a run ended. ``rule``: what ended it if not ``ok``. ``lost``: it was no longer wanted and was killed."""

    ok: bool
    text: str
    rule: str = ""
    lost: bool = False


class Interrupted(Exception):
    """A shutdown stopped a run that can be repeated."""


class _Child:
    """A forked child and our end of its socket."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection


class _Nursery:
    """Our side of ``tools.child``'s nursery: forks children and kills them."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            self._process = subprocess.Popen(  # noqa: S603 -- our own module, no shell
                [sys.executable, "-m", "tools.child", str(theirs.fileno()), *registry.modules()],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fork(self) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
        return _Child(self._reply(), ours)

    def kill(self, child: _Child) -> None:
        child.connection.close()
        self._control.sendall(b"kill %d" % child.pid)
        self._reply()

    def close(self) -> None:
        """Close the control socket: the nursery kills its children and ends."""
        self._control.close()
        self._process.wait()

    def _reply(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            if not (part := self._control.recv(64)):
                raise ConnectionError("the nursery of tool processes has ended")
            line += part
        return int(line)


class ChildPool:
    """Runs tasks in children, as many at once as there are callers; idle children are kept and used again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nursery: _Nursery | None = None
        self._idle: list[_Child] = []
        self._stopping = threading.Event()
        self._stop_at = 0.0

    def start(self) -> None:
        """Warm up: start the nursery and one child, so that the first call does not wait for imports."""
        self._stopping.clear()
        self._give_back(self._take())

    def stop(self, *, grace: float = 4.0) -> None:
        """Interrupt what can be repeated, give the rest ``grace`` seconds, end every child."""
        self._stop_at = time.monotonic() + grace
        self._stopping.set()

    def close(self) -> None:
        """End the nursery and all children now."""
        with self._lock:
            self._idle.clear()
            if self._nursery:
                self._nursery.close()
                self._nursery = None

    def run(self, task: Task, *, still_wanted: Callable[[], bool]) -> Answer:
        """Run a task to its end or its deadline; raises :class:`Interrupted` if a shutdown stopped it."""
        began = time.monotonic()
        child = self._take()
        try:
            answer = self._converse(child, task, began + task.timeout, still_wanted)
        except BaseException:
            self._kill(child)
            raise
        if answer is None:
            self._kill(child)
            return Answer(ok=False, rule="timeout", text=f"timed out after {task.timeout:g} s and was stopped")
        if answer.lost or answer.rule in ("crashed", "interrupted", "output"):
            self._kill(child)
        else:
            self._give_back(child)
        return answer

    def _converse(self, child: _Child, task: Task, deadline: float, still_wanted: Callable[[], bool]) -> Answer | None:
        """Send the request, read the answer; None when the deadline passes first."""
        request = {
            "module": task.module,
            "qualname": task.qualname,
            "arguments": task.arguments,
            "outputBytes": task.output_bytes,
            "secrets": {name: os.environ[name] for name in task.secrets if name in os.environ},
        }
        payload = json.dumps(request).encode()
        # JSON writes a byte as six at worst; more than that is not an answer of tools.child.
        most = 6 * task.output_bytes + 65536
        received = bytearray()
        pending = memoryview(LENGTH.pack(len(payload)) + payload)
        child.connection.setblocking(False)
        ask_at = time.monotonic() + _ASK_SECONDS
        poll = select.poll()
        while True:
            now = time.monotonic()
            if now >= deadline:
                return None
            if self._stopping.is_set() and task.repeatable:
                raise Interrupted
            if self._stopping.is_set() and now >= self._stop_at:
                return Answer(ok=False, rule="interrupted", text="stopped by a shutdown")
            if now >= ask_at:
                ask_at = now + _ASK_SECONDS
                if not still_wanted():
                    return Answer(ok=False, text="", lost=True)
            poll.register(child.connection, select.POLLIN | (select.POLLOUT if pending else 0))
            if not poll.poll(max(0.0, min(deadline - now, ask_at - now, 0.25)) * 1000):
                continue
            try:
                if pending:
                    pending = pending[child.connection.send(pending) :]
                if not (chunk := child.connection.recv(1 << 18)):
                    return Answer(ok=False, rule="crashed", text="the tool's process ended before it answered")
            except BlockingIOError:
                continue
            except OSError:
                return Answer(ok=False, rule="crashed", text="the tool's process ended before it answered")
            received += chunk
            if len(received) > most:
                return Answer(ok=False, rule="output", text="the tool's process flooded its output")
            if len(received) >= LENGTH.size and len(received) >= LENGTH.size + LENGTH.unpack_from(received)[0]:
                answer = json.loads(bytes(received[LENGTH.size :]))
                if answer["trace"]:
                    logger.warning("tool %s:%s raised\n%s", task.module, task.qualname, answer["trace"])
                return Answer(ok=answer["ok"], text=answer["text"], rule=answer["rule"])

    def _take(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            try:
                self._nursery = self._nursery or _Nursery()
                return self._nursery.fork()
            except OSError:  # the nursery was killed: a new one takes its place
                self._idle.clear()
                self._nursery = _Nursery()
                return self._nursery.fork()

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            self._idle.append(child)

    def _kill(self, child: _Child) -> None:
        with self._lock:
            try:
                if self._nursery:
                    self._nursery.kill(child)
            except OSError:
                self._nursery = None
                self._idle.clear()


@cache
def pool() -> ChildPool:
    """The process's pool."""
    return ChildPool()
