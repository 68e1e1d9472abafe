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
from nanohost.data_dir import keep_database, lock_data_dir, make_data_dir

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
