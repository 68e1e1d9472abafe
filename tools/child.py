"""The process a tool runs in. Imports no more than a tool needs; is told of no database and of no key.

``python -m tools.child FD MODULE…`` starts a *nursery*: it imports the tools' modules once and then forks a child for
each request on the control socket FD, so that a child is warm when it starts (about 1 ms, against 300 for a fresh
interpreter that sets Django up). It ends, with all its children, when the host's end of the control socket closes:
also when the host is killed. On Linux, its children end with it when it is killed itself.

Control socket, line by line: ``fork`` with the child's socket attached is answered with the child's pid, or ``0`` if
there can be none; ``kill PID`` ends a child and all of its process group, and is answered with ``0``.

A child's socket carries frames, a length of 4 bytes (big-endian) and JSON: a request
``{module, qualname, arguments, secrets, outputBytes}`` and an answer ``{ok, text, rule, trace}``.
"""

import asyncio
import functools
import gc
import importlib
import inspect
import json
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

LENGTH = struct.Struct(">I")


def main(control_fd: int, modules: list[str]) -> None:
    """Be the nursery until the host goes away."""
    control = socket.socket(fileno=control_fd)
    # A terminal's Ctrl-C goes to a process group, and a service manager's SIGTERM to every process of a service; here
    # the end of the control socket decides. A handler, unlike SIG_IGN, is not passed on to what a tool starts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stay)
    _import(modules)
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    try:
        # A reset is an end too: the host was killed before it read our last answer.
        with suppress(ConnectionError):
            _obey(control, children)
    finally:
        for pid in children:
            end(pid)


def _obey(control: socket.socket, children: set[int]) -> None:
    """Fork and kill as the host says, until its end of the socket closes."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return
        if message.startswith(b"fork"):
            nursery = os.getpid()
            try:
                pid = os.fork()
            except OSError:  # the system's bound of processes: the children there are go on
                os.close(fds[0])
                control.sendall(b"0\n")
                continue
            if pid == 0:
                _be_child(control, nursery, fds[0])
            os.close(fds[0])
            children.add(pid)
            control.sendall(b"%d\n" % pid)
        else:
            pid = int(message.split()[1])
            end(pid)
            children.discard(pid)
            control.sendall(b"0\n")


def _be_child(control: socket.socket, nursery: int, fd: int) -> NoReturn:
    """Serve until the host closes the socket, and never return into the nursery's code."""
    try:
        control.close()
        os.setsid()
        _die_with_parent()
        if os.getppid() == nursery:
            os.set_inheritable(fd, False)
            serve(socket.socket(fileno=fd))
    finally:
        os._exit(0)


def _stay(number: int, frame: object) -> None:
    """Answers a signal by going on."""


def _import(modules: list[str]) -> None:
    """Import what calls will need. What fails here fails again in the call that needs it, where its reason is told:
    one broken module must not take the others' tools along, and some import only with the secrets they declare."""
    import pydantic  # noqa: F401 -- a child needs it for each call

    if any(not module.startswith("tools.") for module in modules):
        with suppress(Exception):
            import django

            django.setup()
    for module in modules:
        with suppress(Exception):
            importlib.import_module(module)


def _die_with_parent() -> None:
    """Have the kernel kill this process when the nursery is killed: a tool that hangs would never notice."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def end(pid: int) -> None:
    """Kill a child of ours and its process group; it is reaped here alone, so the pid cannot be another's."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def serve(connection: socket.socket) -> None:
    """Be a child: run one call after another until the host closes the socket."""
    while (frame := read_frame(connection)) is not None:
        answer = run(json.loads(frame))
        payload = json.dumps(answer).encode()
        connection.sendall(LENGTH.pack(len(payload)) + payload)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one call and say how it ended; whatever the tool raises is part of the answer."""
    os.environ.update(request["secrets"])
    try:
        target: Any = importlib.import_module(request["module"])
        for part in request["qualname"].split("."):
            target = getattr(target, part)
        try:
            arguments = _binder(target)(**request["arguments"])
        except ValueError as error:
            return {"ok": False, "text": cap(str(error), 2000), "rule": "arguments", "trace": ""}
        result = target(**arguments)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        return {"ok": True, "text": cap(_as_text(result), request["outputBytes"]), "rule": "", "trace": ""}
    except BaseException as error:  # a tool's sys.exit() ends the call, not the child
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return {"ok": False, "text": cap(text, 2000), "rule": "raised", "trace": cap(traceback.format_exc(), 8000)}
    finally:
        for name in request["secrets"]:
            os.environ.pop(name, None)


@functools.cache  # making it takes 0.3 ms; a whole call, 0.1
def _binder(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Makes JSON's values what the signature says (a date, a dataclass); raises ValueError for those that cannot be.

    The gate has held them against the schema; but a schema says less than a type. Apart from the call, so that a
    validation error of the tool's own is not taken for one of its arguments.
    """
    from pydantic import validate_call

    @validate_call
    @functools.wraps(function)
    def bind(**arguments: Any) -> dict[str, Any]:
        return arguments

    return bind


def _as_text(result: Any) -> str:
    """A tool's result as text. It has run, so whatever it returned is told somehow, and is no failure."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return repr(result)


def cap(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, with a note of what was cut."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    return f"{raw[:limit].decode('utf-8', 'ignore')}\n[cut: {limit} of {len(raw)} bytes]"


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
    main(int(sys.argv[1]), sys.argv[2:])
