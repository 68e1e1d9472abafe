"""The connection that events are heard by, cut again and again: whatever it was doing, they are heard again."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from django.test import Client
from redis.asyncio import Redis as AsyncRedis

from conversations import events
from conversations.events import redis as transport_module
from conversations.events.redis import RedisTransport
from nanohost.lib.ids import new_id
from tests.faults.servers import Redis, missing_binaries
from tests.support.listening import HeardListener, until
from tests.support.scraping import scrape

pytestmark = [
    pytest.mark.production(reason="the embedded bus is the process's own"),
    pytest.mark.skipif("redis-server" in missing_binaries(), reason="needs redis-server"),
]


@pytest.fixture
def at_it(redis: Redis, settings: Any) -> str:
    settings.REDIS_URL = redis.url
    return redis.url


async def cut_all(client: AsyncRedis) -> None:
    for kind in ("pubsub", "normal"):
        await client.client_kill_filter(_type=kind, skipme=True)


async def hears_of(transport: RedisTransport, listener: HeardListener) -> int:
    """Follow a new turn and tell of it; how often it was told until it was heard. What is told as a connection is cut
    may be lost."""
    turn_id, tries = new_id(), 0
    await transport.subscribe(turn_id)
    before = len(listener.heard)
    while len(listener.heard) == before:
        tries += 1
        transport.publish(turn_id, "turn.started", {}, fence=1)
        transport.publish_end(turn_id, None)
        for _ in range(100):
            await asyncio.sleep(0.01)
            if len(listener.heard) > before:
                break
        assert tries < 5, "nothing is heard any more"
    await until(lambda: turn_id in listener.over)
    return tries


@pytest.mark.parametrize("seed", range(2))
def test_after_a_storm_of_cuts_events_are_heard_at_once(at_it, seed):
    """2 to 700 ms apart, while turns are subscribed to and left all the time."""
    chance, listener = random.Random(seed), HeardListener()

    async def come_and_go(transport: RedisTransport) -> None:
        while True:
            turn_id = new_id()
            with suppress(OSError):
                await transport.subscribe(turn_id)
            await transport.unsubscribe(turn_id)
            await asyncio.sleep(0)

    async def main() -> None:
        transport = RedisTransport()
        await transport.attach(listener)
        busy = [asyncio.create_task(come_and_go(transport)) for _ in range(8)]
        async with AsyncRedis.from_url(at_it) as judge:
            for _ in range(20):
                await asyncio.sleep(min(chance.expovariate(12), 0.7) + 0.002)
                await cut_all(judge)
        assert [task.exception() for task in busy if task.done()] == []
        for task in busy:
            task.cancel()
        await until(lambda: transport.is_connected)
        assert await hears_of(transport, listener) <= 2  # the publisher's connection may be a dead one, once
        assert await hears_of(transport, listener) == 1
        assert not transport.is_deaf()
        await transport.detach()

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [RuntimeError("read() called while another coroutine is waiting"), ValueError("junk")]
)
def test_whatever_ends_a_connection_another_is_made(at_it, error):
    class Stumbling(HeardListener):
        subscribed = 0

        def missed_some(self) -> None:
            self.subscribed += 1
            if self.subscribed <= 3:
                raise error

    listener = Stumbling()

    async def main() -> None:
        transport = RedisTransport()
        await transport.attach(listener)
        await until(lambda: listener.subscribed == 4)
        assert await hears_of(transport, listener) == 1
        await transport.detach()

    asyncio.run(main())
    assert listener.subscribed == 4


def test_who_hears_nothing_of_itself_says_that_it_is_deaf_until_it_does(at_it, redis, monkeypatch):
    monkeypatch.setattr(transport_module, "WORD_SECONDS", 0.02)
    monkeypatch.setattr(transport_module, "DEAF_AFTER", 0.5)

    async def main() -> None:
        transport = RedisTransport()
        assert not transport.is_deaf()  # nobody listens
        await transport.attach(HeardListener())
        await until(lambda: transport.is_connected)
        assert not transport.is_deaf()
        redis.hang()
        try:
            await until(transport.is_deaf)
        finally:
            redis.go_on()
        await until(lambda: not transport.is_deaf())
        await transport.detach()

    asyncio.run(main())


def test_a_way_that_swallows_everything_is_left_for_another(at_it, monkeypatch):
    """As a connection whose other end has gone without a word: subscribed as ever, and nothing comes."""
    monkeypatch.setattr(transport_module, "WORD_SECONDS", 0.02)
    monkeypatch.setattr(transport_module, "DEAF_AFTER", 0.3)
    listener = HeardListener()

    async def main() -> None:
        transport = RedisTransport()
        await transport.attach(listener)
        await until(lambda: transport.is_connected)
        transport.own_channel = "elsewhere"  # to which this connection is not subscribed
        await until(lambda: not transport.is_connected)
        await until(lambda: transport.is_connected and not transport.is_deaf())
        assert await hears_of(transport, listener) == 1
        await transport.detach()

    asyncio.run(main())


def test_a_publisher_stumbles_over_nothing(at_it):
    """What cannot be told is dropped; the next is told."""
    listener = HeardListener()

    async def main() -> None:
        transport = RedisTransport()
        await transport.attach(listener)
        await until(lambda: transport.is_connected)
        transport.publish(new_id(), "turn.started", {"not": {1, 2, 3}}, fence=1)
        await asyncio.to_thread(transport.flush, timeout=10)
        assert await hears_of(transport, listener) == 1
        await transport.detach()

    asyncio.run(main())


@pytest.mark.django_db(transaction=True)
def test_readiness_and_the_metrics_tell_of_a_deaf_node(at_it, monkeypatch):
    transport = RedisTransport()
    monkeypatch.setattr(events, "transport", lambda: transport)

    async def hear_a_word() -> None:
        await transport.attach(HeardListener())
        await until(transport.is_deaf)  # by the limit below: it has heard one
        await transport.detach()

    monkeypatch.setattr(transport_module, "DEAF_AFTER", -1.0)
    asyncio.run(hear_a_word())
    told = []
    for deaf_after in (3600.0, -1.0):
        monkeypatch.setattr(transport_module, "DEAF_AFTER", deaf_after)
        told.append((Client().get("/health/ready").json()["checks"]["news"], scrape()["nanohost_news_deaf",]))
    assert told == [("ok", 0.0), ("unavailable", 1.0)]
