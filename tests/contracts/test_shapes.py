"""How the suite chooses its shapes, and that it cleans up behind runs that could not."""

import os
import re
import signal
import subprocess
import sys

import pytest
from psycopg import sql

from tests import shapes
from tests.support import servers
from tests.support.hosts import ROOT
from tests.support.wait import wait_until

DEAD_RUN = "00000001"


def start(*command: str, **environment: str) -> "subprocess.Popen[str]":
    """Start a command as a developer does: with the servers of this run, and without what it has set."""
    kept = ("PATH", "HOME", "TEST_DATABASE_URL", "TEST_REDIS_URL")
    own = {name: os.environ[name] for name in kept if name in os.environ}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=own | environment, text=True, **output)


@pytest.mark.shapeless(reason="it needs servers that are none")
def test_a_server_that_is_named_and_does_not_answer_is_a_failure():
    nowhere = {"TEST_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/no"}
    ran = start("tests.shapes", "--version", **nowhere)  # pytest's, which is all it does then
    said, _ = ran.communicate(timeout=100)
    assert ran.returncode == 1
    assert "production is not tested, a server does not answer. PostgreSQL (TEST_DATABASE_URL)" in said
    assert said.endswith("\nshapes run: embedded\n")


@pytest.mark.shapeless(reason="it reads a file")
@pytest.mark.parametrize(
    ("untried", "line", "is_taken"),
    [
        ([], "hostile tools tried in: bubblewrap, landlock", True),
        (["signals"], "hostile tools tried in: bubblewrap, landlock without signals", False),
    ],
)
def test_what_hostile_tools_were_not_tried_is_named_and_is_not_enough_for_ci(
    tmp_path, monkeypatch, untried, line, is_taken
):
    noted = tmp_path / "noted"
    monkeypatch.setenv("TEST_SANDBOXES", str(noted))
    for mode, of_it in (("none", []), ("landlock", untried), ("bubblewrap", [])):
        shapes.note_sandbox(mode, of_it)
    assert shapes.sandboxes_tried(noted.read_text()) == line
    (wanted,) = re.findall(r"^grep -q '(.*tried in.*)' ", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert bool(re.search(wanted, line)) is is_taken


@pytest.mark.production(reason="it asks for Redis behind a PostgreSQL that answers")
def test_redis_is_asked_for_as_well(monkeypatch):
    monkeypatch.setenv("TEST_REDIS_URL", "redis://127.0.0.1:9/0")
    with pytest.raises(shapes.ServerMissing, match=r"^Redis \(TEST_REDIS_URL\)"):
        shapes.find_servers()


@pytest.mark.production(reason="what is cleaned up is on the servers")
def test_what_a_killed_run_left_is_removed_and_what_others_have_stays():
    left, others = f"{servers.PREFIX}{DEAD_RUN}_left", "test_nanohost_of_somebody_else"
    with servers.connect() as server, servers.broker() as keys:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(left)))
        keys.set(f"{left}:turns", "1")
        keys.set(others, "1", ex=3600)

        def databases() -> set[str]:
            return {name for (name,) in server.execute("SELECT datname FROM pg_database").fetchall()}

        another = f"{int(os.environ['TEST_RUN'], 16) ^ 1:08x}"
        begins = start(
            *("pytest", "--collect-only", "-p", "no:cacheprovider", "-n", "0"),
            TEST_SHAPE=shapes.PRODUCTION,
            TEST_RUN=another,
        )
        # It has swept before it makes its own, which takes it long, and which nobody needs.
        own = f"{servers.PREFIX}{another}_migrated"
        wait_until(lambda: own in databases() or begins.poll() is not None, seconds=60)
        begins.send_signal(signal.SIGINT)
        said, _ = begins.communicate(timeout=60)
        assert "KeyboardInterrupt" in said
        there_are = databases()
        assert left not in there_are
        assert own not in there_are, "it has left its own"
        assert servers.name_of("migrated") in there_are, "a run that lives was swept away"
        assert (keys.exists(f"{left}:turns"), keys.exists(others)) == (0, 1)
        keys.delete(others)
