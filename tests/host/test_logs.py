"""Logs: what a line says, what it is about, and what it never says."""

import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from django.contrib.auth import get_user_model

from nanohost.lib import logs, redaction
from tests import shapes
from tests.support.hosts import ROOT
from tests.support.working import settle

pytestmark = pytest.mark.shapeless(reason="how a line is written; the tests of turns and of a running host run on both")

SECRET = "sk-canary-0123456789"

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the root logger writes, in JSON."""
    yield from _written("json")


@pytest.fixture
def written_as_text() -> Iterator[io.StringIO]:
    yield from _written("text")


def _written(style: str) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.formatter(style))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def lines(written: io.StringIO) -> Lines:
    return lambda: [json.loads(line) for line in written.getvalue().splitlines()]


# --- the shape of a line -----------------------------------------------------------------------------------------


def test_a_line_is_json(lines):
    logging.getLogger("some.library").warning("%d of %s", 3, "four", extra={"size": 7})
    (line,) = lines()
    line.pop("message", None)  # pytest's own handler leaves it on the record
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line.pop("timestamp"))
    assert line == {"event": "3 of four", "level": "warning", "logger": "some.library", "size": 7}


def test_structlogs_loggers_write_the_same(lines):
    structlog.get_logger("some.library").warning("three", size=7)
    (line,) = lines()
    assert (line["event"], line["level"], line["logger"], line["size"]) == ("three", "warning", "some.library", 7)


def test_a_line_tells_what_it_is_about(lines):
    with logs.about(requestId="r-1", turn="t-1", conversation=""):
        logging.getLogger("inside").warning("x")
    logging.getLogger("outside").warning("x")
    inside, outside = lines()
    assert (inside["requestId"], inside["turn"]) == ("r-1", "t-1")
    assert "conversation" not in inside
    assert "requestId" not in outside


@pytest.mark.parametrize(
    "text",
    ['a\nb {"event": "forged"}', "a\r\nb", "a\u2028b", "a\x00\x1b[31mb", "a\ud800b"],
    ids=["forged", "crlf", "line separator", "escape", "surrogate"],
)
def test_a_line_stays_one_line_whatever_it_says(written, lines, text):
    logging.getLogger("x").warning(text, extra={"said": text})
    (line,) = lines()
    assert (line["event"], line["said"]) == (text, text)
    assert written.getvalue().isascii()
    assert written.getvalue().count("\n") == 1


def test_a_traceback_is_part_of_its_line(lines):
    try:
        raise RuntimeError("it broke")
    except RuntimeError:
        logging.getLogger("x").exception("failed")
    (line,) = lines()
    assert line["event"] == "failed"
    assert line["exception"].endswith("RuntimeError: it broke")
    assert "\n" in line["exception"]


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError(SECRET)


@pytest.mark.parametrize(("message", "arguments"), [("%d", (SECRET,)), ("%s %s", (SECRET,)), ("%r", (Unshowable(),))])
def test_a_line_that_cannot_be_shown_is_replaced_by_one_that_says_where_it_comes_from(message, arguments):
    where = {"name": "x", "levelname": "WARNING", "pathname": __file__, "lineno": 7}
    record = logging.makeLogRecord(where | {"msg": message, "args": arguments})
    line = json.loads(logs.formatter("json").format(record))
    assert line["event"] == "a line could not be logged"
    assert line["at"] == f"{__file__}:7"
    assert SECRET not in str(line)


# --- secrets -----------------------------------------------------------------------------------------------------

WAYS = {
    "message": lambda log: log.warning(f"the key is {SECRET}"),
    "argument": lambda log: log.warning("the key is %s", SECRET),
    "after a line feed": lambda log: log.warning("the key is\n%s", SECRET),
    "after a tab": lambda log: log.warning("the key is", extra={"row": f"\t{SECRET}"}),
    "extra field": lambda log: log.warning("x", extra={"key": SECRET}),
    "deep in an extra field": lambda log: log.warning("x", extra={"headers": {"keys": [f"\n{SECRET}", (SECRET,)]}}),
    "name of a field": lambda log: log.warning("x", extra={"headers": {SECRET: 1}}),
    "object": lambda log: log.warning("x", extra={"object": ValueError(SECRET)}),
    "traceback": lambda log: _raise(log, ValueError(f"no such key:\n{SECRET}")),
    "cause of a traceback": lambda log: _raise(log, ValueError("x"), KeyError(SECRET)),
}


def _raise(log: logging.Logger, error: Exception, cause: Exception | None = None) -> None:
    try:
        raise error from cause
    except Exception:
        log.exception("failed")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("logger", ["nanohost.model", "openai", "httpx2", "django.request", "some.library"])
def test_no_secret_is_written(written, written_as_text, way, logger):
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.INFO)
    WAYS[way](log)
    log.setLevel(level)
    for stream in (written, written_as_text):
        assert stream.getvalue()
        assert SECRET not in stream.getvalue()


@pytest.mark.parametrize(
    "extra", [{"api_key": "like_any_word"}, {"nh_like_any_word": 1}, {"access_token": 123456}, {"token": "l1ke-any"}]
)
def test_what_a_fields_name_says_counts(written, extra):
    logging.getLogger("x").warning("y", extra=extra)
    assert "[redacted]" in written.getvalue()


# Each writes a text of any length.
LONG = {
    "message": lambda log, text: log.warning(text),
    "argument": lambda log, text: log.warning("it said %s", text),
    "extra field": lambda log, text: log.warning("x", extra={"said": text}),
    "many fields": lambda log, text: log.warning("x", extra={"said": [" ".join(text.split()[:100])] * 100}),
    "object": lambda log, text: log.warning("x", extra={"object": ValueError(text)}),
    "name of a field": lambda log, text: log.warning("x", extra={"headers": {text: 1}}),
    "traceback": lambda log, text: _raise(log, ValueError(text)),
}


@pytest.mark.parametrize("way", LONG)
def test_of_a_long_line_no_more_is_searched_for_secrets_than_is_written(
    monkeypatch, written, written_as_text, lines, way
):
    given = []
    for module in (logs, redaction):
        for name in ("redact", "is_plain"):
            of = getattr(redaction, name)
            monkeypatch.setattr(module, name, lambda text, of=of: given.append(len(text)) or of(text))
    LONG[way](logging.getLogger("x"), "eyJ-" * 250_000)
    (line,) = lines()
    assert line["logger"] == "x"
    assert len(written.getvalue()) < 300_000
    assert len(written_as_text.getvalue()) < 300_000
    assert max(given) <= logs.MAX_OF_A_LINE
    assert sum(given) < 10 * logs.MAX_OF_A_LINE  # by both formatters, some twice


@pytest.mark.parametrize("way", LONG)
def test_no_half_of_a_secret_is_left_where_a_line_is_cut(written, written_as_text, way):
    for before in range(0, len(SECRET), 3):
        LONG[way](logging.getLogger("x"), "x" * before + f" {SECRET}" * 20_000)
    for stream in (written, written_as_text):
        assert stream.getvalue()
        assert "sk-" not in stream.getvalue()


def test_a_traceback_of_many_frames_is_written_whole(lines):
    def deeper(left: int) -> None:
        if not left:
            raise RuntimeError("at the bottom")
        [deeper, lambda left: deeper(left)][left % 2](left - 1)  # else Python writes that a frame is repeated

    try:
        deeper(100)
    except RuntimeError:
        logging.getLogger("x").exception("failed")
    (line,) = lines()
    assert line["exception"].endswith("RuntimeError: at the bottom")


def test_what_is_bound_is_redacted(written):
    with logs.about(requestId=SECRET):
        logging.getLogger("x").warning("y")
    assert SECRET not in written.getvalue()


# --- where it is written -----------------------------------------------------------------------------------------

SPEAK = """
import django, logging
django.setup()
logging.getLogger("some.library").warning("hello %s", "there", extra={"said": "a\\x1b[2Jb"})
"""


def speak(**options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {name: os.environ[name] for name in ("PATH", "DATA_DIR")} | options.pop("env", {})
    environment |= {"DJANGO_SETTINGS_MODULE": "tests.settings"}
    return subprocess.run(
        [sys.executable, "-c", SPEAK], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, timeout=60, **options
    )


def speak_on_a_terminal(**environment: str) -> bytes:
    ours, theirs = pty.openpty()
    try:
        speak(stderr=theirs, env=environment)
        return os.read(ours, 65536)
    finally:
        os.close(theirs)
        os.close(ours)


def test_where_there_is_no_terminal_it_is_json():
    (line,) = speak(stderr=subprocess.PIPE).stderr.splitlines()
    assert json.loads(line)["event"] == "hello there"


def test_on_a_terminal_it_is_text_that_does_not_steer_it():
    shown = speak_on_a_terminal()
    assert b"hello there" in shown
    assert not shown.lstrip().startswith(b"{")
    assert b"\x1b[2J" not in shown
    assert b"x1b[2J" in shown


def test_on_a_terminal_it_is_json_where_that_is_wanted():
    assert json.loads(speak_on_a_terminal(LOG_FORMAT="json"))["event"] == "hello there"


# --- what a turn writes ------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_turn_writes_its_model_calls_and_its_tool_calls(say, tool_settings, lines):
    tool_settings("time")
    (turn,) = settle([say("What time is it?")])
    first, tool, second = [line for line in lines() if line["event"] in ("model call", "tool call")]
    for line in (first, tool, second):
        about = {"requestId": "request-1", "turn": str(turn.pk), "conversation": str(turn.conversation_id)}
        assert about.items() <= line.items()
    assert (tool["logger"], tool["tool"], tool["status"], tool["agent"]) == ("TOOL_AUDIT", "time", "SUCCESS", "default")
    assert {"argsHash", "durationMs", "rule", "resultBytes"} <= set(tool)
    assert first["logger"] == "nanohost.model"
    assert (first["provider"], first["model"], first["toolCalls"], second["toolCalls"]) == ("mock", turn.model, 1, 0)
    assert {"messages", "tools", "promptChars", "answerChars", "latencyMs", "error"} <= set(first)
    assert first["promptTokens"] + second["promptTokens"] == turn.prompt_tokens


@pytest.mark.django_db(transaction=True)
def test_a_refused_tool_call_is_written_with_its_rule(say, lines):
    settle([say('{"script": [{"call": [{"name": "flood"}]}, {"say": "Done."}]}')])
    (tool,) = [line for line in lines() if line["logger"] == "TOOL_AUDIT"]
    assert (tool["status"], tool["rule"]) == ("REJECTED", "not_enabled")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("wanted", [False, True])
def test_content_is_written_where_it_is_wanted(say, settings, written, wanted):
    settings.LOG_CONTENT = wanted
    settle([say("the word is rhododendron")])
    assert ("rhododendron" in written.getvalue()) == wanted


@pytest.mark.django_db(transaction=True)
def test_a_failed_model_call_is_written_with_its_code(say, lines):
    settle([say('{"script": [{"fail": "context_too_long"}]}')])
    (line,) = [line for line in lines() if line["event"] == "model call"]
    assert line["error"] == "llm_context_too_long"


IN_A_THREAD = "import threading; t = threading.Thread(target=boom); t.start(); t.join()"


@pytest.mark.parametrize(
    ("style", "where"),
    [
        ("json", "boom()"),
        ("text", IN_A_THREAD),
        pytest.param("text", "boom()", marks=pytest.mark.faults),
        pytest.param("json", IN_A_THREAD, marks=pytest.mark.faults),
    ],
    ids=lambda value: {"boom()": "main thread", IN_A_THREAD: "another thread"}.get(value, value),
)
def test_what_nobody_catches_is_logged_without_its_secrets(where, style):
    code = f"import django; django.setup()\ndef boom(): raise ValueError('no such key: {SECRET}')\n{where}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOG_FORMAT": style}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "nobody caught ValueError" in ended.stderr
    assert "no such key: [redacted]" in ended.stderr
    assert SECRET not in ended.stderr
    if style == "json":
        (line,) = ended.stderr.splitlines()
        assert json.loads(line)["level"] == "critical"
    else:  # wanted, though it is no terminal
        assert not ended.stderr.startswith("{")


def test_ctrl_c_is_no_fault():
    code = "import django; django.setup()\nraise KeyboardInterrupt"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_every_line_of_a_running_host_is_json_and_tells_what_it_is_about(host):
    with host.client() as client:
        made = client.post("/conversations", json={}, headers={"X-Request-ID": "made-1"}).json()["conversationId"]
        asked = {"json": {"message": "What time is it?"}, "headers": {"X-Request-ID": "asked-1"}}
        turn = client.post(f"/conversations/{made}/chat", **asked).json()["turnId"]
    text = host.log_text()
    assert "[queues]" not in text  # Celery's banner
    # What is said at the start comes first; on production that is Celery's word, by each process.
    spoken = text[text.index("\n{") + 1 :].splitlines()
    seen = [json.loads(line) for line in spoken if shapes.shape() == shapes.EMBEDDED or line.startswith("{")]
    (access,) = [line for line in seen if line.get("requestId") == "made-1"]
    assert (access["event"], access["method"], access["status"]) == ("request", "POST", 201)
    of_the_turn = [line for line in seen if line.get("turn") == turn]
    assert {"model call", "tool call"} <= {line["event"] for line in of_the_turn}
    assert {(line["requestId"], line["conversation"]) for line in of_the_turn} == {("asked-1", made)}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "form"),
    [("/admin/login/", "a=1&" * 2_000), (f"/admin/{'a' * 20_000}", "")],
    ids=["too many fields", "too long a redirect"],
)
def test_a_request_that_django_refuses_is_no_fault_of_the_host_s(client, caplog, path, form):
    """The access line tells of it; a traceback would let strangers fill the log, some 16 kB a request."""
    get_user_model().objects.create_superuser("boss", password="right")
    answer = client.post(path, form, content_type="application/x-www-form-urlencoded", secure=True)
    assert answer.status_code == 400
    assert not [record for record in caplog.records if record.exc_info]
