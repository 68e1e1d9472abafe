"""The hub: whoever follows a turn hears all of it, whoever came and left before, and whatever the transport lost."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from uuid import UUID

import pytest

from conversations import events
from conversations.events.hub import Hub, Subscription
from nanohost.lib.ids import new_id

# So many times the event loop goes round before the next thing happens: among them is each step of a subscription.
STEPS = range(12)


@pytest.fixture(autouse=True)
def _transport_of_ones_own() -> Iterator[None]:
    events.transport.cache_clear()
    yield
    events.transport.cache_clear()


async def nothing_has_ended(turn_ids: list[UUID]) -> set[UUID]:
    return set(turn_ids)


def with_hub(do: Callable[[Hub, UUID], Coroutine[Any, Any, None]]) -> None:
    """Do something with a hub on the shape's transport, and a turn of one's own."""

    async def main() -> None:
        hub = Hub(nothing_has_ended)
        await hub.attach()
        async with asyncio.timeout(20):
            while not getattr(events.transport(), "is_connected", True):  # Redis: until it is connected
                await asyncio.sleep(0.005)
            await do(hub, new_id())
        await hub.detach()

    asyncio.run(main())


async def hears(subscription: Subscription, *kinds: str) -> None:
    while [event.kind for event, _ in subscription.events] != list(kinds):
        await subscription.changed()


async def go_round(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.mark.parametrize("steps", STEPS)
def test_who_comes_while_the_last_subscriber_leaves_hears_everything(steps):
    async def do(hub: Hub, turn_id: UUID) -> None:
        with hub.subscribed(turn_id) as first:
            await hub.load(turn_id, first)
        await go_round(steps)
        with hub.subscribed(turn_id) as second:
            await hub.load(turn_id, second)
            events.publish(turn_id, "turn.started", fence=1)
            await hears(second, "turn.started")

    with_hub(do)


@pytest.mark.parametrize("steps", STEPS)
def test_who_comes_while_a_subscriber_leaves_that_has_heard_nothing_yet_hears_everything(steps):
    async def do(hub: Hub, turn_id: UUID) -> None:
        events.publish(turn_id, "turn.started", fence=1)
        await asyncio.to_thread(events.transport().flush, timeout=5)
        with hub.subscribed(turn_id) as first:
            loading = asyncio.ensure_future(hub.load(turn_id, first))
            await go_round(steps)
            loading.cancel()
        with hub.subscribed(turn_id) as second:
            await hub.load(turn_id, second)
            assert [event.kind for event, _ in second.events] == ["turn.started"]
            events.publish(turn_id, "tool.started", {"callId": "1"})
            await hears(second, "turn.started", "tool.started")

    with_hub(do)


def test_what_is_followed_by_nobody_is_not_told():
    async def do(hub: Hub, turn_id: UUID) -> None:
        with hub.subscribed(turn_id) as subscription:
            await hub.load(turn_id, subscription)
            assert turn_id in events.transport().subscribed
        async with asyncio.timeout(5):
            while turn_id in events.transport().subscribed:
                await asyncio.sleep(0.005)

    with_hub(do)


def test_what_was_missed_while_the_kept_events_were_read_is_read_again():
    """The transport was connected anew meanwhile, and did not know of the subscription yet."""

    async def do(hub: Hub, turn_id: UUID) -> None:
        with hub.subscribed(turn_id) as subscription:
            loading = asyncio.ensure_future(hub.load(turn_id, subscription))
            await go_round(3)
            await events.transport().unsubscribe(turn_id)
            hub.missed_some()
            await loading
            events.publish(turn_id, "turn.started", fence=1)
            await hears(subscription, "turn.started")

    with_hub(do)
