"""The gateway, driven as the ASGI server drives it, with a real turn: readers that are slow, streams that fail,
and events that never come."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
import uvicorn
from django.conf import settings as django_settings

from conversations import events
from conversations.engine import turn_control
from conversations.events import answers, hub, streams
from conversations.events.streams import MAX_SENT_AT_ONCE
from conversations.models import Turn
from conversations.openai_api.chat_completions import ChatCompletion
from conversations.openai_api.response_view import ResponseView
from conversations.statuses import TurnStatus
from conversations.web import gateway
from nanohost.lib.database import borrowed_connection
from nanohost.lib.http import BoundedHeads
from tests.support.sse import Told, parse

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _transport_of_ones_own() -> Iterator[None]:
    events.transport.cache_clear()
    yield
    events.transport.cache_clear()


@pytest.fixture
def pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for events is pinged soon: with its second part, a reader is seen to wait."""
    monkeypatch.setattr(streams, "PING_SECONDS", 0.1)


class Reader:
    """A client that reads a turn's events from behind ``last_id``. It takes ``takes`` parts, and then none until
    ``goes_on`` is set."""

    def __init__(self, turn_id: UUID, *, last_id: str = "", takes: int = 10**9) -> None:
        self.parts: list[bytes] = []
        self.statuses: list[int] = []
        self.is_over = False
        self.goes_on = asyncio.Event()
        self._takes = takes
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": f"/api/v1/turns/{turn_id}/events",
            "query_string": b"",
            "http_version": "1.1",
            # The last event of a turn without an answer is a problem, which has the request's id.
            "headers": [
                (b"host", b"localhost"),
                (b"x-request-id", b"of-all-of-them"),
                (b"last-event-id", last_id.encode()),
            ],
        }
        self._asked = False

    async def read(self, room: gateway.ResponseGateway) -> None:
        await room(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._asked:
            await asyncio.Event().wait()
        self._asked = True
        return {"type": "http.request"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])
            return
        if len(self.parts) >= self._takes:
            await self.goes_on.wait()
        self.parts.append(message["body"])
        self.is_over = not message.get("more_body")

    def told(self) -> list[Told]:
        return list(parse(iter(b"".join(self.parts).decode().split("\n"))))

    def text(self) -> str:
        return "".join(event.data["text"] for event in self.told() if event.kind == "message.delta")


def gateway_of(
    turn: Any,
    *,
    streams: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
    renderer: answers.Renderer = answers,
) -> gateway.ResponseGateway:
    """A room around a Django that has everybody wait for this turn, or read its stream. ``meanwhile`` happens after
    Django has looked at the turn."""

    def django(environ: Any, start_response: Any) -> Any:
        meanwhile()
        awaited = gateway.Awaited(turn_id=turn.pk, renderer=renderer, streams=streams)
        environ[gateway.HANDOVER].awaited = awaited
        start_response("202 Accepted", [])
        return [json.dumps({"turnId": str(turn.pk), "conversationId": str(turn.conversation_id)}).encode()]

    return gateway.ResponseGateway(django)


def speak(turn: Any, text: str, *, offset: int = 0) -> None:
    """Tell of a piece, which the publisher does not put together with those around it."""
    events.publish(turn.pk, "message.delta", {"message": 0, "offset": offset, "text": text}, fence=1)
    events.publish(turn.pk, "tool.started", {"callId": str(offset), "toolName": "time"}, fence=1)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def end(turn: Any) -> None:
    await asyncio.to_thread(events.transport().flush, timeout=10)
    await asyncio.to_thread(in_a_thread, turn_control.cancel_turn, turn)


def read_all(client: socket.socket) -> bytes:
    received = bytearray()
    with suppress(ConnectionResetError):
        while part := client.recv(1 << 20):
            received += part
    return bytes(received)


def in_a_thread(do: Callable[[Any], object], turn: Any) -> None:
    with borrowed_connection():
        do(turn)


def test_a_reader_that_takes_nothing_holds_nobody_up_and_has_little_under_way(say, pinged):
    turn, piece = say("Hello"), "x" * 5000

    async def main() -> tuple[Reader, Reader]:
        room = gateway_of(turn)
        lazy, keen = Reader(turn.pk, takes=2), Reader(turn.pk)
        reading = [asyncio.ensure_future(each.read(room)) for each in (lazy, keen)]
        await until(lambda: len(keen.parts) >= 2)
        events.publish(turn.pk, "turn.started", fence=1)
        for number in range(200):
            speak(turn, piece, offset=number * len(piece))
        await end(turn)
        await reading[1]  # and the other one has taken nothing yet
        assert len(lazy.parts) == 2
        lazy.goes_on.set()
        await reading[0]
        await room.close()
        return lazy, keen

    lazy, keen = asyncio.run(main())
    assert lazy.told() == keen.told()
    assert keen.text() == piece * 200
    assert keen.told()[-1].kind == "turn.cancelled"
    assert max(map(len, lazy.parts)) <= MAX_SENT_AT_ONCE


def openai_renderers(turn: Any) -> list[answers.Renderer]:
    completion = ChatCompletion(model="default", turn_id=turn.pk, number=0, created=0)
    return [completion, ResponseView(turn_id=turn.pk, number=0, asked={"model": "default"}, created=0.0)]


@pytest.mark.parametrize("api", [0, 1], ids=["chat completions", "responses"])
def test_a_reader_that_is_told_nothing_is_pinged_whatever_happens(say, pinged, api):
    """Proxies cut what is silent: while a model thinks, which a completion has no words for, while a tool runs and
    while somebody decides."""
    turn = say("Hello")

    async def main() -> Reader:
        room, reader = gateway_of(turn, renderer=openai_renderers(turn)[api]), Reader(turn.pk)
        reading = asyncio.ensure_future(reader.read(room))
        pings = lambda: reader.parts.count(streams.PING)  # noqa: E731 -- shorter than a function
        events.publish(turn.pk, "turn.started", fence=1)
        async with asyncio.timeout(20):
            while pings() < 2:
                events.publish(turn.pk, "tool.started", {"callId": "1", "toolName": "time"}, fence=1)
                await asyncio.sleep(0.01)
        before = pings()
        await until(lambda: pings() >= before + 2)
        await end(turn)
        await reading
        await room.close()
        return reader

    assert asyncio.run(main()).parts[-2].endswith(b"data: [DONE]\n\n")


def test_a_reader_that_takes_nothing_for_long_is_hung_up_on(say, monkeypatch, caplog):
    """Over a real connection: nothing of what is on its way to it is kept."""
    monkeypatch.setattr(gateway, "SLOWEST_READ_SECONDS", 0.1)
    turn, piece = say("Hello"), "x" * 50_000

    async def main() -> None:
        room = gateway_of(turn)
        config = uvicorn.Config(room, http=BoundedHeads, lifespan="off", log_config=None, port=0)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(listener.getsockname())
            client.sendall(f"GET /api/v1/turns/{turn.pk}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await until(lambda: room.hub._subscriptions)
            for number in range(400):  # 20 MB: more than any socket's buffers
                speak(turn, piece, offset=number * len(piece))
            await until(lambda: not server.server_state.connections)
            await until(lambda: not room.hub._subscriptions)
            client.settimeout(10)
            assert not read_all(client).endswith(b"\r\n0\r\n\r\n"), "it looks like the whole of it"
            client.close()
            server.should_exit = True
            await serving
        await room.close()

    asyncio.run(main())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_reader_of_more_events_than_are_kept_goes_on_where_it_was(say, pinged, monkeypatch):
    """What is left of the message then begins in its midst."""
    monkeypatch.setattr(f"{django_settings.EVENTS_TRANSPORT.rpartition('.')[0]}.MAX_KEPT", 10)
    turn = say("Hello")

    async def main() -> tuple[Reader, Reader]:
        room, first = gateway_of(turn), Reader(turn.pk)
        reading = asyncio.ensure_future(first.read(room))
        await until(lambda: len(first.parts) >= 2)
        events.publish(turn.pk, "turn.started", fence=1)
        for number in range(300):
            speak(turn, "x", offset=number)
        await until(lambda: first.told()[-1].data.get("callId") == "299")
        reading.cancel()
        await room.close()
        late = Reader(turn.pk, last_id=first.told()[-4].id)
        await end(turn)
        speak(turn, "y", offset=300)
        await asyncio.to_thread(events.transport().flush, timeout=10)
        await late.read(room := gateway_of(turn))
        await room.close()
        return first, late

    first, late = asyncio.run(main())
    assert first.text() == "x" * 300
    assert late.told()[:3] == first.told()[-3:]
    assert late.text().endswith("xy")


def test_a_start_that_the_rows_tell_before_the_bus_does_is_told_as_the_bus_tells_it(say):
    """Otherwise its id would be one of the rows', and whoever is cut off behind it would be told the turn anew."""
    turn = say("Hello")
    Turn.objects.filter(pk=turn.pk).update(started_at=turn.created_at)

    async def main() -> Reader:
        room, reader = gateway_of(turn), Reader(turn.pk)
        reading = asyncio.ensure_future(reader.read(room))
        await until(lambda: reader.told())
        events.publish(turn.pk, "turn.started", fence=1)
        await end(turn)
        await reading
        await room.close()
        return reader

    started = asyncio.run(main()).told()[1]
    assert started.kind == "turn.started"
    assert not started.id.startswith("0-")


def end_silently(turn: Any) -> None:
    """As a worker does whose events are lost."""
    Turn.objects.filter(pk=turn.pk).update(
        status=TurnStatus.CANCELLED, error_code="turn_cancelled", ended_at=turn.created_at
    )


def is_told_of_the_end(reader: Reader, *, streams: bool) -> bool:
    if streams:
        return [event.kind for event in reader.told()] == ["turn.queued", "turn.cancelled"]
    return reader.statuses == [409] and b"turn_cancelled" in reader.parts[0]


@pytest.mark.parametrize("streams", [False, True], ids=["chat", "stream"])
def test_the_end_is_told_though_its_events_are_lost(say, monkeypatch, streams):
    monkeypatch.setattr(hub, "LOOK_SECONDS", 0.2)
    turn = say("Hello")

    async def main() -> Reader:
        room, reader = gateway_of(turn, streams=streams), Reader(turn.pk)
        reading = asyncio.ensure_future(reader.read(room))
        await until(lambda: turn.pk in room.hub._subscriptions and room.hub._subscriptions[turn.pk].exists)
        await asyncio.to_thread(in_a_thread, end_silently, turn)
        await asyncio.wait_for(reading, 10)
        await room.close()
        return reader

    assert is_told_of_the_end(asyncio.run(main()), streams=streams)


@pytest.mark.parametrize("streams", [False, True], ids=["chat", "stream"])
def test_a_turn_that_ends_before_it_is_listened_for_is_not_waited_for(say, monkeypatch, streams):
    """Django saw it open; it ends before the gateway listens: the rows are looked at without delay."""
    monkeypatch.setattr(hub, "LOOK_SECONDS", 60)
    turn = say("Hello")

    async def main() -> Reader:
        room, reader = gateway_of(turn, streams=streams, meanwhile=lambda: end_silently(turn)), Reader(turn.pk)
        await asyncio.wait_for(reader.read(room), 10)
        await room.close()
        return reader

    assert is_told_of_the_end(asyncio.run(main()), streams=streams)


def test_a_stream_that_fails_ends_and_is_told_of_once(say, pinged, caplog):
    turn = say("Hello")

    async def main() -> Reader:
        room, reader = gateway_of(turn), Reader(turn.pk)
        reading = asyncio.ensure_future(reader.read(room))
        await until(lambda: len(reader.parts) >= 2)
        room._threads.shutdown()  # the rows, which tell how it ended, cannot be read any more
        await end(turn)
        await reading
        await room.close()
        return reader

    with caplog.at_level(logging.ERROR, logger="conversations.web.gateway"):
        reader = asyncio.run(main())
    assert [record.getMessage() for record in caplog.records if record.name == "conversations.web.gateway"] == [
        "a stream has failed; it ends without a last event, so that its reader comes back"
    ]
    assert (reader.statuses, reader.is_over) == ([200], True)
    assert [event.kind for event in reader.told()] == ["turn.queued"]


def test_an_answer_that_cannot_be_sent_is_not_begun_anew(caplog):
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            raise OSError("on purpose")

    scope = {"type": "http", "method": "GET", "path": "/health/live", "query_string": b"", "http_version": "1.1"}
    scope["headers"] = [(b"host", b"localhost")]
    with caplog.at_level(logging.ERROR, logger="conversations.web.gateway"):
        asyncio.run(gateway.ResponseGateway(lambda *_: [])(scope, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert len(caplog.records) == 1
