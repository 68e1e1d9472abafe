"""``make run``'s process, started and stopped as a user does: what it prints, refuses, keeps, and how it ends."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from tests.support.hosts import KEY, PLAIN, Host
from tests.support.sources import read_settings
from tests.support.wait import wait_until
from tools.sandbox import modes

pytestmark = pytest.mark.embedded(reason="production has no `manage.py serve`; its processes are in test_stack.py")

IMPORT = "from tools.registry import tool\n"
UNSET = {"NANOHOST_API_KEY": "", "NANOHOST_ADMIN_PASSWORD": ""}
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="the line that is pasted is for curl; there is none")


def shown(log: str, label: str) -> str:
    """What the announcement says behind a label."""
    return re.search(rf"^  {label} +(.+?)(?:  \(shown this once\))?$", log, re.MULTILINE).group(1)


def paste(log: str, **environment: str) -> dict:
    """Paste the announcement's curl line into a shell, and read the answer."""
    line = re.search(r"^  (curl .+)$", log, re.MULTILINE).group(1)
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, env={**environment})
    assert not ran.stderr
    assert ran.stdout.endswith("\n")
    return json.loads(ran.stdout)


def can_log_in(address: str, password: str) -> bool:
    """Log in to the admin, as a browser does."""
    with httpx2.Client(base_url=address) as browser:
        browser.get("/admin/login/")
        form = {"username": "admin", "password": password, "csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        return browser.post("/admin/login/?next=/admin/", data=form).status_code == 302


def processor_seconds(host: Host) -> float:
    """What the process has used of a processor so far; unlike a clock, it does not see what else the machine does."""
    numbers = Path(f"/proc/{host.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime of proc(5)


def refusal(host: Host) -> str:
    """The one line a host that cannot start leaves; fails if it says more, or starts."""
    ended = host.manage("serve")
    assert ended.returncode != 0
    assert ended.stdout == ""
    (line,) = ended.stderr.strip().split("\n")
    return line


@pytest.fixture
def host_on():
    """Makes hosts, ``host_on(data_dir, **environment)``, of which none outlives the test."""
    made: list[Host] = []

    def make(data_dir: Path, **environment: str) -> Host:
        made.append(Host(data_dir, **environment))
        return made[-1]

    yield make
    for host in made:
        host.kill()


# --- a first start, on nothing, and a second one ------------------------------------------------------------------


@pytest.fixture(scope="module")
def new_host(tmp_path_factory):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    new_host = Host(tmp_path_factory.mktemp("new"), empty=True, PORT=str(port), **UNSET).start()
    yield new_host
    new_host.kill()


@pytest.fixture(scope="module")
def of_first(new_host):
    """What the first start took of a processor."""
    return processor_seconds(new_host)


@pytest.fixture(scope="module")
def first(new_host, of_first):
    return new_host.log_text()


@pytest.fixture(scope="module")
def restarted(new_host, first, of_first):
    """The second start's log, and what both took of a processor; the first's secrets are used before, so that a leak
    would show."""
    with new_host.client(shown(first, "API key")) as client:
        client.get("/tools")
    assert new_host.stop() == 0
    before = len(new_host.log_text())
    new_host.start()
    return new_host.log_text()[before:], of_first, processor_seconds(new_host)


@pytest.fixture(scope="module")
def second(restarted):
    return restarted[0]


def test_the_announcement_comes_before_everything(first):
    assert first.startswith("\n  Admin     http://127.0.0.1:")


def test_the_addresses_answer(new_host, first):
    for label, says in (("Admin", "Log in"), ("API docs", "swagger"), ("Health", '"status": "ok"')):
        answer = httpx2.get(shown(first, label), follow_redirects=True)
        assert answer.status_code == 200
        assert says in answer.text


def test_it_tells_which_sandbox_keeps_tools(first, host_on, tmp_path):
    """Also where there is none, and what that means."""
    assert shown(first, "Sandbox") == modes.having("auto").sentence
    without = host_on(tmp_path, TOOL_SANDBOX="none").start().log_text()
    assert shown(without, "Sandbox") == "none: a tool can read, write and end whatever this user can."


def test_name_and_password_log_in(new_host, first):
    assert shown(first, "Name") == "admin"
    assert can_log_in(new_host.address, shown(first, "Password"))
    assert not can_log_in(new_host.address, "something else")


@needs_curl
def test_the_line_answers_when_pasted(new_host, first):
    answer = paste(first)
    assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", answer["assistantMessage"])
    assert [(call["toolName"], call["status"]) for call in answer["toolCalls"]] == [("time", "SUCCESS")]


def test_what_is_kept_is_for_its_owner_alone(new_host):
    names = ["secret_key", "lock", "nanohost.sqlite3", "nanohost.sqlite3-wal", "nanohost.sqlite3-shm"]
    names.append("audit-heads.jsonl")
    wait_until((new_host.data_dir / names[-1]).exists)
    kept = {file.name: stat.S_IMODE(file.stat().st_mode) for file in new_host.data_dir.iterdir()}
    assert kept == dict.fromkeys(names, 0o600) | {new_host.log.name: kept[new_host.log.name]}


def test_secrets_are_shown_once_and_never_logged(first, second):
    password, key = shown(first, "Password"), shown(first, "API key")
    assert "shown this once" not in second
    assert password not in second
    assert key not in second
    logged = [line for line in (first + second).split("\n") if line.startswith("{")]
    assert logged
    assert not [line for line in logged if password in line or key in line]


@needs_curl
def test_the_second_start_s_line_takes_the_key_from_the_environment(first, second):
    answer = paste(second, NANOHOST_API_KEY=shown(first, "API key"))
    assert answer["toolCalls"][0]["status"] == "SUCCESS"


def test_the_password_outlasts_the_restart(new_host, first, second):
    assert can_log_in(new_host.address, shown(first, "Password"))


def test_a_second_start_costs_less_than_the_first(restarted):
    """It makes no tables."""
    of_first, of_second = restarted[1:]
    assert of_second < 0.8 * of_first


def test_an_idle_host_stops_at_once(new_host, restarted):
    """Not when Celery's loops look up by themselves, every 2 s: that would be more than half of what a start takes. The
    best of three, since the machine may be busy."""
    ratios = []
    while not ratios or (ratios[-1] >= 0.5 and len(ratios) < 3):
        began = time.monotonic()
        new_host.start()
        started = time.monotonic()
        assert new_host.stop() == 0
        ratios.append((time.monotonic() - started) / (started - began))
    assert ratios[-1] < 0.5, ratios


def wait_for_running_turn(host: Host) -> None:
    with sqlite3.connect(host.data_dir / "nanohost.sqlite3") as database:
        running = "SELECT 1 FROM conversations_turn WHERE status = 'running'"
        wait_until(lambda: database.execute(running).fetchone(), seconds=30)


def chat(host: Host, script: list[dict]) -> httpx2.Response:
    with host.client() as client:
        conversation = client.post("/conversations").json()["conversationId"]
        return client.post(f"/conversations/{conversation}/chat", json={"message": json.dumps({"script": script})})


# Those of test_faults_kill.py, which every run has, are stopped by SIGTERM.
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.faults)])
def test_it_stops_cleanly_and_hands_its_turns_back(host_on, tmp_path, number):
    host = host_on(tmp_path, CHAT_WAIT_SECONDS="0.1").start()
    assert chat(host, [{"sleep": 60}]).status_code == 202
    wait_for_running_turn(host)
    host.process.send_signal(number)
    assert host.process.wait(timeout=10) == 0
    assert "Traceback" not in host.log_text()
    with sqlite3.connect(tmp_path / "nanohost.sqlite3") as database:
        assert database.execute("SELECT status, attempts FROM conversations_turn").fetchall() == [("waiting", 0)]
    host.start()
    wait_for_running_turn(host)


def is_ready(host: Host) -> bool:
    """Whether readiness, which takes a thread, is told within a second."""
    try:
        return httpx2.get(f"{host.address}/health/ready", timeout=1, verify=PLAIN).status_code == 200
    except httpx2.TimeoutException:
        return False


def test_it_lives_and_stops_in_time_though_its_database_is_locked(host_on, tmp_path):
    """What is held is then taken again by its lease; whoever waits has the turn's address all the same."""
    host = host_on(tmp_path, WEB_THREADS="1").start()
    with (
        ThreadPoolExecutor() as elsewhere,
        sqlite3.connect(host.data_dir / "nanohost.sqlite3", isolation_level=None) as database,
    ):
        database.execute("BEGIN IMMEDIATE")
        stuck = elsewhere.submit(chat, host, [{"say": "Hello."}])
        wait_until(lambda: not is_ready(host))  # the one thread there is waits for the database
        assert httpx2.get(f"{host.address}/health/live", timeout=5).json() == {"status": "ok"}
        database.execute("ROLLBACK")
        assert stuck.result(timeout=30).status_code == 200
        waiter = elsewhere.submit(chat, host, [{"sleep": 60}])
        wait_for_running_turn(host)
        database.execute("BEGIN IMMEDIATE")
        assert host.stop(seconds=12) == 0
        assert waiter.result(timeout=10).status_code == 202


def test_a_password_and_a_key_that_the_environment_changes_are_changed_and_what_it_sets_is_not_shown(host_on, tmp_path):
    host_on(tmp_path).have_database()
    other = "nh_other123_0123456789abcdefghij"
    host = host_on(tmp_path, NANOHOST_ADMIN_PASSWORD="then a cow instead", NANOHOST_API_KEY=other).start()
    assert can_log_in(host.address, "then a cow instead")
    assert not can_log_in(host.address, "correct horse battery")
    for key, status in ((other, 200), (KEY, 401)):
        with host.client(key) as client:
            assert client.get("/tools").status_code == status
    announced = host.log_text().partition("Ctrl-C")[0]
    assert "as NANOHOST_API_KEY says\n" in announced
    assert "  NANOHOST_API_KEY has changed: the former key nh_test1234_… is revoked." in announced
    for secret in ("cow", KEY, other):
        assert secret not in host.log_text()


def test_a_revoked_key_does_not_come_back_with_a_restart(host_on, tmp_path):
    host = host_on(tmp_path)
    assert host.manage("keys", "revoke", "test1234").returncode == 0
    assert "NANOHOST_API_KEY has the prefix of a key that was revoked" in refusal(host)


def test_a_secret_that_could_not_be_shown_is_not_kept(host_on, tmp_path):
    """Its owner would never know the password: the next start makes another, and shows it."""
    host = host_on(tmp_path, **UNSET | {"NANOHOST_API_KEY": "bad"})
    assert "NANOHOST_API_KEY is not valid: An API key looks like nh_<prefix>_<secret>" in refusal(host)
    assert host.sql("SELECT username FROM auth_user") == []


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("LLM_PROVIDER", "foo", "LLM_PROVIDER='foo' is not valid: expected one of auto, mock, custom"),
        ("NANOHOST_EXTRA_APPS", "does.not.exist", "NANOHOST_EXTRA_APPS does not load: ModuleNotFoundError"),
        ("TOOLS_ALLOWED", "nonsense", "TOOLS_ALLOWED names no tool: nonsense; there are: "),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(host_on, tmp_path, setting, value, says):
    """Whether the settings refuse it, the loading of the apps, or the command."""
    assert says in refusal(host_on(tmp_path, **{setting: value}))


@pytest.fixture
def begun(settings, tmp_path, monkeypatch):
    """What the command says that does not start, in this process: ``begun(PORT=99999)``."""
    monkeypatch.delenv("WEBHOOK_KEY")  # a start takes secrets out of the environment, which other tests need
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def begin(**changed: object) -> str:
        for name, value in {"DATA_DIR": tmp_path, "PORT": 0, **changed}.items():
            setattr(settings, name, value)
        with pytest.raises(CommandError) as refused:
            call_command("serve")
        return str(refused.value)

    yield begin
    for number, handler in before.items():
        signal.signal(number, handler)


# By each of the steps of a start that may refuse.
@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("PORT", 99999, "Cannot listen on HOST=127.0.0.1 PORT=99999"),
        ("HOST", "256.0.0.1", "Cannot listen on HOST=256.0.0.1"),
        ("TOOLS_ENABLED", ["tiem"], "TOOLS_ENABLED names no tool: tiem; there are: "),
        ("CSRF_TRUSTED_ORIGINS", ["example.org"], "CSRF_TRUSTED_ORIGINS setting must start with a scheme"),
        ("DATA_DIR", Path("/proc/nowhere"), "DATA_DIR /proc/nowhere cannot be written"),
        ("DATA_DIR", Path(__file__), "cannot be written: File exists"),
    ],
)
def test_what_the_command_cannot_start_with_is_told(begun, setting, value, says):
    said = begun(**{setting: value})
    assert says in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("PORT", "abc", "PORT='abc' is not valid: expected a whole number"),
        ("LLM_PROVIDER", "openai", "LLM_PROVIDER=openai needs OPENAI_API_KEY"),
        ("PERMISSIONS_GRANTED", "SHELL", "PERMISSIONS_GRANTED is not valid: SHELL"),
        ("LLM_BASE_URL", "http://127.0.0.1:99999", "LLM_BASE_URL='http://127.0.0.1:99999' is not valid"),
        ("ALLOWED_HOSTS", ",", "ALLOWED_HOSTS is not valid: it names no host"),
        ("WORKER_DB_THREADS", "100000000", "expected a whole number from 1 to 1000"),
        ("TIME_ZONE", "Mars/Base", "TIME_ZONE='Mars/Base' is not valid"),
        ("TOOL_TIMEOUT_SECONDS", "nan", "TOOL_TIMEOUT_SECONDS='nan' is not valid"),
    ],
)
def test_the_settings_refuse_what_makes_no_sense(monkeypatch, setting, value, says):
    """As the one above that names LLM_PROVIDER shows, a start that they refuse ends in a line that says so."""
    monkeypatch.setenv(setting, value)
    with pytest.raises(ImproperlyConfigured, match=re.escape(says)) as refused:
        read_settings()
    assert "\n" not in str(refused.value)


def test_a_second_process_on_the_same_data_is_refused(begun, new_host):
    new_host.start()
    assert f"DATA_DIR {new_host.data_dir} is in use by another nanohost" in begun(DATA_DIR=new_host.data_dir)


def test_a_taken_port_is_refused(begun):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"PORT={port}: Address already in use" in begun(PORT=port)


@pytest.mark.parametrize("kept", ["secret_key", "secrets/groq_api_key"])
def test_a_kept_key_that_others_may_write_to_is_refused(host_on, tmp_path, kept):
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / kept).write_text("kept-0123456789-0123456789-0123456789")
    (tmp_path / kept).chmod(0o666)
    assert f"{tmp_path / kept} may be written to by others of this machine" in refusal(host_on(tmp_path))


def test_a_database_newer_than_the_code_is_refused(host_on, tmp_path):
    host = host_on(tmp_path)
    host.have_database()
    with sqlite3.connect(tmp_path / "nanohost.sqlite3") as database:
        database.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('conversations', '9999_x', 0)")
    assert "The database is newer than this code (it has conversations.9999_x)" in refusal(host)


def test_a_file_that_is_no_database_is_refused(host_on, tmp_path):
    (tmp_path / "nanohost.sqlite3").write_bytes(b"something else entirely" * 100)
    assert "cannot be used: file is not a database" in refusal(host_on(tmp_path))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nothing_of_that_name\n", r"No module named 'nothing_of_that_name' \(.+/agent_tools.py, line 1\)"),
        ("def broken(:\n", r"SyntaxError: .+ \(agent_tools.py, line 1\)"),
        (
            f"{IMPORT}@tool()\ndef mute():\n    pass\n",
            r"mute: a tool needs a docstring.+ \(.+/agent_tools.py, line 2\)",
        ),
        pytest.param(
            f'{IMPORT}@tool()\ndef vague(x):\n    """Vague."""\n',
            r"vague: the argument x needs a type",
            marks=pytest.mark.faults,
        ),
        pytest.param(
            f'{IMPORT}@tool(permissions=["FLY"])\ndef fly():\n    """Fly."""\n',
            r"fly: 'FLY' is not a valid Permission",
            marks=pytest.mark.faults,
        ),
    ],
)
def test_an_app_of_bad_tools_is_refused(host_on, tmp_path, source, says):
    app = tmp_path / "garden"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "agent_tools.py").write_text(source)
    line = refusal(host_on(tmp_path, NANOHOST_EXTRA_APPS="garden", PYTHONPATH=str(tmp_path)))
    assert re.search(f"NANOHOST_EXTRA_APPS does not load: .*{says}", line), line


def test_a_python_too_old_is_refused_by_make(tmp_path):
    old = tmp_path / "python"
    pretend = "import sys; sys.version_info = (3, 9, 1); sys.version = '3.9.1 (main)'; exec(sys.argv[2])"
    old.write_text(f'#!/bin/sh\nexec python3 -c "{pretend}" "$@"\n')
    old.chmod(0o755)
    ended = subprocess.run(
        ["make", "run", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    assert "nanohost needs Python 3.11 or newer; this is 3.9.1." in ended.stderr
    assert not (tmp_path / "venv").exists()
