"""Five hundred readers of one turn on one web process: none misses an event, and none is told one twice."""

import asyncio
from typing import Any

import pytest

from tests.support.api_client import start, turns_of
from tests.support.crowd import Visitor, come_all, memory_of, request, sockets_of, threads_of, until
from tests.support.hosts import Host
from tests.support.scripts import script
from tests.support.sse import Told, parse, text_of

READERS = 500
# What a reader may cost the process, its connection in uvicorn included; measured: 19 to 27 KB.
MAX_BYTES = 60 * 1024


def whole_and_last(body: bytes) -> tuple[list[Told], bytes]:
    """The events, and the bytes that every reader must have had: pings come when they come."""
    told = body.replace(b": ping\n\n", b"")
    return list(parse(iter(told.decode().split("\n")))), told


@pytest.mark.parametrize(
    ("seconds", "pieces"),
    [pytest.param(3, 30, id="3s"), pytest.param(60, 600, id="60s", marks=pytest.mark.faults)],
)
def test_500_readers_of_one_stream_see_the_same_and_all_of_it(
    host: Host, seconds: float, pieces: int, capsys: pytest.CaptureFixture[str]
) -> None:
    poem = " ".join(f"word{number}" for number in range(pieces))
    with host.client() as client:
        conversation_id = start(client)
        url = f"/conversations/{conversation_id}/turns"
        slow = client.post(url, json={"message": script({"sleep": 600})}).json()["turnId"]
        turn_id = client.post(url, json={"message": script({"say": poem, "pace": seconds / pieces})}).json()["turnId"]

        async def read_together() -> tuple[list[Visitor], dict[str, Any]]:
            asked = request("GET", f"/turns/{turn_id}/events")
            early = await come_all(host.address, [asked] * 20)  # so that what a first reader costs is not counted
            await until(lambda: all(one.told() for one in early))
            before = memory_of(host)
            readers = early + await come_all(host.address, [asked] * (READERS - 20))
            await until(lambda: all(one.told() for one in readers))
            waiting = memory_of(host)
            await asyncio.to_thread(client.post, f"/turns/{slow}/cancel")
            await until(lambda: len(readers[-1].told()) > pieces // 2)
            figures = {
                "bytes a reader": (waiting - before) // (READERS - 20),
                "in mid stream": (memory_of(host) - before) // (READERS - 20),
                "threads": threads_of(host),
                "database connections": host.database_connections(),
                "sockets": sockets_of(host),
            }
            await asyncio.wait([one.left for one in readers], timeout=seconds + 60)
            return readers, figures

        readers, figures = asyncio.run(read_together())
    with capsys.disabled():
        print(f"\n{READERS} readers, {seconds} s: {figures}")  # noqa: T201 -- what it costs
    assert {reader.status for reader in readers} == {200}
    told = {whole_and_last(reader.body())[1] for reader in readers}
    assert len(told) == 1
    events, _ = whole_and_last(told.pop())
    assert text_of(events) == poem == events[-1].data["assistantMessage"]
    assert len({event.id for event in events}) == len(events)
    assert [event.kind for event in events][:2] == ["turn.queued", "turn.started"]
    assert events[-1].kind == "turn.completed"
    assert len(events) > pieces // 3  # told while it was said, and not at its end
    assert figures["in mid stream"] < MAX_BYTES
    # Sockets are the readers' own; threads and database connections are those of the pools, however many read.
    assert figures["sockets"] >= READERS
    assert figures["threads"] <= 40
    assert figures["database connections"] <= 30
    assert turns_of(host, conversation_id)[1]["status"] == "succeeded"
