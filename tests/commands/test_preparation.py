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
from tests.faults.servers import free_port
from tests.support import servers
from tests.support.hosts import ROOT, environment_of
from tools.models import ToolSetting

# The settings of passwords and keys that tests set are secrets of these tests alone.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_secrets")]


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


KEYS = [f"nh_{name}_{'0123456789abcdef' * 2}" for name in ("former", "second", "third")]


def is_known(key: str) -> bool:
    return ApiKey.objects.recognise(key) is not None


def test_a_key_that_was_configured_is_revoked_once_another_is(monkeypatch, owner, caplog):
    monkeypatch.setenv("NANOHOST_ADMIN_PASSWORD", "chosen by people")
    _, of_people = ApiKey.objects.issue(owner=owner)
    said = []
    for key in KEYS:
        monkeypatch.setenv("NANOHOST_API_KEY", key)
        said += [prepare(), prepare()]
        assert [each for each in KEYS if is_known(each)] == [key]
    sentence = "NANOHOST_API_KEY has changed: the former key nh_{}_… is revoked."
    once = [sentence.format(name) for name in ("former", "second")]
    assert [line for text in said for line in text.splitlines()[1:]] == once
    assert [record.getMessage() for record in caplog.records if "revoked" in record.getMessage()] == once
    assert is_known(of_people)


def test_a_configured_key_that_is_configured_no_more_stays_and_is_told_of_until_it_is_revoked(
    monkeypatch, owner, caplog
):
    """Whoever starts a command from a shell without the variable would lock everybody out."""
    ApiKey.objects.issue(owner=owner)
    for key in KEYS[:2]:
        monkeypatch.setenv("NANOHOST_API_KEY", key)
        prepare()
    monkeypatch.delenv("NANOHOST_API_KEY")
    caplog.clear()
    sentence = (
        "NANOHOST_API_KEY is not set; the key nh_second_…, which it named before, still opens the API. To end it:"
        " manage.py keys revoke second"
    )
    assert prepare() == prepare() == f"The database is up to date.\n{sentence}\n"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [sentence] * 2
    assert is_known(KEYS[1])
    call_command("keys", "revoke", "second")
    assert prepare() == "The database is up to date.\n"


def test_a_key_of_people_that_was_configured_is_revoked_as_well(monkeypatch, owner):
    _, key = ApiKey.objects.issue(owner=owner)
    for configured in (key, KEYS[0]):
        monkeypatch.setenv("NANOHOST_API_KEY", configured)
        prepare()
    assert not is_known(key)


def test_a_node_that_still_has_the_former_key_does_not_bring_it_back(monkeypatch):
    for key in KEYS[:2]:
        monkeypatch.setenv("NANOHOST_API_KEY", key)
        prepare()
    monkeypatch.setenv("NANOHOST_API_KEY", KEYS[0])
    with pytest.raises(CommandError, match="has the prefix of a key that was revoked"):
        prepare()
    assert [is_known(key) for key in KEYS] == [False, True, False]


def test_keys_that_may_have_been_configured_before_it_was_recorded_are_named_until_it_is(monkeypatch, owner):
    """A start that fails after the upgrade loses nothing of it."""
    admin = get_user_model().objects.create_superuser("admin")
    made = [ApiKey.objects.issue(owner=each)[0] for each in (admin, admin, admin, owner)]
    made[1].revoke()
    ApiKey.objects.update(created_at="2020-01-01T00:00:00Z")
    ApiKey.objects.issue(owner=admin)  # since it is recorded
    may_be = f"may be one of these, which still open the API: {made[0]}, {made[2]}. To end one: manage.py keys revoke P"
    monkeypatch.delenv("NANOHOST_API_KEY", raising=False)
    assert "revoke" not in prepare()
    monkeypatch.setenv("NANOHOST_API_KEY", "hunter2")
    with pytest.raises(CommandError, match="is not valid"):
        prepare()
    monkeypatch.setenv("NANOHOST_API_KEY", KEYS[0])
    assert may_be in prepare()
    assert "still open" not in prepare()
    monkeypatch.setenv("NANOHOST_API_KEY", KEYS[1])
    assert "still open" not in prepare()


def test_none_is_named_while_the_one_that_was_configured_before_still_is(monkeypatch):
    admin = get_user_model().objects.create_superuser("admin")
    keys = [ApiKey.objects.issue(owner=admin)[1] for _ in range(2)]
    ApiKey.objects.update(created_at="2020-01-01T00:00:00Z")
    for key in (keys[0], KEYS[0]):
        monkeypatch.setenv("NANOHOST_API_KEY", key)
        assert "still open" not in prepare()
    assert [is_known(key) for key in keys] == [False, True]


@pytest.mark.parametrize("wrong", ["hunter2", "nh_former_other0123456789abcdef"])
def test_a_new_key_that_is_refused_revokes_nothing(monkeypatch, wrong):
    monkeypatch.setenv("NANOHOST_API_KEY", KEYS[0])
    prepare()
    monkeypatch.setenv("NANOHOST_API_KEY", wrong)
    with pytest.raises(CommandError, match=r"^NANOHOST_API_KEY "):
        prepare()
    assert is_known(KEYS[0])


def test_tools_that_a_setting_names_are_enabled(settings):
    settings.TOOLS_ENABLED = ["echo"]
    prepare()
    assert set(ToolSetting.objects.filter(enabled=True).values_list("name", flat=True)) == {"time", "echo"}


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


@pytest.mark.shapeless(reason="it reaches no database")
def test_a_database_that_does_not_answer_is_told_in_one_line_without_its_password(tmp_path: Path):
    urls = {"DATABASE_URL": f"postgresql://user:pass-word@127.0.0.1:{free_port()}/name", "REDIS_URL": "redis://h/0"}
    ended = manage_prepare(environment_of(tmp_path) | urls | {"DJANGO_SETTINGS_MODULE": "tests.support.impatient"})
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


@pytest.mark.production(reason="embedded, there is one process, which holds DATA_DIR")
def test_nodes_that_rotate_the_key_at_once_revoke_the_former_once(tmp_path: Path):
    database = servers.name_of("rotated")
    servers.create(database, template=servers.name_of("migrated"))
    common = environment_of(tmp_path) | {"DATABASE_URL": servers.url_of(database)}
    for key, several in ((KEYS[0], 1), (KEYS[1], 3)):
        nodes = [manage_prepare(common | {"NANOHOST_API_KEY": key}) for _ in range(several)]
        said = [node.communicate(timeout=100) for node in nodes]
        assert [node.returncode for node in nodes] == [0] * several, said
    assert sum("nh_former_… is revoked" in out for out, _ in said) == 1


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
