"""Processes of the project that begin as a fork of one that has loaded the libraries: a warm start.

To start Python and to load what the project needs takes more than a second of a processor, and tests start hundreds of
processes. One process a test run's worker loads the libraries, and forks for each that is asked for. Only libraries:
modules of the project, and settings, are loaded by each process itself, of its own environment.

What is tested of the start itself, or of a process's environment as the system tells of it, is started cold.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zoneinfo
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# What costs most to load; what more of them load comes along. None of these reads the settings as it is loaded.
LIBRARIES = (
    *("django.core.management", "django.contrib.admin", "django.core.serializers.json", "django.test.client"),
    *("django.core.management.commands.migrate", "django.db.backends.sqlite3.base", "django.template.backends.django"),
    *("django.db.backends.postgresql.base", "django.core.handlers.wsgi", "django.contrib.staticfiles.finders"),
    *("celery.bin.celery", "celery.bin.worker", "celery.bin.beat", "celery.apps.worker", "celery.apps.beat"),
    *("celery.worker.consumer", "celery.worker.strategy", "celery.concurrency.solo", "celery.concurrency.thread"),
    *("celery.beat", "celery.fixups.django", "celery.app.amqp", "celery.app.events", "celery.app.control"),
    *("kombu.transport.redis", "kombu.transport.memory", "kombu.pools", "redis.asyncio", "hiredis", "limits"),
    *("limits.strategies", "limits.storage", "psycopg", "psycopg_pool", "uvloop", "uvicorn", "uvicorn.lifespan.on"),
    *("uvicorn.protocols.http.httptools_impl", "a2wsgi", "whitenoise", "structlog", "requests", "yaml", "jsonschema"),
    *("pydantic", "docstring_parser", "uuid_utils", "httpcore2", "httpx2", "idna", "cronsim", "prometheus_client"),
    *("openai", "openai.resources.chat.completions", "dj_database_url", "uritemplate", "inflection", "csp.utils"),
    *("smtplib", "email.mime.text", "http.client", "concurrent.futures.thread"),
)


ROOT = Path(__file__).resolve().parents[2]


class WarmProcess:
    """One process that was started warm; the part of :class:`subprocess.Popen` that hosts of tests use."""

    def __init__(self, args: Sequence[str], pid: int, status: IO[bytes]) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._asking = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, negative for the signal that ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(timeout=0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; raises :class:`subprocess.TimeoutExpired` after so many seconds."""
        with self._asking:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
                self.returncode = int(self._status.readline())
                self._status.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Starter:
    """The process that forks, as the tests see it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()

    def start(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], out: int, err: int) -> WarmProcess:
        ours, theirs = os.pipe()
        request = json.dumps([list(arguments), str(cwd), dict(env)]).encode("utf-8", "surrogateescape")
        try:
            socket.send_fds(self._ours, [request], [out, err, theirs])
        finally:
            os.close(theirs)
        status = os.fdopen(ours, "rb", buffering=0)
        return WarmProcess(arguments, int(status.readline()), status)


_starting = threading.Lock()
_starters: dict[int, _Starter] = {}


def start(
    arguments: Sequence[str], *, cwd: Path = ROOT, env: Mapping[str, str], stdout: int, stderr: int
) -> WarmProcess:
    """Start ``manage.py …`` or ``-m module …`` in a folder, with that environment and these open files."""
    with _starting:
        starter = _starters.get(os.getpid())
        if starter is None:
            starter = _starters[os.getpid()] = _Starter()
        return starter.start(arguments, cwd, env, stdout, stderr)


def may(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a command can be started warm: it is the project's, and none of its variables is for Python itself."""
    return arguments[0] in ("manage.py", "-m") and not any(name.startswith("PYTHON") for name in env)


def run(*arguments: str, cwd: Path = ROOT, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Start ``manage.py …`` or ``-m module …``, warm if it may be, and wait for its end; returns what it printed.

    Raises :class:`subprocess.TimeoutExpired` after so many seconds, when it has been ended.
    """
    if not may(arguments, env):
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = start(arguments, cwd=cwd, env=env, stdout=out.fileno(), stderr=err.fileno())
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())


def _serve(requests: socket.socket) -> list[Any]:
    """Fork for each request; returns in the forked process, with its request. Ends when the tests have."""
    running: dict[int, int] = {}
    ended, note = os.pipe()
    os.set_blocking(note, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(note, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([requests, ended], [], [])
        if ended in ready:
            os.read(ended, 1000)
            while running:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                told = running.pop(pid)
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                    os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
                os.close(told)
        if requests in ready:
            request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
            if not request:
                os._exit(0)
            out, err, told = files
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(out, 1)
                os.dup2(err, 2)
                os.closerange(3, 1 << 20)
                return json.loads(request.decode("utf-8", "surrogateescape"))
            running[pid] = told
            os.write(told, b"%d\n" % pid)
            os.close(out)
            os.close(err)


def _become(arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    """Do what ``python …`` would."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = cwd
    random.seed()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    # Fields of schedules have all of them as their choices.
    zones = [zoneinfo.ZoneInfo(name) for name in zoneinfo.available_timezones()]
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a fork has none of its parent's threads"
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
