"""The production shape as processes of this machine: docker-compose.yml's own services, as compose would run them.

Each gets the command and the variables that the file gives it, and no other. Replaced is what only a container has: the
names of servers, and the paths of secrets, of messages' files and of ``/tmp``.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis
import yaml
from django.core.management.base import CommandError
from psycopg.conninfo import conninfo_to_dict

from nanohost.announcement import announcement, read_made_now
from nanohost.lib import env
from tools.sandbox.modes import in_force

COMPOSE_FILE = Path(__file__).resolve().parent.parent / "docker-compose.yml"
LOCAL_DATABASE_URL = "postgresql://postgres@127.0.0.1:5432/nanohost"
LOCAL_REDIS_URL = "redis://127.0.0.1:6379/0"

# The job that ends before the others start, and those of which there may be several.
JOB, SEVERAL = "migrate", ("worker", "toolbox")

# What every process of a shell has.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH")

_SECRETS = "/run/secrets/"
# Run before a command, which keeps its pid: Linux sends it SIGTERM when this process is gone, however that ends.
_LEASH = """
import ctypes, os, sys
try: ctypes.CDLL(None).prctl(1, 15)
except AttributeError: pass
os.execvp(sys.argv[1], sys.argv[1:])
"""

# Seconds: to the first restart, then twice as long each time; a process that lived for a while begins anew.
_FIRST_BACKOFF, _LONGEST_BACKOFF, _LIVED = 0.5, 10.0, 10.0
_READY_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Service:
    """One of our own services in docker-compose.yml. A variable without a value is the user's to set."""

    name: str
    command: list[str]
    environment: dict[str, str | None]
    secrets: list[str]
    grace: float


def read_services(compose_file: Path = COMPOSE_FILE) -> dict[str, Service]:
    """The services that run from our own image, by their names."""
    described = yaml.safe_load(compose_file.read_text())["services"]
    return {
        name: Service(
            name=name,
            command=shlex.split(service["command"]),
            environment=service["environment"],
            secrets=service["secrets"],
            grace=float(service["stop_grace_period"].removesuffix("s")),
        )
        for name, service in described.items()
        if "build" in service
    }


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What stands for the containers' world on this machine. ``folder`` is the stack's own."""

    folder: Path
    database_url: str
    redis_url: str
    host: str
    port: int

    def write_secrets(self, **secrets: str) -> None:
        """Write each secret to a new file of its name, for its owner alone."""
        folder = self.folder / "secrets"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name, value in {"database_url": self.database_url, **secrets}.items():
            (folder / name).unlink(missing_ok=True)  # one that was there could be others' as well
            (folder / name).touch(mode=0o600, exist_ok=False)
            (folder / name).write_text(value)

    def environment_of(self, service: Service, name: str) -> dict[str, str]:
        """The variables of one process of a service."""
        ours = {
            "REDIS_URL": self.redis_url,
            "HOST": self.host,
            "PORT": str(self.port),
            "ATTACHMENTS_DIR": str(self.folder / "attachments"),
            "WORKSPACES_DIR": str(self.folder / "workspaces"),
            "SKILLS_DIR": str(self.folder / "skills"),
            "WORKER_ALIVE_FILE": str(self.folder / f"{name}.alive"),
        }
        found = env.inherited(_PASSED_ON)
        found["PATH"] = f"{Path(sys.executable).parent}:{found.get('PATH', '')}"
        for variable, value in service.environment.items():
            if (value := ours.get(variable) or _interpolated(variable, value)) is not None:
                found[variable] = value.replace(_SECRETS, f"{self.folder}/secrets/")
        if "HTTPS" in service.environment:  # there is no proxy
            found.setdefault("HTTPS", "false")
        return found


def _interpolated(variable: str, value: str | None) -> str | None:
    """The value as compose would make it: the user's own where there is none, or where it says ``${NAME:-default}``."""
    if value is None:
        return env.inherited([variable]).get(variable)
    if found := re.fullmatch(r"\$\{(\w+):-(.*)\}", value):
        return env.inherited([found[1]]).get(found[1]) or found[2]
    return value


def reach_servers(database_url: str, redis_url: str) -> None:
    """See that both servers answer, and that there is a database; CommandError tells which does not, and what helps."""
    try:
        redis.Redis.from_url(redis_url, socket_connect_timeout=3, socket_timeout=3).ping()
    except (redis.RedisError, OSError) as error:
        raise CommandError(
            f"Redis does not answer ({_in_one_line(error)}). Start it, for instance with: redis-server --daemonize yes;"
            " or set REDIS_URL, and DATABASE_URL with it."
        ) from None
    try:
        psycopg.connect(database_url, connect_timeout=3).close()
    except psycopg.Error as error:
        if "does not exist" not in str(error):
            raise CommandError(
                f"PostgreSQL does not answer ({_in_one_line(error)}). Start it, for instance with:"
                " service postgresql start; or set DATABASE_URL, and REDIS_URL with it."
            ) from None
        _create_database(database_url)


def _create_database(database_url: str) -> None:
    name = str(conninfo_to_dict(database_url).get("dbname", ""))
    try:
        with psycopg.connect(database_url, dbname="postgres", autocommit=True, connect_timeout=3) as server:
            server.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    except psycopg.Error as error:
        raise CommandError(f"There is no database {name}, and it cannot be made ({_in_one_line(error)}).") from None


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@dataclass
class _Process:
    """A process that is kept running."""

    name: str
    service: Service
    running: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    start_at: float = 0.0
    backoff: float = field(default=0.0)


class Stack:
    """The services' processes: started in order, told apart in what is printed, started again if they end.

    ``processes.json`` in the machine's folder tells the address and each process's pid.
    """

    def __init__(self, machine: Machine, *, several: int, address: str, write: Callable[[str], None]) -> None:
        self._machine = machine
        self._address = address
        self._write = write
        self._writing = threading.Lock()
        services = read_services()
        self._job = _Process(JOB, services.pop(JOB))
        self._processes = [
            _Process(f"{name}.{number + 1}" if name in SEVERAL else name, service)
            for name, service in services.items()
            for number in range(several if name in SEVERAL else 1)
        ]
        self._readers: list[threading.Thread] = []
        self._asked_to_stop = 0

    def run(self) -> None:
        """Run until SIGTERM or SIGINT; then stop all. A second signal kills them. CommandError if the job fails."""
        for asked_to_stop in (signal.SIGINT, signal.SIGTERM):
            signal.signal(asked_to_stop, self._stop)
        try:
            printed = self._run_job()
            if self._asked_to_stop:
                return
            threading.Thread(target=self._announce, args=read_made_now(printed), daemon=True).start()
            while not self._asked_to_stop:
                for process in self._processes:
                    self._keep_running(process)
                time.sleep(0.05)
        finally:
            self._end()

    def _stop(self, *_: Any) -> None:
        self._asked_to_stop += 1

    def _run_job(self) -> str:
        """Run the job to its end; returns what it printed."""
        lines: list[str] = []
        job = self._start(self._job, also=lines.append)
        while job.poll() is None and not self._asked_to_stop:
            time.sleep(0.05)
        if job.returncode:
            self._readers[0].join(timeout=5)
            raise CommandError(f"{JOB} ended with {job.returncode}; the reason is above.")
        self._readers[0].join(timeout=5)
        return "\n".join(lines)

    def _start(self, process: _Process, *, also: Callable[[str], None] | None = None) -> "subprocess.Popen[bytes]":
        process.running = subprocess.Popen(  # noqa: S603 -- the project's own commands, no shell
            [sys.executable, "-c", _LEASH, *process.service.command],
            cwd=COMPOSE_FILE.parent,
            env=self._machine.environment_of(process.service, process.name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to pass on, once
        )
        process.started_at = time.monotonic()
        reader = threading.Thread(target=self._pass_lines_on, args=(process.name, process.running, also), daemon=True)
        reader.start()
        self._readers = [thread for thread in self._readers if thread.is_alive()] + [reader]
        self._write_down()
        return process.running

    def _keep_running(self, process: _Process) -> None:
        """Start a process that is not running; one that ends at once is given more time each time."""
        now = time.monotonic()
        if process.running is None:
            if now >= process.start_at:
                self._start(process)
        elif (code := process.running.poll()) is not None:
            longer = min(process.backoff * 2, _LONGEST_BACKOFF)
            process.backoff = _FIRST_BACKOFF if now - process.started_at > _LIVED else longer or _FIRST_BACKOFF
            process.running, process.start_at = None, now + process.backoff
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            self._say(f"stack | {process.name} {how}; it is started again in {process.backoff:g} s")
            self._write_down()

    def _end(self) -> None:
        """Stop all that run; who takes longer than its grace period, or a second signal, is killed."""
        asked = self._asked_to_stop
        left = [process for process in (self._job, *self._processes) if process.running]
        for process in left:
            process.running.terminate()  # type: ignore[union-attr]  # filtered above
        began = time.monotonic()
        while left := [process for process in left if process.running and process.running.poll() is None]:
            for process in left:
                if self._asked_to_stop > max(asked, 1) or time.monotonic() - began > process.service.grace:
                    self._say(f"stack | {process.name} does not end; it is killed")
                    process.running.kill()  # type: ignore[union-attr]  # filtered above
                    process.running.wait()  # type: ignore[union-attr]  # filtered above
            time.sleep(0.05)
        for reader in self._readers:
            reader.join(timeout=1)
        (self._machine.folder / "processes.json").unlink(missing_ok=True)

    def _write_down(self) -> None:
        pids = {process.name: process.running.pid for process in self._processes if process.running}
        half = self._machine.folder / "processes.json.new"
        half.write_text(json.dumps({"address": self._address, "processes": pids}, indent=1))
        half.replace(self._machine.folder / "processes.json")

    def _pass_lines_on(self, name: str, running: "subprocess.Popen[bytes]", also: Callable[[str], None] | None) -> None:
        assert running.stdout
        for line in running.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            if also:
                also(text)
                if any(read_made_now(text)):  # the announcement shows it, once
                    continue
            self._say(f"{name} | {text}")
        running.stdout.close()

    def _say(self, line: str) -> None:
        with self._writing:
            self._write(line)

    def _announce(self, password: str | None, key: str | None) -> None:
        """Tell how to reach it once it is ready, or has not become so for long."""
        until = time.monotonic() + _READY_SECONDS
        while not (ready := _answers(f"{self._address}/health/ready")) and time.monotonic() < until:
            time.sleep(0.2)
        if not ready:
            self._say(f"stack | not ready after {_READY_SECONDS} s; {self._address}/health/ready says what is missing")
        manage = ".venv/bin/python manage.py"
        if not env.inherited(["DATABASE_URL", "DATABASE_URL_FILE"]):
            manage = f"DATABASE_URL={LOCAL_DATABASE_URL} REDIS_URL={LOCAL_REDIS_URL} {manage}"
        self._say(announcement(self._address, password=password, key=key, sandbox=in_force().sentence, manage=manage))


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 -- our own address
            return bool(answer.status == 200)
    except OSError:
        return False
