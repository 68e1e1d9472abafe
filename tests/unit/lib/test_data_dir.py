"""DATA_DIR is its owner's alone: made so, narrowed, or refused with a sentence."""

import grp
import logging
import os
import pwd
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from nanohost import data_dir
from nanohost.data_dir import close_secrets, keep_database, keep_secret_key, lock_data_dir, make_data_dir
from nanohost.stack import Machine

pytestmark = pytest.mark.shapeless(reason="it touches no row")


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_one_is_its_owner_s_alone(tmp_path, umask):
    former = os.umask(umask)
    try:
        make_data_dir(tmp_path / "new")
    finally:
        os.umask(former)
    assert mode_of(tmp_path / "new") == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o777, 0o2770, 0o704])
def test_one_that_others_may_enter_is_narrowed_and_that_is_said(tmp_path, caplog, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING):
        lock_data_dir(folder).close()
    assert mode_of(folder) == 0o700
    assert [record.getMessage() for record in caplog.records] == [
        f"DATA_DIR {folder} could be entered by others of this machine; now it is its owner's alone (0700)."
    ]


def test_one_that_is_narrow_is_left_as_it_is(tmp_path, caplog):
    folder = tmp_path / "narrow"
    folder.mkdir(mode=0o500)
    make_data_dir(folder)
    assert (mode_of(folder), caplog.records) == (0o500, [])


def refusal(folder: Path) -> str:
    before = mode_of(folder)
    with pytest.raises(CommandError, match=r"^DATA_DIR .* is not narrowed: ") as refused:
        lock_data_dir(folder)
    assert mode_of(folder) == before
    assert not (folder / "lock").exists()
    assert f"Set DATA_DIR to a folder of its own, such as {folder / 'nanohost'}." in str(refused.value)
    return str(refused.value)


def test_a_folder_that_is_everybody_s_is_refused(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    assert "it is shared, as /tmp is" in refusal(folder)


def test_a_home_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    monkeypatch.setenv("HOME", str(folder))
    assert "it holds other things as well" in refusal(folder)


def test_the_folder_of_the_programs_is_refused(tmp_path, monkeypatch):
    (tmp_path / "code" / "nanohost").mkdir(parents=True)
    (tmp_path / "code").chmod(0o755)
    (tmp_path / "code" / "nanohost" / "data_dir.py").touch()
    monkeypatch.setattr(data_dir, "__file__", str(tmp_path / "code" / "nanohost" / "data_dir.py"))
    assert "it holds other things as well" in refusal(tmp_path / "code")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: folders of another user; this needs root")


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_folder_of_another_user_is_refused(tmp_path, mode):
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, 12345, 12345)
    with pytest.raises(CommandError, match=rf"^DATA_DIR {folder} belongs to the user 12345, who could "):
        lock_data_dir(folder)
    assert (mode_of(folder), list(folder.iterdir())) == (mode, [])


# --- those above it ----------------------------------------------------------------------------------------------


def is_refused(above: Path, says: str) -> None:
    with pytest.raises(CommandError, match=rf"^DATA_DIR .* could be replaced by others of this machine: {says}"):
        lock_data_dir(above / "between" / "data")
    assert list(above.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o2707])
def test_a_folder_that_everybody_could_put_another_in_the_place_of_is_refused(tmp_path, mode):
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(mode)
    is_refused(tmp_path / "above", f"{tmp_path / 'above'} may be written to by everybody")


@needs_root
def test_so_is_one_that_a_group_could(tmp_path):
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o775)
    user = next(user for user in pwd.getpwall() if user.pw_gid != 0)
    os.chown(tmp_path / "above", 0, user.pw_gid)
    is_refused(
        tmp_path / "above", f"{tmp_path / 'above'} may be written to by the group {grp.getgrgid(user.pw_gid).gr_name}"
    )


@needs_root
def test_so_is_one_within_another_user_s(tmp_path):
    (tmp_path / "above").mkdir()
    os.chown(tmp_path / "above", 12345, 12345)
    is_refused(tmp_path / "above", f"{tmp_path / 'above'} belongs to the user 12345")


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o1777])
def test_where_nobody_else_could_it_is_taken(tmp_path, mode):
    """As in a home, with a group of one's own, and in /tmp."""
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(mode)
    former = os.umask(0)
    try:
        lock_data_dir(tmp_path / "above" / "between" / "data").close()
    finally:
        os.umask(former)
    assert mode_of(tmp_path / "above" / "between") == 0o700


# --- the files in it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_database_is_made_for_its_owner_alone_and_so_is_what_sqlite_adds(tmp_path, umask):
    former = os.umask(umask)
    try:
        lock_data_dir(tmp_path).close()
        keep_database(tmp_path / "database")
        with closing(sqlite3.connect(tmp_path / "database")) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE t (t)")
            modes = {file.name: mode_of(file) for file in tmp_path.iterdir()}
    finally:
        os.umask(former)
    assert modes == dict.fromkeys(("lock", "database", "database-wal", "database-shm"), 0o600)


def test_files_that_others_may_read_are_narrowed_and_keep_what_they_hold(tmp_path):
    names = ("lock", "database", "database-wal", "database-shm")
    for name in names:
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o644)
    lock_data_dir(tmp_path).close()
    keep_database(tmp_path / "database")
    assert {file.name: (mode_of(file), file.read_text()) for file in tmp_path.iterdir()} == {
        name: (0o600, name) for name in names
    }


# --- keys --------------------------------------------------------------------------------------------------------

KEY = "kept-0123456789-0123456789-0123456789"
KINDS = ["secret_key", "secrets/groq_api_key", "secrets/nanobot/telegram_token"]
SIGNS_OUT = "delete it, which signs everybody out, and each webhook needs another secret then"


@pytest.fixture(autouse=True)
def none_given(monkeypatch):
    monkeypatch.delenv("SECRET_KEY", raising=False)
    monkeypatch.delenv("SECRET_KEY_FILE", raising=False)


def key_file(folder: Path, kind: str, mode: int, content: str = KEY) -> Path:
    (folder / kind).parent.mkdir(parents=True, exist_ok=True)
    (folder / kind).write_text(content)
    (folder / kind).chmod(mode)
    return folder / kind


def start(folder: Path) -> None:
    lock_data_dir(folder).close()
    keep_secret_key(folder)
    close_secrets(folder)


def refused_start(folder: Path) -> str:
    with pytest.raises(CommandError) as refused:
        start(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o640, 0o604, 0o444, 0o755])
def test_a_key_that_others_may_only_read_is_narrowed_and_kept(tmp_path, caplog, kind, mode):
    tmp_path.chmod(0o700)
    key = key_file(tmp_path, kind, mode)
    start(tmp_path)
    assert (mode_of(key), key.read_text()) == (mode if mode in (0o600, 0o400) else 0o600, KEY)
    assert caplog.records == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [0o666, 0o622, 0o660, 0o602, 0o620, 0o777])
def test_a_key_that_others_may_write_to_is_refused_with_what_to_do(tmp_path, kind, mode):
    key = key_file(tmp_path, kind, mode)
    said = refused_start(tmp_path)
    assert said.startswith(f"{key} may be written to by others of this machine: ")
    assert f"chmod 600 {key}" in said
    assert (SIGNS_OUT in said) == (kind == "secret_key")
    assert (mode_of(key), key.read_text()) == (mode, KEY)
    key.chmod(0o600)
    start(tmp_path)


@needs_root
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_key_of_another_user_is_refused(tmp_path, kind, mode, is_link):
    """Nor is one taken that somebody else has put a link to in its place: who knows what it holds."""
    key = key_file(tmp_path, kind, mode)
    if is_link:
        key.rename(tmp_path / "elsewhere")
        key.symlink_to(tmp_path / "elsewhere")
    os.chown(key, 12345, 12345, follow_symlinks=False)
    said = refused_start(tmp_path)
    assert said.startswith(f"{key} belongs to the user 12345, who could have chosen what it holds: ")
    assert (SIGNS_OUT in said) == (kind == "secret_key")
    assert mode_of(key) == mode


@pytest.mark.parametrize("content", ["x", "x" * 31, f"  {'x' * 31}\n", b"\xff" * 40])
def test_a_secret_key_that_could_be_guessed_or_is_no_text_is_refused(tmp_path, content):
    kept = key_file(tmp_path, "secret_key", 0o600, "")
    kept.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refused_start(tmp_path)
    assert said == f"{kept} holds no text of 32 characters or more, which is too little for a key: {SIGNS_OUT}."


def test_one_that_is_long_enough_is_kept(tmp_path):
    kept = key_file(tmp_path, "secret_key", 0o600, "x" * 32)
    start(tmp_path)
    assert kept.read_text() == "x" * 32


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_one_that_is_empty_is_replaced(tmp_path, settings, mode):
    """A start that was killed in between."""
    kept = key_file(tmp_path, "secret_key", mode, " \n")
    start(tmp_path)
    assert (kept.read_text(), mode_of(kept)) == (settings.SECRET_KEY, 0o600)


def test_one_that_is_not_used_is_not_looked_at(tmp_path, monkeypatch):
    kept = key_file(tmp_path, "secret_key", 0o666, "x")
    monkeypatch.setenv("SECRET_KEY", KEY)
    start(tmp_path)
    assert mode_of(kept) == 0o666


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_folders_of_keys_are_narrowed(tmp_path, mode):
    key_file(tmp_path, "secrets/nanobot/telegram_token", 0o600)
    for folder in (tmp_path / "secrets", tmp_path / "secrets" / "nanobot"):
        folder.chmod(mode)
    start(tmp_path)
    assert [mode_of(folder) for folder in (tmp_path / "secrets", tmp_path / "secrets" / "nanobot")] == [0o700] * 2


def test_what_others_have_put_in_the_place_of_a_new_key_is_not_written_to(tmp_path, settings):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "secret_key.new").symlink_to(tmp_path / "theirs")
    start(tmp_path)
    assert ((tmp_path / "theirs").read_text(), mode_of(tmp_path / "theirs")) == ("theirs", 0o644)
    assert (tmp_path / "secret_key").read_text() == settings.SECRET_KEY
    assert not (tmp_path / "secret_key").is_symlink()


@pytest.mark.parametrize("is_link", [False, True])
def test_files_of_a_stack_s_secrets_are_new_ones_for_their_owner_alone(tmp_path, is_link):
    machine = Machine(folder=tmp_path, database_url="d", redis_url="r", host="h", port=1)
    theirs = key_file(tmp_path, "secrets/webhook_key", 0o666, "theirs")
    theirs.parent.chmod(0o777)
    if is_link:
        theirs = theirs.rename(tmp_path / "theirs")
        (tmp_path / "secrets" / "webhook_key").symlink_to(theirs)
    with theirs.open() as opened:
        machine.write_secrets(webhook_key=KEY)
        assert opened.read() == "theirs"
    assert mode_of(tmp_path / "secrets") == 0o700
    written = tmp_path / "secrets" / "webhook_key"
    assert (written.read_text(), mode_of(written), written.is_symlink()) == (KEY, 0o600, False)
