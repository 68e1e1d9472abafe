"""What files were before goes after a day, though nobody changes the workspace any more."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from conversations.engine.tool_calls import CallRunner
from nanohost.lib.database_threads import DatabaseThreads
from tools.workspace import beneath
from tools.workspace.retention import Forgetting
from tools.workspace.store import FORMER_SECONDS, open_workspace, set_aside

pytestmark = pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing())


@pytest.fixture(autouse=True)
def base(settings, tmp_path: Path) -> Path:
    settings.WORKSPACES_DIR = tmp_path / "workspaces"
    return tmp_path / "workspaces"


def written_twice(*, agent: str, owner_id: int, age: float) -> None:
    """A file whose former version is so many seconds old."""
    with open_workspace(agent=agent, owner_id=owner_id) as workspace:
        for content in (b"one", b"two"):
            workspace.write("a.txt", content, trusted=True)
        for former in (workspace.root / "former").iterdir():
            os.utime(former, (time.time() - age, time.time() - age))


def formers(base: Path) -> set[str]:
    """The workspaces that keep what a file was."""
    return {str(each.relative_to(base).parent.parent) for each in base.glob("*/*/former/*")}


def test_old_ones_go_in_every_workspace_and_young_ones_and_the_files_stay(base: Path) -> None:
    written_twice(agent="default", owner_id=1, age=FORMER_SECONDS + 60)
    written_twice(agent="default", owner_id=2, age=FORMER_SECONDS - 600)
    written_twice(agent="gone", owner_id=1, age=FORMER_SECONDS + 60)
    set_aside("gone")
    Forgetting().go_on()
    assert formers(base) == {"default/2"}
    assert {each.read_bytes() for each in base.glob("*/*/files/a.txt")} == {b"two"}
    assert len(list(base.glob("*/*/files/a.txt"))) == 3


def test_it_goes_on_where_it_stopped(base: Path) -> None:
    for owner_id in (1, 2, 3):
        written_twice(agent="default", owner_id=owner_id, age=FORMER_SECONDS + 60)
    forgetting = Forgetting()
    left = []
    for _ in range(3):
        forgetting.go_on(seconds=-1)  # whose time is up after each
        left.append(len(formers(base)))
    assert left == [2, 1, 0]


def test_one_that_is_being_changed_is_left_to_whoever_changes_it(base: Path) -> None:
    written_twice(agent="default", owner_id=1, age=FORMER_SECONDS + 60)
    with open(base / "default/1/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Forgetting().go_on()
        assert formers(base) == {"default/1"}
    Forgetting().go_on()
    assert formers(base) == set()


def test_links_and_what_is_no_workspace_are_left_alone(base: Path, tmp_path: Path) -> None:
    written_twice(agent="default", owner_id=1, age=FORMER_SECONDS + 60)
    (base / "default/1").rename(tmp_path / "elsewhere")
    (base / "default/1").symlink_to(tmp_path / "elsewhere")
    (base / "linked").symlink_to(tmp_path / "another")
    (tmp_path / "another").mkdir()
    written_twice(agent="default", owner_id=3, age=FORMER_SECONDS + 60)
    (base / "default/3").rename(tmp_path / "another/3")
    (base / "default/2").mkdir()
    (base / "stray").write_text("x")
    Forgetting().go_on()
    for kept in ("elsewhere", "another/3"):
        assert list((tmp_path / kept / "former").iterdir())
    assert not list((base / "default/2").iterdir())


def test_a_worker_of_tools_does_so_before_it_looks_for_calls(base: Path) -> None:
    written_twice(agent="default", owner_id=1, age=FORMER_SECONDS + 60)
    database = DatabaseThreads(1)
    try:
        CallRunner(worker="w", database=database).before_sweep()
    finally:
        database.close()
    assert formers(base) == set()
