"""The worker's side of the keeper: starts it on first use, asks it, and waits no longer than a call may take."""

import array
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, lru_cache
from typing import Any

from django.conf import settings

from nanohost.lib import env, imported
from nanohost.lib.one_core import all_cores
from tools.errors import Interrupted
from tools.mcp.errors import NotStarted
from tools.mcp.frames import packed, size_of, unpacked
from tools.mcp.models import IMPORTED, SECRET_NAME, McpServer, Transport
from tools.outbound import urls
from tools.sandbox import modes
from tools.sandbox.box import BUBBLEWRAP, NONE

# How often a running call asks whether it is still wanted, and renews its lease.
ASK_SECONDS = 1.0

# Of starting a server and a call's own end, on top of the call's time.
START_SECONDS = 35.0

_MAX_PROCESSES = 128
_CLOSE_SECONDS = 5.0
_PASSED_ON = ("LANG", "LC_ALL", "TZ")


class Keeper:
    """One keeper and the worker's end of what it is asked over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stopping = threading.Event()
        self._stop_at = 0.0

    def ask(
        self,
        request: dict[str, Any],
        *,
        seconds: float,
        still_wanted: Callable[[], bool],
        repeatable: bool,
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> dict[str, Any] | None:
        """The answer, as the keeper gives it; None if nobody wants it any more. ``seconds``: of the call itself.
        ``on_progress`` is told of each line that says how far it is.

        Raises :class:`tools.errors.Interrupted` at a shutdown, for what may be asked again.
        """
        if self._stopping.is_set():
            raise Interrupted
        with self._connection() as connection:
            connection.setblocking(False)
            pending, received = memoryview(packed(request)), bytearray()
            deadline, ask_at = time.monotonic() + seconds + START_SECONDS, time.monotonic() + ASK_SECONDS
            poll = select.poll()
            while True:
                now = time.monotonic()
                if now >= deadline:
                    return _failed("timeout", f"there was no answer within {seconds:g} s")
                if self._stopping.is_set() and repeatable:
                    raise Interrupted
                if self._stopping.is_set() and now >= self._stop_at:
                    return _failed("interrupted", "stopped by a shutdown")
                if now >= ask_at:
                    ask_at = now + ASK_SECONDS
                    if not still_wanted():
                        return None
                poll.register(connection, select.POLLIN | (select.POLLOUT if pending else 0))
                if not poll.poll(max(0.0, min(deadline - now, ask_at - now, 0.25)) * 1000):
                    continue
                try:
                    if pending:
                        pending = pending[connection.send(pending) :]
                    chunk = connection.recv(1 << 18)
                except BlockingIOError:
                    continue
                except OSError:
                    chunk = b""
                if not chunk:
                    return _failed("crashed", "the process that talks to MCP servers ended")
                received += chunk
                try:
                    answer = _answer(received, on_progress)
                except (ValueError, RecursionError):
                    return _failed("output", "the process that talks to MCP servers sent an invalid answer")
                if answer is not None:
                    return answer

    def start(self) -> None:
        """Allow calls; the process itself is started by the first."""
        self._stopping.clear()

    def stop(self, *, grace: float = 4.0) -> None:
        """Begin nothing more, interrupt what can be repeated, give the rest ``grace`` seconds."""
        self._stop_at = time.monotonic() + grace
        self._stopping.set()

    def close(self) -> None:
        """End the process, and with it all servers."""
        with self._lock:
            process, control = self._process, self._control
            self._process = self._control = None
        if control:
            control.close()
        if process:
            try:
                process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def pid(self) -> int:
        """Of the process; 0 if there is none."""
        process = self._process
        return process.pid if process and process.poll() is None else 0

    def _connection(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    self._running().sendmsg(
                        [b"c"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
                    )
            except OSError as error:
                ours.close()
                raise NotStarted(f"the process that talks to MCP servers cannot be started: {error.strerror}") from None
        return ours

    def _running(self) -> socket.socket:
        """Its control socket; starts it if it is not there. Locked."""
        if self._process and self._process.poll() is None and self._control:
            return self._control
        if self._control:
            self._control.close()
        self._control, theirs = socket.socketpair()
        with theirs, all_cores():
            # An environment of its own: what servers are given comes with each request.
            self._process = subprocess.Popen(  # noqa: S603 -- our own module, no shell
                [sys.executable, "-m", "tools.mcp.keeper", str(theirs.fileno())],
                cwd=settings.BASE_DIR,
                env=env.inherited(_PASSED_ON) | {"PATH": _path(), "HOME": "/nonexistent"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return self._control


def _answer(received: bytearray, on_progress: Callable[[str], None]) -> dict[str, Any] | None:
    """The answer, if all of it was received; what comes before it is told, and taken away."""
    while (message := unpacked(received)) is not None:
        if "progress" not in message:
            return message
        on_progress(str(message["progress"]))
        del received[: size_of(received)]
    return None


@cache
def keeper() -> Keeper:
    """The process's own."""
    return Keeper()


def spec_of(server: McpServer) -> dict[str, Any]:
    """What the keeper starts a server with, its secrets included; raises :class:`NotStarted`."""
    if server.transport != Transport.STDIO:
        return {
            "name": server.name,
            "transport": server.transport,
            "url": _address(_secret(server.url) if SECRET_NAME.fullmatch(server.url) else server.url),
            "headers": {name: _header(secret) for name, secret in server.headers.items()},
            "private": settings.HTTP_ALLOWED_PRIVATE_CIDRS,
            "ports": settings.HTTP_ALLOWED_PORTS,
        }
    given = {variable: _secret(secret) for variable, secret in server.environment.items()}
    environment = {"PATH": _path(), "HOME": "/tmp", "LANG": "C.UTF-8", **given}  # noqa: S108 -- the box's own
    program = [server.command, *_arguments(server.arguments)]
    return {
        "name": server.name,
        "command": _in_a_box(program, network=server.network),
        "environment": environment,
        "cwd": str(settings.BASE_DIR),
    }


def _secret(name: str) -> str:
    """The value of a secret; raises :class:`NotStarted` if it has none."""
    if not SECRET_NAME.fullmatch(name):
        raise NotStarted(f"{name[:100]!r} is no secret of an MCP server")
    if value := env.raw_secret(name) or imported.secret(name, begin=IMPORTED):
        return value
    raise NotStarted(f"the secret {name} is not set")


def _arguments(given: list[str]) -> list[str]:
    """A program's arguments. One that is the name of a secret stands for it; an import keeps all of them in one."""
    made = []
    for each in given:
        value = _secret(each) if SECRET_NAME.fullmatch(each) else each
        is_list = each.startswith(IMPORTED) and value is not each
        made += [str(one) for one in json.loads(value)] if is_list else [value]
    return made


def _header(name: str) -> str:
    value = _secret(name)
    if not (value.isascii() and value.isprintable()):
        raise NotStarted(f"the secret {name} is no value of a header: it holds more than printable ASCII")
    return value


def _address(url: str) -> str:
    try:
        return str(urls.parse(url))
    except urls.Refusal as refusal:
        raise NotStarted(f"{refusal.rule}: {refusal}") from None


def _in_a_box(program: list[str], *, network: bool) -> list[str]:
    """The command that starts a server's program in the sandbox; raises :class:`NotStarted` where there is none."""
    try:
        sandbox = modes.in_force()
    except modes.SandboxMissing as missing:
        raise NotStarted(f"mcp_sandbox: {missing}") from None
    if sandbox.mode != BUBBLEWRAP and settings.TOOL_SANDBOX != NONE:
        raise NotStarted(
            "mcp_sandbox: programs of MCP servers run in bubblewrap only, which is not in force here;"
            f" TOOL_SANDBOX=none has them run without any. {sandbox.lacks}"
        )
    return [*_launching(sandbox, network, settings.TOOL_MEMORY_MB, tuple(settings.MCP_FOLDERS)), *program]


@lru_cache
def _launching(sandbox: modes.Sandbox, network: bool, memory: int, folders: tuple[str, ...]) -> list[str]:
    """What stands before a program. Made once: which files are code is looked up for it, which takes 10 ms."""
    box = modes.box(sandbox, ["NET_HTTP"] if network else [])
    told = {"box": asdict(box), "memory": memory << 20, "processes": _MAX_PROCESSES, "folder": "", "nice": 0}
    launch = [sys.executable, "-S", "-m", "tools.sandbox.launch", json.dumps(told)]
    return box.command(launch, cwd=settings.BASE_DIR, bound=[("--ro-bind-try", each, each) for each in folders])


def _path() -> str:
    return os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"])


def _failed(rule: str, text: str) -> dict[str, Any]:
    return {"ok": False, "rule": rule, "text": text}
