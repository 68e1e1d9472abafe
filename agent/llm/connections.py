"""HTTP/1.1 to a model's server: connections are asyncio's, and what arrives is parsed in C.

httpx2's own transport reads it in Python, through five layers: 1.6 ms of CPU a call, where this takes 0.2. And for each
call it looks twice at the socket of every idle connection, which a process that holds 200 turns has 200 of. What it can
do beside is not wanted here: proxies, HTTP/2, upgrades, and connections on more than one event loop.

What breaks is raised as httpx2's errors.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httptools
import httpx2

from agent import errors

# The longest answers models give, 128,000 tokens, are half a megabyte.
MAX_RESPONSE_BYTES = 8 * 1024 * 1024
MAX_RESPONSE_HEAD_BYTES = 128 * 1024

# Who reads slowly is not sent more than about this at a time.
MAX_UNREAD_BYTES = 256 * 1024

# As httpx2 has it: shorter than servers keep a connection on which nothing happens.
KEPT_SECONDS = 5.0

# Of a server with several addresses: one that is silent for so long is left for the next.
NEXT_ADDRESS_AFTER_SECONDS = 5.0

# Seconds that the end of a stream may take to arrive after its last event; with it, the connection can be used again.
DRAIN_SECONDS = 0.1

# What is raised where a body breaks off; TLS raises errors of its own.
BROKEN = (httpx2.RequestError, ssl.SSLError)

_Origin = tuple[str, str, int | None]


def broken(error: Exception) -> errors.LlmError:
    """What broke a connection, as one of ours."""
    if isinstance(error, httpx2.TimeoutException):
        return errors.LlmTimeout("no answer in time")
    return errors.LlmUnavailable("cannot be reached, or broke off")


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A request without its body, which may be sent with one body after the other. ``head``: up to its length.
    ``connect``, ``read``: seconds for which it may be silent."""

    origin: _Origin
    head: bytes
    connect: float | None
    read: float | None

    @classmethod
    def of(cls, request: httpx2.Request) -> "Outline":
        """Of one that httpx2 has made."""
        url = request.url
        lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), url.raw_path)]
        lines += [b"%b: %b" % (name, value) for name, value in request.headers.raw if name.lower() not in _OF_BODIES]
        if any(b"\n" in line or b"\r" in line for line in lines):
            raise httpx2.LocalProtocolError("a header of more than one line")
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        return cls(
            origin=(url.scheme, url.raw_host.decode("ascii"), url.port),
            head=b"\r\n".join(lines),
            connect=timeouts.get("connect"),
            read=timeouts.get("read"),
        )


_OF_BODIES = (b"content-length", b"transfer-encoding")


class Connections:
    """Connections of one event loop. Of those that are free, it keeps ``kept``."""

    def __init__(self, *, kept: int) -> None:
        self._most_kept = kept
        # Since when each is kept; the last used comes last.
        self.idle: dict[_Origin, dict[_Connection, float]] = {}

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Made when a server wants it: to read the certificates takes 28 ms."""
        context = httpx2.create_ssl_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def send(self, outline: Outline, body: bytes) -> "Reply":
        """Send a request; returns the reply once its head is here."""
        data = b"%b\r\ncontent-length: %d\r\n\r\n%b" % (outline.head, len(body), body)
        connection = self._idle(outline.origin) or await self._connected(outline.origin, outline.connect)
        try:
            return await connection.ask(data, outline.read)
        except BaseException:
            connection.abort()
            raise

    async def aclose(self) -> None:
        """Close the connections that nobody uses."""
        for kept in self.idle.values():
            for connection in list(kept):
                connection.abort()
        self.idle.clear()

    def transport(self) -> httpx2.AsyncBaseTransport:
        """These connections as the packages of providers want them: redirects, proxies and the rest stay out."""
        return _Transport(self)

    def keep(self, connection: "_Connection") -> None:
        """Keep it for the next request."""
        kept = self.idle.setdefault(connection.origin, {})
        if sum(map(len, self.idle.values())) < self._most_kept:
            kept[connection] = time.monotonic()
        else:
            connection.abort()

    def forget(self, connection: "_Connection") -> None:
        """It is lost."""
        self.idle.get(connection.origin, {}).pop(connection, None)

    def _idle(self, origin: _Origin) -> "_Connection | None":
        kept = self.idle.get(origin)
        if not kept:
            return None
        connection, since = kept.popitem()
        if time.monotonic() - since < KEPT_SECONDS and not connection.is_lost:
            return connection
        for old in (connection, *kept):  # the others have not been used for longer still
            old.abort()
        kept.clear()
        return None

    async def _connected(self, origin: _Origin, seconds: float | None) -> "_Connection":
        scheme, host, port = origin
        port = port or (443 if scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {"ssl": self._tls, "server_hostname": host} if scheme == "https" else {}
        try:
            async with asyncio.timeout(seconds):
                *others, last = await loop.getaddrinfo(host, port, type=1)  # SOCK_STREAM
                for _, _, _, _, address in others:
                    try:
                        async with asyncio.timeout(NEXT_ADDRESS_AFTER_SECONDS):
                            return await self._connected_to(address, origin, tls)
                    except (TimeoutError, OSError):
                        continue
                return await self._connected_to(last[4], origin, tls)
        except TimeoutError:
            raise httpx2.ConnectTimeout("cannot be reached in time") from None
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(type(error).__name__) from None

    async def _connected_to(self, address: Any, origin: _Origin, tls: dict[str, Any]) -> "_Connection":
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self, origin), *address[:2], **tls
        )
        return connection


class _Transport(httpx2.AsyncBaseTransport):
    """What a package sends, over our connections."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await self._connections.send(Outline.of(request), await request.aread())
        return httpx2.Response(reply.status, headers=reply.headers, stream=_Body(reply))


class _Body(httpx2.AsyncByteStream):
    """The body of a reply, for a package to read."""

    def __init__(self, reply: "Reply") -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._reply.parts():
            yield part

    async def aclose(self) -> None:
        await self._reply.aclose()


class _Connection(asyncio.Protocol):
    """One connection, and the answer that is read from it."""

    def __init__(self, pool: Connections, origin: _Origin) -> None:
        self.origin, self.is_lost = origin, False
        self._pool = pool
        self._transport: Any = None
        self._parser: Any = None  # while there is an answer to be read
        self._waiter: asyncio.Future[None] | None = None

    async def ask(self, data: bytes, seconds: float | None) -> "Reply":
        """Send a request; returns once the answer's head is here."""
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._received = self._unread = self._status = 0
        self._has_head = self._ended = self._is_reusable = False
        self._error: Exception | None = None
        self._transport.write(data)
        while not self._has_head:
            await self._news(seconds)
        reply = Reply(self, self._status, self._headers, seconds)
        if reply.header(b"content-encoding") not in (b"", b"identity"):  # it may swell
            raise errors.LlmBadResponse("the answer is compressed, though that was not asked for")
        return reply

    async def read(self, seconds: float | None) -> bytes:
        """What has arrived of the body, once there is something; b"" at its end."""
        while not self._parts and not self._ended:
            await self._news(seconds)
        parts, self._parts = self._parts, []
        if self._unread > MAX_UNREAD_BYTES and not self.is_lost:
            self._transport.resume_reading()
        self._unread = 0
        return b"".join(parts)

    def release(self) -> None:
        """The answer has been read, or nobody wants the rest of it."""
        if self._parser and self._ended and self._is_reusable and not self.is_lost:
            self._parser = None
            self._pool.keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close it at once."""
        self._parser = None
        self._transport.abort()

    async def _news(self, seconds: float | None) -> None:
        if self._error:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._waiter
        except TimeoutError:
            raise httpx2.ReadTimeout("silent for too long") from None
        finally:
            self._waiter = None

    def _tell(self, error: Exception | None = None) -> None:
        self._error = self._error or error
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    # --- what asyncio calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._ended:  # nothing was asked
            self._is_reusable = False
            self._pool.forget(self)
            self._transport.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_reusable = False
            if not self._ended:
                self._tell(httpx2.RemoteProtocolError("not HTTP/1.1"))
        if not self._has_head and self._received > MAX_RESPONSE_HEAD_BYTES:
            self._tell(httpx2.RemoteProtocolError("the head is too long"))
        elif self._received > MAX_RESPONSE_BYTES:
            self._tell(errors.LlmBadResponse(f"the answer is larger than {MAX_RESPONSE_BYTES} bytes"))
        if self._unread > MAX_UNREAD_BYTES:
            self._transport.pause_reading()
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._pool.forget(self)
        if self._parser is None or self._ended:
            return
        names = {name.lower() for name, _ in self._headers}
        if self._has_head and exc is None and not names & {b"content-length", b"transfer-encoding"}:
            self._ended = True  # such a body ends with its connection
            self._tell()
        else:
            self._tell(httpx2.RemoteProtocolError("broke off"))

    # --- what the parser calls -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._ended:
            self._is_reusable = False  # an answer to nothing follows this one

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._has_head = self._status >= 200
        if not self._has_head:  # 100 Continue and the like
            self._headers = []

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)
        self._unread += len(part)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._ended, self._is_reusable = True, self._parser.should_keep_alive()


class Reply:
    """What a server answers: a status, headers, and a body that is read once. To be closed."""

    def __init__(
        self, connection: _Connection, status: int, headers: list[tuple[bytes, bytes]], seconds: float | None
    ) -> None:
        self.status, self.headers = status, headers
        self._connection: _Connection | None = connection
        self._seconds = seconds

    def header(self, name: bytes) -> bytes:
        """The first of that name, which is in small letters; empty if there is none."""
        return next((value for each, value in self.headers if each.lower() == name), b"")

    async def parts(self) -> AsyncGenerator[bytes]:
        """The body as it arrives."""
        while self._connection and (part := await self._connection.read(self._seconds)):
            yield part

    async def read(self) -> bytes:
        """The body, to its end; and close it."""
        try:
            return b"".join([part async for part in self.parts()])
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Nobody reads on."""
        connection, self._connection = self._connection, None
        if connection:
            connection.release()
