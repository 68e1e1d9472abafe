"""The file tools: through the gate, in one agent's folder for one owner, atomic, bounded, undone for a day."""

import errno
import json
import os
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from django.core.management import call_command

from agent.models import Agent
from nanohost.lib import env
from nanohost.lib.clock import from_now
from nanohost.lib.ids import new_id
from tests.support.hosts import ROOT
from tests.support.paths import SECRET, furnish, hostile_paths
from tests.support.tool_calls import EVERY_TOOL, ask, run, run_in_thread
from tools import calls, requirements
from tools.gate import AgentTools
from tools.models import CallStatus, ToolCall
from tools.registry import Caller, get
from tools.workspace import agent_tools, beneath, store, text
from tools.workspace.errors import Full, PathRefused
from tools.workspace.globs import is_within, matches
from tools.workspace.outside import open_outside
from tools.workspace.store import open_workspace

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing()),
]

NAMES = ["read_file", "write_file", "edit_file", "list_dir", "search_files", "undo_file"]
TAINTED = AgentTools(names=None, tainted_by="the tool http_get", taint="refuse")


@pytest.fixture(autouse=True)
def workspaces(settings, tmp_path, tool_settings):
    settings.WORKSPACES_DIR = tmp_path / "workspaces"
    for name in NAMES:
        tool_settings(name, grants=["FS_READ", "FS_WRITE"])


@pytest.fixture
def use(owner):
    """``use("read_file", path="x")``: the call, as it ended."""

    def use(name, *, agent_tools=EVERY_TOOL, owner_id=owner.pk, **arguments):
        return run(ask(name, owner_id=owner_id, agent_tools=agent_tools, **arguments), agent_tools=agent_tools)

    return use


@pytest.fixture
def files(settings, owner):
    """The folder that the tools see."""
    with open_workspace(agent="default", owner_id=owner.pk):
        return settings.WORKSPACES_DIR / "default" / str(owner.pk) / "files"


def caller_of(owner, *, tainted_by=""):
    ids = {"conversation_id": new_id(), "turn_id": new_id(), "call_id": new_id()}
    return Caller(owner_id=owner.pk, agent="default", request_id="r", tainted_by=tainted_by, **ids)


# --- the page's examples -----------------------------------------------------------------------------------------


def test_the_pages_examples_are_what_happens(use):
    page = (ROOT / "docs" / "tools.md").read_text().split("\n## The workspace\n")[1].split("\n## ")[0]
    examples = re.findall(r"^\| `(\w+) (\{.*\})` \| `(.*)` \|$", page, re.MULTILINE)
    assert sorted(name for name, _, _ in examples) == sorted(NAMES)
    for name, arguments, result in examples:
        call = use(name, **json.loads(arguments))
        assert (call.status, call.result) == (CallStatus.SUCCESS, result.replace("⏎", "\n"))


# --- nothing leads out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [False, True])
def test_no_path_leads_out(files, owner, settings, outside):
    furnish(files)
    caller, done = caller_of(owner), 0
    if outside:
        settings.WORKSPACE_WRITE_FOLDERS = [str(files)]
    acts = (
        agent_tools.read_file,
        agent_tools.list_dir,
        partial(agent_tools.search_files, query=SECRET),
        partial(agent_tools.write_file, content="overwritten"),
        partial(agent_tools.edit_file, old_text=SECRET, new_text="overwritten"),
        agent_tools.undo_file,
    )
    for path in hostile_paths(files, 200 if outside else 400):
        for act in acts:
            with suppress(ValueError):
                assert SECRET not in act(caller, path=f"{files}/{path}" if outside else path)
                done += 1
    assert done > 0
    secrets = [files.parent / "secret", files.parent / "outside" / "secret"]
    assert [each.read_text() for each in secrets] == [SECRET, SECRET]
    assert sorted(os.listdir(files.parent / "outside")) == ["secret"]


def test_owners_and_agents_have_folders_of_their_own(use, owner, outsider, settings):
    use("write_file", path="a.txt", content="mine")
    assert "There is no 'a.txt'" in use("read_file", path="a.txt", owner_id=outsider.pk).result
    settings.WORKSPACE_SHARED = True
    use("write_file", path="a.txt", content="ours")
    assert use("read_file", path="a.txt", owner_id=outsider.pk).result == "ours"


def test_a_machine_without_openat2_refuses_by_name(use, monkeypatch, capsys):
    monkeypatch.setattr(requirements, "KNOWN", {"openat2": lambda: "the kernel is too old"})
    call = use("read_file", path="a.txt")
    assert (call.status, call.rule) == (CallStatus.REJECTED, "requires:openat2")
    assert "does not run on this machine: the kernel is too old." in call.result
    call_command("tools", "list")
    assert "read_file\tforbidden by requires:openat2" in capsys.readouterr().out


def test_other_folders_are_read_and_not_written(use, settings, tmp_path):
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "book.txt").write_text("once upon a time")
    (tmp_path / "shelf" / "link").symlink_to(tmp_path)
    (tmp_path / "shelfish").mkdir()
    (tmp_path / "shelfish" / "book.txt").write_text(SECRET)
    settings.WORKSPACE_READ_FOLDERS = [str(tmp_path / "shelf")]
    call = use("read_file", path=f"{tmp_path}/shelf/book.txt")
    assert call.result == "once upon a time"
    assert call.tainted_by.startswith("files of the workspace")
    assert use("list_dir", path=f"{tmp_path}/shelf").result.startswith("book.txt\t16\n")
    found = use("search_files", query="upon", path=f"{tmp_path}/shelf")
    assert found.result == f"{tmp_path}/shelf/book.txt:1: once upon a time"
    for path in ("shelf/../shelfish/book.txt", "shelfish/book.txt", "shelf/link/shelfish/book.txt"):
        assert use("read_file", path=f"{tmp_path}/{path}").status == CallStatus.FAILED
    assert "can be read, but not changed" in use("write_file", path=f"{tmp_path}/shelf/new.txt", content="x").result
    assert "absolute" in use("write_file", path=f"{tmp_path}/shelfish/new.txt", content="x").result
    assert sorted(os.listdir(tmp_path / "shelf")) == ["book.txt", "link"]


@pytest.fixture
def desk(settings, tmp_path):
    """A folder outside that agents may write to, beside others that they may not."""
    desk = tmp_path / "desk"
    for place in (desk, tmp_path / "desktop", desk / "policy"):
        place.mkdir()
        (place / "book.txt").write_text("once upon a time")
        (place / "book.txt").chmod(0o640)
    (desk / "link").symlink_to(tmp_path / "desktop")
    os.link(tmp_path / "desktop" / "book.txt", desk / "twin.txt")
    settings.WORKSPACE_WRITE_FOLDERS = [str(desk)]
    return desk


def test_folders_outside_are_worked_in_as_a_workspace_is(use, desk, owner):
    path = f"{desk}/book.txt"
    assert use("read_file", path=path).result == "once upon a time"
    assert use("edit_file", path=path, old_text="once", new_text="twice").status == CallStatus.SUCCESS
    assert (desk / "book.txt").read_text() == "twice upon a time"
    assert (desk / "book.txt").stat().st_mode & 0o777 == 0o640
    assert use("undo_file", path=path).result == "Undone."
    assert (desk / "book.txt").read_text() == "once upon a time"
    made = use("write_file", path=f"{desk}/new/page.txt", content="the end")
    assert made.result == "Written: a new file of 7 bytes."
    assert use("list_dir", path=f"{desk}/new").result == "page.txt\t7"
    # What it wrote there itself may have been changed by anybody since.
    assert use("read_file", path=f"{desk}/new/page.txt").tainted_by.startswith("files of the workspace")
    assert use("undo_file", path=f"{desk}/new/page.txt").result == "Undone: the file was new, and is gone."
    assert os.listdir(desk / "new") == []
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        assert workspace.entries() == []


def test_folders_outside_are_not_left_and_keep_what_is_protected(use, desk, settings, tmp_path):
    settings.WORKSPACE_PROTECTED_PATHS = [f"{desk}/policy", "*.lock"]
    refused = {
        f"{tmp_path}/desktop/book.txt": "absolute",
        f"{desk}/../desktop/book.txt": "leads upwards",
        f"{desk}/link/book.txt": "symbolic link",
        f"{desk}/twin.txt": "hard links",
        f"{desk}/policy/book.txt": "is protected",
        f"{desk}/a.lock": "is protected",
        f"{desk}": "names no file",
        f"{desk}/policy/..": "leads upwards",
        f"{desk}gone/a": "absolute",
    }
    before = {place: place.read_bytes() for place in tmp_path.rglob("*.txt")}
    for path, why in refused.items():
        call = use("write_file", path=path, content="x")
        assert (call.status, why in call.result) == (CallStatus.FAILED, True), (path, call.result)
        assert use("undo_file", path=path).status == CallStatus.FAILED
    assert {place: place.read_bytes() for place in tmp_path.rglob("*.txt")} == before
    # Its documents are the agent's own folder's.
    assert use("write_file", path=f"{desk}/memory/MEMORY.md", content="x").result == "Written: a new file of 1 bytes."


def test_a_folder_outside_is_bounded_and_is_left_clean(use, desk, settings):
    settings.WORKSPACE_MAX_FILES, settings.WORKSPACE_FILE_MAX_BYTES = 6, 60
    assert "a file may have 60" in use("write_file", path=f"{desk}/a", content="x" * 61).result
    assert use("write_file", path=f"{desk}/a", content="x").status == CallStatus.SUCCESS
    assert "The folder is full: it has 6 files and folders" in use("write_file", path=f"{desk}/b", content="x").result
    left, recent, like = (desk / name for name in (f".nanohost-{'0' * 32}", f".nanohost-{'1' * 32}", ".nanohost-own"))
    settings.WORKSPACE_MAX_FILES = 100
    for place in (left, recent, like):
        place.touch()
        if place != recent:
            os.utime(place, (1, 1))
    use("write_file", path=f"{desk}/a", content="y")
    assert [place.exists() for place in (left, recent, like)] == [False, True, True]


def test_a_folder_outside_may_be_on_another_disk_and_is_never_trusted(settings):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        settings.WORKSPACE_WRITE_FOLDERS = [place]
        assert os.stat(place).st_dev != os.stat(settings.WORKSPACES_DIR.parent).st_dev
        with open_outside(place) as workspace:
            workspace.write("a/b", b"one", trusted=True)
            workspace.write("a/b", b"two", trusted=True)
            assert not workspace.is_trusted("a/b", b"two")
            assert not workspace.knows("a", is_folder=True)
            assert workspace.undo("a/b", tainted=False)
            assert (workspace.read("a/b"), workspace.is_trusted("a/b", b"one")) == (b"one", False)


def test_what_others_would_see_does_not_stay_inside(settings):
    assert agent_tools.stays_inside()
    assert {get(name).stays_inside for name in ("write_file", "edit_file", "undo_file")} == {True}
    settings.WORKSPACE_WRITE_FOLDERS = ["/srv/notes"]
    assert not agent_tools.stays_inside()
    settings.WORKSPACE_WRITE_FOLDERS, settings.WORKSPACE_SHARED = [], True
    assert not agent_tools.stays_inside()


def test_what_the_host_may_not_write_is_told(use, desk, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(store.os, "rename", refuse)
    call = use("write_file", path=f"{desk}/book.txt", content="x")
    assert (call.status, "may not do that there" in call.result) == (CallStatus.FAILED, True)
    assert sorted(os.listdir(desk)) == ["book.txt", "link", "policy", "twin.txt"]


def test_a_folder_outside_that_cannot_be_opened_is_told(use, settings, tmp_path):
    (tmp_path / "file").touch()
    settings.WORKSPACE_WRITE_FOLDERS = [str(tmp_path / "file"), str(tmp_path / "gone")]
    for name, more in (("write_file", {"content": "x"}), ("read_file", {}), ("undo_file", {})):
        assert "It is no folder." in use(name, path=f"{tmp_path}/file/a", **more).result
        assert f"There is no '{tmp_path}/gone/a'" in use(name, path=f"{tmp_path}/gone/a", **more).result


def test_of_folders_in_folders_the_innermost_decides(use, desk, settings):
    settings.WORKSPACE_READ_FOLDERS = [str(desk / "policy")]
    for path in (f"{desk}/policy/book.txt", f"{desk}/./policy//book.txt", f"/{desk}/policy/book.txt"):
        assert use("read_file", path=path).result == "once upon a time"
        assert "can be read, but not changed" in use("write_file", path=path, content="x").result
    assert use("write_file", path=f"{desk}//./book.txt", content="x").status == CallStatus.SUCCESS
    told = use("write_file", path="/etc/passwd", content="x").result
    assert f"Besides it there are: {desk}, {desk}/policy." in told


@pytest.mark.parametrize("pattern", ["ALIAS/policy/**", "DESK/policy", "DESK/pol*"])
def test_what_is_protected_is_so_by_each_name_of_a_folder(use, desk, settings, tmp_path, monkeypatch, pattern):
    (tmp_path / "alias").symlink_to(desk)
    places = {"DESK": str(desk), "ALIAS": str(tmp_path / "alias")}
    for name, place in places.items():
        pattern = pattern.replace(name, place)
    monkeypatch.setenv("PATTERNS", pattern)
    settings.WORKSPACE_PROTECTED_PATHS = env.patterns("PATTERNS")
    for place in places.values():
        settings.WORKSPACE_WRITE_FOLDERS = [place]
        assert "is protected" in use("write_file", path=f"{place}/policy/book.txt", content="x").result
        assert use("write_file", path=f"{place}/book.txt", content=place).status == CallStatus.SUCCESS
    settings.WORKSPACE_WRITE_FOLDERS = [str(desk)]  # by its other name it is the same folder
    assert use("undo_file", path=f"{desk}/book.txt").status == CallStatus.SUCCESS
    assert (desk / "book.txt").read_text() == places["DESK"]


def test_what_others_write_meanwhile_and_what_is_read_only_is_not_replaced(use, desk, monkeypatch):
    path, fsync = desk / "book.txt", os.fsync

    def fsync_while_somebody_writes(opened):
        fsync(opened)
        with path.open("a") as file:
            file.write("!")

    with monkeypatch.context() as patched:
        patched.setattr(store.os, "fsync", fsync_while_somebody_writes)
        call = use("edit_file", path=str(path), old_text="once", new_text="twice")
        new = use("write_file", path=f"{desk}/new.txt", content="x")
    assert (call.status, "changed in the meantime" in call.result) == (CallStatus.FAILED, True)
    assert path.read_text().startswith("once upon a time!")
    assert new.status == CallStatus.SUCCESS
    path.chmod(0o444)
    assert "is read-only" in use("write_file", path=str(path), content="x").result


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files another's")
def test_a_replaced_file_stays_its_owner_s_and_its_group_s(use, desk):
    os.chown(desk / "book.txt", 4001, 4002)
    assert use("write_file", path=f"{desk}/book.txt", content="x").status == CallStatus.SUCCESS
    status = (desk / "book.txt").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (4001, 4002, 0o640)


# --- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x00\x01" * 10, "This is a binary file of 20 bytes"),
        (b"caf\xe9", "no text in UTF-8: the byte at 3"),
        (b"x" * 101, "The file has 101 bytes; 100 can be read at most."),
    ],
)
def test_what_cannot_be_shown_is_told(use, files, settings, content, said):
    settings.WORKSPACE_FILE_MAX_BYTES = 100
    (files / "odd").write_bytes(content)
    call = use("read_file", path="odd")
    assert call.status == CallStatus.FAILED
    assert said in call.result
    assert "Nothing found" in use("search_files", query="x", pattern="odd").result


def test_utf_16_and_marks_are_read(use, files):
    (files / "wide").write_bytes("wide".encode("utf-16"))
    (files / "marked").write_bytes(b"\xef\xbb\xbfmarked")
    assert [use("read_file", path=name).result for name in ("wide", "marked")] == ["wide", "marked"]


def test_long_files_are_read_in_parts(use):
    lines = [f"line {number} {'x' * 100}" for number in range(1, 501)]
    use("write_file", path="long", content="\n".join(lines) + "\n")
    read, offset = [], 1
    while offset:
        result = use("read_file", path="long", offset=offset).result
        *part, note = result.split("\n")
        read += part
        offset = int((re.search(r"offset=(\d+)", note) or [0, 0])[1])
    assert read == lines
    assert "there is no line 501" in use("read_file", path="long", offset=501).result
    assert use("read_file", path="long", offset=3, limit=1).result.startswith("line 3 ")


def test_a_line_that_is_too_long_is_cut(use):
    use("write_file", path="long", content="x" * 20_000)
    assert use("read_file", path="long").result.endswith("x[cut: the line has 20000 characters]")


def test_a_search_is_bounded(use):
    use("write_file", path="many", content="here\n" * 200)
    lines = use("search_files", query="HERE").result.split("\n")
    assert (len(lines), lines[-1]) == (text.MAX_FOUND + 1, f"[there are more than {text.MAX_FOUND}]")
    clock = iter(range(100))
    ended = text.search(["a"] * 50, lambda name: b"x", "x", clock=lambda: next(clock))
    assert (len(ended.lines), bool(ended.cut)) == (1, True)


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        ("a.md", "*.md", True),
        ("x/y/a.md", "*.md", True),
        ("x/a.md", "x/*.md", True),
        ("x/y/a.md", "x/*.md", False),
        ("x/y/z/a.md", "x/**/*.md", True),
        ("x/a.md", "x/**/*.md", True),
        ("x/a.md", "x/?.md", True),
        ("a.md", "[a].md", False),
        ("a.md", "", False),
        ("a" * 200, "*a" * 60 + "b", False),
    ],
)
def test_patterns(path, pattern, fits):
    assert matches(path.split("/"), pattern) is fits


def test_what_is_in_a_folder_is_within_it():
    assert is_within(("policy", "a", "b.md"), ["policy"])
    assert not is_within(("notes", "b.md"), ["policy", "*.txt"])


# --- changing ----------------------------------------------------------------------------------------------------


def test_an_edit_needs_its_text_to_be_there_once(use):
    use("write_file", path="a.txt", content="one\r\ntwo\r\ntwo\r\naaa")
    for old, said in (("three", "does not stand"), ("two", "more than once"), ("aa", "more than once"), ("", "empty")):
        call = use("edit_file", path="a.txt", old_text=old, new_text="x")
        assert call.status == CallStatus.FAILED
        assert said in call.result
    assert use("edit_file", path="a.txt", old_text="one\r\ntwo", new_text="1\r\n2").status == CallStatus.SUCCESS
    assert use("read_file", path="a.txt").result == "1\r\n2\r\ntwo\r\naaa"


def test_what_is_not_utf_8_is_not_edited_and_the_reason_is_told(use, files):
    (files / "wide").write_bytes("one 慢".encode("utf-16"))
    before = (files / "wide").read_bytes()
    for old in ("one", "ba"):  # the latter stands there, byte for byte, and is another character
        call = use("edit_file", path="wide", old_text=old, new_text="x")
        assert (call.status, "UTF-16" in call.result) == (CallStatus.FAILED, True), call.result
    assert (files / "wide").read_bytes() == before


def test_an_edit_of_what_was_changed_meanwhile_changes_nothing(owner, files):
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("a", b"new", trusted=True)
        with pytest.raises(PathRefused, match="changed in the meantime"):
            workspace.write("a", b"mine", trusted=True, expected=b"old")
    assert (files / "a").read_bytes() == b"new"


def test_a_change_is_undone_and_the_undoing_too(use, files):
    use("write_file", path="a.txt", content="one")
    use("write_file", path="a.txt", content="two")
    for expected in ("one", "two", "one"):
        assert use("undo_file", path="a.txt").result == "Undone."
        assert use("read_file", path="a.txt").result == expected
    use("write_file", path="b.txt", content="new")
    assert use("undo_file", path="b.txt").result == "Undone: the file was new, and is gone."
    assert not (files / "b.txt").exists()
    use("undo_file", path="b.txt")
    assert use("read_file", path="b.txt").result == "new"


def test_after_a_day_nothing_is_undone(use, files):
    use("write_file", path="a.txt", content="one")
    use("write_file", path="a.txt", content="two")
    old = time.time() - store.FORMER_SECONDS - 1
    for former in (files.parent / "former").iterdir():
        os.utime(former, (old, old))
    assert "No change of 'a.txt' is kept" in use("undo_file", path="a.txt").result
    assert list((files.parent / "former").iterdir()) == []


def test_what_is_protected_is_read_and_not_changed(use, files, settings):
    settings.WORKSPACE_PROTECTED_PATHS = ["policy", "*.lock"]
    (files / "policy").mkdir()
    (files / "policy" / "rules.md").write_text("rules")
    assert use("read_file", path="policy/rules.md").result == "rules"
    for path in ("policy/rules.md", "./policy//new.md", "x/a.lock", "policy"):
        assert "is protected" in use("write_file", path=path, content="x").result
        assert "is protected" in use("undo_file", path=path).result
    assert "is protected" in use("edit_file", path="policy/rules.md", old_text="rules", new_text="x").result
    assert os.listdir(files / "policy") == ["rules.md"]


def test_the_quota_is_of_bytes_files_and_each_file(use, settings):
    settings.WORKSPACE_MAX_BYTES, settings.WORKSPACE_MAX_FILES, settings.WORKSPACE_FILE_MAX_BYTES = 100, 3, 60
    assert "a file may have 60" in use("write_file", path="a", content="x" * 61).result
    use("write_file", path="a", content="x" * 60)
    assert "100, and this needs 41 more" in use("write_file", path="b", content="x" * 41).result
    use("write_file", path="a", content="x")
    assert use("write_file", path="b", content="x" * 41).status == CallStatus.SUCCESS
    use("write_file", path="c", content="")
    assert "it has 3 files and folders" in use("write_file", path="d", content="").result
    assert use("write_file", path="c", content="more").status == CallStatus.SUCCESS


def test_two_at_once_do_not_both_take_the_last_room(owner, settings, monkeypatch):
    settings.WORKSPACE_MAX_FILES = 1
    both, walk = threading.Barrier(2), store.walk

    def walk_together(*args, **options):
        entries = list(walk(*args, **options))
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # of two that are let in at once, neither sees the other's
        return entries

    monkeypatch.setattr(store, "walk", walk_together)
    with ThreadPoolExecutor(2) as pool:
        asked = [ask("write_file", owner_id=owner.pk, path=name, content="x") for name in ("a", "b")]
        ended = list(pool.map(run_in_thread, asked))
    assert sorted(call.status for call in ended) == [CallStatus.FAILED, CallStatus.SUCCESS]


def test_nobody_sees_half_of_a_file(owner):
    done, seen = threading.Event(), set()
    contents = [b"a" * 200_000, b"b" * 200_000]
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("f", contents[0], trusted=True)

        def look():
            while not done.is_set():
                seen.add(workspace.read("f"))

        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(look)
            for turn in range(20):
                workspace.write("f", contents[turn % 2], trusted=True)
            done.set()
            looking.result()
    assert seen <= set(contents)


def test_what_a_file_has_and_had_is_on_the_disk_before_it_takes_its_place(owner, monkeypatch):
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("notes/f", b"first", trusted=True)
        done, fsync, rename = [], os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", lambda opened: (fsync(opened), done.append(os.fstat(opened).st_ino)))

        def noted(name, *given, src_dir_fd, **more):
            moved = os.stat(name, dir_fd=src_dir_fd).st_ino
            assert moved in done
            rename(name, *given, src_dir_fd=src_dir_fd, **more)
            done.append("renamed")

        monkeypatch.setattr(os, "rename", noted)
        workspace.write("notes/f", b"second", trusted=True)
        assert done.count("renamed") == 2
        assert done[-1] == (workspace.root / "files/notes").stat().st_ino  # and its name, after that
        (former,) = (workspace.root / "former").glob("*.trusted")
        assert former.read_bytes() == b"first"


def test_a_full_disk_leaves_nothing_behind(owner, monkeypatch):
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("f", b"first", trusted=True)

        def full(opened):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(Full, match="no room left on the disk"):
                workspace.write("f", b"second", trusted=True)
        assert workspace.read("f") == b"first"
        assert list((workspace.root / "parts").iterdir()) == []
        assert workspace.is_trusted("f", b"first")


def test_a_write_whose_worker_died_is_unknown(owner, files):
    call = ask("write_file", owner_id=owner.pk, path="a", content="x")
    calls.claim(call.pk, worker="dead")
    ToolCall.objects.update(lease_until=from_now(-1))
    assert run(call).status == CallStatus.UNKNOWN
    assert not (files / "a").exists()


# --- taint -------------------------------------------------------------------------------------------------------


def test_what_an_untainted_conversation_wrote_is_trusted(use):
    use("write_file", path="notes/a.txt", content="mine")
    for name, arguments in (
        ("read_file", {"path": "notes/a.txt"}),
        ("list_dir", {"path": "notes"}),
        ("list_dir", {}),
        ("search_files", {"query": "mine"}),
        ("search_files", {}),
    ):
        call = use(name, **arguments)
        assert (call.status, call.tainted_by) == (CallStatus.SUCCESS, "")


def test_what_a_tainted_conversation_wrote_taints_who_reads_it(use):
    use("write_file", path="a.txt", content="mine")
    assert use("write_file", agent_tools=TAINTED, path="a.txt", content="theirs").status == CallStatus.SUCCESS
    by = "files of the workspace"
    assert use("read_file", path="a.txt").tainted_by.startswith(by)
    assert use("search_files", query="theirs").tainted_by.startswith(by)
    assert use("list_dir").tainted_by.startswith(by)
    # An edit does not wash it, and neither does undoing and doing again.
    use("edit_file", path="a.txt", old_text="the", new_text="The")
    assert use("read_file", path="a.txt").tainted_by.startswith(by)
    use("undo_file", path="a.txt")
    assert use("read_file", path="a.txt").tainted_by.startswith(by)
    use("write_file", path="a.txt", content="mine again")
    assert use("read_file", path="a.txt").tainted_by == ""


def test_what_somebody_put_there_taints(use, files):
    use("write_file", path="a.txt", content="mine")
    (files / "a.txt").write_text("theirs")
    assert use("read_file", path="a.txt").tainted_by
    (files / "b.txt").write_text("theirs")
    assert use("list_dir").tainted_by


def test_undoing_gives_trust_back_with_the_content(use):
    use("write_file", path="a.txt", content="mine")
    use("write_file", agent_tools=TAINTED, path="a.txt", content="theirs")
    use("undo_file", path="a.txt")
    call = use("read_file", path="a.txt")
    assert (call.result, call.tainted_by) == ("mine", "")


def test_the_tools_say_what_they_are():
    assert [get(name).effects for name in NAMES] == ["read", "write", "write", "read", "read", "write"]
    assert all(get(name).inline and get(name).requires == ("openat2",) for name in NAMES)
    assert Path(agent_tools.__file__).parent.name == "workspace"


def test_another_agent_of_a_deleted_one_s_name_begins_without_its_files(settings, owner):
    gone = Agent.objects.create(name="clerk")
    with open_workspace(agent="clerk", owner_id=owner.pk) as workspace:
        workspace.write("a.md", b"of the first clerk", trusted=True)
    gone.remove()
    Agent.objects.create(name="clerk").remove()  # which has none
    with open_workspace(agent="clerk", owner_id=owner.pk) as workspace:
        assert workspace.entries() == []
        assert not workspace.is_trusted("a.md", b"of the first clerk")
    kept = list(settings.WORKSPACES_DIR.rglob("a.md"))
    assert [each.read_bytes() for each in kept] == [b"of the first clerk"]
    store.erase(owner.pk)
    assert not list(settings.WORKSPACES_DIR.rglob("a.md"))
