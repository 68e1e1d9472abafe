"""A running host, started as a user starts it, on the shape that is tested.

Embedded: ``manage.py serve`` in a process of its own. Production: what a release does, ``manage.py prepare``, and the
processes of ``PROCESSES``.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
from psycopg.rows import dict_row

from tests import shapes
from tests.support import servers, warm
from tests.support.warm import WarmProcess
from tests.toolbox import grants_of

ROOT = Path(__file__).resolve().parents[2]
KEY = "nh_test1234_0123456789abcdefghij"

# Hosts speak plain HTTP. A client that may also meet TLS reads the machine's certificates first: 20 ms of a processor.
PLAIN = False
# A command that has not ended by then hangs; a deletion, which makes way for others, takes a minute where processors
# are scarce.
HANGS_SECONDS = 240

CELERY = ("-m", "celery", "-A", "nanohost")
PROCESSES = {
    "web": ("manage.py", "web"),
    "worker": ("manage.py", "worker"),
    "toolbox": ("manage.py", "worker", "--queues", "tools"),
}
BEAT = {"beat": (*CELERY, "beat")}

# What `manage.py prepare` makes rows of; a host that names none of them starts on a database that was prepared.
PREPARED = {
    "NANOHOST_API_KEY": KEY,
    "NANOHOST_ADMIN_PASSWORD": "correct horse battery",
    "NANOHOST_EXTRA_APPS": "tests.toolbox",
}


def environment_of(data_dir: Path) -> dict[str, str]:
    """The environment of a host that lives in a folder."""
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(data_dir),
        "DJANGO_SETTINGS_MODULE": "tests.support.hosted",
        "DATA_DIR": str(data_dir),
        "TOOL_FOLDERS": os.environ["TOOL_FOLDERS"],
        "PORT": "0",
        "LOG_FORMAT": "json",
        **PREPARED,
    }
    if shapes.shape() == shapes.EMBEDDED:
        return own
    database = servers.database_of(data_dir)
    return own | {
        "DATABASE_URL": servers.url_of(database),
        "REDIS_URL": shapes.named_servers().redis_url,
        "TEST_KEYS": f"{database}:",
        "SECRET_KEY": "of every web node: it signs the sessions",
        "WEBHOOK_KEY": "of web nodes and workers: the secrets of webhooks are made of it",
        "HTTPS": "false",  # there is no proxy
    }


def sqlite_template(name: str) -> Path:
    """A SQLite file that is ``migrated`` or ``prepared``, made once a run by whoever needs it first: migrating takes
    longer than all else that a start does."""
    folder = Path(os.environ["DATA_DIR"]) / "templates" / name
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "made.sqlite3"
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            database = folder / "nanohost.sqlite3"
            if name == "prepared":
                shutil.copy(sqlite_template("migrated"), database)
            command = {"migrated": ("migrate", "--verbosity=0"), "prepared": ("prepare",)}[name]
            environment = environment_of(folder)
            warm.run("manage.py", *command, cwd=ROOT, env=environment, timeout=120).check_returncode()
            assert not database.with_name("nanohost.sqlite3-wal").exists()
            database.rename(made)
    return made


class Host:
    """One host on a data directory; may be stopped, killed and started again.

    On production ``beat`` has it run as well; embedded, it always does. ``empty``: the embedded host starts on nothing,
    by the project's own settings, as a user's first does; others start on a copy of a database that was migrated, and
    prepared unless they name what that would make. ``cold``, as ``empty`` ones are: no process of it is started warm
    (tests/support/warm.py).
    """

    def __init__(
        self, data_dir: Path, *, beat: bool = False, empty: bool = False, cold: bool = False, **environment: str
    ) -> None:
        self.data_dir = data_dir
        self.log = data_dir / "host.log"
        self.root = ROOT
        self.processes: dict[str, subprocess.Popen[bytes] | WarmProcess] = {}
        self.address = ""
        self._production = shapes.shape() == shapes.PRODUCTION
        self._commands = PROCESSES | (BEAT if beat else {}) if self._production else {"serve": ("manage.py", "serve")}
        self._environment = environment_of(data_dir) | environment
        if empty:
            self._environment |= {"DJANGO_SETTINGS_MODULE": "nanohost.settings"}
        self._prepared = not PREPARED.keys() & environment.keys()
        self._empty = empty
        self._cold = cold or empty

    @property
    def process(self) -> subprocess.Popen[bytes] | WarmProcess | None:
        """The process that serves HTTP; None before the first start."""
        return self.processes.get("web" if self._production else "serve")

    def start(self, *, seconds: float = 180) -> "Host":
        """Start it and wait until it is ready."""
        self.have_database()
        with self.log.open("ab") as log:
            start_of_log = 0 if self.process and self.process.poll() is None else log.tell()
            if self._production and not self._prepared:
                ran = self.manage("prepare")
                log.write((ran.stdout + ran.stderr).encode())
                log.flush()
                assert ran.returncode == 0, ran.stderr
                self._prepared = True
            for name, command in self._commands.items():
                if name in self.processes and self.processes[name].poll() is None:
                    continue
                self.processes[name] = self.begin(command, log.fileno())
        until = time.monotonic() + seconds
        with httpx2.Client(timeout=5, verify=PLAIN) as asker:
            while time.monotonic() < until:
                for name, process in self.processes.items():
                    if (code := process.poll()) is not None:
                        raise RuntimeError(f"{name}: the host ended with {code}:\n{self.log_text()[-3000:]}")
                printed = self.log_text()[start_of_log:]
                if found := re.findall(r"(?:Admin +|listening on )(http://[^/\s]+)", printed):
                    self.address = found[-1]
                    if self._is_ready(asker):
                        return self
                time.sleep(0.1)
        raise TimeoutError(f"the host was not ready within {seconds} s:\n{self.log_text()[-3000:]}")

    def begin(self, command: tuple[str, ...], log: int) -> subprocess.Popen[bytes] | WarmProcess:
        """Start a further process of this host."""
        options: dict[str, Any] = {"cwd": self.root, "env": self._environment, "stdout": log, "stderr": log}
        if not self._cold and warm.may(command, self._environment):
            return warm.start(command, **options)
        return subprocess.Popen([sys.executable, *command], **options)

    def _is_ready(self, asker: httpx2.Client) -> bool:
        try:
            if asker.get(f"{self.address}/health/ready").status_code != 200:
                return False
        except httpx2.HTTPError:
            return False
        if not self._production:
            return True
        # Ready by its own workers: those of a former start, which was killed, count as alive for a while.
        introduced = {row["name"] for row in self.sql("SELECT name FROM conversations_worker WHERE ended_at IS NULL")}
        mine = [f"{socket.gethostname()[:64]}:{self.processes[name].pid}:" for name in ("worker", "toolbox")]
        return all(any(name.startswith(own) for name in introduced) for own in mine)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def log_lines(self) -> list[dict[str, Any]]:
        """What it has logged; not Celery's own words at the start, which are no JSON."""
        return [json.loads(line) for line in self.log_text().splitlines() if line.startswith("{")]

    def client(self, key: str | None = KEY, **options: Any) -> httpx2.Client:
        """An HTTP client of the API, at /api/v1."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=f"{self.address}/api/v1", headers=headers, timeout=60, verify=PLAIN, **options)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``manage.py`` beside the host, on its data."""
        self.have_database()
        return warm.run("manage.py", *arguments, cwd=self.root, env=self._environment, timeout=HANGS_SECONDS)

    def have_database(self) -> None:
        """Make its database, unless there is one."""
        template = "prepared" if self._prepared else "migrated"
        if self._production:
            servers.create(servers.database_of(self.data_dir), template=servers.name_of(template))
        elif not self._empty and not (self.data_dir / "nanohost.sqlite3").exists():
            shutil.copy(sqlite_template(template), self.data_dir / "nanohost.sqlite3")

    def sql(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Do a statement in the host's database, past the host; returns its rows. ``?`` stands for a parameter."""
        if self._production:
            with servers.connect(servers.database_of(self.data_dir)) as database:
                cursor = database.cursor(row_factory=dict_row)
                cursor.execute(statement.replace("?", "%s"), parameters)
                return cursor.fetchall() if cursor.description else []
        database = sqlite3.connect(self.data_dir / "nanohost.sqlite3", timeout=20)
        try:
            with database:
                database.row_factory = sqlite3.Row
                plain = [value.hex if isinstance(value, UUID) else value for value in parameters]
                return [dict(row) for row in database.execute(statement, plain)]
        finally:
            database.close()

    def allow(self, *names: str, grants: tuple[str, ...] = ()) -> None:
        """Enable tools of a host that has started once, without a ``manage.py tools allow`` for each."""
        for name in names:
            change = "UPDATE tools_toolsetting SET enabled = ?, grants = ? WHERE name = ? RETURNING name"
            assert self.sql(change, True, json.dumps(grants_of(name, grants)), name), f"there is no tool {name}"

    def forbid(self, *names: str) -> None:
        """Undo :meth:`allow`."""
        for name in names:
            self.sql("UPDATE tools_toolsetting SET enabled = ? WHERE name = ?", False, name)

    def everything_stored(self) -> str:
        """Every row of every table."""
        if not self._production:
            with sqlite3.connect(self.data_dir / "nanohost.sqlite3") as database:
                # Not the full-text table, which keeps no text to be read: what it keeps stands in tables of its own.
                tables = database.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
                )
                rows = (database.execute(f'SELECT * FROM "{table}"') for (table,) in tables.fetchall())
                return "\n".join(str(row) for found in rows for row in found)
        tables = self.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        assert tables
        return "\n".join(
            row["text"]
            for table in tables
            for row in self.sql(f'SELECT everything::text AS text FROM "{table["table_name"]}" AS everything')
        )

    def database_connections(self) -> int:
        """How many connections the process that serves HTTP may have to its database at most, as others see it."""
        if self._production:
            (found,) = self.sql("SELECT count(*) - 1 AS n FROM pg_stat_activity WHERE datname = current_database()")
            return int(found["n"])
        return sum(name.endswith("nanohost.sqlite3") for name in self.open_files())

    def open_files(self) -> list[str]:
        """What the process that serves HTTP has open: sockets, pipes, of SQLite a file a connection."""
        assert self.process is not None
        opened = []
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                opened.append(str(link.readlink()))
            except FileNotFoundError:
                continue
        return opened

    def kill(self, *names: str) -> None:
        """kill -9, of every process, or of those of these names; embedded, there is one."""
        named = names if names and self._production else self.processes
        for name in named:
            if self.processes[name].poll() is None:
                self.processes[name].kill()
        for name in named:
            self.processes[name].wait()

    def terminate(self) -> None:
        """Ask the process that serves HTTP to stop, and do not wait for it."""
        assert self.process
        self.process.terminate()

    def forget_events(self) -> None:
        """Lose what Redis keeps of the events of turns."""
        with servers.broker() as keys:
            for key in keys.scan_iter(match=f"{self._environment['TEST_KEYS']}turn:*", count=1000):
                keys.delete(key)

    def stop(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 15) -> int:
        """Ask every process to stop; returns the exit code, the first that is not 0 if there are several."""
        assert self.processes
        for process in self.processes.values():
            process.send_signal(number)
        until = time.monotonic() + seconds
        codes = [process.wait(timeout=max(0.1, until - time.monotonic())) for process in self.processes.values()]
        return next((code for code in codes if code), 0)
