"""DATA_DIR is its owner's alone: made so, narrowed, or refused with a sentence."""

import logging
import os
import stat
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from nanohost import data_dir
from nanohost.data_dir import lock_data_dir, make_data_dir

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
    (tmp_path / "code").mkdir()
    (tmp_path / "code").chmod(0o755)
    monkeypatch.setattr(data_dir, "__file__", str(tmp_path / "code" / "nanohost" / "data_dir.py"))
    assert "it holds other things as well" in refusal(tmp_path / "code")


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a folder of another user; this needs root")
def test_a_folder_of_another_user_is_refused(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(0o755)
    os.chown(folder, 12345, 12345)
    assert "it belongs to the user 12345" in refusal(folder)
    folder.chmod(0o700)
    lock_data_dir(folder).close()
