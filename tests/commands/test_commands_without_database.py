"""Commands where there is no database, or none that is prepared: a sentence that says what to do, and no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands

from tests.faults.servers import free_port
from tests.support.hosts import ROOT

pytestmark = pytest.mark.shapeless(reason="the shape is the test's own")

COMMANDS = [
    ["import_sessions", ".", "--owner", "anna"],
    ["export_sessions", "out", "--owner", "anna"],
    ["intake", "status"],
    ["keys", "list"],
    ["audit", "verify"],
    ["tools", "list"],
    ["mcp", "list"],
    ["models", "which", "model-1", "--agent", "default"],
    ["schedules", "list", "--owner", "anna"],
    ["fill", "--conversations", "1"],
    ["retention", "--dry-run"],
    ["erase", "anna", "--yes"],
    ["holds", "list"],
    ["prepare"],
    ["restored"],
    ["import_config", "config.json"],
    ["export_config", "out.json"],
    ["replay", "00000000-0000-0000-0000-000000000000"],
    ["evaluate", "answers", "--filter", "status=failed"],
    # Django's, and its apps': all pass the same way.
    *(["changepassword", "admin"], ["clearsessions"], ["axes_reset"]),
]
# SQLite has not what they do.
ON_A_SERVER = [["partition_messages"]]
# They make what is missing, or wait for it.
STARTS = {"serve", "web", "worker", "stack"}
# It asks a host that runs, and opens none.
ASKS_A_HOST = {"chat"}
# It reads a folder, and no database.
READS_A_FOLDER = {"skills"}
OURS = ("accounts", "tools", "memory", "agent", "conversations", "scheduler", "nanohost", "nanobot_config")

# All of them in one process: a start takes a second.
RUN = """
import json, os, sys, manage
for command in json.loads(sys.argv[1]):
    sys.argv = ["manage.py", *command]
    try:
        manage.main()
        print("no exit", file=sys.stderr)
    except SystemExit as exit:
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
    except BaseException as error:
        print("Traceback:", command, repr(error), file=sys.stderr)
"""


def run(folder: Path, commands: list[list[str]] = COMMANDS, **environment: str) -> list[str]:
    """What each command says, a line each."""
    around = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    around |= {"DJANGO_SETTINGS_MODULE": "nanohost.settings", "PYTHONPATH": str(ROOT), "DEBUG": "true"} | environment
    arguments = [sys.executable, "-c", RUN, json.dumps(commands)]
    made = subprocess.run(arguments, cwd=folder, env=around, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    said = [line for line in made.stderr.splitlines() if not line.startswith("{")]  # and what is logged
    assert len(said) == len(commands), made.stderr
    return said


def test_every_command_of_ours_is_tried():
    ours = {name for name, app in get_commands().items() if str(app).removeprefix("nanohost.") in OURS}
    assert ours == {command[0] for command in (*COMMANDS[:19], *ON_A_SERVER)} | STARTS | ASKS_A_HOST | READS_A_FOLDER


def test_a_missing_data_folder_is_named(tmp_path):
    for said in run(tmp_path, DATA_DIR=str(tmp_path / "nowhere")):
        assert f"There is no folder {tmp_path / 'nowhere'}, where by DATA_DIR the database is: set DATA_DIR" in said
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_was_never_prepared_is_told_of(tmp_path):
    (tmp_path / "data").mkdir()
    touching = [each for each in COMMANDS if each != ["prepare"]]
    for said in run(tmp_path, touching, DATA_DIR=str(tmp_path / "data")):
        assert said.endswith("or was never prepared; run: manage.py prepare")


def test_a_server_that_does_not_answer_is_told_of_without_its_password(tmp_path):
    url = f"postgresql://nanohost:hunter2secret@127.0.0.1:{free_port()}/nanohost"
    around = {"DATABASE_URL": url, "REDIS_URL": "redis://127.0.0.1:1/0", "SECRET_KEY": "x" * 50, "DATA_DIR": "data"}
    around["DJANGO_SETTINGS_MODULE"] = "tests.support.impatient"
    for said in run(tmp_path, [["tools", "list"], *ON_A_SERVER], **around):
        assert "The database that DATABASE_URL names cannot be used: connection" in said
        assert "hunter2" not in said
