"""Faults of what a host stands on, on either shape: a model that does what models do, a DATA_DIR that is full.

A small dose each. What was accepted ends in an answer or in a failure with its code; the next question is answered.
"""

import random
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from conversations.errors import TurnProblem
from tests import shapes
from tests.faults.trials import SEED
from tests.support.api_client import start
from tests.support.hosts import Host
from tests.support.openai_answers import NO_COMPLETIONS, STATUSES
from tests.support.openai_server import (
    EVENT_STREAM,
    OpenAIServer,
    Reply,
    call,
    chunk,
    completion,
    endless,
    event,
    events,
    failure,
)
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

KEY = "sk-canary-51f0a9c2b7"

# Besides those that are no answers (24), and statuses (23): slow, broken off, wild.
OTHERS = [
    completion(before=5),
    completion(before=1, between=0.2),
    endless(between=0.05),
    completion("x" * 300_000),
    completion("\ud800\x00", thought="\u202e"),
    completion(usage={"prompt_tokens": True, "completion_tokens": -1, "total_tokens": "many"}),
    completion(None, tool_calls=[call("nothing"), call("time", call_id="call_1")]),
    completion(None, tool_calls=[call("time", "{" * 5000)]),
    events(chunk({"content": "Half"}), hang_up=True),
    events(chunk({"content": "Half"}), {"error": {"message": "overloaded", "code": 503}}),
    events("not json"),
    Reply(body=[event(chunk({"content": "x"}))] * 5, headers=EVENT_STREAM, between=0.1),
    failure(429, headers={"Retry-After": "0.01"}),
    failure(503, headers={"Retry-After": "-1"}),
    failure(503, headers={"Retry-After": "never"}),
    Reply(status=307, headers={"Location": "http://127.0.0.1:9/"}),
]
BEHAVIOURS = [*NO_COMPLETIONS, *(reply for reply, _ in STATUSES), *OTHERS]


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    running = OpenAIServer(key=KEY).start()
    yield running
    running.stop()


def ask(client: httpx2.Client, conversation: str, message: str) -> str:
    answer = client.post(
        f"/conversations/{conversation}/chat", json={"message": message}, headers={"Prefer": "respond-async"}
    )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["turnId"])


def ended(client: httpx2.Client, turns: list[str]) -> list[dict[str, Any]]:
    """The turns, once all have ended."""

    def look() -> list[dict[str, Any]]:
        found = [client.get(f"/turns/{each}").json() for each in turns]
        return found if all(each["endedAt"] for each in found) else []

    wait_until(look, seconds=240)
    return look()


def judge(host: Host, conversations: list[str]) -> None:
    """No answer twice, and none out of order: each turn's messages follow one another, one answer at its end."""
    for conversation in conversations:
        with host.client() as client:
            messages = client.get(f"/conversations/{conversation}/messages?limit=200").json()["results"]
        assert [each["seq"] for each in messages] == list(range(1, len(messages) + 1))
        numbers = [each["turnId"] for each in messages]
        assert numbers == sorted(numbers, key=numbers.index), "turns are mixed"
        assert [each["role"] for each in messages].count("USER") == 2


def test_a_model_behaves_in_every_way_there_is(tmp_path: Path, model: OpenAIServer, capsys: Any) -> None:
    assert len(BEHAVIOURS) >= 48
    dice = random.Random(SEED)
    options = {"LLM_BASE_URL": model.url, "OPENAI_API_KEY": KEY, "LLM_TIMEOUT_SECONDS": "2", "LLM_RETRY_SECONDS": "4"}
    options["LLM_REST_SECONDS"] = "0"  # each turn meets the faults itself
    host = Host(tmp_path, TURN_MAX_ATTEMPTS="1", **options).start()
    try:
        with host.client() as client:
            talks = [start(client) for _ in BEHAVIOURS]
            model.answer(*(replace(reply) for reply in dice.sample(BEHAVIOURS, len(BEHAVIOURS))))
            with ThreadPoolExecutor(8) as threads:
                turns = list(threads.map(lambda talk: ask(client, talk, "Hello"), talks))
            met = ended(client, turns)
            codes = {each["error"]["code"] for each in met if each["error"]}
            failed = sum(bool(each["error"]) for each in met)
            with capsys.disabled():
                print(f"\nFAULTS_SEED={SEED}; {len(met)} turns, {failed} failed")  # noqa: T201 -- to repeat it
            assert codes <= set(TurnProblem.codes) - {"turn_error", "turn_crashed"}
            model.forget()
            model.key = KEY
            again = ended(client, [ask(client, talk, "Hello again") for talk in talks])
        assert [each["assistantMessage"] for each in again] == ["You said: Hello again"] * len(talks)
        judge(host, talks)
        assert KEY not in host.log_text()
    finally:
        host.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("to make a small file system takes root, and the right to mount")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_the_data_dir_is_full(small_disk: Path) -> None:
    """Embedded, the database is in there: what is asked is refused with 503 or stored. On production only a key is."""
    host = Host(small_disk, NANOHOST_EXTRA_APPS="tests.toolbox", LOG_LEVEL="ERROR").start()
    filler, accepted, refused = small_disk / "filler", [], 0
    try:
        with host.client() as client:
            talks = [start(client) for _ in range(8)]
            accepted += [ask(client, talk, "Hello") for talk in talks]
            ended(client, accepted)
            fill(filler)
            for number in range(40):
                answer = client.post(
                    f"/conversations/{talks[number % 8]}/turns",
                    json={"message": "x" * 4000},
                    headers={"Idempotency-Key": f"full-{number}"},
                )
                assert answer.status_code in (202, 503), answer.text
                accepted += [answer.json()["turnId"]] if answer.status_code == 202 else []
                refused += answer.status_code == 503
            assert refused or shapes.shape() == shapes.PRODUCTION, "it was not full"
            filler.unlink()
            accepted += [ask(client, talk, "Hello again") for talk in talks]
            assert {each["status"] for each in ended(client, accepted)} == {"succeeded"}
        assert all(process.poll() is None for process in host.processes.values())
    finally:
        host.kill()


def fill(filler: Path) -> None:
    """Leave no byte."""
    free = shutil.disk_usage(filler.parent).free
    with filler.open("wb", buffering=0) as file:
        try:
            for _ in range(free // 4096 + 2):
                file.write(bytes(4096))
        except OSError:
            return
