"""The process a tool runs in. Imports no more than a tool needs; is told of no database and of no key.

``python -m tools.sandbox.child TOLD`` is told in JSON what box it is in, and starts a *fork server*: it imports the
tools' modules once and then forks for each request on its control socket, so that a *child* is warm when it starts
(some milliseconds, against 300 for a fresh interpreter that sets Django up). Between the two stands a *supervisor*,
which ends what its child has started:

    host ─ the box's first process ─ fork server ┬ supervisor ─ child ─ whatever its tool starts
                                                 └ supervisor ─ child

The box's first process is bubblewrap's in its mode, and ends all others with it, since it is the first of a namespace
of processes. In Landlock's mode it is a *guardian*, which was forked before anything was given up, and finds the others
as a supervisor does. Without a box there is none.

A process can leave its parent, its process group and its session, as daemons do. On Linux it is then given to the next
"subreaper" above it, which is its supervisor; so all that a tool has started stays below that. Whoever is killed, the
one above or below ends the rest:

- the child ends, or the host asks for it: its supervisor ends all that is below, and itself;
- the supervisor is killed: the kernel kills the child, and the fork server ends what they leave;
- the fork server is killed: each supervisor is told by the kernel, and ends as if it had been asked to, also one that
  was stopped; so does the box;
- the host is killed or closes the control socket: the fork server ends everybody, and itself.

Where the kernel can (Landlock's ABI 6), a tool can signal none of those above it. What it does to its own interpreter,
it can also do to the code of ours that runs there; :func:`_condition` and :class:`Code` see accidents, and attacks that
are not hidden. So the bounds are between processes: what an interpreter has run is only trusted with calls of the same
app, and never with a secret; and before one is used again the host looks itself, from outside, whether a call has left
processes or threads.

Elsewhere than on Linux a child is ended with its process group, and those who leave it are not found.

Control socket, line by line: ``fork``, with two sockets attached, the child's and the *liveness socket*, is answered
with the supervisor's pid, or ``0`` if there can be none. ``end PID`` asks a supervisor to end, and is answered with
``0`` at once; when it has, the liveness socket closes, which it alone holds. ``reap PID`` kills what has not ended, and
is answered with ``1`` if the child had died for want of memory, else with ``0``.

A child's socket carries frames, a length of 4 bytes (big-endian) and JSON: an empty one when it is ready, a request
``{call, module, qualname, arguments, secrets, outputBytes}`` and an answer ``{call, ok, text, rule, trace, left}``.
``call`` comes back as it went, so that nothing a tool wrote to the socket is taken for our answer; ``left``: there are
processes or threads that the call has left behind, or its process is not as it was.
"""

import decimal
import gc
import importlib
import inspect
import json
import locale
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, NoReturn

from nanohost.lib.process import CHILD_SUBREAPER, PDEATHSIG, close_to_others, prctl
from nanohost.lib.redaction import remember
from tools import registry
from tools.results import as_text, binder, cap, described
from tools.sandbox import landlock
from tools.sandbox.box import LANDLOCK, NONE, Box, limit, limit_a_tool

LENGTH = struct.Struct(">I")

# An exit code that programs do not use by themselves.
_OUT_OF_MEMORY = 113
# What tells a supervisor to end. Not SIGTERM, which a service manager sends to every process of a service.
_END = signal.SIGUSR1
# How the kernel tells it that the one above has ended: this signal also makes it go on, if it was stopped to be killed
# and was not. A service manager sends it as well, so it means nothing by itself.
_ABOVE_HAS_ENDED = signal.SIGCONT
# Of the memory it may have, what a child must have had for its death by a signal to be blamed on memory.
_STARVED = 0.8
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
_HANDLED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGALRM,
    signal.SIGPIPE,
    signal.SIGHUP,
    signal.SIGUSR1,
)
# What a call is run and answered by, asyncio where a tool needs it. This module is run as a program.
_RUN_BY = ("__main__", "builtins", "json", "os", "importlib", "inspect", "asyncio", "tools.results")
# And what libraries have a habit of replacing, for all that comes after: how names are resolved, and who is trusted.
_OFTEN_REPLACED = ("json.encoder", "json.decoder", "socket", "ssl")
_WRITE_AND_READ = (json.JSONEncoder, json.JSONDecoder)
# How long the host waits at most while the fork server ends what a supervisor left; it goes on with the rest meanwhile.
REAP_SECONDS = 0.4


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of a process that runs tools: bytes of ``memory`` of its own, and ``processes`` in its box."""

    memory: int
    processes: int


# --- the fork server ---------------------------------------------------------------------------------------------


def main(told: dict[str, Any]) -> None:
    """Be the fork server until the host goes away. ``told``: the descriptors ``control`` and ``liveness``, the ``box``,
    its limits, and the ``modules`` to import."""
    os.environ.pop("PWD", None)  # bubblewrap's
    control, box = socket.socket(fileno=told["control"]), Box(**told["box"])
    limits = Limits(memory=told["memory"], processes=told["processes"])
    # A terminal's Ctrl-C goes to a process group, and a service manager's SIGTERM to every process of a service; here
    # the end of the control socket decides. A handler, unlike SIG_IGN, is not passed on to what a tool starts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stay)
    limit(resource.RLIMIT_CORE, 0)
    if box.mode == LANDLOCK:
        _fork_guardian(control, socket.socket(fileno=told["liveness"]), box)
    box.enter()
    prctl(CHILD_SUBREAPER, 1)
    _import(told["modules"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as it may be where the host was started, nobody is reaped
    gc.collect()
    gc.freeze()
    children = children_of(os.getpid())  # supervisors; and what a tool's module started when it was imported
    try:
        # A reset is an end too: the host was killed before it read our last answer.
        with suppress(ConnectionError):
            _obey(control, box, limits, children)
    finally:
        _end_all(children)


def _fork_guardian(control: socket.socket, liveness: socket.socket, box: Box) -> None:
    """Return in a process that becomes the fork server, as the box's user; the one that was before gives nothing up,
    and stays to end whatever is below it, once the fork server or the host has ended."""
    close_to_others()
    prctl(CHILD_SUBREAPER, 1)
    guardian, server = os.getpid(), os.fork()
    if server == 0:
        liveness.close()
        box.change_user()
        prctl(PDEATHSIG, signal.SIGKILL)  # after that: a change of user undoes it
        if os.getppid() != guardian:
            os._exit(0)
        return
    control.close()
    try:
        _await_end(server, liveness)
        _signal(server, signal.SIGKILL)
        end_descendants(seconds=10)
    finally:
        os._exit(0)


def _await_end(server: int, liveness: socket.socket) -> None:
    ends = select.poll()
    ends.register(os.pidfd_open(server), select.POLLIN)
    ends.register(liveness, select.POLLIN)
    ends.poll()


def _obey(control: socket.socket, box: Box, limits: Limits, children: set[int]) -> None:
    """Fork and end as the host says, until its end of the socket closes."""
    server, all_ended = os.getpid(), True
    while True:
        if not all_ended and not select.select([control], [], [], 0.1)[0]:
            all_ended = end_descendants(spared=children, seconds=0.1)
            continue
        message, fds, _, _ = socket.recv_fds(control, 64, 2)
        if not message:
            return
        order, _, pid = message.decode().partition(" ")
        answer = 0
        if order == "fork":
            if answer := _fork_supervisor(control, fds, box, limits, server):
                children.add(answer)
        elif order == "end":
            _signal(int(pid), _END)
        else:  # reap
            _signal(int(pid), signal.SIGKILL)
            answer = int(os.waitstatus_to_exitcode(os.waitpid(int(pid), 0)[1]) == _OUT_OF_MEMORY)
            children.discard(int(pid))
            all_ended = end_descendants(spared=children, seconds=REAP_SECONDS)
        control.sendall(b"%d\n" % answer)


def _fork_supervisor(control: socket.socket, fds: list[int], box: Box, limits: Limits, server: int) -> int:
    """The pid of a new child's supervisor; 0 if the system's bound of processes is met: those there are go on."""
    try:
        pid = os.fork()
    except OSError:
        pid = 0
    else:
        if pid == 0:
            control.close()
            child_fd, liveness_fd = fds
            _be_supervisor(child_fd, liveness_fd, box, limits, server)
    for fd in fds:
        os.close(fd)
    return pid


def _end_all(children: set[int]) -> None:
    """Have the supervisors end, all at once, and kill what is left. They must not be stopped while they can do so by
    themselves: if we were killed then, nobody would make them go on."""
    for pid in children:
        _signal(pid, _END)
    until = time.monotonic() + REAP_SECONDS
    while (left := children & children_of(os.getpid())) and time.monotonic() < until:
        time.sleep(0.001)
        _reap(left)
    end_descendants(seconds=10)


def _stay(number: int, frame: object) -> None:
    """Answers a signal by going on."""


def _import(modules: list[str]) -> None:
    """Import what calls will need. What fails here fails again in the call that needs it, where its reason is told:
    one broken module must not take the others' tools along, and some import only with the secrets they declare."""
    binder(_stay)  # pydantic imports its parts when they are used: a quarter of a second that no call should take

    if any(not module.startswith("tools.") for module in modules):
        with suppress(Exception):
            import django

            django.setup()
    for module in modules:
        with suppress(Exception):
            importlib.import_module(module)


# --- a child's supervisor ----------------------------------------------------------------------------------------


def _be_supervisor(child_fd: int, liveness_fd: int, box: Box, limits: Limits, server: int) -> NoReturn:
    """Fork a child, wait for its end, and end all that it started; never return into the fork server's code."""
    code = 0
    try:
        os.setsid()
        os.set_inheritable(child_fd, False)
        # They are waited for, and wait meanwhile.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {_END, _ABOVE_HAS_ENDED, signal.SIGCHLD})
        prctl(CHILD_SUBREAPER, 1)
        prctl(PDEATHSIG, _ABOVE_HAS_ENDED)
        if os.getppid() == server:
            supervisor, child = os.getpid(), os.fork()
            if child == 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                os.close(liveness_fd)
                _be_child(child_fd, box, limits, supervisor)
            os.close(child_fd)
            code = _supervise(child, server, limits.memory)
    finally:
        end_descendants(seconds=10)
        os._exit(code)


def _supervise(child: int, server: int, memory: int) -> int:
    """Wait until the child ends or is to end, and kill its process group; returns what to exit with."""
    while True:
        told = signal.sigwait({_END, _ABOVE_HAS_ENDED, signal.SIGCHLD})
        asked_to_end = told == _END or os.getppid() != server
        if asked_to_end:
            _kill_group(child)
            _signal(child, signal.SIGKILL)  # it may not have made its group yet
        pid, status, usage = os.wait4(child, 0 if asked_to_end else os.WNOHANG)
        if pid:
            break
        _reap(children_of(os.getpid()) - {child})
    _kill_group(child)  # whom it left behind, if it died by itself
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    starved = os.WIFSIGNALED(status) and peak >= _STARVED * memory
    return _OUT_OF_MEMORY if starved or os.waitstatus_to_exitcode(status) == _OUT_OF_MEMORY else 0


def _kill_group(number: int) -> None:
    """Kill a process group, all of it at once: nobody in it can get away by forking."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


# --- ending what a tool has started ------------------------------------------------------------------------------


def end_descendants(*, spared: Collection[int] = (), seconds: float) -> bool:
    """Kill all that is below this process, but for ``spared`` children and theirs; False if so many seconds were too
    few.

    Each is stopped when it is found, since what is stopped does not fork, and all are killed when no more are found.
    Those that come up nevertheless become children of ours when their parents die, and are found in the next round.
    """
    until = time.monotonic() + seconds
    while children := children_of(os.getpid()) - set(spared):
        if time.monotonic() > until:
            return False
        stopped: set[int] = set()
        while _stop(children, stopped) and time.monotonic() < until:
            pass
        for pid in stopped:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.001)  # they take a moment to die
        _reap(children)
    return True


def _stop(pids: set[int], stopped: set[int]) -> bool:
    """Stop these processes and all below them; whether there were any besides those in ``stopped``, where they go."""
    found, before = list(pids), len(stopped)
    seen = set(found)
    while found:
        pid = found.pop()
        if pid not in stopped:
            _signal(pid, signal.SIGSTOP)
            stopped.add(pid)
        below = children_of(pid) - seen
        seen |= below
        found += below
    return len(stopped) > before


def children_of(pid: int) -> set[int]:
    """The children of a process; none if it is gone, or where the kernel does not tell.

    The kernel may pass over some while others exit, but not over all: an empty set is true.
    """
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # a child is its parent's thread's
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file,
            ):
                found.update(map(int, file.readall().split()))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or a setuid program made it somebody else's
        os.kill(pid, number)


def _reap(pids: Collection[int]) -> None:
    """Take leave of those children of ours that have ended."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


# --- a child -----------------------------------------------------------------------------------------------------


def _be_child(fd: int, box: Box, limits: Limits, supervisor: int) -> NoReturn:
    """Serve until the host closes the socket, and never return into the supervisor's code."""
    code = 0
    try:
        os.setsid()
        prctl(PDEATHSIG, signal.SIGKILL)
        if os.getppid() == supervisor:
            if box.mode != NONE:
                landlock.keep_signals_in()
            limit_a_tool(box, memory=limits.memory, processes=limits.processes)
            serve(socket.socket(fileno=fd))
    except MemoryError:
        code = _OUT_OF_MEMORY
    finally:
        os._exit(code)


def serve(connection: socket.socket) -> None:
    """Be a child: run one call after another until the host closes the socket."""
    this, as_it_was, code = os.getpid(), _condition(), Code.now()
    connection.sendall(LENGTH.pack(0))
    while (frame := read_frame(connection)) is not None:
        request = json.loads(frame)
        answer = run(request)
        if os.getpid() != this:  # a fork that a tool made and that came back with its call
            return
        left = _has_left_something() or _condition() != as_it_was or code.is_changed()
        answer |= {"call": request["call"], "left": left}
        payload = json.dumps(answer).encode()
        connection.sendall(LENGTH.pack(len(payload)) + payload)


def _has_left_something() -> bool:
    """Whether there are threads besides this one, or processes besides this one below our supervisor."""
    if sys.platform != "linux":
        return threading.active_count() > 1
    try:
        if len(os.listdir("/proc/self/task")) > 1:
            return True
        return bool(children_of(os.getpid()) | children_of(os.getppid()) - {os.getpid()})
    except OSError:  # it has left all descriptors open
        return True


def _condition() -> Any:
    """What a call may change of its process that would end or mislead the next one: timers, whose signal kills, limits,
    the directory it is in, the mode of new files, its environment, what is open, how and where it imports from, what
    signals do and which are blocked, the garbage collector, how decimals are rounded, the locale, and who looks on.
    None if it cannot be told. Not what runs at an exit: a child never gets there."""
    umask = os.umask(0o077)
    os.umask(umask)
    timers = [signal.getitimer(each)[0] > 0 for each in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
    limits = [resource.getrlimit(each) for each in _LIMITS]
    handlers = [signal.getsignal(each) for each in _HANDLED]
    watched_by = sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), socket.getdefaulttimeout()
    threads_begin_with = threading.gettrace(), threading.getprofile(), threading.stack_size()
    errors_go_to = sys.excepthook, sys.unraisablehook, threading.excepthook, sys.stdout, sys.stderr
    imports = list(sys.path), list(sys.meta_path), list(sys.path_hooks)
    garbage = gc.isenabled(), gc.get_threshold(), list(gc.callbacks)
    decimals = decimal.getcontext().prec, decimal.getcontext().rounding
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    hooks = watched_by, threads_begin_with, errors_go_to, imports, garbage, decimals, locale.setlocale(locale.LC_ALL)
    try:
        return timers, limits, handlers, blocked, hooks, os.getcwd(), umask, dict(os.environ), _open_files()
    except OSError:
        return None


def _open_files() -> dict[str, str]:
    """What is open, by its descriptor; empty elsewhere than on Linux."""
    found = {}
    if sys.platform == "linux":
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the one that the list was read with
                found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


@dataclass(frozen=True)
class Code:
    """What calls are run and answered by, as it was before the first: all that has a name in some modules; and of ours
    among them, and of the tools' own, the functions and what each does."""

    names: dict[str, dict[str, Any]]
    classes: list[dict[str, Any]]
    functions: list[tuple[str, str, FunctionType, CodeType]]

    @classmethod
    def now(cls) -> "Code":
        loaded = [name for name in ("__main__", "tools.results", *registry.modules()) if name in sys.modules]
        functions = [
            (module, name, each, each.__code__)
            for module in loaded
            for name, each in vars(sys.modules[module]).items()
            if isinstance(each, FunctionType)
        ]
        names = {name: dict(vars(sys.modules[name])) for name in (*_RUN_BY, *_OFTEN_REPLACED) if name in sys.modules}
        return cls(names, [dict(vars(each)) for each in _WRITE_AND_READ], functions)

    def is_changed(self) -> bool:
        """Whether something was replaced, by a tool's mistake or a library's habit; what is added harms nobody. Whoever
        means to hide it can, in an interpreter that is its own."""
        try:
            now = {name: vars(sys.modules[name]) for name in self.names}
            if self.classes != [dict(vars(each)) for each in _WRITE_AND_READ]:
                return True
            return any(now[name] | before != now[name] for name, before in self.names.items()) or any(
                vars(sys.modules[module]).get(name) is not each or each.__code__ is not code
                for module, name, each, code in self.functions
            )
        except LookupError:  # one of the modules is gone
            return True


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one call and say how it ended; whatever the tool raises is part of the answer."""
    os.environ.update(request["secrets"])
    if request.get("traceparent"):
        os.environ["TRACEPARENT"] = request["traceparent"]
    for name, secret in request["secrets"].items():
        remember(name, secret)
    try:
        target: Any = importlib.import_module(request["module"])
        for part in request["qualname"].split("."):
            target = getattr(target, part)
        try:
            arguments = binder(target)(**request["arguments"])
        except ValueError as error:
            return {"ok": False, "text": cap(str(error), 2000), "rule": "arguments", "trace": ""}
        result = target(**arguments)
        if inspect.iscoroutine(result):
            import asyncio  # Django, which others' tools are loaded with, has loaded it; ours do without

            result = asyncio.run(result)
        return {"ok": True, "text": cap(as_text(result), request["outputBytes"]), "rule": "", "trace": ""}
    except MemoryError as error:
        error.__traceback__ = None  # it holds the tool's frames, and they what fills the memory
        return {"ok": False, "text": "", "rule": "memory", "trace": ""}
    except BaseException as error:  # a tool's sys.exit() ends the call, not the child
        return {
            "ok": False,
            "text": cap(described(error), 2000),
            "rule": "raised",
            "trace": cap(traceback.format_exc(), 8000),
        }
    finally:
        for name in (*request["secrets"], *(("TRACEPARENT",) if request.get("traceparent") else ())):
            os.environ.pop(name, None)


def read_frame(connection: socket.socket) -> bytes | None:
    """The next frame; None at the end."""
    header = _read(connection, LENGTH.size)
    return _read(connection, LENGTH.unpack(header)[0]) if header else None


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        if not (chunk := connection.recv(min(size - len(data), 1 << 20))):
            return None
        data += chunk
    return bytes(data)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
