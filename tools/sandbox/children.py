"""Where tools run: warm child processes with an empty environment, killed and replaced when their deadline passes.

Tools of one app with the same permissions share a fork server and its box; those of others never share a process with
them. A call that is given a secret has a process to itself, forked for it.

Only the gate may use this module; a test walks the code to see that nobody else does.
"""

import json
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections

from nanohost.lib import env, traces
from tools import calls, registry
from tools.calls import Outcome
from tools.errors import CallLost, Interrupted
from tools.models import CallStatus
from tools.registry import REPEATABLE
from tools.runners import AdmittedCall, InChild
from tools.sandbox import modes
from tools.sandbox.child import LENGTH
from tools.sandbox.forkserver import GONE, Child, ForkServer

logger = logging.getLogger(__name__)

# How often a running call asks whether it is still wanted, and renews its lease.
ASK_SECONDS = 1.0

# How long it may take to end its children at a stop, before it is killed itself, which ends them as well.
_CLOSE_SECONDS = 2.0

# How long a child's supervisor may take to end all that a call has started, before the fork server does it.
END_SECONDS = 0.5

# A child whose run ended so is not used again.
_ENDED_BY = ("timeout", "crashed", "memory", "interrupted", "output", "unavailable")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of a tool. ``permissions``: what it was granted. ``timeout`` in seconds; ``repeatable``: a shutdown may
    interrupt it; it is run again. ``traceparent``: where it stands in a trace, which it finds as TRACEPARENT.
    ``alone``: a place of its own, where each run has a process of its own."""

    module: str
    qualname: str
    arguments: dict[str, Any]
    timeout: float
    output_bytes: int
    secrets: tuple[str, ...]
    repeatable: bool
    permissions: tuple[str, ...] = ()
    traceparent: str = ""
    alone: "Place | None" = None

    @property
    def place(self) -> "Place":
        return self.alone or Place(app=_app_of(self.module), permissions=frozenset(self.permissions))


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


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tool runs: beside others of its app with the same permissions, and nobody else."""

    app: str
    permissions: frozenset[str]


def place_of(tool: registry.RegisteredTool) -> Place:
    """Where a tool runs."""
    return Place(app=_app_of(tool.module), permissions=frozenset(tool.permissions))


def _app_of(module: str) -> str:
    """The app that a module is part of; if it is of none, its package."""
    app = apps.get_containing_app_config(module)
    return app.name if app else module.rpartition(".")[0]


@dataclass
class _House:
    """A place's fork server, and those of its children that wait for a call."""

    server: ForkServer
    idle: list[Child] = field(default_factory=list)


class ChildPool:
    """Runs tasks in children, as many at once as there are callers; idle children are kept and used again. ``sandbox``:
    which one they are in; by default the one that is in force."""

    def __init__(self, sandbox: str = "") -> None:
        self._sandbox = sandbox
        # Held for moments only: nobody waits for a fork server under it.
        self._lock = threading.Lock()
        self._houses: dict[Place, _House] = {}
        self._stopping = threading.Event()
        self._stop_at = 0.0

    def start(self, places: Iterable[Place] = ()) -> None:
        """Warm up: have these fork servers start, all at once, and a child wait in each, so that the first calls do not
        wait for imports."""
        self._stopping.clear()
        houses = [self._house(place) for place in places]
        for house in houses:
            self._give_back(house.server.fork())

    def stop(self, *, grace: float = 4.0) -> None:
        """Begin nothing more, interrupt what can be repeated, give the rest ``grace`` seconds."""
        self._stop_at = time.monotonic() + grace
        self._stopping.set()

    def close(self) -> None:
        """End all fork servers and their children now."""
        with self._lock:
            houses, self._houses = [*self._houses.values()], {}
        for house in houses:
            house.server.ask_to_end()
        for house in houses:
            _close(house, patience=_CLOSE_SECONDS)

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
            child = self._take(task.place, fresh=bool(task.secrets or task.alone))
        except (OSError, modes.SandboxMissing):
            logger.exception("no process can be started for tools")
            return Answer(ok=False, rule="unavailable", text="no process could be started for it; it was not run")
        span = traces.begin(task.traceparent)
        answer: Answer | None = None
        try:
            answer = self._converse(
                child, replace(task, traceparent=traces.of(span, task.traceparent)), secrets, began, still_wanted
            )
        except BaseException:
            self._end(child)
            raise
        finally:
            if span:
                _end_span(span, task, answer)
        if answer.rule not in _ENDED_BY and not (answer.lost or answer.left) and child.has_left_something():
            logger.warning("tool %s:%s left processes or threads behind and hid them", task.module, task.qualname)
            answer = replace(answer, left=True)
        # A process that was given a secret serves nothing else.
        if answer.lost or answer.left or answer.rule in _ENDED_BY or task.secrets or task.alone:
            starved = self._end(child)
            if starved and answer.rule == "crashed":
                return _out_of_memory()
        else:
            self._give_back(child)
        return answer

    def _converse(
        self, child: Child, task: Task, secrets: dict[str, str], began: float, still_wanted: Callable[[], bool]
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
            "traceparent": task.traceparent,
        }
        payload = json.dumps(request).encode()
        # JSON writes a byte as six at worst; more than that is not an answer of child.py
        most = 6 * task.output_bytes + 65536
        received = bytearray()
        pending = memoryview(LENGTH.pack(len(payload)) + payload)
        child.connection.setblocking(False)
        # The time that starting a fork server took is not the tool's; but meanwhile its call may have been taken over.
        deadline, ask_at = time.monotonic() + task.timeout, began + ASK_SECONDS
        poll = select.poll()
        poll.register(child.liveness, select.POLLIN)
        while True:
            now = time.monotonic()
            if now >= deadline:
                return Answer(ok=False, rule="timeout", text=f"timed out after {task.timeout:g} s and was stopped")
            if self._stopping.is_set() and task.repeatable:
                raise Interrupted
            if self._stopping.is_set() and now >= self._stop_at:
                return Answer(ok=False, rule="interrupted", text="stopped by a shutdown")
            if now >= ask_at:
                ask_at = now + ASK_SECONDS
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
                if child.liveness.fileno() not in events:
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

    def _take(self, place: Place, *, fresh: bool) -> Child:
        """A child that waits for a request, ``fresh``: one that has served nobody; raises OSError if there is none to
        be had."""
        while not fresh and (child := self._take_idle(place)):
            if child.is_fit():
                return child
            self._end(child)
        for _ in range(2):
            house = self._house(place)
            try:
                return house.server.fork()
            except GONE:  # a new one takes its place
                self._drop(house)
        return self._house(place).server.fork()

    def _take_idle(self, place: Place) -> Child | None:
        with self._lock:
            house = self._houses.get(place)
            return house.idle.pop() if house and house.idle else None

    def _house(self, place: Place) -> _House:
        """The place's house; its fork server may still be starting."""
        box = modes.box(modes.having(self._sandbox or settings.TOOL_SANDBOX), place.permissions)
        with self._lock:
            if place not in self._houses:
                # Of those who have a place of their own, the app is their one module.
                modules = [module for module in registry.modules() if _app_of(module) == place.app] or [place.app]
                self._houses[place] = _House(ForkServer(box, modules))
            return self._houses[place]

    def _give_back(self, child: Child) -> None:
        with self._lock:
            for house in self._houses.values():
                if house.server is child.server:
                    return house.idle.append(child)
        return child.close()  # it has ended with its fork server

    def _end(self, child: Child) -> bool:
        """End a child and all that it started; True if it died for want of memory."""
        try:
            child.server.end(child.supervisor)
            # Meanwhile others may ask the fork server: this takes a while if there is much to end.
            child.has_ended(within=END_SECONDS)
            return child.server.reap(child.supervisor)
        except OSError:
            with self._lock:
                gone = [house for house in self._houses.values() if house.server is child.server]
            for house in gone:
                self._drop(house)
            child.has_ended(within=END_SECONDS)  # its supervisor has noticed
            return False
        finally:
            child.close()

    def _drop(self, house: _House) -> None:
        """End a fork server that is gone or hangs, and with it all its children."""
        with self._lock:
            self._houses = {place: each for place, each in self._houses.items() if each is not house}
        _close(house)


def _close(house: _House, *, patience: float = 0) -> None:
    for child in house.idle:
        child.close()
    house.server.close(patience=patience)


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
        return Answer(ok=False, rule="output", text="the tool's process sent an invalid answer")
    if answer.left:
        logger.info(
            "tool %s:%s left processes or threads behind, or its process changed; it is ended with them",
            task.module,
            task.qualname,
        )
    return _out_of_memory() if answer.rule == "memory" else answer


def _end_span(span: traces.Span, task: Task, answer: Answer | None) -> None:
    """The span of a run in a child, which has no way to a collector. ``answer`` None: a shutdown interrupted it."""
    rule = answer.rule or ("lost" if answer.lost else "") if answer else "interrupted"
    traces.end(span, traces.CHILD, f"{task.module}.{task.qualname}", about=task.qualname, error=rule)


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


def run_in_child(runner: InChild, admitted: AdmittedCall) -> Outcome:
    """Run a call once, in a child of the process's pool. One with side effects that was stopped on its way is UNKNOWN.

    Raises :class:`Interrupted` if a shutdown stopped it, and :class:`CallLost` if it was no longer wanted.
    """
    tool = admitted.tool
    task = Task(
        module=runner.module,
        qualname=runner.qualname,
        arguments=admitted.arguments,
        timeout=admitted.timeout,
        output_bytes=admitted.output_bytes,
        secrets=tool.secrets,
        repeatable=tool.effects in REPEATABLE,
        permissions=tool.permissions,
        traceparent=admitted.call.traceparent,
    )
    close_old_connections()  # none is kept while the tool runs
    answer = pool().run(task, still_wanted=admitted.still_wanted)
    if answer.lost:
        raise CallLost(admitted.call.pk)
    if answer.ok:
        return Outcome(status=CallStatus.SUCCESS, result=answer.text)
    if answer.rule in ("timeout", "crashed", "memory", "interrupted", "output") and tool.effects == "write":
        return Outcome(status=CallStatus.UNKNOWN, result=f"{calls.UNKNOWN_RESULT} ({answer.text})", rule=answer.rule)
    return Outcome(status=CallStatus.FAILED, result=f"FAILED: {answer.text}", rule=answer.rule)
