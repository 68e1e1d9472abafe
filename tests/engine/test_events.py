"""Events of turns: who may tell them, in which order they are heard, and what is left of them when they are lost."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from conversations import events
from conversations.events import Event, Transport
from conversations.events.hub import Hub, Subscription
from conversations.events.redis import MAX_TOLD_BYTES, as_end, joined_pieces
from nanohost.lib.ids import new_id
from tests.support.listening import HeardListener, until


def listening(do: Callable[[Transport, HeardListener, UUID], Coroutine[Any, Any, None]]) -> HeardListener:
    """Do something with a transport of one's own, while a subscriber listens to a turn of one's own."""
    transport: Transport = import_string(django_settings.EVENTS_TRANSPORT)()
    listener, turn_id = HeardListener(), new_id()

    async def main() -> None:
        await transport.attach(listener)
        await until(lambda: getattr(transport, "is_connected", True))
        await do(transport, listener, turn_id)
        await transport.detach()

    asyncio.run(main())
    return listener


def piece(text: str, offset: int = 0, message: int = 0) -> dict[str, Any]:
    return {"message": message, "offset": offset, "text": text}


def told(listener: HeardListener) -> list[tuple[str, str]]:
    return [(event.kind, event.data.get("text", "")) for event in listener.heard]


def test_what_is_told_is_heard_in_its_order_and_kept():
    async def do(transport, listener, turn_id):
        assert await transport.subscribe(turn_id) == []
        transport.publish(turn_id, "turn.started", {}, fence=1)
        for number in range(50):
            transport.publish(turn_id, "tool.started", {"callId": str(number)}, fence=None)
        await until(lambda: len(listener.heard) == 51)
        assert list(await transport.subscribe(turn_id)) == listener.heard

    listener = listening(do)
    places = [event.place for event in listener.heard]
    assert places == sorted(set(places))
    assert [event.data.get("callId") for event in listener.heard] == [None, *map(str, range(50))]


def test_who_has_lost_its_turn_is_not_heard():
    async def do(transport, listener, turn_id):
        await transport.subscribe(turn_id)
        transport.publish(turn_id, "message.delta", piece("old"), fence=1)
        transport.publish(turn_id, "message.delta", piece("new"), fence=2)
        transport.publish(turn_id, "message.delta", piece("er", 3), fence=1)
        transport.publish(turn_id, "message.delta", piece("est", 3), fence=2)
        transport.publish_end(turn_id, None)
        await until(lambda: listener.over)

    listener = listening(do)
    assert ("message.delta", "er") not in told(listener)
    assert told(listener)[:2] == [("message.delta", "old"), ("message.reset", "")]
    assert "".join(text for _, text in told(listener)[2:]) == "newest"


def test_a_later_message_of_another_fence_begins_without_a_reset():
    async def do(transport, listener, turn_id):
        await transport.subscribe(turn_id)
        transport.publish(turn_id, "message.delta", piece("first"), fence=1)
        transport.publish(turn_id, "message.delta", piece("second", message=1), fence=2)
        await until(lambda: len(listener.heard) == 2)

    assert "message.reset" not in [kind for kind, _ in told(listening(do))]


def test_the_end_of_every_turn_is_heard_and_events_only_of_those_subscribed_to():
    other = new_id()

    async def do(transport, listener, turn_id):
        transport.publish(other, "turn.started", {}, fence=1)
        transport.publish_end(other, {"assistantMessage": "Grüße, \u2028 and \n"})
        await until(lambda: other in listener.over)
        assert listener.heard == []
        assert listener.over[other] == {"assistantMessage": "Grüße, \u2028 and \n"}
        assert [event.kind for event in await transport.subscribe(other)] == ["turn.started"]
        await transport.unsubscribe(other)
        transport.publish(other, "turn.started", {}, fence=2)
        transport.publish_end(turn_id, None)
        await until(lambda: turn_id in listener.over)
        assert listener.over[turn_id] is None
        assert listener.heard == []

    listening(do)


def test_no_more_is_kept_than_is_bounded(monkeypatch):
    monkeypatch.setattr(f"{django_settings.EVENTS_TRANSPORT.rpartition('.')[0]}.MAX_KEPT", 10)

    async def do(transport, listener, turn_id):
        await transport.subscribe(turn_id)
        for number in range(500):
            transport.publish(turn_id, "tool.started", {"callId": str(number)}, fence=None)
        await until(lambda: len(listener.heard) == 500)
        kept = await transport.subscribe(turn_id)
        assert len(kept) < 250  # Redis trims by whole nodes of about a hundred
        assert kept[-1] == listener.heard[-1]

    listening(do)


def test_pieces_that_wait_for_redis_become_one():
    turn_id, other = new_id(), new_id()
    first = (turn_id, "message.delta", piece("Hel"), 1)
    assert joined_pieces(first, (turn_id, "message.delta", piece("lo", 3), 1)) == (
        turn_id,
        "message.delta",
        piece("Hello"),
        1,
    )
    for apart in (
        (other, "message.delta", piece("lo", 3), 1),
        (turn_id, "reasoning.delta", piece("lo", 3), 1),
        (turn_id, "message.delta", piece("lo", 3), 2),
        (turn_id, "message.delta", piece("lo", 3, message=1), 1),
        (turn_id, "message.delta", piece("lo", 4), 1),
        (turn_id, None),
    ):
        assert joined_pieces(first, apart) is None


@pytest.mark.shapeless(reason="pure")
def test_a_long_answer_is_not_told_along_with_the_end():
    turn_id = new_id()
    assert as_end(turn_id, {"assistantMessage": "x" * MAX_TOLD_BYTES}) == turn_id.hex
    assert as_end(turn_id, {"assistantMessage": "x"}) == f'{turn_id.hex} {{"assistantMessage":"x"}}'


@pytest.mark.shapeless(reason="pure")
def test_what_comes_while_the_kept_are_read_is_told_after_them_and_once():
    early = [Event(f"{number}-0", "tool.started", {"callId": str(number)}) for number in range(6)]

    async def main() -> list[str]:
        subscription = Subscription()
        for event in early[3:]:
            subscription.on_event(event)
        assert subscription.events == []
        subscription.take_kept(early[:5])
        subscription.on_event(early[5])
        return [event.data["callId"] for event, _ in subscription.events]

    assert asyncio.run(main()) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.shapeless(reason="pure")
def test_the_rows_are_looked_at_when_events_may_be_lost_and_only_of_turns_that_exist():
    asked: list[list[UUID]] = []
    known, not_yet = new_id(), new_id()

    async def still_open(turn_ids: list[UUID]) -> set[UUID]:
        asked.append(turn_ids)
        return set()

    async def main() -> None:
        hub = Hub(still_open)
        with hub.subscribed(known) as subscription, hub.subscribed(not_yet) as made:
            subscription.exists = True
            hub.missed_some()
            await until(lambda: subscription.ended)
            assert not made.ended

    asyncio.run(main())
    assert asked == [[known]]


@pytest.mark.parametrize("bad", ["", "1", "1-", "-1", "a-b", "1-1-1", "1_0-1", "9" * 50 + "-1"])
@pytest.mark.shapeless(reason="pure")
def test_what_is_no_id_is_known(bad):
    with pytest.raises(ValueError, match="no id"):
        events.place_of(bad)
