"""While Redis is away, which carries the events: who waits is answered from the rows, and who reads is told the end."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.servers import Redis, missing_binaries
from tests.support.api_client import chat, eventually, start, turns_of
from tests.support.hosts import Host
from tests.support.scripts import script
from tests.support.sse import events_of, streaming, text_of

pytestmark = [
    pytest.mark.production(reason="the embedded bus is the process's own; lost events: test_stream_readers.py"),
    pytest.mark.skipif("redis-server" in missing_binaries(), reason="needs redis-server"),
]
POEM = " ".join(f"word{number}" for number in range(40))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("bus") / "redis")
    server.start()
    yield server
    server.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def own(redis: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with a Redis of its own, which may be stopped."""
    made = Host(tmp_path_factory.mktemp("host"), REDIS_URL=redis.url, SWEEP_SECONDS="0.5", CHAT_WAIT_SECONDS="60")
    yield made.start()
    made.kill()


def is_running(host: Host, conversation_id: str) -> bool:
    return [turn["status"] for turn in turns_of(host, conversation_id)] == ["running"]


@pytest.fixture(params=["stopped", "silent"])
def away(request: pytest.FixtureRequest, redis: Redis) -> Iterator[object]:
    """What has Redis go away, and back afterwards."""
    if request.param == "silent":
        yield redis.hang
        redis.go_on()
    else:
        yield lambda: redis.stop(signal.SIGKILL)
        redis.start()


def test_who_waits_is_answered_though_redis_goes_away_meanwhile(own: Host, away) -> None:
    with own.client() as client, ThreadPoolExecutor(1) as pool:
        conversation_id = start(client)
        asked = pool.submit(chat, client, conversation_id, script({"sleep": 2, "say": "done"}))
        eventually(lambda: is_running(own, conversation_id))
        away()
        answer = asked.result(20)
    assert (answer.status_code, answer.json()["assistantMessage"]) == (200, "done")


def test_who_asks_while_redis_is_away_is_answered(own: Host, away) -> None:
    """A sweep finds the turn, of which nothing notifies; a look at the rows its end."""
    with own.client() as client:
        conversation_id = start(client)
        away()
        answer = chat(client, conversation_id, "Hello", timeout=25)  # long before its waiting time is up
    assert (answer.status_code, answer.json()["assistantMessage"]) == (200, "You said: Hello")


def test_a_reader_is_told_the_whole_answer_at_the_end_though_redis_goes_away(own: Host, away) -> None:
    with own.client() as client:
        conversation_id = start(client)
        body = {"message": script({"say": POEM, "pace": 0.05}), "stream": True}
        with streaming(client, "POST", f"/conversations/{conversation_id}/chat", json=body) as told:
            seen = [next(told) for _ in range(4)]
            away()
            seen += told
    assert seen[-1].kind == "turn.completed"
    assert seen[-1].data["assistantMessage"] == POEM
    assert POEM.startswith(text_of(seen))  # what was told is right, and some of it was not
    assert len({event.id for event in seen}) == len(seen)


def test_who_comes_to_read_while_redis_is_away_is_told_what_the_rows_tell(own: Host, away) -> None:
    with own.client() as client:
        turn_id = chat(client, start(client), "Hello").json()["turnId"]
        away()
        events = events_of(client, turn_id)
    assert [event.kind for event in events] == ["turn.queued", "turn.started", "message.delta", "turn.completed"]
    assert text_of(events) == "You said: Hello"


def test_when_redis_is_back_events_are_told_again(own: Host, redis: Redis) -> None:
    redis.stop(signal.SIGKILL)
    redis.start()
    with own.client() as client:

        def pieces() -> int:
            body = {"message": script({"say": POEM, "pace": 0.01}), "stream": True}
            with streaming(client, "POST", f"/conversations/{start(client)}/chat", json=body) as told:
                return sum(event.kind == "message.delta" for event in told)

        eventually(lambda: pieces() > 5)
