"""Connections to a model's server: kept, given up, bounded; and over TLS, with a certificate for the server's name."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import httpx2
import pytest
import trustme

from agent import errors
from agent.llm import connections
from agent.llm.connections import Connections, Outline, Reply

pytestmark = pytest.mark.shapeless(reason="no host")

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class AsTransport(httpx2.AsyncBaseTransport):
    """httpx2's client over these connections."""

    def __init__(self) -> None:
        self.connections = Connections(kept=2)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await self.connections.send(Outline.of(request), await request.aread())
        return httpx2.Response(reply.status, headers=reply.headers, stream=Body(reply))

    async def aclose(self) -> None:
        await self.connections.aclose()


class Body(httpx2.AsyncByteStream):
    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.reply.parts()

    async def aclose(self) -> None:
        await self.reply.aclose()


class Raw:
    """A server that answers each request with bytes as they are, and closes the connection behind the last."""

    def __init__(self, *replies: bytes) -> None:
        self.replies = list(replies)
        self.connections = 0
        self.sent = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while self.replies:
            await reader.readuntil(b"\r\n\r\n")
            reply = self.replies.pop(0)
            for at in range(0, len(reply), 65536):
                writer.write(reply[at : at + 65536])
                await writer.drain()
                self.sent += 65536
        writer.close()


def talk(server: Raw, do: Callable[[httpx2.AsyncClient, str], Awaitable[object]], **options: ssl.SSLContext) -> None:
    async def main() -> None:
        listening = await asyncio.start_server(server, "127.0.0.1", 0, **options)
        port = listening.sockets[0].getsockname()[1]
        async with httpx2.AsyncClient(transport=AsTransport(), timeout=5) as client:
            await do(client, f"{'https' if options else 'http'}://localhost:{port}/")
        listening.close()

    asyncio.run(main())


def test_a_connection_is_used_again():
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        assert [(await client.get(address)).text for _ in range(3)] == ["hi"] * 3
        assert server.connections == 1

    talk(server := Raw(OK, OK, OK), do)


@pytest.mark.parametrize(
    "reply", [OK + b"HTTP/1.1 200 OK\r\n", OK.replace(b"1.1", b"1.0"), OK.replace(b"OK\r", b"OK\rx")]
)
def test_one_that_is_out_of_step_is_not(reply):
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        with suppress(httpx2.RemoteProtocolError):
            await client.get(address)
        assert (await client.get(address)).text == "hi"
        assert server.connections == 2

    talk(server := Raw(reply, OK), do)


def test_one_that_was_idle_for_too_long_is_not(monkeypatch):
    monkeypatch.setattr(connections, "KEPT_SECONDS", 0.0)

    async def do(client: httpx2.AsyncClient, address: str) -> None:
        assert [(await client.get(address)).text for _ in range(2)] == ["hi"] * 2
        assert server.connections == 2

    talk(server := Raw(OK, OK), do)


def test_one_that_the_server_has_closed_is_not_kept():
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        kept = client._transport.connections.idle
        assert (await client.get(address)).text == "hi"
        while any(kept.values()):
            await asyncio.sleep(0.01)

    talk(Raw(OK), do)


def test_no_more_are_kept_than_was_said():
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        await asyncio.gather(*(client.get(address) for _ in range(4)))
        assert sum(map(len, client._transport.connections.idle.values())) == 2

    talk(Raw(*[OK] * 8), do)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", "to the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, "hi"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", "hi"),
    ],
)
def test_however_a_body_ends_it_is_read_to_its_end(reply, text):
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        assert (await client.get(address)).text == text

    talk(Raw(reply), do)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nhi",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 300_000,
        b"Hello",
    ],
)
def test_what_breaks_off_or_is_no_answer_is_an_error(reply):
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(address)

    talk(Raw(reply), do)


def test_a_server_is_not_read_faster_than_its_answer_is_taken():
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        async with client.stream("GET", address) as response:
            assert await anext(response.stream.__aiter__())
            before = -1
            while server.sent > before:  # until the sockets' buffers are full
                before = server.sent
                await asyncio.sleep(0.2)
            assert server.sent < 7_900_000

    body = b"x" * 7_950_000
    talk(server := Raw(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)), do)


def test_an_answer_that_is_too_large_is_a_bad_response(monkeypatch):
    monkeypatch.setattr(connections, "MAX_RESPONSE_BYTES", 1000)

    async def do(client: httpx2.AsyncClient, address: str) -> None:
        with pytest.raises(errors.LlmBadResponse):
            await client.get(address)

    talk(Raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001), do)


def test_a_header_cannot_begin_another():
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        with pytest.raises(httpx2.LocalProtocolError):
            await client.get(address, headers={"X-Name": "value\r\nX-Other: value"})
        assert not server.connections

    talk(server := Raw(OK), do)


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch, tmp_path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return made


@pytest.mark.parametrize(("name", "trusted"), [("localhost", True), ("example.org", False)])
def test_a_certificate_is_held_against_the_name(authority, name, trusted):
    async def do(client: httpx2.AsyncClient, address: str) -> None:
        if trusted:
            assert (await client.get(address)).text == "hi"
        else:
            with pytest.raises(httpx2.ConnectError):
                await client.get(address)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    talk(Raw(OK), do, ssl=context)


def test_a_server_that_never_answers_a_connection_is_given_up_for_its_next_address(monkeypatch):
    async def main() -> None:
        server = Raw(OK)
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        own = await loop.getaddrinfo("127.0.0.1", port, type=1)
        nobody = await loop.getaddrinfo("127.0.0.2", port, type=1)  # where nobody listens

        async def both(*_: object, **__: object) -> list[object]:
            return [*nobody, *own]

        monkeypatch.setattr(loop, "getaddrinfo", both)
        async with httpx2.AsyncClient(transport=AsTransport(), timeout=5) as client:
            assert (await client.get(f"http://model.test:{port}/")).text == "hi"
        listening.close()

    asyncio.run(main())
