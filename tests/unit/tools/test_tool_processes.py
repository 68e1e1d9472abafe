"""The processes tools run in: deadlines that end what hangs, an empty environment, and nothing left behind.

Those that tests look at from outside are in no sandbox, where supervisors and fork servers are all there is; what holds
in each sandbox is tried in test_sandbox.py. Calls that pass the gate run in the one that is in force.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from tests.support.api_client import chat, start
from tests.support.hosts import Host
from tests.support.scripts import script
from tests.support.stack_process import descendants_of
from tests.support.tool_calls import ask, run
from tests.support.tool_processes import alive, do, held
from tests.support.wait import wait_until
from tools.errors import Interrupted
from tools.models import CallStatus
from tools.sandbox import child, children, forkserver
from tools.sandbox.children import Answer, ChildPool

pytestmark = pytest.mark.shapeless(reason="the processes of tools know no database; the tests of calls run on both")


@pytest.fixture
def pool():
    """A pool of the test's own, for what kills fork servers, stops or counts."""
    made = ChildPool("none")
    yield made
    made.close()


@pytest.fixture(scope="module")
def warm_pool():
    """A pool that tests share, since a fork server takes a second to start."""
    made = ChildPool("none")
    yield made
    made.close()


def whereabouts(pool):
    """Of a child: its ``pid``, its ``supervisor``, their ``fork server``, and its ``environment``."""
    return json.loads(do(pool, "whereabouts").text)


@contextmanager
def neighbours(pool, marks) -> Iterator[None]:
    """Two calls that go on beside what happens here, and are answered when it is over."""
    come = [marks / "first-neighbour", marks / "second-neighbour"]
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(do, pool, "wait_for", path=str(marks / "over"), come=str(mark), timeout=60) for mark in come
        ]
        try:
            wait_until(lambda: all(mark.exists() for mark in come))
            yield
        finally:
            (marks / "over").touch()
        assert [call.result().text for call in calls] == ["waited", "waited"]


def test_processes_of_a_host_that_keeps_to_one_core_may_use_all(pool, on_one_core):
    found = whereabouts(pool)
    for process in ("pid", "supervisor", "server"):
        assert os.sched_getaffinity(found[process]) == on_one_core


# --- deadlines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hang", "hang_in_c"])
def test_a_tool_that_hangs_is_ended_at_its_deadline(warm_pool, name):
    hanging_in = whereabouts(warm_pool)["pid"]
    began = time.monotonic()
    answer = do(warm_pool, name, timeout=0.5)
    assert 0.5 <= time.monotonic() - began < 1.5
    assert (answer.ok, answer.rule, answer.text) == (False, "timeout", "timed out after 0.5 s and was stopped")
    assert not alive(hanging_in)
    assert do(warm_pool, "echo", value=1).text == "1"


def test_the_time_a_fork_server_takes_to_start_is_not_the_tools(pool, monkeypatch):
    """And it may take longer than what it is asked afterwards."""
    monkeypatch.setattr("tools.sandbox.forkserver.ANSWER_SECONDS", 0.3)
    assert do(pool, "echo", timeout=0.2, value=1).ok


def test_calls_that_hang_do_not_keep_others_waiting(warm_pool):
    whereabouts(warm_pool)
    with ThreadPoolExecutor(4) as threads:
        hanging = [threads.submit(do, warm_pool, "hang", timeout=1.5) for _ in range(3)]
        began = time.monotonic()
        assert threads.submit(do, warm_pool, "echo", value=1).result().ok
        assert time.monotonic() - began < 1
        assert [answer.result().rule for answer in hanging] == ["timeout"] * 3


def test_a_run_nobody_wants_any_more_is_stopped(warm_pool, marks):
    began = time.monotonic()
    answer = do(warm_pool, "hang", timeout=30, wanted=lambda: False)
    assert answer.lost
    assert time.monotonic() - began < 10


def test_an_answer_that_came_in_time_is_read_though_the_database_let_us_wait(warm_pool, marks, monkeypatch):
    monkeypatch.setattr("tools.sandbox.children.ASK_SECONDS", 0.0)
    go, come, deadlines = marks / "go", marks / "come", []

    def waits_for_the_database() -> bool:
        deadlines.append(time.monotonic() + 0.5)
        if come.exists():
            go.touch()
            wait_until(lambda: time.monotonic() > deadlines[-1])
        return True

    answer = do(warm_pool, "wait_for", timeout=0.5, wanted=waits_for_the_database, path=str(go), come=str(come))
    assert (answer.ok, answer.text) == (True, "waited")


def test_what_is_not_wanted_after_a_long_wait_for_a_process_is_not_begun(warm_pool, effects, monkeypatch):
    monkeypatch.setattr("tools.sandbox.children.ASK_SECONDS", 0.0)
    assert do(warm_pool, "append_line", path=str(effects), line="one", wanted=lambda: False).lost
    assert not effects.exists()


def test_there_is_a_second_for_the_end_of_what_is_hard_to_end():
    assert children.END_SECONDS + child.REAP_SECONDS < 1


def test_a_stopped_fork_server_is_noticed_within_a_second():
    """At the second look at it, at the latest."""
    assert 2 * forkserver.WATCH_SECONDS < 1


# --- whatever a tool does, it ends, and nobody else does ---------------------------------------------------------

TROUBLE = {
    "timeout": [
        *("loop", "hold_the_interpreter", "lock_itself_out", "ignore_signals", "block_signals", "stop_itself"),
        *("stop_its_supervisor", "flood_its_streams", "promise_more_than_there_is"),
        *("daemonise_and_loop", "fork_a_crowd", "fork_sessions", "run_away"),
    ],
    "crashed": [
        *("exit_at_once", "fall", "kill_its_supervisor", "kill_its_supervisor_s_group", "terminate_its_supervisor"),
        *("kill_its_group", "close_all_descriptors", "daemonise_and_vanish", "daemonise_and_exit"),
        *("daemonise_and_kill_its_supervisor", "close_all_descriptors_and_loop"),
    ],
    "output": ["write_garbage", "flood_its_answer", "answer_for_itself"],
}


@pytest.mark.parametrize(("rule", "way"), [(rule, way) for rule, ways in TROUBLE.items() for way in ways])
def test_a_tool_that_misbehaves_is_ended_with_all_it_started(warm_pool, marks, rule, way):
    mark = marks / "mark"
    with neighbours(warm_pool, marks):
        runs_in = whereabouts(warm_pool)
        # What ends by itself has time to, on a busy machine as well.
        seconds = 0.5 if rule == "timeout" else 10
        assert do(warm_pool, "misbehave", way=way, path=str(mark), timeout=seconds).rule == rule
        # At once on a machine that has nothing else to do; what the call could not wait for is ended behind it.
        wait_until(lambda: not held(mark))
        wait_until(lambda: not alive(runs_in["pid"]))
        wait_until(lambda: not alive(runs_in["supervisor"]))
        assert whereabouts(warm_pool)["server"] == runs_in["server"]


LEAVES = ["daemonise", "leave_a_program", "leave_a_stopped_process", "leave_a_zombie", "leave_a_thread"]
HIDES = ["hide_a_thread", "hide_a_process", "hide_a_daemon"]


@pytest.mark.parametrize("way", [*LEAVES, *HIDES])
def test_what_a_call_that_ended_well_left_behind_is_ended(warm_pool, marks, way):
    mark = marks / "mark"
    with neighbours(warm_pool, marks):
        runs_in = whereabouts(warm_pool)
        answer = do(warm_pool, "misbehave", way=way, path=str(mark))
        assert (answer.ok, answer.left) == (True, True)
        assert not held(mark)
        assert not alive(runs_in["pid"])
        assert whereabouts(warm_pool)["server"] == runs_in["server"]


def test_a_child_that_starts_something_while_it_waits_is_not_used_again(warm_pool, marks):
    runs_in = whereabouts(warm_pool)
    assert do(warm_pool, "misbehave", way="leave_a_process_later", path=str(marks / "mark")).ok
    wait_until(lambda: len(descendants_of(runs_in["supervisor"])) > 1)
    below = descendants_of(runs_in["supervisor"])
    assert whereabouts(warm_pool)["pid"] != runs_in["pid"]
    assert not any(alive(pid) for pid in below)


def test_a_fork_that_comes_back_with_a_call_answers_nothing(warm_pool, marks):
    answer = do(warm_pool, "misbehave", way="come_back_twice", path=str(marks / "mark"))
    assert (answer.ok, answer.text) == (True, "the process")


@pytest.mark.parametrize("way", ["exit_politely", "interrupt"])
def test_a_tool_that_asks_to_exit_ends_its_call_and_no_more(warm_pool, marks, way):
    runs_in = whereabouts(warm_pool)
    with neighbours(warm_pool, marks):
        assert do(warm_pool, "misbehave", way=way, path=str(marks / "mark")).rule == "raised"
    assert do(warm_pool, "whereabouts").ok
    assert alive(runs_in["pid"])


def test_what_a_supervisor_is_given_no_time_to_end_the_fork_server_ends(pool, marks, monkeypatch):
    monkeypatch.setattr(children, "END_SECONDS", 0.0)
    mark = marks / "mark"
    assert do(pool, "misbehave", way="run_away", path=str(mark), timeout=0.5).rule == "timeout"
    wait_until(lambda: not held(mark))


# --- memory ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_pool():
    """One whose children may have little, so that tests need not eat much, where images of the dead are wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    with override_settings(TOOL_MEMORY_MB=192):
        made = ChildPool("none")
        whereabouts(made)
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        yield made
        made.close()


HOARDS = ["hoard", "hoard_behind_the_interpreter", "want_too_much_at_once"]


@pytest.mark.parametrize("way", HOARDS)
def test_a_tool_that_eats_memory_is_ended_and_says_so(small_pool, marks, way):
    with neighbours(small_pool, marks):
        runs_in = whereabouts(small_pool)
        answer = do(small_pool, "misbehave", way=way, path=str(marks / "mark"))
        assert (answer.ok, answer.rule) == (False, "memory")
        assert "192 MB" in answer.text
        assert not alive(runs_in["pid"])
        assert whereabouts(small_pool)["server"] == runs_in["server"]


def test_addresses_that_are_not_used_are_no_memory(small_pool, marks):
    assert do(small_pool, "misbehave", way="reserve_addresses", path=str(marks / "mark")).text == "true"


def test_a_tool_s_death_leaves_no_image_of_its_memory(small_pool, marks):
    answer = do(small_pool, "misbehave", way="tell_limits", path=str(marks / "mark"))
    assert json.loads(answer.text) == [192 << 20, 0]


# --- what the gate makes of it -----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
class TestOutcomes:
    def test_a_read_that_hangs_has_failed(self, tool_settings):
        tool_settings("hang")
        call = run(ask("hang"))
        assert (call.status, call.rule) == (CallStatus.FAILED, "timeout")
        assert call.duration_ms >= 500

    def test_a_read_that_needs_too_much_memory_has_failed_and_says_why(self, tool_settings, marks):
        tool_settings("misbehave")
        call = run(ask("misbehave", way="want_too_much_at_once", path=str(marks / "mark")))
        assert (call.status, call.rule) == (CallStatus.FAILED, "memory")
        assert call.result == (
            "FAILED: it needed more memory than the 512 MB a tool's process may have, and was stopped"
        )

    def test_a_write_that_needs_too_much_memory_is_unknown(self, tool_settings, effects):
        tool_settings("misbehave_after_effect")
        call = run(ask("misbehave_after_effect", way="want_too_much_at_once", path=str(effects)))
        assert (call.status, call.rule) == (CallStatus.UNKNOWN, "memory")
        assert effects.read_text() == "done\n"

    @pytest.mark.parametrize(("name", "rule"), [("hang_after_effect", "timeout"), ("vanish_after_effect", "crashed")])
    def test_what_was_stopped_after_an_effect_is_unknown(self, tool_settings, effects, name, rule):
        tool_settings(name)
        call = run(ask(name, path=str(effects)))
        assert (call.status, call.rule) == (CallStatus.UNKNOWN, rule)
        assert run(call).status == CallStatus.UNKNOWN
        assert effects.read_text() == "done\n"

    def test_a_read_whose_process_dies_has_failed_and_the_next_call_works(self, tool_settings):
        tool_settings("vanish", "echo")
        assert run(ask("vanish")).rule == "crashed"
        assert run(ask("echo", value="here")).result == "here"

    def test_an_error_is_told_with_its_message(self, tool_settings, caplog):
        tool_settings("raise_error")
        call = run(ask("raise_error", message="no such place"))
        assert (call.status, call.rule) == (CallStatus.FAILED, "raised")
        assert call.result == "FAILED: RuntimeError: no such place"
        assert "Traceback" not in call.result
        assert "Traceback" in caplog.text

    def test_a_flood_is_cut_with_a_note(self, tool_settings):
        tool_settings("flood")
        call = run(ask("flood"))
        limit = django_settings.TOOL_MAX_OUTPUT_BYTES
        assert call.status == CallStatus.SUCCESS
        note = f"\n[cut: {limit} of 50000000 bytes are kept, the head and the tail]\n"
        assert call.result == "x" * (limit - limit // 4) + note + "x" * (limit // 4)

    def test_a_write_no_process_can_be_started_for_has_failed_since_it_never_ran(
        self, tool_settings, effects, monkeypatch
    ):
        from tools import gate

        tool_settings("append_line", grants=["FS_WRITE"])
        gate.close_tools()
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        call = run(ask("append_line", path=str(effects), line="one"))
        assert (call.status, call.rule) == (CallStatus.FAILED, "unavailable")
        assert "it was not run" in call.result
        monkeypatch.undo()
        assert run(ask("append_line", path=str(effects), line="two")).status == CallStatus.SUCCESS


# --- children are used again, and replaced when they die ---------------------------------------------------------


def test_a_child_is_used_again_also_after_an_error(warm_pool):
    before = whereabouts(warm_pool)["pid"]
    assert do(warm_pool, "raise_error").rule == "raised"
    assert do(warm_pool, "return_unusual", kind="exit").rule == "raised"
    assert whereabouts(warm_pool)["pid"] == before


def test_a_child_that_died_while_it_was_idle_is_not_given_a_call(warm_pool, effects):
    idle = whereabouts(warm_pool)["pid"]
    os.kill(idle, signal.SIGKILL)
    wait_until(lambda: not alive(idle))
    assert do(warm_pool, "append_line", path=str(effects), line="one").ok
    assert effects.read_text() == "one\n"
    assert not Path(f"/proc/{idle}").exists(), "it is reaped"


def test_a_fork_server_that_was_killed_is_replaced_and_leaves_no_process(pool, effects):
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(do, pool, "look_around", path=str(effects), seconds=60, timeout=60)
        wait_until(effects.exists, seconds=60)
        before = whereabouts(pool)
        os.kill(before["server"], signal.SIGKILL)
        assert running.result(timeout=10) == Answer(
            ok=False, rule="crashed", text="the tool's process ended before it answered"
        )
    wait_until(lambda: not alive(before["pid"]))  # it was idle, and ends with its fork server
    assert whereabouts(pool)["server"] != before["server"]


def test_a_fork_server_that_is_stuck_is_replaced(pool, monkeypatch):
    monkeypatch.setattr("tools.sandbox.forkserver.ANSWER_SECONDS", 6.0)
    before = whereabouts(pool)
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: not alive(before["pid"]))
    os.kill(before["server"], signal.SIGSTOP)
    assert whereabouts(pool)["server"] != before["server"]
    assert not alive(before["server"])


def test_sigterm_to_every_process_of_the_service_leaves_running_calls_to_the_host(warm_pool, effects):
    server = whereabouts(warm_pool)["server"]
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(do, warm_pool, "append_line", path=str(effects), line="one", after=0.3)
        wait_until(effects.exists)
        os.kill(server, signal.SIGTERM)
        os.kill(server, signal.SIGINT)
        assert running.result(timeout=10).ok
    idle = whereabouts(warm_pool)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(idle["pid"], number)
        os.kill(idle["supervisor"], number)
    assert whereabouts(warm_pool) == idle


def test_large_arguments_and_results_pass(warm_pool):
    value = "ü" * 2_000_000
    assert do(warm_pool, "echo", output_bytes=5_000_000, value=value).text == value


def test_many_calls_at_once_get_their_own_answers(warm_pool):
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda number: do(warm_pool, "echo", value=number).text, range(200))
    assert list(answers) == [str(number) for number in range(200)]


# --- secrets -----------------------------------------------------------------------------------------------------


def test_a_childs_environment_holds_no_secret_and_its_settings_open_nothing(pool, monkeypatch):
    for name in ("OPENAI_API_KEY", "SECRET_KEY", "NANOHOST_API_KEY", "DATABASE_URL", "TOOLBOX_SECRET"):
        monkeypatch.setenv(name, "a-secret-value")
    environment = whereabouts(pool)["environment"]
    assert "a-secret-value" not in environment.values()
    told = json.loads(do(pool, "reach_for_the_host").text)
    assert told["database"] == "out of reach"
    assert told["key"] != django_settings.SECRET_KEY
    environment.pop("WEBHOOK_KEY", None)  # which the tests' own settings set, wherever they are read
    assert set(environment) <= {
        "PATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "PYTHONPATH",
        "DJANGO_SETTINGS_MODULE",
        "DATA_DIR",
        "NANOHOST_EXTRA_APPS",
        "NANOHOST_TOOL_PROCESS",
        "TOOL_FOLDERS",
    }


def test_a_declared_secret_is_given_to_its_tool_and_to_no_other(warm_pool, monkeypatch):
    monkeypatch.setenv("TOOLBOX_SECRET", "a-secret-value")
    told = json.loads(do(warm_pool, "tell_secret", secrets=("TOOLBOX_SECRET",)).text)
    assert told["told"] == "a-secret-value"[::-1]
    after = whereabouts(warm_pool)
    assert after["pid"] != told["pid"]
    assert "a-secret-value" not in after["environment"].values()


def test_a_secret_that_is_not_set_is_the_tools_own_error(warm_pool, monkeypatch):
    monkeypatch.delenv("TOOLBOX_SECRET", raising=False)
    assert do(warm_pool, "tell_secret", secrets=("TOOLBOX_SECRET",)).text == "KeyError: 'TOOLBOX_SECRET'"


def test_a_declared_secret_may_stand_in_a_file(warm_pool, monkeypatch, marks):
    monkeypatch.delenv("TOOLBOX_SECRET", raising=False)
    (marks / "secret").write_text("a-secret-value\n")
    monkeypatch.setenv("TOOLBOX_SECRET_FILE", str(marks / "secret"))
    told = json.loads(do(warm_pool, "tell_secret", secrets=("TOOLBOX_SECRET",)).text)
    assert told["told"] == "a-secret-value"[::-1]


@pytest.mark.parametrize("content", [None, b"a-value\xff"], ids=["no file", "no text"])
def test_a_tool_whose_secret_cannot_be_read_is_not_run(warm_pool, monkeypatch, marks, effects, caplog, content):
    if content:
        (marks / "secret").write_bytes(content)
    monkeypatch.setenv("TOOLBOX_SECRET_FILE", str(marks / "secret"))
    answer = do(warm_pool, "append_line", path=str(effects), line="one", effects="write", secrets=("TOOLBOX_SECRET",))
    assert (answer.ok, answer.rule) == (False, "unavailable")
    assert "it was not run" in answer.text
    assert not effects.exists()
    assert "TOOLBOX_SECRET_FILE" in caplog.text
    assert "a-value" not in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_call_whose_secret_cannot_be_read_has_failed_though_it_writes(tool_settings, monkeypatch, marks):
    tool_settings("tell_secret")
    monkeypatch.setenv("TOOLBOX_SECRET_FILE", str(marks / "missing"))
    call = run(ask("tell_secret"))
    assert (call.status, call.rule) == (CallStatus.FAILED, "unavailable")


# --- a shutdown --------------------------------------------------------------------------------------------------


def test_a_shutdown_interrupts_what_can_be_repeated_gives_the_rest_a_while_and_begins_nothing(pool, marks):
    read, write, late = (marks / name for name in ("read", "write", "late"))
    whereabouts(pool)
    with ThreadPoolExecutor(2) as threads:
        reads = threads.submit(do, pool, "look_around", path=str(read), seconds=60, timeout=60)
        writes = threads.submit(do, pool, "hang_after_effect", path=str(write), timeout=60, effects="write")
        wait_until(lambda: read.exists() and write.exists())
        pool.stop(grace=0.2)
        with pytest.raises(Interrupted):
            reads.result(timeout=10)
        assert writes.result(timeout=10).rule == "interrupted"
    with pytest.raises(Interrupted):
        do(pool, "append_line", path=str(late), line="one", effects="write")
    assert not late.exists()
    pool.start()
    assert do(pool, "echo", value=1).ok


# --- nothing is left behind --------------------------------------------------------------------------------------


def test_no_process_is_left_after_close(pool, effects):
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(do, pool, "look_around", path=str(effects), seconds=60, timeout=60)
        wait_until(effects.exists)
        server = whereabouts(pool)["server"]
        everybody = [server, *descendants_of(server)]
        assert len(everybody) == 5  # two supervisors, a child that works and one that is idle
        pool.close()
        assert running.result(timeout=10).rule == "crashed"
    assert [pid for pid in everybody if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize(
    "way", ["daemonise_and_loop", "stop_its_supervisor", pytest.param("run_away", marks=pytest.mark.faults)]
)
def test_nothing_a_tool_has_started_is_left_after_close(pool, marks, way):
    mark = marks / "mark"
    whereabouts(pool)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(do, pool, "misbehave", way=way, path=str(mark), timeout=60)
        wait_until(lambda: held(mark))
        pool.close()
        assert not held(mark)
        assert running.result(timeout=10).rule == "crashed"


def test_no_descriptor_and_no_zombie_is_left_by_calls_that_die(pool):
    server = whereabouts(pool)["server"]
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert do(pool, "vanish").rule == "crashed"
        assert do(pool, "hang", timeout=0.01).rule == "timeout"
    assert len(os.listdir("/proc/self/fd")) <= open_before
    assert descendants_of(server) == []


@pytest.mark.parametrize(
    "way", ["hold_the_interpreter", "run_away", pytest.param("daemonise_and_loop", marks=pytest.mark.faults)]
)
def test_when_the_fork_server_is_killed_all_that_runs_below_it_ends(pool, marks, way):
    server, mark = whereabouts(pool)["server"], marks / "mark"
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(do, pool, "misbehave", way=way, path=str(mark), timeout=60)
        wait_until(lambda: held(mark))
        os.kill(server, signal.SIGKILL)
        assert running.result(timeout=10).rule == "crashed"
    wait_until(lambda: not held(mark))


def test_a_child_dies_with_its_supervisor_whoever_is_left(pool, marks):
    above, mark = whereabouts(pool), marks / "mark"
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(do, pool, "misbehave", way="hold_the_interpreter", path=str(mark), timeout=60)
        wait_until(lambda: held(mark))
        os.kill(above["server"], signal.SIGSTOP)
        os.kill(above["supervisor"], signal.SIGKILL)
        wait_until(lambda: not held(mark))
        with suppress(ProcessLookupError):  # it was replaced
            os.kill(above["server"], signal.SIGCONT)
        assert running.result(timeout=20).rule == "crashed"


@pytest.fixture
def own_host(tmp_path, sandbox):
    """A host of the test's own, and the process of it that runs tools: all of it, or the toolbox."""
    started = Host(tmp_path, CHAT_WAIT_SECONDS="0.1", TOOL_SANDBOX=sandbox).start()
    started.allow("misbehave_after_effect")
    yield started, started.processes.get("toolbox", started.process)
    started.kill()


@pytest.mark.django_db(transaction=True)  # on both shapes
@pytest.mark.parametrize(
    ("way", "number", "sandbox"),
    [
        ("hold_the_interpreter", signal.SIGTERM, "auto"),
        ("daemonise_and_loop", signal.SIGKILL, "auto"),
        ("daemonise_and_loop", signal.SIGKILL, "landlock"),
        pytest.param("daemonise_and_loop", signal.SIGTERM, "landlock", marks=pytest.mark.faults),
        pytest.param("daemonise_and_loop", signal.SIGKILL, "none", marks=pytest.mark.faults),
        pytest.param("daemonise_and_loop", signal.SIGTERM, "auto", marks=pytest.mark.faults),
        pytest.param("hold_the_interpreter", signal.SIGKILL, "auto", marks=pytest.mark.faults),
    ],
    ids=lambda value: {signal.SIGTERM: "asked to stop", signal.SIGKILL: "killed"}.get(value, value),
)
def test_a_host_that_ends_leaves_no_process_of_a_tool_behind(own_host, marks, way, number, sandbox):
    host, runs_tools = own_host
    mark = marks / "mark"
    call = {"name": "misbehave_after_effect", "arguments": {"way": way, "path": str(mark)}}
    with host.client() as client:
        assert chat(client, start(client), script({"call": [call]})).status_code == 202
    wait_until(lambda: held(mark), seconds=60)
    below = descendants_of(runs_tools.pid)
    assert len(below) >= 3
    runs_tools.send_signal(number)
    runs_tools.wait(timeout=20)
    wait_until(lambda: not held(mark) and not any(alive(pid) for pid in below))


def test_an_unused_pool_starts_nothing():
    before = threading.active_count()
    ChildPool().close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "way",
    [
        *("leave_a_timer", "leave_less_room", "leave_its_directory", "leave_another_mode_of_files"),
        *("leave_a_finder_of_modules", "leave_a_hook_of_threads", "leave_a_hook_of_errors", "leave_a_file_open"),
        *("leave_a_signal_blocked", "leave_garbage_uncollected", "leave_a_callback_of_the_collector"),
        *("leave_a_coarse_precision", "leave_another_writer_of_json", "leave_certificates_unchecked"),
        "leave_names_resolved_elsewhere",
    ],
)
def test_what_a_call_changed_of_its_process_is_not_the_next_call_s(warm_pool, marks, way):
    runs_in = whereabouts(warm_pool)
    answer = do(warm_pool, "misbehave", way=way, path=str(marks / "mark"))
    assert (answer.ok, answer.left) == (True, True)
    assert not alive(runs_in["pid"])


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("long number", "[a int that cannot be written]"),
        ("wordless", "[a dict that cannot be written]"),
        ("wordless error", "Wordless"),
    ],
)
def test_what_cannot_be_written_is_said_and_is_no_crash(warm_pool, kind, says):
    answer = do(warm_pool, "return_unusual", kind=kind)
    assert (answer.ok, answer.rule, answer.text) == (
        kind != "wordless error",
        "raised" if kind == "wordless error" else "",
        says,
    )


def test_no_secret_is_handed_to_the_fork_server(pool, monkeypatch):
    """What it was started with: the settings of the tests take some names out of their own environment afterwards."""
    for name in ("OPENAI_API_KEY", "SECRET_KEY", "NANOHOST_API_KEY", "DATABASE_URL", "REDIS_URL", "TOOLBOX_SECRET"):
        monkeypatch.setenv(name, "a-secret-value")
    handed = Path(f"/proc/{whereabouts(pool)['server']}/environ").read_bytes()
    assert b"NANOHOST_TOOL_PROCESS=1" in handed
    assert b"a-secret-value" not in handed
