"""Bringing a database up to date (``manage.py prepare``), and waiting for one that somebody else brings there."""

import subprocess
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django_celery_beat.models import PeriodicTask

from nanohost import preparation
from nanohost.accounts.models import ApiKey
from tests import servers
from tests.faults.servers import free_port
from tests.host import ROOT, environment_of
from tools.models import ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def migrations():
    """Django's record of what was applied, which is put back as it was."""
    record = MigrationRecorder(connection)
    before = set(record.applied_migrations())
    yield record
    now = set(record.applied_migrations())
    for app, name in now - before:
        record.record_unapplied(app, name)
    for app, name in before - now:
        record.record_applied(app, name)


@pytest.fixture
def await_database() -> Callable[[], threading.Thread]:
    """Begin to wait for the database, in a thread; it ends when it is ready."""

    def begin() -> threading.Thread:
        waiting = threading.Thread(target=preparation.await_database, daemon=True)
        waiting.start()
        return waiting

    return begin


def prepare() -> str:
    said = StringIO()
    call_command("prepare", stdout=said)
    return said.getvalue()


# --- preparing ---------------------------------------------------------------------------------------------------


def test_an_admin_and_a_key_are_made_and_shown_once(monkeypatch):
    for name in ("NANOHOST_ADMIN_PASSWORD", "NANOHOST_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    first, second = prepare(), prepare()
    assert "password (shown this once): " in first
    assert ApiKey.objects.recognise(first.rpartition("API key (shown this once): ")[2].strip())
    assert second == "The database is up to date.\n"
    assert (get_user_model().objects.count(), ApiKey.objects.count()) == (1, 1)


def test_what_people_set_is_left_as_it_is():
    prepare()
    admin = get_user_model().objects.get()
    admin.set_password("chosen by people")
    admin.save()
    ToolSetting.objects.filter(name="time").update(enabled=False)
    PeriodicTask.objects.update(enabled=False)
    prepare()
    admin.refresh_from_db()
    assert admin.check_password("chosen by people")
    assert not ToolSetting.objects.filter(enabled=True).exists()
    assert PeriodicTask.objects.exists()
    assert not PeriodicTask.objects.filter(enabled=True).exists()


def test_a_newer_database_is_refused_by_the_name_of_what_is_new(migrations):
    migrations.record_applied("conversations", "9999_later")
    with pytest.raises(CommandError, match=r"newer than this code \(it has conversations\.9999_later\)"):
        prepare()


def test_what_other_apps_left_is_none_of_its_business(migrations):
    migrations.record_applied("an_app_of_before", "9999_later")
    prepare()


def test_a_database_that_does_not_answer_is_told_in_one_line_without_its_password(tmp_path: Path):
    urls = {"DATABASE_URL": f"postgresql://user:pass-word@127.0.0.1:{free_port()}/name", "REDIS_URL": "redis://h/0"}
    ended = manage_prepare(environment_of(tmp_path) | urls | {"DJANGO_SETTINGS_MODULE": "nanohost.settings"})
    _, said = ended.communicate(timeout=60)
    assert ended.returncode == 1
    assert said.splitlines()[-1].startswith("CommandError: The database that DATABASE_URL names cannot be used: ")
    assert "Connection refused" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert "pass-word" not in said


def manage_prepare(environment: dict[str, str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "manage.py", "prepare"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **output)


@pytest.mark.production(reason="embedded, there is one process, which holds DATA_DIR")
def test_nodes_that_prepare_an_empty_database_at_once_do_it_once(tmp_path: Path):
    database = servers.name_of("empty")
    servers.create(database, template="template1")
    own = {"DATABASE_URL": servers.url_of(database), "NANOHOST_API_KEY": ""}
    nodes = [manage_prepare(environment_of(tmp_path) | own) for _ in range(3)]
    said = [node.communicate(timeout=100) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0, 0], said
    assert sum("API key (shown this once)" in out for out, _ in said) == 1


# --- waiting -----------------------------------------------------------------------------------------------------


def test_a_database_that_is_up_to_date_is_not_waited_for(await_database):
    waiting = await_database()
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_newer_database_is_taken(await_database, migrations):
    migrations.record_applied("conversations", "9999_later")
    waiting = await_database()
    waiting.join(20)
    assert not waiting.is_alive()


def test_an_older_database_is_waited_for(await_database, migrations):
    latest = max(name for app, name in migrations.applied_migrations() if app == "conversations")
    migrations.record_unapplied("conversations", latest)
    waiting = await_database()
    waiting.join(1)
    assert waiting.is_alive()
    migrations.record_applied("conversations", latest)
    waiting.join(20)
    assert not waiting.is_alive()


def test_patience_ends_and_what_is_missing_is_named(migrations, monkeypatch):
    monkeypatch.setattr(preparation, "DATABASE_PATIENCE", 0.1)
    migrations.record_unapplied("tools", "0001_initial")
    with pytest.raises(CommandError, match=r"not ready after 0\.1 s: it lacks tools\.0001_initial; run: .* prepare$"):
        preparation.await_database()
