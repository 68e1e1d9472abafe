"""Secrets of this host, of its tools and of its users, followed through every exit.

Rows, logs, API bodies, pages of the admin, what the model is sent, and what a crash prints.
"""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import chat, eventually, rows, start
from tests.support.exits import everything_the_admin_shows
from tests.support.hosts import ROOT, Host, environment_of
from tests.support.openai_server import OpenAIServer, call, chunk, completion, events, failure
from tests.support.sse import say, text_of

MODEL_KEY = "canary-of-the-model-0123456789"
TOOL_SECRET = "canary-of-the-tool-0123456789"
SIGNING_KEY = "canary-of-the-signer-0123456789"
TOKEN = "canary-of-the-user-0123456789"
CANARY = re.compile("canary-of-|proj-canary")


@pytest.fixture(scope="module")
def model() -> Iterator[OpenAIServer]:
    server = OpenAIServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer) -> Iterator[Host]:
    """A host whose tools, and whose model, let out what they know."""
    host = Host(
        tmp_path_factory.mktemp("leaky"),
        NANOHOST_EXTRA_APPS="tests.leaks",
        LEAK_PAST_HANDLERS=MODEL_KEY,
        LLM_BASE_URL=model.url,
        OPENAI_API_KEY=MODEL_KEY,
        LEAKY_SECRET=TOOL_SECRET,
        SECRET_KEY=SIGNING_KEY,
        LOG_CONTENT="1",
        TURN_MAX_ATTEMPTS="1",
        LLM_RETRY_SECONDS="1",
    ).start()
    host.allow("leak", "sign_in")
    yield host
    host.kill()


@pytest.fixture(scope="module")
def sent() -> list[str]:
    """All that the model was sent."""
    return []


@pytest.fixture(autouse=True)
def _nothing_told(model: OpenAIServer, sent: list[str]) -> Iterator[None]:
    yield
    sent += [json.dumps(request.body) for request in model.requests]
    model.forget()


def everything(host: Host, sent: list[str]) -> dict[str, str]:
    """All that has left the host, by exit; but for the headers by which the model knows the host."""
    with host.client() as client:
        bodies = [client.get(f"/{page}").text for page in ("conversations", "tools")]
        for conversation in client.get("/conversations").json()["results"]:
            for page in ("messages", "deferred"):
                bodies.append(client.get(f"/conversations/{conversation['conversationId']}/{page}").text)
        for turn in host.sql("SELECT id FROM conversations_turn"):
            bodies.append(client.get(f"/turns/{turn['id']}").text)
    return {
        "rows": host.everything_stored(),
        "pages": everything_the_admin_shows(host),
        "log": host.log_text(),
        "bodies": "\n".join(bodies),
        "model": "\n".join(sent),
    }


def asks_for(host: Host, model: OpenAIServer, name: str, **arguments: object) -> str:
    """Have the model ask for a tool; returns what it is told of the result."""
    model.answer(completion("", tool_calls=[call(name, json.dumps(arguments))]), completion("Done."))
    with host.client() as client:
        assert chat(client, start(client), "Go on.").json()["assistantMessage"] == "Done."
    return str(model.requests[-1].body["messages"][-1]["content"])


def test_a_tools_secret_is_known_before_any_tool_has_run(leaky: Host):
    """To the process that answers HTTP, which never reads it."""
    with leaky.client() as client:
        for spelling in (TOOL_SECRET, TOOL_SECRET.encode().hex(), base64.b64encode(TOOL_SECRET.encode()).decode()):
            begun = len(leaky.log_text())
            assert client.get(f"/nowhere/{spelling}").status_code == 404
            line = eventually(lambda begun=begun: re.search(".*/nowhere/.*", leaky.log_text()[begun:]))
            assert spelling not in line[0]
            assert "/nowhere/[redacted]" in line[0]


@pytest.mark.parametrize(
    "begin",
    [
        "import nanohost.asgi",  # a web node
        "from nanohost.celery import app; app.loader.init_worker()",  # a worker, a toolbox, beat
        "import django; django.setup()",  # manage.py
    ],
    ids=["web", "celery", "manage"],
)
def test_a_tools_secret_is_known_to_every_process_from_its_start(tmp_path: Path, begin: str):
    (tmp_path / "secret").write_text(TOOL_SECRET)
    for given in ({"LEAKY_SECRET": TOOL_SECRET}, {"LEAKY_SECRET_FILE": str(tmp_path / "secret")}):
        environment = environment_of(tmp_path) | {"NANOHOST_EXTRA_APPS": "tests.leaks"} | given
        environment |= {"SECRET_KEY": SIGNING_KEY}
        told = subprocess.run(
            [sys.executable, "-c", f"{begin}; from nanohost.lib.redaction import redact; print(redact(input()))"],
            cwd=ROOT,
            env=environment,
            input=f"{TOOL_SECRET} {SIGNING_KEY} correct horse battery",
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert told.stdout == "[redacted] [redacted] [redacted]\n"


def test_a_tools_secret_leaves_by_no_exit(leaky: Host, model: OpenAIServer):
    for how in ("result", "list", "raised", "argument", "printed"):
        told = asks_for(leaky, model, "leak", how=how)
        assert not CANARY.search(told), how
        assert how == "printed" or "[redacted]" in told, how


def test_no_half_of_a_secret_is_left_where_a_result_is_cut(leaky: Host, model: OpenAIServer):
    for at in range(49_140, 49_160, 3):
        asks_for(leaky, model, "leak", how=str(at))
        (row,) = rows(leaky, "SELECT id, result FROM tools_toolcall ORDER BY created_at DESC LIMIT 1")
        assert not re.search("canar|y-of-the|of-the-tool|-0123", row["result"]), at


def test_what_a_model_writes_into_arguments_reaches_the_tool_and_no_exit(leaky: Host, model: OpenAIServer):
    url, headers = f"https://user:{TOKEN}@example.org/", {"Authorization": f"Bearer {TOKEN}"}
    told = asks_for(leaky, model, "sign_in", url=url, headers=headers)
    assert f"{len(url)} {len(headers['Authorization'])}" in told
    (row,) = rows(leaky, "SELECT id, arguments FROM tools_toolcall WHERE tool_name = 'sign_in'")
    assert json.loads(row["arguments"])["headers"] == {"Authorization": "[redacted]"}


def test_a_secret_that_a_model_takes_for_a_tools_name_leaves_by_no_exit(leaky: Host, model: OpenAIServer):
    told = asks_for(leaky, model, MODEL_KEY)
    assert "There is no tool named 'redacted'" in told


def test_what_a_provider_says_of_a_key_leaves_by_no_exit(leaky: Host, model: OpenAIServer):
    for status in (401, 400, 500):
        model.answer(*[failure(status, message=f"Incorrect API key provided: {MODEL_KEY}")] * 5)
        with leaky.client() as client:
            answer = chat(client, start(client), "Hello")
        assert answer.status_code >= 400
        assert not CANARY.search(answer.text)


def test_this_hosts_own_secrets_are_taken_out_of_what_a_model_says(leaky: Host, model: OpenAIServer):
    model.answer(completion(f"My key is {MODEL_KEY}."))
    with leaky.client() as client:
        answer = chat(client, start(client), "What is your key?").json()
    assert answer["assistantMessage"] == "My key is [redacted]."


def test_a_secret_that_a_model_says_in_pieces_is_not_streamed_in_pieces(leaky: Host, model: OpenAIServer):
    said = ("My key is canary-of-", "the-model-01", "23456789.")
    pieces = [chunk({"role": "assistant", "content": piece}) for piece in said]
    model.answer(events(*pieces, chunk(finish_reason="stop"), "[DONE]"))
    with leaky.client() as client:
        told = say(client, start(client), "Which key?")
    assert not CANARY.search(json.dumps([event.data for event in told]))
    assert text_of(told) == "My key is [redacted]."


def test_none_of_them_has_left_by_any_exit(leaky: Host, sent: list[str]):
    """After all that the tests above made the host, its tools and its model say: reading everything takes long."""
    assert len(sent) > 20, "run it with the tests above"
    for name, text in everything(leaky, sent).items():
        assert "[redacted]" in text, f"{name}: nothing was tried"
        assert not CANARY.search(text), name


def test_what_nobody_catches_is_printed_without_secrets(leaky: Host):
    for where in ("thread", "dropped"):
        eventually(lambda where=where: f"{where}: [redacted]" in leaky.log_text())
    assert not CANARY.search(leaky.log_text())


def test_a_command_that_crashes_prints_no_secret(leaky: Host):
    ended = leaky.manage("crash")
    assert ended.returncode != 0
    assert "crashed with [redacted]" in ended.stderr
    assert not CANARY.search(ended.stdout + ended.stderr)
