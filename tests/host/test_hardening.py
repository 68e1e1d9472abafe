"""What others of the same user find of a host: neither its secrets, nor its memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanohost import hardening
from nanohost.lib import env
from nanohost.lib.redaction import redact
from tests.support.api_client import chat, start
from tests.support.hosts import ROOT, Host
from tests.support.sources import READ_ELSEWHERE, readers
from tests.support.stack_process import cores_of, descendants_of
from tests.support.wait import wait_until

SECRET = "canary-of-the-environment-0123456789"

# A process of the same user, without root's powers: it tries to open what its argument names.
LOOK = """
import sys
from nanohost.lib.process import drop_capabilities
drop_capabilities()
for path in sys.argv[1:]:
    try:
        open(path, "rb").close()
        print("open", path)
    except OSError:
        print("shut", path)
"""


# Root without its powers is a user like others; a program that it starts has none either.
POWERLESS = """
import os, sys
from nanohost.lib.process import drop_capabilities
drop_capabilities()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def opened(*paths: str) -> dict[str, str]:
    """Of each path, whether somebody of the same user can open it."""
    ran = subprocess.run([sys.executable, "-c", LOOK, *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return {line.partition(" ")[2]: line.partition(" ")[0] for line in ran.stdout.splitlines()}


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    running = Host(tmp_path_factory.mktemp("closed"), TOOLBOX_SECRET=SECRET, OPENAI_API_KEY=SECRET, LLM_PROVIDER="mock")
    running._commands = {name: ("-c", POWERLESS, *command) for name, command in running._commands.items()}
    yield running.start()
    running.kill()


@pytest.mark.django_db  # on both shapes
def test_nobody_of_the_same_user_reads_a_process_of_the_host(closed):
    for process in closed.processes.values():
        paths = [f"/proc/{process.pid}/{name}" for name in ("environ", "mem", "maps", "auxv")]
        assert opened(*paths) == dict.fromkeys(paths, "shut")

    idle = subprocess.Popen([sys.executable, "-c", POWERLESS, "-c", "input('in')"], cwd=ROOT, stdin=-1, stdout=-1)
    with idle:
        assert idle.stdout.read(2) == b"in"
        path = f"/proc/{idle.pid}/environ"
        assert opened(path) == {path: "open"}, "whoever did not ask for it can be read, or this tries nothing"
        idle.kill()


@pytest.mark.django_db  # on both shapes
def test_no_process_that_a_host_starts_is_handed_a_secret(closed):
    below = {each for process in closed.processes.values() for each in descendants_of(process.pid)}
    assert below, "there are the processes of tools"
    for pid in below:
        assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one core to offer")
@pytest.mark.django_db  # on both shapes
def test_each_process_of_a_host_keeps_to_one_core_and_what_it_starts_does_not(closed):
    def is_on_one(pid: int) -> bool:
        return [len(each) for each in cores_of(pid)] == [1]

    every = frozenset(os.sched_getaffinity(0))
    for process in closed.processes.values():
        wait_until(lambda pid=process.pid: is_on_one(pid))  # it may be about to move
        for each in descendants_of(process.pid):
            assert cores_of(each) <= {every}


@pytest.mark.django_db  # on both shapes
def test_a_host_that_is_not_to_keep_to_one_core_uses_all(tmp_path):
    running = Host(tmp_path, ONE_CORE="false", LLM_PROVIDER="mock").start()
    try:
        with running.client() as client:  # what has answered has begun
            assert chat(client, start(client), "Hello").status_code == 200
        for process in running.processes.values():
            assert cores_of(process.pid) == {frozenset(os.sched_getaffinity(0))}
    finally:
        running.kill()


@pytest.mark.shapeless(reason="it reads the environment")
class TestTakingOut:
    @pytest.fixture(autouse=True)
    def _as_before(self, monkeypatch, own_secrets):
        monkeypatch.setattr(env, "_taken", {})

    def test_a_secret_is_read_and_passed_on_when_it_was_taken_out_and_is_in_no_environment(self, monkeypatch):
        monkeypatch.setenv("TOOLBOX_SECRET", f" {SECRET}\n")
        env.take_out(["TOOLBOX_SECRET"])
        assert "TOOLBOX_SECRET" not in os.environ
        assert env.raw_secret("TOOLBOX_SECRET") == SECRET
        assert env.inherited(["TOOLBOX_SECRET"]) == {"TOOLBOX_SECRET": f" {SECRET}\n"}
        assert SECRET not in redact(f"it is {SECRET}.")

    def test_what_is_set_later_counts(self, monkeypatch):
        monkeypatch.setenv("TOOLBOX_SECRET", "the former")
        env.take_out(["TOOLBOX_SECRET"])
        monkeypatch.setenv("TOOLBOX_SECRET", "the present one")
        assert env.raw_secret("TOOLBOX_SECRET") == "the present one"


@pytest.mark.shapeless(reason="it reads the source")
def test_every_secret_of_the_settings_is_taken_out():
    secret = {reader.name for reader in readers() if reader.kind in ("secret", "key", "server", "headers")}
    assert set(hardening.SECRETS) == {*secret, *READ_ELSEWHERE}
