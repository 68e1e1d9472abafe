"""kill -9 in the midst of streamed responses, and readers that come back (``starting_after``): the same text, and no
event twice. Two hundred streams at once."""

import asyncio
import os
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import openai
import pytest

from tests.support.crowd import come_all, request
from tests.support.hosts import PROCESSES, Host
from tests.support.openai_client import openai_client
from tests.support.responses import told
from tests.support.scripts import script
from tests.support.wait import wait_until

MODEL = "default"
WORDS = [f"word{number} " for number in range(40)]
POEM = "".join(WORDS).strip()
STREAMS = 200
SEED = int(os.environ.get("FAULTS_SEED", "") or random.SystemRandom().randrange(10**6))

DOSES = pytest.mark.parametrize(
    "kills", [1, pytest.param(20, marks=[pytest.mark.faults, pytest.mark.timeout(1200)])], ids=["one", "many"]
)


def begin(client: openai.OpenAI, words: int) -> tuple[Any, list[Any]]:
    """A response in the background, of which so many pieces were read: its stream, and its events so far."""
    steps = script({"say": POEM, "pace": 0.05})
    stream = client.responses.create(model=MODEL, input=steps, stream=True, background=True)
    seen: list[Any] = []
    for event in stream:
        seen.append(event)
        if sum(each.type == "response.output_text.delta" for each in seen) == words:
            return stream, seen
    raise AssertionError("it has ended")


def go_on(address: str, host: Host, seen: list[Any]) -> list[Any]:
    """All events, those that were seen and those behind them."""
    with openai_client(host, base_url=f"{address}/v1", max_retries=0) as client:
        return seen + told(
            client.responses.retrieve(
                seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number, timeout=60
            )
        )


def judge(events: list[Any]) -> None:
    """No event twice; and what was told, item by item, is what is in the response."""
    numbers = [each.sequence_number for each in events]
    assert numbers == sorted(set(numbers))
    assert [each.type for each in events if not each.type.startswith("response.output_")][-1] == "response.completed"
    response = events[-1].response
    assert response.output_text == POEM
    pieces: dict[str, str] = {}
    for event in events:
        if event.type == "response.output_text.delta":
            pieces[event.item_id] = pieces.get(event.item_id, "") + event.delta
    (last,) = response.output
    # Of a node that was killed, some may have come that nobody read: then it is told in its end alone.
    done = [each.item for each in events if each.type == "response.output_item.done"]
    assert done[-1] == last
    assert all(POEM.startswith(text.strip()) for text in pieces.values())
    assert pieces[last.id] == POEM


@DOSES
def test_a_killed_web_node_costs_a_reader_no_event(mortal: Host, kills: int) -> None:
    for words in points(kills):
        with openai_client(mortal, max_retries=0) as client:
            stream, seen = begin(client, words)
            mortal.kill("web")
            with suppress(openai.APIConnectionError, httpx2.HTTPError):
                seen += list(stream)
        mortal.start()
        judge(go_on(mortal.address, mortal, seen))


@pytest.mark.production(reason="the embedded host is one process: killed, it takes the client's connection along")
@DOSES
def test_a_killed_worker_costs_a_reader_no_event(mortal: Host, kills: int) -> None:
    for words in points(kills):
        with openai_client(mortal, max_retries=0) as client:
            stream, seen = begin(client, words)
            mortal.kill("worker")
            mortal.start()
            judge(seen + told(stream))
            whole = told(client.responses.retrieve(seen[0].response.id, stream=True))
            assert whole[: len(seen)] == seen


@pytest.fixture
def another_web(mortal: Host) -> Iterator[str]:
    """The address of a second web node beside the host's own."""
    log = mortal.data_dir / "another-web.log"
    with log.open("wb") as file:
        process = mortal.begin(PROCESSES["web"], file.fileno())
    wait_until(lambda: re.search(r"listening on http", log.read_text()))
    (address,) = re.findall(r"listening on (http://[^/\s]+)", log.read_text())
    yield address
    process.kill()
    process.wait()


@pytest.mark.production(reason="an embedded host is one process")
def test_another_web_node_goes_on_with_a_stream(mortal: Host, another_web: str) -> None:
    with openai_client(mortal, max_retries=0) as client:
        stream, seen = begin(client, 5)
        mortal.kill("web")
        with suppress(openai.APIConnectionError, httpx2.HTTPError):
            seen += list(stream)
    judge(go_on(another_web, mortal, seen))


def points(kills: int) -> list[int]:
    """After how many words somebody is killed."""
    rng = random.Random(SEED)
    print(f"FAULTS_SEED={SEED}")  # noqa: T201 -- to repeat it
    return [rng.randrange(1, len(WORDS) - 10) for _ in range(kills)]


def test_200_streams_at_once_are_all_whole(host: Host) -> None:
    def asked(number: int) -> bytes:
        said = script({"say": f"{number} one two three", "pace": 0.1})
        body = {"model": MODEL, "messages": [{"role": "user", "content": said}], "stream": True}
        return request("POST", "/chat/completions", body=body, prefix="/v1")

    async def all_of_them() -> list[Any]:
        visitors = await come_all(host.address, [asked(number) for number in range(STREAMS)])
        await asyncio.wait([each.left for each in visitors], timeout=90)
        return visitors

    for number, visitor in enumerate(asyncio.run(all_of_them())):
        assert visitor.status == 200
        *chunks, end, _ = visitor.body().decode().replace(": ping\n\n", "").split("\n\n")
        said = re.findall(r'"content":\s?"([^"]*)"', "".join(chunks))
        assert ("".join(said), end) == (f"{number} one two three", "data: [DONE]")
