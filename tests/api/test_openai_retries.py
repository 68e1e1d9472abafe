"""Clients that are cut off, give up or are told to come back: there is one turn, and its answer is whole."""

import threading
from typing import Any
from uuid import UUID

import httpx2
import openai
import pytest

from tests.support.api_client import key_of
from tests.support.hosts import Host
from tests.support.openai_client import openai_client, strictly
from tests.support.scripts import script
from tests.support.wait import wait_until

MODEL = "default"
WORDS = [f"word{number} " for number in range(40)]
POEM = "".join(WORDS).strip()
RETRY = {"x-stainless-retry-count": "1"}


def slow(pace: float = 0.05) -> list[dict[str, Any]]:
    return [{"role": "user", "content": script({"say": POEM, "pace": pace})}]


def count(host: Host) -> int:
    (found,) = host.sql("SELECT count(*) AS n FROM conversations_turn")
    return int(found["n"])


def status_of(host: Host, completion_id: str) -> str:
    (turn,) = host.sql("SELECT status FROM conversations_turn WHERE id = ?", UUID(completion_id.split("-")[1]))
    return str(turn["status"])


def begin(client: openai.OpenAI) -> tuple[Any, str, str]:
    """A stream of which some words have come: itself, its id and those words."""
    stream = client.chat.completions.create(model=MODEL, messages=slow(), stream=True)
    said, chunk_id = "", ""
    for chunk in stream:
        said, chunk_id = said + (chunk.choices[0].delta.content or ""), chunk.id
        if len(said) > 50:
            return stream, chunk_id, said
    raise AssertionError("it has ended")


@pytest.mark.production(reason="the embedded host is one process: killed, it takes the client's connection along")
def test_a_worker_that_is_killed_in_mid_stream_leaves_no_mark(mortal):
    with openai_client(mortal) as client:
        stream, _, said = begin(client)
        mortal.kill("worker")
        mortal.start()
        for chunk in stream:
            said += strictly(chunk).choices[0].delta.content or ""
        assert chunk.choices[0].finish_reason == "stop"
    assert said == POEM


def test_a_web_node_that_is_killed_in_mid_stream_costs_no_second_turn(mortal):
    with openai_client(mortal) as client:
        before = count(mortal)
        stream, chunk_id, _ = begin(client)
        mortal.kill("web")
        with pytest.raises((openai.APIConnectionError, httpx2.HTTPError)):
            list(stream)
    mortal.start()
    with openai_client(mortal) as client:
        again = client.chat.completions.create(model=MODEL, messages=slow(), stream=True, extra_headers=RETRY)
        chunks = [strictly(chunk) for chunk in again]
    assert {chunk.id for chunk in chunks} == {chunk_id}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == POEM
    assert count(mortal) == before + 1


def test_everything_that_is_killed_while_a_client_waits_costs_no_second_turn(mortal):
    before = count(mortal)
    with openai_client(mortal, max_retries=0) as client:
        waiting = threading.Thread(target=ask_in_vain, args=(client,))
        waiting.start()
        wait_until(lambda: count(mortal) == before + 1)
        mortal.kill()
        waiting.join(20)
        assert not waiting.is_alive()
    mortal.start()
    with openai_client(mortal) as client:
        answer = client.chat.completions.create(model=MODEL, messages=slow(), extra_headers=RETRY)
    assert answer.choices[0].message.content == POEM
    assert count(mortal) == before + 1


def ask_in_vain(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(model=MODEL, messages=slow())


def test_a_web_node_that_stops_asks_its_clients_to_come_back(mortal):
    before, told = count(mortal), []
    with openai_client(mortal, max_retries=0) as client:

        def ask() -> None:
            with pytest.raises(openai.InternalServerError) as error:
                client.chat.completions.create(model=MODEL, messages=slow(0.2))
            told.append(error.value)

        waiting = threading.Thread(target=ask)
        waiting.start()
        wait_until(lambda: count(mortal) == before + 1)
        mortal.terminate()
        waiting.join(20)
    assert (told[0].status_code, told[0].code) == (503, "draining")
    assert told[0].response.headers["x-should-retry"] == "true"
    mortal.process.wait()
    mortal.start()
    with openai_client(mortal) as client:
        answer = client.chat.completions.create(model=MODEL, messages=slow(0.2), extra_headers=RETRY)
    assert answer.choices[0].message.content == POEM
    assert count(mortal) == before + 1


def test_a_stream_that_a_stopping_web_node_cuts_says_so(mortal):
    with openai_client(mortal, max_retries=0) as client:
        stream, _, _ = begin(client)
        mortal.terminate()
        with pytest.raises(openai.APIError) as told:
            list(stream)
    assert told.value.code == "draining"
    mortal.process.wait()


def test_while_the_intake_is_paused_the_package_may_try_again(host):
    assert host.manage("intake", "pause", "--because", "A test.").returncode == 0
    try:
        with openai_client(host, max_retries=0) as client, pytest.raises(openai.InternalServerError) as told:
            client.chat.completions.create(model=MODEL, messages=slow())
    finally:
        assert host.manage("intake", "resume").returncode == 0
    assert (told.value.status_code, told.value.code) == (503, "intake_paused")
    assert told.value.response.headers["x-should-retry"] == "true"
    assert told.value.response.headers["retry-after"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("cancels", [False, True])
def test_the_turn_of_a_client_that_goes_away_goes_on_or_not_as_its_key_says(host, cancels, streams):
    key = key_of(host, f"leaves {cancels} {streams}")
    host.sql("UPDATE accounts_apikey SET cancel_on_disconnect = ? WHERE prefix = ?", cancels, key.split("_")[1])
    before = {row["id"] for row in host.sql("SELECT id FROM conversations_turn")}

    def mine() -> list[dict[str, Any]]:
        return [row for row in host.sql("SELECT id, status FROM conversations_turn") if row["id"] not in before]

    with openai_client(host, key, max_retries=0, timeout=0.7) as client:
        if streams:
            client.chat.completions.create(model=MODEL, messages=slow(), stream=True).close()
        else:
            with pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(model=MODEL, messages=slow())
    wait_until(lambda: [row["status"] for row in mine()] == ["cancelled" if cancels else "succeeded"])
