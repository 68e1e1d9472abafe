"""Hostile tools, in each sandbox: what they get at in none, they do not get at in the others.

Without a sandbox each attack succeeds, where one is sensible to try: so each is seen to be one. Which modes it has run
in is told at the end of the suite (``python -m tests.shapes``).
"""

import json
import os
import re
import shutil
import signal
import site
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.shapes import note_sandbox
from tests.support.hosts import ROOT, sqlite_template
from tests.support.stack_process import descendants_of
from tests.support.tool_processes import alive, do, held
from tests.support.wait import wait_until
from tools.sandbox import landlock, modes
from tools.sandbox.box import BUBBLEWRAP, LANDLOCK, MODES, NONE, TOOLS_USER, Box
from tools.sandbox.children import ChildPool, Place, Task

pytestmark = pytest.mark.shapeless(reason="the processes of tools know no database")

BOTH = frozenset({BUBBLEWRAP, LANDLOCK})
SECRET = "canary-of-the-host-0123456789"


def is_had(mode):
    try:
        return bool(modes.having(mode))
    except modes.SandboxMissing:
        return False


# By what docs/tools.md calls it: in which modes it holds, and the attacks that try it, with what they are told. A text
# in capitals is a fact of ``victims``.
TABLE = {
    "Files of the host are not read": (
        BOTH,
        [
            ("read", {"path": "SECRET_KEY"}),
            ("read", {"path": "DATABASE"}),
            ("list_folder", {"path": "DATA_DIR"}),
            ("read", {"path": "CHECKOUT/Makefile"}),
            ("read_through_the_host", {"pid": "PID", "path": "SECRET_KEY"}),
        ],
    ),
    "Nor changed": (
        BOTH,
        [
            ("write", {"path": "DATABASE"}),
            ("put_another_in_its_place", {"path": "DATABASE"}),
            ("delete", {"path": "SECRET_KEY"}),
            ("write", {"path": "CHECKOUT/tools/planted.py"}),
        ],
    ),
    "Nor their modes and times": ({BUBBLEWRAP}, [("change_mode", {"path": "SECRET_KEY"})]),
    "Other processes' memory and environment are not read": (
        BOTH,
        [("read_environment", {"pid": "PID"}), ("read_memory", {"pid": "PID"}), ("attach", {"pid": "PID"})],
    ),
    "Other processes are not seen": ({BUBBLEWRAP}, [("see_command", {"pid": "PID"})]),
    "Other processes are not signalled": (
        BOTH,
        [("kill", {"pid": "PID"}), ("stop", {"pid": "PID"}), ("stop_the_fork_server", {}), ("kill_the_supervisor", {})],
    ),
    "Nor limited, slowed down or moved": (
        BOTH,
        [(way, {"pid": "PID"}) for way in ("limit", "slow_down", "pin")],
    ),
    "Those of other tools are not opened": (
        BOTH,
        [("open_the_supervisor_s_files", {}), ("open_the_fork_server_s_memory", {})],
    ),
    "Without `NET_HTTP` there is no network": (
        BOTH,
        [("connect_tcp", {"port": "TCP"}), ("send_udp", {"port": "UDP"}), ("listen_to_the_kernel", {})],
    ),
    "Sockets of the machine's services are not reached": (
        BOTH,
        [
            ("connect_unix", {"path": "SOCKET"}),
            ("connect_abstract", {"name": "ABSTRACT"}),
            ("send_by_a_pair", {"path": "DATAGRAMS"}),
        ],
    ),
    "Nothing of the kernel but what tools need": (
        BOTH,
        [("make_a_user_namespace", {}), ("change_the_kernel", {}), ("make_a_program_of_its_user", {})],
    ),
    "Shared memory, larger stacks and buffers, which no limit counts, are refused": (
        BOTH,
        [
            *((way, {}) for way in ("share_memory", "share_zeros", "have_a_file_in_memory", "fill_shared_memory")),
            *((way, {}) for way in ("grow_down", "have_a_large_stack", "have_large_buffers")),
        ],
    ),
    "A file has 64 MB at most": (BOTH, [("write_a_large_file", {})]),
    "`/tmp` and `/dev/shm` have 64 MB each": ({BUBBLEWRAP}, [("fill_the_disk", {})]),
}
ATTACKS = [(name, way, told) for name, (_, attacks) in TABLE.items() for way, told in attacks]


# Of each mode, what could not be tried on this machine: told at the end, with the mode.
UNTRIED: dict[str, set[str]] = {}


def skip_where_signals_get_out(mode):
    if mode == LANDLOCK and not landlock.keeps_signals_in():
        UNTRIED.setdefault(mode, set()).add("signals")
        pytest.skip("NOT TRIED: this kernel's Landlock lets signals out, and says so at the start")


@pytest.fixture(scope="module", params=MODES)
def mode(request):
    if not is_had(request.param):
        pytest.skip(f"NOT TRIED: {request.param}")
    failed = request.session.testsfailed
    yield request.param
    if request.session.testsfailed == failed:
        note_sandbox(request.param, UNTRIED.pop(request.param, ()))


@pytest.fixture(scope="module")
def pool(mode):
    made = ChildPool(mode)
    yield made
    made.close()


@pytest.fixture
def own_pool(mode):
    """For what takes its processes over for good, or ends them."""
    made = ChildPool(mode)
    yield made
    made.close()


@pytest.fixture
def victims(tmp_path, monkeypatch):
    """A host's folder, a process with a secret, and services that listen."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "secret_key").write_text(SECRET)
    with sqlite3.connect(data / "nanohost.sqlite3") as database:
        database.execute("CREATE TABLE t (t)")
    process = subprocess.Popen([sys.executable, "-c", "input()"], env={"SECRET": SECRET}, stdin=subprocess.PIPE)
    stream, datagrams, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), None
    stream.bind(str(tmp_path / "stream"))
    stream.listen()
    datagrams.bind(str(tmp_path / "datagrams"))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0nanohost-test-{os.getpid()}")
    abstract.listen()
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    yield {
        "SECRET_KEY": str(data / "secret_key"),
        "DATABASE": str(data / "nanohost.sqlite3"),
        "DATA_DIR": str(data),
        "CHECKOUT": str(ROOT),
        "PID": process.pid,
        "SOCKET": str(tmp_path / "stream"),
        "DATAGRAMS": str(tmp_path / "datagrams"),
        "ABSTRACT": f"nanohost-test-{os.getpid()}",
        "TCP": tcp.getsockname()[1],
        "UDP": udp.getsockname()[1],
    }
    process.kill()
    process.wait()
    process.stdin.close()
    for each in (stream, datagrams, abstract, tcp, udp):
        each.close()
    for planted in (ROOT / "tools" / "planted.py",):
        planted.unlink(missing_ok=True)


def filled_in(told, victims):
    def of(value):
        if value in victims:
            return victims[value]
        return str(value).replace("CHECKOUT", victims["CHECKOUT"]) if isinstance(value, str) else value

    return {name: of(value) for name, value in told.items()}


def attack(pool, way, *, permissions=(), secrets=(), timeout=20.0, **told):
    task = Task(
        module="tests.toolbox.agent_tools",
        qualname="attack",
        arguments={"way": way, "told": told},
        timeout=timeout,
        output_bytes=65536,
        secrets=secrets,
        repeatable=False,
        permissions=permissions,
    )
    return pool.run(task, still_wanted=lambda: True)


@pytest.mark.parametrize(("name", "way", "told"), ATTACKS)
def test_what_a_hostile_tool_gets_at(mode, pool, victims, name, way, told):
    if name == "Other processes are not signalled":
        skip_where_signals_get_out(mode)
    answer = attack(pool, way, **filled_in(told, victims))
    if mode in TABLE[name][0]:
        assert (answer.ok, answer.rule) == (False, "raised"), answer
        assert re.match(r"\w*Error: ", answer.text), answer
        assert SECRET not in answer.text
        assert alive(victims["PID"])
    else:
        assert answer.ok or answer.rule == "crashed", f"it is no attack, then: {answer}"


SYSTEM_CALLS = (
    *("io_uring_setup", "keyctl", "bpf", "perf_event_open", "userfaultfd", "process_vm_readv", "pidfd_getfd"),
    *("memfd_create", "shmget", "mount", "setns", "open_by_handle_at", "init_module"),
)


@pytest.mark.parametrize("name", SYSTEM_CALLS)
def test_system_calls_that_no_tool_needs_are_refused(mode, pool, name):
    answer = attack(pool, "call_the_kernel", name=name)
    if mode in BOTH:
        assert answer.text == f"PermissionError: [Errno 1] {name}"
    elif name in ("keyctl", "memfd_create", "pidfd_getfd", "process_vm_readv"):  # of those that anybody may make
        assert answer.text == "the kernel looked at it"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, 16, 30], ids=["ipv4", "ipv6", "netlink", "tipc"])
@pytest.mark.parametrize("granted", [(), ("NET_HTTP",)], ids=["no network", "network"])
def test_a_pair_of_sockets_is_of_no_network(mode, pool, granted, family):
    answer = attack(pool, "pair_of", permissions=granted, family=family)
    assert (answer.text == "PermissionError: [Errno 13] Permission denied") is (mode in BOTH)


# --- what was granted ------------------------------------------------------------------------------------------------


def test_with_net_http_the_internet_is_reached_and_the_machine_s_sockets_are_not(mode, pool, victims):
    granted = ("NET_HTTP",)
    assert attack(pool, "connect_tcp", permissions=granted, port=victims["TCP"]).text == "connected"
    assert attack(pool, "send_udp", permissions=granted, port=victims["UDP"]).text == "sent"
    for way, told in (
        ("connect_unix", {"path": victims["SOCKET"]}),
        ("connect_abstract", {"name": victims["ABSTRACT"]}),
    ):
        assert attack(pool, way, permissions=granted, **told).ok is (mode == NONE)


@pytest.mark.parametrize(
    ("granted", "reads", "writes"), [((), False, False), (("FS_READ",), True, False), (("FS_WRITE",), True, True)]
)
def test_folders_are_reached_as_far_as_it_was_granted(mode, pool, marks, granted, reads, writes):
    (marks / "file").write_text("content")
    assert attack(pool, "read", permissions=granted, path=str(marks / "file")).ok is (reads or mode == NONE)
    assert attack(pool, "write", permissions=granted, path=str(marks / "file")).ok is (writes or mode == NONE)
    assert (marks / "file").read_text() == ("contentforged" if writes or mode == NONE else "content")


def test_a_tool_has_temporary_files_threads_programs_and_pairs_of_sockets(mode, pool):
    """What honest tools need."""
    assert json.loads(attack(pool, "live_an_honest_life").text) == ["text", "1", "hello", "b'hello'"]


# Who a tool is, and whether it can become root again, in the mode that is told.
WHO = """
import json, sys
import django
django.setup()
from tests.unit.tools.test_sandbox import attack
from tools.sandbox import modes
from tools.sandbox.children import ChildPool
pool = ChildPool(sys.argv[1])
told = {"sandbox": modes.having(sys.argv[1]).sentence, **json.loads(attack(pool, "identities").text)}
print(json.dumps({**told, "root again": attack(pool, "be_root_again").text}))
pool.close()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can have tools run as another user")


def who(mode, tmp_path, *, python=sys.executable, before=()):
    environment = {"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path / "data"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *site.getsitepackages()])
    command = [*before, python, "-c", WHO, mode]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@needs_root
def test_where_the_host_is_root_its_tools_are_another_user(tmp_path):
    """In Landlock's mode; if only root may read the Python that is here, it is put where all may."""
    if not is_had(LANDLOCK):
        pytest.skip("NOT TRIED: landlock")
    own = ["setpriv", f"--reuid={TOOLS_USER}", f"--regid={TOOLS_USER}", "--clear-groups"]
    if subprocess.run([*own, "test", "-r", str(ROOT / "manage.py")]).returncode:
        pytest.skip("NOT TRIED: only root may read this checkout")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        there = ["unshare", "-m", "sh", "-c", f'mount --bind {sys.base_prefix} {place} && exec "$0" "$@"']
        told = who(LANDLOCK, tmp_path, before=there, python=f"{place}/bin/python3")
    assert "a user of its own" in told["sandbox"]
    assert (told["users"], told["groups"]) == ([TOOLS_USER], [TOOLS_USER])
    assert told["capabilities"] == ["0000000000000000"]
    assert told["root again"].startswith("PermissionError: ")


@needs_root
def test_tools_that_cannot_be_another_user_have_no_power_of_root_s_and_it_is_told_why(tmp_path):
    if not is_had(LANDLOCK):
        pytest.skip("NOT TRIED: landlock")
    with tempfile.TemporaryDirectory() as place:  # which no other user may enter
        there = ["unshare", "-m", "sh", "-c", f'mount --bind {sys.base_prefix} {place}/python && exec "$0" "$@"']
        Path(place, "python").mkdir()
        told = who(LANDLOCK, tmp_path, before=there, python=f"{place}/python/bin/python3")
    assert "Tools are root, since as another user they cannot run here (" in told["sandbox"]
    assert told["users"] == [0]
    assert told["capabilities"] == ["0000000000000000"]


@needs_root
def test_root_s_tools_in_bubblewrap_have_no_power_of_root_s(tmp_path):
    if not is_had(BUBBLEWRAP):
        pytest.skip("NOT TRIED: bubblewrap")
    told = who(BUBBLEWRAP, tmp_path)
    assert told["capabilities"] == ["0000000000000000"]


# --- one tool and another --------------------------------------------------------------------------------------------


def test_beside_code_that_lies_in_tmp_no_module_is_left():
    """Folders on the way to what is bound are of the box's own /tmp, and Python looks for modules in them."""
    if not is_had(BUBBLEWRAP):
        pytest.skip("NOT TRIED: bubblewrap")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        checkout, writable = Path(place, "checkout"), Path(place, "files")
        (checkout / "app").mkdir(parents=True)
        writable.mkdir()
        box = Box(mode=BUBBLEWRAP, code=(str(checkout / "app"),), write=(str(writable),))
        tries = [place, checkout, checkout / "app", writable, "/tmp"]
        script = "; ".join(f"touch {folder}/module.py && echo {number}" for number, folder in enumerate(tries))
        command = box.command(["/bin/sh", "-c", script], cwd=Path("/"))
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["3", "4"], ran.stderr


@pytest.mark.parametrize("way", ["take_over", "take_over_within", "take_over_a_neighbour", "take_over_imports"])
def test_whoever_answers_for_the_next_call_is_replaced_before_it(pool, way):
    taken = attack(pool, way)
    assert (taken.ok, taken.left) == (True, True)
    assert do(pool, "echo", value="honest").text == "honest"


def test_a_call_with_a_secret_or_of_another_app_has_a_process_of_its_own(own_pool, monkeypatch):
    """Though the one that waits was taken over, and hides it."""
    monkeypatch.setenv("TOOLBOX_SECRET", SECRET)
    taken = attack(own_pool, "take_over_unseen", permissions=("FS_WRITE",))
    assert (taken.ok, taken.left) == (True, False)
    told = json.loads(do(own_pool, "tell_secret", secrets=("TOOLBOX_SECRET",)).text)
    assert (told["told"], told["pid"] != int(taken.text)) == (SECRET[::-1], True)
    assert do(own_pool, "time", module="tools.agent_tools").text.endswith(" UTC")
    assert do(own_pool, "echo", value=1).text.startswith("forged by"), "it was hidden, or this tries nothing"


def test_tools_of_another_app_see_none_of_its_files(mode, pool):
    left = attack(pool, "leave_for_others", name=f"nanohost-left-{os.getpid()}").text
    asked = Task(
        module="linecache",
        qualname="getline",
        arguments={"filename": left, "lineno": 1},
        timeout=20,
        output_bytes=65536,
        secrets=(),
        repeatable=True,
    )
    assert pool.run(asked, still_wanted=lambda: True).text.strip() == ("left" if mode == NONE else "")
    Path(left).unlink(missing_ok=True)


def test_a_process_has_no_socket_but_its_own(pool):
    """Neither the fork server's, nor those of calls that run beside it."""
    assert len(json.loads(attack(pool, "sockets").text)) == 1
    assert len(json.loads(attack(pool, "descriptors").text)) == 4


# --- what is left behind ---------------------------------------------------------------------------------------------


def test_a_daemon_ends_with_its_call_whoever_it_has_killed(mode, pool, marks):
    skip_where_signals_get_out(mode)
    mark = marks / "mark"
    attack(pool, "outlive", permissions=("FS_WRITE",), timeout=20 if mode == NONE else 1, path=str(mark))
    assert mark.exists()
    if mode == NONE:
        assert held(mark), "it outlives, or this tries nothing"
        end_who_holds(mark)
    else:
        wait_until(lambda: not held(mark))
    assert do(pool, "echo", value=1).ok


@pytest.mark.parametrize("way", ["hide_a_thread", "hide_a_process", "hide_a_daemon"])
def test_what_a_call_left_behind_and_hid_is_seen_from_outside_of_its_box(pool, marks, way):
    """The tool has replaced the child's own look at itself."""
    mark = marks / "mark"
    answer = do(pool, "misbehave", way=way, path=str(mark))
    assert (answer.ok, answer.left) == (True, True)
    wait_until(lambda: not held(mark))


def end_who_holds(path):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for fd in Path(f"/proc/{pid}/fd").iterdir() if Path(f"/proc/{pid}/fd").exists() else ():
            if os.path.exists(fd) and os.path.samefile(fd, path):
                os.kill(int(pid), signal.SIGKILL)


def test_a_fork_bomb_is_ended_before_its_deadline(own_pool):
    do(own_pool, "echo", permissions=(), value=1)
    server = next(iter(own_pool._houses.values())).server
    answer = attack(own_pool, "fork_without_end", most=400, timeout=100)
    # By its box's end, or by the kernel, which lets it have no more.
    assert (answer.ok, answer.rule in ("crashed", "raised")) == (False, True)
    wait_until(lambda: not alive(server.pid) or answer.rule == "raised")
    assert do(own_pool, "echo", permissions=(), value=1).ok


# --- a fork server that is stopped or killed -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_fork_server_that_is_stopped_is_replaced_and_others_do_not_wait(pool, number, monkeypatch):
    monkeypatch.setattr("tools.sandbox.forkserver.ANSWER_SECONDS", 100.0)
    do(pool, "echo", value=1)
    assert do(pool, "time", module="tools.agent_tools", permissions=()).ok
    house = pool._houses[Place(app="tests.toolbox", permissions=frozenset({"FS_WRITE"}))]
    os.kill(house.server.pid, number)
    others = []

    def ask_others():
        for _ in range(5):
            others.append(do(pool, "time", module="tools.agent_tools", permissions=()))

    waits = threading.Thread(target=do, args=(pool, "tell_secret"), kwargs={"secrets": ("TOOLBOX_SECRET",)})
    asks = threading.Thread(target=ask_others)
    waits.start()
    asks.start()
    asks.join()
    assert [answer.ok for answer in others] == [True] * 5
    assert waits.is_alive() or number == signal.SIGKILL, "whoever asked the one that is stopped waits, and nobody else"
    waits.join(timeout=60)
    assert not waits.is_alive()
    assert do(pool, "echo", value=1).ok
    assert not alive(house.server.pid)


def test_a_fork_server_that_could_not_start_is_replaced(own_pool, monkeypatch):
    """As when there is no memory or no process to get, for a moment."""
    start, refusals = subprocess.Popen, [BlockingIOError("no process"), MemoryError(), *[BlockingIOError("none")] * 2]

    def refusing(*arguments, **options):
        if refusals:
            raise refusals.pop()
        return start(*arguments, **options)

    monkeypatch.setattr("tools.sandbox.forkserver.subprocess.Popen", refusing)
    refused = do(own_pool, "echo", permissions=(), value=1)
    assert (refused.rule, refused.text) == ("unavailable", "no process could be started for it; it was not run")
    assert do(own_pool, "echo", permissions=(), value=1).ok
    assert not refusals


def test_whoever_is_killed_while_it_ends_others_leaves_none_of_them_stopped(own_pool):
    """To end them, it first stops them all. This is the moment after that."""
    do(own_pool, "echo", permissions=(), value=1)
    first = next(iter(own_pool._houses.values())).server._process.pid
    below = descendants_of(first)
    for pid in below:
        os.kill(pid, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in below))


# --- which one is in force -------------------------------------------------------------------------------------------

# A container's default: no process may make a user namespace.
WITHOUT_NAMESPACES = ["unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$0" "$@"']


def check(tmp_path, *before, command="check", **own):
    environment = {"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path / "data"), "PORT": "0", **own}
    command = [*before, sys.executable, "manage.py", *command.split()]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)


def test_where_there_are_no_user_namespaces_it_is_landlock_and_says_why(tmp_path):
    if not is_had(LANDLOCK):
        pytest.skip("NOT TRIED: landlock")
    told = check(tmp_path, *WITHOUT_NAMESPACES)
    assert told.returncode == 0, told.stderr
    assert "landlock: tools cannot read files" in told.stderr + told.stdout
    assert "bubblewrap makes no sandbox here" in told.stderr + told.stdout


def test_without_bubblewrap_it_is_said_how_to_get_it(tmp_path):
    told = check(tmp_path, PATH="/nonexistent")
    assert told.returncode == 0, told.stderr
    assert "apt install bubblewrap" in told.stderr + told.stdout


def test_data_that_would_be_taken_for_code_is_refused(tmp_path):
    package = tmp_path / "garden"
    package.mkdir()
    (package / "__init__.py").touch()
    told = check(tmp_path, command="serve", PYTHONPATH=str(tmp_path), DATA_DIR=str(package / "data"))
    assert told.returncode != 0
    assert f"DATA_DIR={package}/data lies in {package}" in told.stderr


@pytest.mark.parametrize("folder", ["CHECKOUT", "CHECKOUT/tools", "CHECKOUT/..", "PACKAGES/django", "/usr/lib", "LINK"])
def test_folders_by_which_tools_would_change_the_host_s_code_are_refused(tmp_path, folder):
    (tmp_path / "link").symlink_to(ROOT / "agent")
    places = {"CHECKOUT": str(ROOT), "PACKAGES": site.getsitepackages()[0], "LINK": str(tmp_path / "link")}
    for name, place in places.items():
        folder = folder.replace(name, place)
    told = check(tmp_path, command="serve", TOOL_FOLDERS=folder)
    assert told.returncode != 0
    # Where the checkout and DATA_DIR lie in one folder, that is said first.
    reaches_data = tmp_path.is_relative_to(Path(folder).resolve())
    why = "tools would reach DATA_DIR" if reaches_data else "tools that are granted FS_WRITE could change "
    assert f"with {folder}, {why}" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("setting", "folder"),
    [
        *(("TOOL_FOLDERS", folder) for folder in ("relative", "DATA_DIR", "DATA_DIR/within", "/")),
        ("MCP_FOLDERS", "DATA_DIR/within"),
        ("WORKSPACE_WRITE_FOLDERS", "DATA_DIR/within"),
    ],
)
def test_folders_by_which_tools_would_reach_data_are_refused(tmp_path, setting, folder):
    told = check(tmp_path, **{setting: folder.replace("DATA_DIR", str(tmp_path / "data"))})
    assert told.returncode != 0
    assert f"{setting} is not valid: " in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("skills", "tools"), [("shelf", "shelf"), ("shelf/skills", "shelf"), ("shelf", "shelf/skills"), ("data", "")]
)
def test_skills_that_tools_could_write_are_refused(tmp_path, skills, tools):
    told = check(tmp_path, NANOHOST_SKILLS=str(tmp_path / skills), TOOL_FOLDERS=tools and str(tmp_path / tools))
    assert told.returncode != 0
    assert "NANOHOST_SKILLS is not valid: " in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("wanted", "before", "own"),
    [(BUBBLEWRAP, WITHOUT_NAMESPACES, {}), (BUBBLEWRAP, [], {"PATH": "/nonexistent"})],
    ids=["no namespaces", "not installed"],
)
def test_what_is_demanded_and_cannot_be_had_is_one_sentence(tmp_path, wanted, before, own):
    told = check(tmp_path, *before, command="serve", TOOL_SANDBOX=wanted, **own)
    assert told.returncode != 0
    assert f"TOOL_SANDBOX={wanted} is not available here. " in told.stderr
    assert "Traceback" not in told.stderr


def test_whoever_runs_no_tool_is_only_told(tmp_path):
    (tmp_path / "data").mkdir()
    shutil.copy(sqlite_template("migrated"), tmp_path / "data" / "nanohost.sqlite3")
    told = check(tmp_path, command="migrate", TOOL_SANDBOX=BUBBLEWRAP, PATH="/nonexistent")
    assert told.returncode == 0, told.stderr
    assert f"TOOL_SANDBOX={BUBBLEWRAP} is not available here. " in told.stderr


# --- what is written about it ----------------------------------------------------------------------------------------


def test_the_page_says_what_was_tried():
    section = (ROOT / "docs" / "tools.md").read_text().split("\n## The sandbox\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    said = {
        name: {mode for mode, word in zip(MODES, words, strict=True) if word[:3] == "yes"} for name, *words in rows[2:]
    }
    assert rows[0][1:] == [f"`{mode}`" for mode in MODES]
    assert said == {name: set(modes) for name, (modes, _) in TABLE.items()}
