"""A server that is reached over HTTP, by streamable HTTP or the older SSE: mcp's own transports, over connections that
go where the settings allow and nowhere else.

The rules are those of :mod:`tools.outbound`: a port that is allowed, a name that is resolved once, all of whose
addresses are public or opened by the settings, and a connection to a checked address. mcp follows redirects within the
server's own origin only. Nothing of the environment's proxies is used, and no compressed answer is taken.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import httpcore2
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from tools.outbound.addresses import Address, Policy, denial_reason, policy_of

# Bytes of an answer, or of an event in a stream of them; what is longer is taken for a flood, and ends the session.
MAX_ANSWER = 8 << 20
# Of connecting, and of one write; how long an answer may take is the call's own time.
_CONNECT_SECONDS = 10.0
_SILENT_SECONDS = 900.0


@dataclass
class Sent:
    """What is known of a call's message: whether any of it may have reached the server, and the answer's status."""

    begun: bool = False
    status: int = 0


sending: ContextVar[Sent | None] = ContextVar("sending", default=None)


class Remote:
    """A server's address, once it is connected. ``ended`` is set when it is of no use any more; ``why``, by which
    ``rule``."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.why, self.rule = "", "crashed"
        self.errors = b""

    @asynccontextmanager
    async def run(self, spec: dict[str, Any]) -> AsyncIterator[Any]:
        """Connect; gives the two streams that mcp's client talks over."""
        policy = policy_of(private_cidrs=spec["private"], ports=spec["ports"])
        own = spec["headers"] | {"Accept-Encoding": "identity", "User-Agent": "nanohost"}
        patience = httpx2.Timeout(_CONNECT_SECONDS, read=_SILENT_SECONDS)

        def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
            return httpx2.AsyncClient(
                transport=_Guarded(policy, self), headers=own, timeout=patience, trust_env=False, follow_redirects=False
            )

        if spec["transport"] == "sse":
            async with sse_client(spec["url"], httpx_client_factory=client) as streams:
                yield streams
            return
        async with (
            client() as http,
            streamable_http_client(spec["url"], http_client=http, max_sse_event_size=MAX_ANSWER) as streams,
        ):
            yield streams

    def end(self, why: str, rule: str) -> None:
        """It is of no use any more."""
        self.why, self.rule = why, rule
        self.ended.set()


class _Guarded(httpx2.AsyncBaseTransport):
    """Sends requests over checked connections; bounds what comes back."""

    def __init__(self, policy: Policy, remote: Remote) -> None:
        self._remote = remote
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpcore2.default_ssl_context(), network_backend=_Checked(policy, remote), max_connections=50
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        sent = sending.get() or Sent()

        async def watch(event: str, info: Any) -> None:
            if event.endswith("send_request_headers.started"):  # there is a connection, and it is under way
                sent.begun = True

        content: Any = request.stream
        asked = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=content,
            extensions=request.extensions | {"trace": watch},
        )
        try:
            answer = await self._pool.handle_async_request(asked)
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout) as error:
            raise httpx2.ConnectError(str(error) or "it does not answer", request=request) from None
        except httpcore2.TimeoutException as error:
            raise httpx2.ReadTimeout(str(error) or "it did not answer", request=request) from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise httpx2.ReadError(str(error) or "the connection broke", request=request) from None
        sent.status = answer.status
        headers = httpx2.Headers(answer.headers)
        if headers.get("content-encoding", "identity").lower() != "identity":
            await answer.aclose()
            self._remote.end("it answered with compressed data, which was not requested", "output")
            raise httpx2.ReadError("a compressed answer", request=request)
        is_stream = headers.get("content-type", "").lower().startswith("text/event-stream")
        return httpx2.Response(
            status_code=answer.status,
            headers=headers,
            stream=_Bounded(answer, self._remote, is_stream),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """An answer's body: an end to it, or to each event of a stream."""

    def __init__(self, answer: httpcore2.Response, remote: Remote, is_stream: bool) -> None:
        self._answer, self._remote, self._is_stream = answer, remote, is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, tail = 0, b""
        try:
            async for chunk in self._answer.aiter_stream():
                read += len(chunk)
                if self._is_stream:
                    seen = (tail + chunk).replace(b"\r", b"")
                    if (end := seen.rfind(b"\n\n")) >= 0:  # where the last event ends
                        read = len(seen) - end
                    tail = seen[-1:]
                if read > MAX_ANSWER:
                    self._remote.end(f"it answered with more than {MAX_ANSWER} bytes", "output")
                    raise httpx2.ReadError("too large an answer")
                yield chunk
        except httpcore2.TimeoutException as error:
            raise httpx2.ReadTimeout(str(error)) from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise httpx2.ReadError(str(error)) from None

    async def aclose(self) -> None:
        await self._answer.aclose()


class _Checked(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that may be reached, whatever name it is asked for."""

    def __init__(self, policy: Policy, remote: Remote) -> None:
        self._policy, self._remote = policy, remote
        self._real = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 -- httpcore2's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            stream = await self._connected(host, port, timeout or _CONNECT_SECONDS)
        except httpcore2.ConnectError as error:
            self._remote.why = str(error)
            raise
        self._remote.why = ""
        return stream

    async def _connected(self, host: str, port: int, seconds: float) -> httpcore2.AsyncNetworkStream:
        if port not in self._policy.ports:
            raise httpcore2.ConnectError(f"http:port: port {port} is not allowed (HTTP_ALLOWED_PORTS)")
        addresses = await _resolved(host, port, seconds)
        for address in addresses:
            if why := denial_reason(address, private=self._policy.private):
                raise httpcore2.ConnectError(f"http:address: {host} has the address {address}, which {why}")
        for address in addresses:
            try:
                return await self._real.connect_tcp(str(address), port, seconds / len(addresses))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        raise httpcore2.ConnectError(f"http:connect: no connection to {host}, port {port}")


async def _resolved(host: str, port: int, seconds: float) -> list[Address]:
    try:
        asked = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = await asyncio.wait_for(asked, seconds)
        return [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
    except (OSError, ValueError):  # a TimeoutError is one
        raise httpcore2.ConnectError(f"http:name: the name {host} cannot be resolved") from None
