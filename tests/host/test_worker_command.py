"""``celery -A nanohost worker`` in a process of its own: what it refuses, what it waits for, how it comes and goes.
Hosts of the production shape, which other tests start, have the same by ``manage.py worker``."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nanohost.celery import app
from tests.faults.servers import free_port
from tests.support.hosts import ROOT, sqlite_template
from tests.support.wait import wait_until

pytestmark = pytest.mark.shapeless(reason="each worker has a database of its own, a file")

WORKER = [sys.executable, "manage.py", "worker"]
CELERY = [sys.executable, "-m", "celery", "-A", "nanohost", "worker"]
# The same, by somebody who does not wait a minute for the database.
IMPATIENT = [
    sys.executable,
    "-c",
    "import django; django.setup(); from nanohost import preparation; preparation.DATABASE_PATIENCE = 1.0\n"
    "from celery.__main__ import main; main()",
    *CELERY[3:],
]


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    own = {"PATH": os.environ["PATH"], "DATA_DIR": str(data_dir), "DJANGO_SETTINGS_MODULE": "nanohost.settings"}
    return own | {"LOG_FORMAT": "json"} | more


def refusal(command: list[str], data_dir: Path, *arguments: str, **more: str) -> str:
    """The one line with which a worker ends that does not start."""
    ended = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=environment(data_dir, **more),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]  # Celery says before that it should not be run by root


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a worker: ``start("--queues", "turns")``."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "worker.log").open("ab") as log:
            worker = subprocess.Popen(
                [*CELERY, *arguments], cwd=ROOT, env=environment(tmp_path), stdout=log, stderr=log
            )
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()
        worker.wait()


def prepare(data_dir: Path) -> None:
    """What ``manage.py prepare`` leaves, written into the file that a worker may have opened."""
    with (
        closing(sqlite3.connect(sqlite_template("prepared"))) as template,
        closing(sqlite3.connect(data_dir / "nanohost.sqlite3")) as database,
    ):
        template.backup(database)


def workers(data_dir: Path) -> list[tuple[str, bool]]:
    """The workers that introduced themselves: their queues, and whether they said goodbye."""
    with sqlite3.connect(data_dir / "nanohost.sqlite3") as database:
        try:
            return database.execute("SELECT queues, ended_at IS NOT NULL FROM conversations_worker").fetchall()
        except sqlite3.OperationalError:
            return []  # there is no table yet


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--queues", "tools,turns"], "Tools run in workers of their own"),
        pytest.param([], "Tools run in workers of their own", marks=pytest.mark.faults),
        (["--queues", "turns", "--pool", "threads"], "Turns live on one event loop a process"),
        (
            ["--queues", "turn"],
            "--queues names no queue: turn; there are: turns, tools, compaction, deliveries, listeners, replays.",
        ),
    ],
    ids=["tools and turns", "no queues", "another pool", "no such queue"],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path, arguments, says):
    assert refusal(CELERY, tmp_path, *arguments).startswith(says)
    assert not list(tmp_path.iterdir()), "it had not come to the database"


@pytest.mark.parametrize(
    ("queues", "says"),
    [
        ("tools, turns", "Tools run in workers of their own"),
        ("turn", "--queues names no queue: turn; there are: turns, tools, "),
        (" ,", "--queues names no queue; there are: turns, tools, "),
    ],
)
def test_our_own_command_refuses_the_same_in_one_line(tmp_path, queues, says):
    servers = {"DATABASE_URL": f"postgresql://user@127.0.0.1:{free_port()}/name", "REDIS_URL": "redis://h/0"}
    assert says in refusal(WORKER, tmp_path, "--queues", queues, **servers)


def test_our_own_command_refuses_to_work_beside_an_embedded_host(tmp_path):
    assert refusal(WORKER, tmp_path).endswith("Without servers: manage.py serve")
    assert not list(tmp_path.iterdir())


def test_a_worker_waits_for_its_database_to_be_prepared_and_goes_when_it_is_asked_to(start, tmp_path):
    # For Celery, prefork is the word for its default, which is solo here: it means no more than leaving it out.
    worker = start("--queues", "turns,compaction", "--pool", "prefork")
    wait_until((tmp_path / "nanohost.sqlite3").exists)  # it has looked, and found nothing
    prepare(tmp_path)
    wait_until(lambda: workers(tmp_path))
    assert workers(tmp_path) == [("compaction,turns", False)]
    assert Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text() == ""
    wait_until(lambda: catches(worker.pid, signal.SIGTERM))  # Celery sees to it a moment after the row is written
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=15) == 0
    assert workers(tmp_path) == [("compaction,turns", True)]


SAYING = """
import sys
from celery import signals
from nanohost.celery import app
from django.db import connection

@signals.worker_init.connect(weak=False)
def tell(**_):
    raise SystemExit("said: " + {})

app.Worker(queues={!r}.split(","), quiet=True).start()
"""


def said_at_its_start(data_dir: Path, what: str, queues: str) -> str:
    """What an expression gives in a worker that has begun its work."""
    prepare(data_dir)
    started = [sys.executable, "-c", SAYING.format(what, queues)]
    ended = subprocess.run(
        started, cwd=ROOT, env=environment(data_dir), capture_output=True, text=True, timeout=60, check=False
    )
    (said,) = [line for line in ended.stderr.splitlines() if line.startswith("said: ")]  # it writes a log as well
    return said.removeprefix("said: ")


def test_a_worker_starts_without_a_connection_that_celery_would_break(tmp_path):
    """Its fixup closes the sockets of those that are open in the thread that starts, and then gives them back."""
    assert said_at_its_start(tmp_path, "str(connection.connection)", "tools") == "None"


@pytest.mark.parametrize("queues", ["tools", "turns,compaction,deliveries,listeners,replays"])
def test_a_worker_loads_no_page_of_the_console_and_nothing_that_libraries_load_because_it_is_there(tmp_path, queues):
    """That would be a third of its memory."""
    loaded = said_at_its_start(tmp_path, "' '.join(sys.modules)", queues).split()
    assert "conversations.engine.tool_calls" in loaded or "conversations.engine.turns" in loaded
    assert not {"nanohost.urls", "nanohost.lib.admin", "unfold.admin", "conversations.admin"} & {*loaded}
    assert not {"rich", "requests", "psycopg", "prompt_toolkit"} & {*loaded}


OURS = """
import sys
import django
django.setup()
from celery import signals
from django.core.management import call_command

@signals.celeryd_init.connect(weak=False)
def tell(**_):
    raise SystemExit(" ".join(sys.modules))

call_command("worker")
"""


def test_our_own_command_does_without_celerys(tmp_path):
    servers = {"DATABASE_URL": f"postgresql://user@127.0.0.1:{free_port()}/name", "REDIS_URL": "redis://h/0"}
    loaded = refusal([sys.executable, "-c", OURS], tmp_path, **servers).split()
    assert "celery.apps.worker" in loaded
    assert not {"celery.bin.celery", "prompt_toolkit"} & {*loaded}


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_come_in_the_midst_of_the_first(told):
    """Celery's handler would wait for itself. Whose parent dies is sent as many as that had threads. Upon SIGHUP Celery
    would start anew with an environment that has lost its secrets."""
    came = []

    def handler(*_: object) -> None:
        came.append("asked to stop")
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        for step in app.steps["worker"]:
            step(None).start(None)
        signal.raise_signal(told)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert came == ["asked to stop"]


def test_a_database_that_is_not_prepared_in_time_is_named_with_what_to_do(tmp_path):
    said = refusal(IMPATIENT, tmp_path, "--queues", "turns")
    assert said.startswith("The database is not ready after 1.0 s: it lacks ")
    assert said.endswith("run: manage.py prepare")


def test_a_database_that_does_not_answer_in_time_is_told_without_its_password(tmp_path):
    urls = {"DATABASE_URL": f"postgresql://user:pass-word@127.0.0.1:{free_port()}/name", "REDIS_URL": "redis://h/0"}
    urls["DJANGO_SETTINGS_MODULE"] = "tests.support.impatient"
    said = refusal(IMPATIENT, tmp_path, "--queues", "turns", **urls)
    assert said.startswith("The database is not ready after 1.0 s: it cannot be used: ")
    assert "pass-word" not in said


def test_a_worker_that_cannot_start_its_runtime_ends_and_hears_no_notifications(tmp_path):
    """Celery logs what a signal's receiver raises, and goes on."""
    prepare(tmp_path)
    with sqlite3.connect(tmp_path / "nanohost.sqlite3") as database:
        database.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON conversations_worker BEGIN SELECT RAISE(ABORT, 'not now'); END"
        )
    command = [*CELERY, "--queues", "turns"]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "The worker could not start: RuntimeError: its row could not be written" in ended.stderr
