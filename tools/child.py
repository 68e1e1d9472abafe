"""The process a tool runs in. Imports no more than a tool needs; knows neither the database nor any key.

``python -m tools.child FD MODULE…`` starts a *nursery*: it imports the tools' modules once and then forks a child for
each request on the control socket FD, so that a child is warm when it starts (about 1 ms, against 300 for a fresh
interpreter that sets Django up). It ends, with all its children, when the host's end of the control socket closes:
also when the host is killed.

Control socket, line by line: ``fork`` with the child's socket attached is answered with the child's pid; ``kill PID``
ends a child and all of its process group, and is answered with ``0``.

A child's socket carries frames, a length of 4 bytes (big-endian) and JSON: a request
``{module, qualname, arguments, secrets, outputBytes}`` and an answer ``{ok, text, rule, trace}``.
"""

import asyncio
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
from contextlib import suppress
from typing import Any

LENGTH = struct.Struct(">I")


def main(control_fd: int, modules: list[str]) -> None:
    """Be the nursery until the host goes away."""
    control = socket.socket(fileno=control_fd)
    # Ctrl-C and SIGTERM go to a whole process group; here the end of the control socket decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if any(not module.startswith("tools.") for module in modules):
        import django

        django.setup()
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    while True:
        message, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            break
        if message.startswith(b"fork"):
            if (pid := os.fork()) == 0:
                control.close()
                os.setsid()
                serve(socket.socket(fileno=fds[0]))
                os._exit(0)
            os.close(fds[0])
            children.add(pid)
            control.sendall(b"%d\n" % pid)
        else:
            end(int(message.split()[1]))
            children.discard(int(message.split()[1]))
            control.sendall(b"0\n")
    for pid in children:
        end(pid)


def end(pid: int) -> None:
    """Kill a child of ours and its process group; it is reaped here alone, so the pid cannot be another's."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def serve(connection: socket.socket) -> None:
    """Be a child: run one call after another until the host closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while (frame := read_frame(connection)) is not None:
        answer = run(json.loads(frame))
        payload = json.dumps(answer).encode()
        connection.sendall(LENGTH.pack(len(payload)) + payload)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one call and say how it ended; whatever the tool raises is part of the answer."""
    from pydantic import ValidationError, validate_call

    os.environ.update(request["secrets"])
    try:
        target: Any = importlib.import_module(request["module"])
        for part in request["qualname"].split("."):
            target = getattr(target, part)
        # JSON's values become what the signature says (a date, a dataclass); the gate has held them against the schema.
        result = validate_call(target)(**request["arguments"])
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        return {"ok": True, "text": cap(text, request["outputBytes"]), "rule": "", "trace": ""}
    except ValidationError as error:
        return {"ok": False, "text": cap(str(error), 2000), "rule": "arguments", "trace": ""}
    except BaseException as error:  # a tool's sys.exit() ends the call, not the child
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return {"ok": False, "text": cap(text, 2000), "rule": "raised", "trace": cap(traceback.format_exc(), 8000)}
    finally:
        for name in request["secrets"]:
            os.environ.pop(name, None)


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
