"""``manage.py stack``: docker-compose.yml's own commands as processes, with the variables the file gives them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agent.llm.providers import PROVIDERS
from nanohost.stack import SEVERAL, read_services
from tests.faults.servers import Redis, free_port
from tests.support import servers
from tests.support.api_client import chat, start
from tests.support.hosts import ROOT
from tests.support.scripts import script
from tests.support.stack_process import (
    RunningStack,
    command_of_process,
    curl_line,
    descendants_of,
    environment_of_process,
    is_running,
)
from tests.support.wait import wait_until

pytestmark = pytest.mark.production(reason="several processes on PostgreSQL and Redis are what it starts")

SECRET_KEY = "sign-with-this-secret-key-0123456789-0123456789-0123456789"
MODEL_KEY = "sk-of-a-provider-that-nobody-calls"
SERVICES = read_services()
SECRET_FILES = {"DATABASE_URL_FILE", "SECRET_KEY_FILE", "WEBHOOK_KEY_FILE"}
SECRET_FILES |= {f"{provider.key}_FILE" for provider in PROVIDERS.values()}
# What the shell gives: to find programs, and how to write.
OF_THE_SHELL = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH"}


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    """Queues have the same names in every stack, so each has a Redis of its own."""
    redis = Redis(tmp_path_factory.mktemp("servers") / "redis")
    redis.start()
    yield redis
    redis.stop(signal.SIGKILL)


@pytest.fixture
def make_stack(tmp_path, redis):
    made = []

    def make(name: str, *, template: str = "prepared", **own) -> RunningStack:
        servers.create(servers.name_of(name), template=servers.name_of(template))
        own.setdefault("database_url", servers.url_of(servers.name_of(name)))
        made.append(RunningStack(tmp_path, redis_url=own.pop("redis_url", redis.url), **own))
        return made[-1]

    yield make
    for stack in made:
        stack.leave()


@pytest.fixture(scope="module")
def stack(tmp_path_factory, redis):
    """Two of each worker, with a model's key that is not used. There is no such database before, and no key."""
    stack = RunningStack(
        tmp_path_factory.mktemp("stack"),
        database_url=servers.url_of(servers.name_of("stack")),
        redis_url=redis.url,
        workers=2,
        SECRET_KEY=SECRET_KEY,
        OPENAI_API_KEY=MODEL_KEY,
        LLM_PROVIDER="mock",
        NANOHOST_API_KEY="",
        LOG_LEVEL="WARNING",
    )
    yield stack.start()
    stack.leave()


def service_of(name: str):
    return SERVICES[name.partition(".")[0]]


def everybody(stack: RunningStack) -> list[int]:
    """The pids of all processes, and of those they started."""
    return [each for pid in stack.pids.values() for each in (pid, *descendants_of(pid))]


def health_check(name: str) -> list[str]:
    described = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    kind, *command = described[name.partition(".")[0]]["healthcheck"]["test"]
    assert kind == "CMD"
    return command


def test_there_are_as_many_as_asked_for(stack):
    expected = {f"{name}.{number}" for name in SEVERAL for number in (1, 2)} | {"web", "beat"}
    assert stack.pids.keys() == expected
    assert {name.partition(".")[0] for name in expected} == SERVICES.keys() - {"migrate"}


def test_each_runs_the_command_of_the_file(stack):
    for name, pid in stack.pids.items():
        program, *arguments = service_of(name).command
        running = command_of_process(pid)
        assert running[-len(arguments) :] == arguments
        assert Path(running[-len(arguments) - 1]).name == program


def test_each_has_the_variables_of_the_file_and_no_other(stack):
    for name, pid in stack.pids.items():
        variables, declared = environment_of_process(pid), service_of(name).environment
        assert variables.keys() - OF_THE_SHELL <= declared.keys(), name
        assert {each for each, value in declared.items() if value is not None} <= variables.keys()
        # What the file passes through is the user's.
        assert variables["LOG_LEVEL"] == "WARNING"
        assert variables["LOG_FORMAT"] == "json"


def test_no_secret_is_in_any_environment(stack):
    for pid in everybody(stack):
        values = "\n".join(environment_of_process(pid).values())
        assert SECRET_KEY not in values
        assert MODEL_KEY not in values
        assert "postgresql://" not in values


def test_the_toolbox_and_its_tools_hold_no_key(stack):
    """Neither in a variable, nor in a file a variable names. A worker and the web node do: it would be seen."""

    def holds(pid: int) -> str:
        variables = environment_of_process(pid)
        files = [Path(value).read_text() for name, value in variables.items() if name in SECRET_FILES]
        return "\n".join([*variables, *variables.values(), *files])

    assert MODEL_KEY in holds(stack.pids["worker.1"])
    assert SECRET_KEY in holds(stack.pids["web"])
    for name in ("toolbox.1", "toolbox.2"):
        # The fork server, and a child that waits for work.
        wait_until(lambda name=name: len(descendants_of(stack.pids[name])) >= 2)
        children = descendants_of(stack.pids[name])
        for pid in (stack.pids[name], *children):
            held = holds(pid)
            assert MODEL_KEY not in held
            assert SECRET_KEY not in held
            assert not [word for word in ("OPENAI", "LLM_", "SECRET_KEY", "PASSWORD", "API_KEY") if word in held]
        assert not [pid for pid in children if "DATABASE_URL" in holds(pid)]


def test_what_was_made_is_shown_once_and_the_line_answers_when_pasted(stack):
    assert stack.printed().count("(shown this once)") == 2
    line = curl_line(stack.printed())
    ran = subprocess.run(["bash", "-c", line], env=stack.environment, capture_output=True, text=True, timeout=60)
    assert [call["status"] for call in json.loads(ran.stdout)["toolCalls"]] == ["SUCCESS"]


@pytest.mark.parametrize("name", ["web", "worker.2", "toolbox.1", "beat"])
def test_the_file_s_health_check_passes(stack, name):
    check = health_check(name)
    variables = environment_of_process(stack.pids[name])

    def healthy() -> bool:
        return subprocess.run(check, env=variables, capture_output=True, timeout=20).returncode == 0

    wait_until(healthy, seconds=20)
    if alive := variables.get("WORKER_ALIVE_FILE"):
        os.kill(stack.pids[name], signal.SIGSTOP)  # or its next heartbeat comes before the check has looked
        try:
            os.utime(alive, (1, 1))
            assert not healthy()  # it was last heard of in 1970
        finally:
            os.kill(stack.pids[name], signal.SIGCONT)
        wait_until(healthy, seconds=20)  # the next heartbeat


def test_a_process_that_is_killed_is_started_again(stack):
    before = stack.pids["worker.2"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: stack.pids.get("worker.2", before) != before)
    assert "stack | worker.2 was ended by SIGKILL; it is started again in 0.5 s" in stack.printed()


def test_lines_tell_whose_they_are(stack):
    assert "\nmigrate | The database is up to date.\n" in f"\n{stack.printed()}"
    assert "\nweb | listening on http://127.0.0.1:" in stack.printed()


def test_it_stops_in_time_and_leaves_nobody(make_stack):
    stack = make_stack("stops", CHAT_WAIT_SECONDS="0.1").start()
    with stack.client() as client:
        assert chat(client, start(client), script({"sleep": 60})).status_code == 202
    with servers.connect(servers.name_of("stops")) as database:
        running = "SELECT 1 FROM conversations_turn WHERE status = 'running'"
        wait_until(lambda: database.execute(running).fetchone())
    pids = everybody(stack)
    assert stack.stop() == 0
    assert not [pid for pid in pids if is_running(pid)]
    assert "Traceback" not in stack.printed()
    assert "is killed" not in stack.printed()
    with servers.connect(servers.name_of("stops")) as database:
        held = database.execute("SELECT status, attempts FROM conversations_turn").fetchall()
        assert held == [("waiting", 0)]


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"redis_url": "redis://127.0.0.1:{port}/0"}, "Redis does not answer (.*{port}.*). Start it"),
        ({"database_url": "postgresql://a@127.0.0.1:{port}/a"}, "PostgreSQL does not answer (.*{port}.*). Start it"),
    ],
)
def test_servers_that_do_not_answer_are_told_of_in_one_line(make_stack, own, says):
    port = str(free_port())
    line = make_stack("unreachable", **{name: url.replace("{port}", port) for name, url in own.items()}).refusal()
    before, _, after = says.partition("(.*{port}.*)")
    assert before in line
    assert port in line
    assert after in line


@pytest.mark.parametrize("kept", ["secret_key", "secrets/groq_api_key"])
def test_a_kept_key_that_others_may_write_to_is_refused(make_stack, tmp_path, kept):
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / kept).write_text("kept-0123456789-0123456789-0123456789")
    (tmp_path / kept).chmod(0o666)
    assert f"{tmp_path / kept} may be written to by others of this machine" in make_stack("open").refusal()


def test_a_release_that_fails_is_told_of(make_stack):
    stack = make_stack("failing", template="migrated", NANOHOST_API_KEY="bad")
    ended = subprocess.run(
        [sys.executable, "manage.py", "stack"], cwd=ROOT, env=stack.environment, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "migrate | CommandError: NANOHOST_API_KEY is not valid" in ended.stdout
    assert ended.stderr == "CommandError: migrate ended with 1; the reason is above.\n"


# The last: nobody has use for the stack after it.
def test_a_stack_that_is_killed_leaves_nobody(stack):
    pids = everybody(stack)
    stack.process.kill()
    wait_until(lambda: not [pid for pid in pids if is_running(pid)])
