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
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from nanohost.lib import env
from tools import registry
from tools.child import LENGTH

logger = logging.getLogger(__name__)

# What a child's environment holds besides the secrets its tool declares: enough to find code, and no secret. The
# settings know by NANOHOST_TOOL_PROCESS that they are read in one, and then name no database and no key.
_PASSED_ON = (
    *("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "DJANGO_SETTINGS_MODULE", "DATA_DIR", "NANOHOST_EXTRA_APPS"),
    *("HTTP_ALLOWED_PRIVATE_CIDRS", "HTTP_ALLOWED_PORTS"),
)

# How often a running call asks whether it is still wanted, and renews its lease.
_ASK_SECONDS = 1.0

# How long a nursery may take to start, which is a second of a processor: on a machine that is busy one that is late is
# no better replaced by another.
_START_SECONDS = 30.0

# How long it may then take for anything it is asked.
_NURSERY_SECONDS = 10.0

# How long it may take to end its children at a stop, before it is killed itself, which ends them as well.
_CLOSE_SECONDS = 2.0

# What tells that it was killed, or hangs. Too few descriptors or processes are another matter: it goes on.
_NURSERY_GONE = (ConnectionError, TimeoutError)

# How long a child's supervisor may take to end all that a call has started, before the nursery does it.
_END_SECONDS = 0.5

# A child whose run ended so is not used again.
_ENDED_BY = ("timeout", "crashed", "memory", "interrupted", "output", "unavailable")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of a tool. ``timeout`` in seconds; ``repeatable``: a shutdown may interrupt it; it is run again."""

    module: str
    qualname: str
    arguments: dict[str, Any]
    timeout: float
    output_bytes: int
    secrets: tuple[str, ...]
    repeatable: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a run ended. ``rule``: what ended it if not ``ok``. ``lost``: it was no longer wanted and was killed.
    ``left``: it has left processes or threads behind, or its own process otherwise than it was.

    The rule ``unavailable`` means that the tool was not started; after ``timeout``, ``crashed``, ``memory``,
    ``interrupted`` and ``output`` nobody knows how far it came.
    """

    ok: bool
    text: str
    rule: str = ""
    lost: bool = False
    left: bool = False


class Interrupted(Exception):
    """A shutdown stopped a run that can be repeated, or that had not begun."""


class _Nursery:
    """Our side of ``tools.child``'s nursery: forks children and ends them. Once it is gone: _NURSERY_GONE."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        # One that hangs is as good as gone; the pool waits for it under its lock.
        self._control.settimeout(_START_SECONDS)
        with theirs:
            environment = {"NANOHOST_TOOL_PROCESS": "1"} | {
                name: os.environ[name] for name in _PASSED_ON if name in os.environ
            }
            self._process = subprocess.Popen(  # noqa: S603 -- our own module, no shell
                [
                    *(sys.executable, "-m", "tools.child", str(theirs.fileno())),
                    *(str(settings.TOOL_MEMORY_MB << 20), *registry.modules()),
                ],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fork(self) -> "_Child":
        """A child that is ready; raises BlockingIOError if there can be none."""
        ours, theirs = socket.socketpair()
        lifeline, their_end = socket.socketpair()
        try:
            with theirs, their_end:
                socket.send_fds(self._control, [b"fork"], [theirs.fileno(), their_end.fileno()])
            if pid := self._reply():
                ours.settimeout(_NURSERY_SECONDS)
                if ours.recv(LENGTH.size) == LENGTH.pack(0):
                    return _Child(self, pid, ours, lifeline)
                self.bury(pid)
            raise BlockingIOError("there can be no more processes for tools")
        except BaseException:
            ours.close()
            lifeline.close()
            raise

    def end(self, pid: int) -> None:
        """Ask a child's supervisor to end all that is below it, and itself."""
        self._control.sendall(b"end %d" % pid)
        self._reply()

    def bury(self, pid: int) -> bool:
        """Kill a supervisor and what is below it as far as they have not ended; True if its child died for want of
        memory."""
        self._control.sendall(b"bury %d" % pid)
        return bool(self._reply())

    def close(self, *, patience: float) -> None:
        """Have the nursery end its children and itself; after ``patience`` seconds, it is killed, and they notice."""
        self._control.close()
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _reply(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            if not (part := self._control.recv(64)):
                raise ConnectionError("the nursery of tool processes has ended")
            line += part
        self._control.settimeout(_NURSERY_SECONDS)  # it has started
        return int(line)


@dataclass(frozen=True)
class _Child:
    """Our end of a child's socket, its supervisor's pid, and the nursery: no other may signal it by its pid.
    ``lifeline``: closed when the supervisor has ended; nothing else comes from it."""

    nursery: _Nursery
    supervisor: int
    connection: socket.socket
    lifeline: socket.socket

    def is_fit(self) -> bool:
        """Whether an idle child still waits for a request: it has nothing to say, unless that it has ended."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        poll.register(self.lifeline, select.POLLIN)
        return not poll.poll(0)

    def has_ended(self, *, within: float) -> bool:
        """Whether the supervisor ends within so many seconds; it is the last of all that a call has started."""
        poll = select.poll()
        poll.register(self.lifeline, select.POLLIN)
        return bool(poll.poll(within * 1000))

    def close(self) -> None:
        self.connection.close()
        self.lifeline.close()


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
        """Begin nothing more, interrupt what can be repeated, give the rest ``grace`` seconds."""
        self._stop_at = time.monotonic() + grace
        self._stopping.set()

    def close(self) -> None:
        """End the nursery and all children now."""
        with self._lock:
            self._drop_nursery(patience=_CLOSE_SECONDS)

    def run(self, task: Task, *, still_wanted: Callable[[], bool]) -> Answer:
        """Run a task to its end or its deadline; raises :class:`Interrupted` if a shutdown stopped it."""
        if self._stopping.is_set():
            raise Interrupted
        began = time.monotonic()
        try:
            secrets = {name: value for name in task.secrets if (value := env.raw_secret(name))}
        except ImproperlyConfigured:
            logger.exception("a tool's secret cannot be read")
            return Answer(ok=False, rule="unavailable", text="a secret it declares cannot be read; it was not run")
        try:
            child = self._take()
        except OSError:
            logger.exception("no process can be started for tools")
            return Answer(ok=False, rule="unavailable", text="no process could be started for it; it was not run")
        try:
            answer = self._converse(child, task, secrets, began, still_wanted)
        except BaseException:
            self._end(child)
            raise
        # A process that was given a secret serves no other tool.
        if answer.lost or answer.left or answer.rule in _ENDED_BY or task.secrets:
            starved = self._end(child)
            if starved and answer.rule == "crashed":
                return _out_of_memory()
        else:
            self._give_back(child)
        return answer

    def _converse(
        self, child: _Child, task: Task, secrets: dict[str, str], began: float, still_wanted: Callable[[], bool]
    ) -> Answer:
        """Send the request and read the answer, until the deadline passes or nobody wants it any more."""
        call = os.urandom(8).hex()
        request = {
            "call": call,
            "module": task.module,
            "qualname": task.qualname,
            "arguments": task.arguments,
            "outputBytes": task.output_bytes,
            "secrets": secrets,
        }
        payload = json.dumps(request).encode()
        # JSON writes a byte as six at worst; more than that is not an answer of tools.child.
        most = 6 * task.output_bytes + 65536
        received = bytearray()
        pending = memoryview(LENGTH.pack(len(payload)) + payload)
        child.connection.setblocking(False)
        # The time that starting a nursery took is not the tool's; but meanwhile its call may have been taken over.
        deadline, ask_at = time.monotonic() + task.timeout, began + _ASK_SECONDS
        poll = select.poll()
        poll.register(child.lifeline, select.POLLIN)
        while True:
            now = time.monotonic()
            if now >= deadline:
                return Answer(ok=False, rule="timeout", text=f"timed out after {task.timeout:g} s and was stopped")
            if self._stopping.is_set() and task.repeatable:
                raise Interrupted
            if self._stopping.is_set() and now >= self._stop_at:
                return Answer(ok=False, rule="interrupted", text="stopped by a shutdown")
            if now >= ask_at:
                ask_at = now + _ASK_SECONDS
                if not still_wanted():
                    return Answer(ok=False, text="", lost=True)
            poll.register(child.connection, select.POLLIN | (select.POLLOUT if pending else 0))
            if not (events := dict(poll.poll(max(0.0, min(deadline - now, ask_at - now, 0.25)) * 1000))):
                continue
            try:
                if pending:
                    pending = pending[child.connection.send(pending) :]
                chunk = child.connection.recv(1 << 18)
            except BlockingIOError:
                if child.lifeline.fileno() not in events:
                    continue
                chunk = b""  # what it has started may still hold the socket open
            except OSError:
                chunk = b""
            if not chunk and pending:
                return Answer(ok=False, rule="unavailable", text="its process ended before it was started")
            if not chunk:
                return Answer(ok=False, rule="crashed", text="the tool's process ended before it answered")
            received += chunk
            if len(received) > most:
                return Answer(ok=False, rule="output", text="the tool's process flooded its output")
            if len(received) >= LENGTH.size and len(received) >= LENGTH.size + LENGTH.unpack_from(received)[0]:
                return _answer(task, call, bytes(received[LENGTH.size :]))

    def _take(self) -> _Child:
        """A child that waits for a request; raises OSError if there is none to be had."""
        while child := self._take_idle():
            if child.is_fit():
                return child
            self._end(child)
        with self._lock:
            for _ in range(2):
                with suppress(*_NURSERY_GONE):  # a new one takes its place
                    return self._fork()
            return self._fork()

    def _take_idle(self) -> _Child | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _fork(self) -> _Child:
        self._nursery = self._nursery or _Nursery()
        try:
            return self._nursery.fork()
        except _NURSERY_GONE:
            self._drop_nursery()
            raise

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            if child.nursery is self._nursery:
                self._idle.append(child)
            else:  # it has ended with its nursery
                child.close()

    def _end(self, child: _Child) -> bool:
        """End a child and all that it started; True if it died for want of memory."""
        try:
            with self._lock:
                child.nursery.end(child.supervisor)
            # Meanwhile others may ask the nursery: this takes a while if there is much to end.
            child.has_ended(within=_END_SECONDS)
            with self._lock:
                return child.nursery.bury(child.supervisor)
        except OSError:
            with self._lock:
                if child.nursery is self._nursery:
                    self._drop_nursery()
            child.has_ended(within=_END_SECONDS)  # its supervisor has noticed
            return False
        finally:
            child.close()

    def _drop_nursery(self, *, patience: float = 0) -> None:
        """End the nursery, and with it all its children."""
        nursery, self._nursery = self._nursery, None
        while self._idle:
            self._idle.pop().close()
        if nursery:
            nursery.close(patience=patience)


def _answer(task: Task, call: str, frame: bytes) -> Answer:
    """What a child's frame says; the child runs code that is not ours, so it may be anything."""
    try:
        said = json.loads(frame)
        if said["call"] != call:
            raise ValueError
        answer = Answer(
            ok=said["ok"] is True, text=str(said["text"]), rule=str(said["rule"]), left=said["left"] is True
        )
        if said["trace"]:
            logger.warning("tool %s:%s raised\n%s", task.module, task.qualname, said["trace"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return Answer(ok=False, rule="output", text="the tool's process answered something that is no answer")
    if answer.left:
        logger.info(
            "tool %s:%s left processes or threads behind, or its process changed; it is ended with them",
            task.module,
            task.qualname,
        )
    return _out_of_memory() if answer.rule == "memory" else answer


def _out_of_memory() -> Answer:
    return Answer(
        ok=False,
        rule="memory",
        text=f"it needed more memory than the {settings.TOOL_MEMORY_MB} MB a tool's process may have, and was stopped",
    )


@cache
def pool() -> ChildPool:
    """The process's pool."""
    return ChildPool()
