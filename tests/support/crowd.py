"""Many clients at once, cheap enough to share a machine with what they test: raw HTTP, on one event loop."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.hosts import KEY, Host
from tests.support.sse import Told, parse


class Visitor(asyncio.Protocol):
    """One client on a connection of its own, which is cut after ``cut_after`` bytes of the body, as they travel."""

    def __init__(self, request: bytes, *, cut_after: int | None = None) -> None:
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._request, self._cut_after = request, cut_after
        self._received = bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._cut_after is not None and len(self._travelled()) >= self._cut_after and self.transport:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.left.done():
            self.left.set_result(None)

    @property
    def status(self) -> int:
        """Of the answer; 0 before it has begun."""
        head, found, _ = self._received.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]) if found else 0

    def body(self) -> bytes:
        """As much as has come."""
        if b"transfer-encoding: chunked" not in self._received.partition(b"\r\n\r\n")[0]:
            return self._travelled()
        parts, rest = [], self._travelled()
        while (head := rest.partition(b"\r\n"))[1]:
            size = int(head[0], 16)
            parts.append(head[2][:size])
            rest = head[2][size + 2 :]
        return b"".join(parts)

    def _travelled(self) -> bytes:
        found = self._received.find(b"\r\n\r\n")
        body = bytes(self._received[found + 4 :]) if found >= 0 else b""
        return body[: self._cut_after]

    def told(self) -> list[Told]:
        """The events that have come whole."""
        whole = self.body().rpartition(b"\n\n")[0] + b"\n\n"
        return list(parse(iter(whole.decode().split("\n"))))


def request(
    method: str,
    path: str,
    *,
    body: dict[str, Any] | None = None,
    last_id: str = "",
    in_query: bool = False,
    prefix: str = "/api/v1",
) -> bytes:
    """A request to the API, after whose answer the connection ends. ``last_id``: of the last event that was seen, told
    in the header or in the query. ``prefix``: of the API's addresses."""
    content = json.dumps(body).encode() if body is not None else b""
    if last_id and in_query:
        path += f"?last_event_id={last_id}"
    lines = [
        f"{method} {prefix}{path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {KEY}",
        "Connection: close",
        *([f"Last-Event-ID: {last_id}"] if last_id and not in_query else []),
        *(["Content-Type: application/json"] if content else []),
        f"Content-Length: {len(content)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def come(address: str, asked: bytes, *, cut_after: int | None = None) -> Visitor:
    """A client that has connected and asked."""
    place = urlsplit(address)
    loop = asyncio.get_running_loop()
    _, visitor = await loop.create_connection(lambda: Visitor(asked, cut_after=cut_after), place.hostname, place.port)
    return visitor


async def come_all(address: str, asked: Sequence[bytes]) -> list[Visitor]:
    """A client for each of these; they come fifty at a time."""
    visitors: list[Visitor] = []
    for first in range(0, len(asked), 50):
        visitors += await asyncio.gather(*(come(address, one) for one in asked[first : first + 50]))
    return visitors


async def until(condition: Any, *, seconds: float = 60) -> None:
    """Return once it is true, without holding up the others on the loop."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def threads_of(host: Host) -> int:
    """Of the process that serves HTTP."""
    return _counted(host, "Threads")


def memory_of(host: Host) -> int:
    """Its memory that is its own, in bytes."""
    return _counted(host, "RssAnon") * 1024


def _counted(host: Host, what: str) -> int:
    assert host.process
    found = re.search(rf"^{what}:\s+(\d+)", Path(f"/proc/{host.process.pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def sockets_of(host: Host) -> int:
    """Its open sockets."""
    return sum(name.startswith("socket:") for name in host.open_files())
