"""Files are opened beneath a folder and nowhere else, whatever a path says and whoever changes the folder meanwhile."""

import os
import socket
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.paths import SECRET, changing_places, furnish, hostile_paths
from tools.workspace import beneath
from tools.workspace.errors import PathRefused

pytestmark = [
    pytest.mark.shapeless(reason="it needs no database"),
    pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing()),
]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "outer" / "folder"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def opened(folder):
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def read(opened: int, path: str) -> str:
    with beneath.open_file(opened, beneath.parts_of(path)) as file:
        return os.read(file, 1000).decode()


def read_unchecked(opened: int, path: str) -> str:
    """What the kernel alone keeps inside; further names are not its business."""
    descriptor = beneath.open_beneath(opened, path.encode("utf-8", "surrogatepass"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, 1000).decode() if os.fstat(descriptor).st_nlink == 1 else ""
    finally:
        os.close(descriptor)


def test_no_path_leads_out(folder, opened):
    furnish(folder)
    (folder / "inner" / "secret").write_text("ours")
    seen, refused = set(), 0
    for path in hostile_paths(folder, 20_000):
        for reading in (read, read_unchecked):
            try:
                seen.add(reading(opened, path))
            except (OSError, PathRefused):
                refused += 1
    assert SECRET not in seen
    assert seen <= {"ours", ""}
    assert "ours" in seen  # some of them are harmless
    assert refused > 30_000


def race(folder: Path, opened: int, *, seconds: float, tries: int) -> None:
    """Read for so long, that often, and until both have been met."""
    ends, seen = time.monotonic() + seconds, Counter[str]()
    with changing_places(folder) as path:
        while seen.total() < tries or time.monotonic() < ends or len(seen) < 2:
            try:
                seen[read(opened, path)] += 1
            except PathRefused:
                seen[""] += 1
            assert SECRET not in seen
    assert set(seen) == {"inside", ""}


def test_no_race_leads_out(folder, opened):
    race(folder, opened, seconds=1, tries=2000)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_no_race_leads_out_in_ten_minutes(folder, opened):
    race(folder, opened, seconds=600, tries=2000)


@pytest.mark.parametrize("name", ["hard", "link_to_file", "out/secret", "fifo", "inner", "magic/cwd", "socket"])
def test_what_is_no_file_of_the_folder_is_refused(folder, opened, name):
    furnish(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(".", os.O_RDONLY)
        os.chdir(folder)  # the path of a socket is short
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
            os.close(here)
        with pytest.raises(PathRefused):
            read(opened, name)


@pytest.mark.parametrize("link", ["inner/link", "folder/file"])
def test_no_link_is_followed_not_even_one_that_stays_inside(folder, opened, link):
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text("inside")
    (folder / "inner" / "link").symlink_to("file")
    (folder / "folder").symlink_to("inner")
    with pytest.raises(PathRefused, match="symbolic link"):
        read(opened, link)


@pytest.mark.parametrize(
    ("path", "parts"), [("", ()), (".", ()), ("a//b/./c", ("a", "b", "c")), ("a/", ("a",)), ("...", ("...",))]
)
def test_a_path_has_one_spelling(path, parts):
    assert beneath.parts_of(path) == parts


@pytest.mark.parametrize(
    "path", ["..", "a/../b", "/a", "a\0b", "a\nb", "\udc80", "x" * 256, "a/" * 33, "a/" * 600, "\u202ea"]
)
def test_a_path_that_makes_no_sense_is_refused(path):
    with pytest.raises(PathRefused):
        beneath.parts_of(path)


def test_what_is_opened_is_closed(folder, opened):
    furnish(folder)
    (folder / "file").write_text("x")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("file", "hard", "inner", "none"):
        try:
            read(opened, path)
        except (PathRefused, FileNotFoundError):
            continue
    assert len(os.listdir("/proc/self/fd")) == before
