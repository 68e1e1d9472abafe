"""The one client for requests to the outside: it reaches public addresses, or what the settings opened, and no other.

    answer = fetch("https://example.org/", headers={"Accept": "text/html"}, seconds=2, policy=allowed())

A model, or a page that a model has read, chooses the URL. So each hop, the first URL and every redirect alike, goes
this way:

1. The URL is parsed once, strictly (:mod:`tools.outbound.urls`); its port must be allowed.
2. Its name is resolved once, and *every* address found must be public (:mod:`tools.outbound.addresses`).
3. The connection is made to a checked address by a backend that knows no names: nothing can resolve again in between.
   The name in TLS and the header Host stay the URL's.
4. A redirect is the next hop's URL, and begins at 1. Five are followed, for GET and HEAD; another method's redirect is
   its answer. Once the origin (scheme, host, port) changes, of the caller's headers only ``PASSED_ON`` go along.

One deadline covers all of it, resolving and the last byte of the body included; timeouts of a read would never end a
body that drips. The body is decompressed in small steps and bounded in size. Proxies of the environment are not used,
and no cookies are kept. A caller may name one proxy (:class:`Proxy`): it is asked for a connection to the checked
address, so that it resolves no name, and a tunnel through it is used as a connection of our own is.

Built on httpcore2, the transport of httpx2: httpx2 itself would parse the URL a second time, and inflate without a
bound. Imports no Django, so that a tool's process can use it.
"""

import os
import queue
import re
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote, urlsplit

import httpcore2

from tools.outbound import urls
from tools.outbound.addresses import Address, Policy, denial_reason, policy_of
from tools.outbound.bodies import decoded
from tools.outbound.urls import Refusal, Target

MAX_REDIRECTS = 5

# The caller's headers that another origin gets too. Not a list of those that hold credentials: none would be complete
# (X-Api-Key, Private-Token, X-Vault-Token, …), and what is missing in it is lost to a stranger.
PASSED_ON = frozenset({"accept", "accept-language", "user-agent"})

# A request's framing, its connection and its decoding are the client's own business.
_OURS = frozenset(
    {
        *("host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive"),
        *("expect", "accept-encoding", "http2-settings"),
    }
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_MAX_HEADERS = 32
_MAX_HEADER_BYTES = 8192

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class NotFetched(Exception):
    """There is no answer. The text names the rule, the hop and the URL, and what a model may do about it.

    ``hop``: 0 is the first URL, 1 where its redirect leads, and so on. ``url``: that hop's, without userinfo. ``rule``:

    - of the request: http:url, http:scheme, http:userinfo, http:host, http:header
    - of where it leads: http:port, http:address, http:redirects
    - of the answer: http:size, http:encoding
    - of how it goes: http:time, http:name (it cannot be resolved), http:connect, http:proxy, http:tls, http:protocol
    """

    def __init__(self, *, rule: str, hop: int, url: str, reason: str) -> None:
        where = f"{url} (redirect {hop})" if hop else url
        super().__init__(f"{rule}: {where}: {reason.rstrip('.')}.")
        self.rule, self.hop, self.url = rule, hop, url


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """An HTTP proxy that makes tunnels (CONNECT), to http as well. ``credentials``: ``user:password``, or ""."""

    host: str
    port: int
    credentials: str = field(default="", repr=False)

    @classmethod
    def of(cls, address: str) -> "Proxy":
        """The one at ``http://[user:password@]host:port``; raises ValueError, which does not quote it."""
        try:
            parts = urlsplit(address.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
            raise ValueError("The proxy is no http://host:port; other kinds, such as socks5, are not spoken to.")
        userinfo = parts.netloc.rpartition("@")[0]
        return cls(host=host, port=port, credentials=unquote(userinfo))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back, whatever its status. ``headers``: names in lower case, the first of each; ``url``: the last
    hop's; ``body``: decompressed; ``is_cut``: there was more of it."""

    status: int
    headers: dict[str, str]
    url: str
    body: bytes
    is_cut: bool

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")


def fetch(
    url: str,
    *,
    policy: Policy,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    seconds: float = 10.0,
    most: int = 1024 * 1024,
    cut: bool = False,
    proxy: Proxy | None = None,
) -> Answer:
    """Send a request and read its answer, within ``seconds`` from now; raises :class:`NotFetched`.

    ``policy``: ports, and networks that may be reached though they are not public; :func:`allowed` has the settings'.
    ``most``: bytes of the answer's body, decompressed. A longer one is refused (http:size), or with ``cut`` its
    beginning is returned. ``proxy``: through which all hops go.
    """
    clock, hop, asked = _Clock(seconds), 0, url
    try:
        given = _checked(headers or {})
        target = urls.parse(url)
        while True:
            asked = str(target)
            with _connected(target, policy, clock, proxy) as connection, _said_plainly():
                request = _request(method, target, given, body)
                response = connection.handle_request(request)
                found = _Headers(response.headers)
                location = found.first("location") if response.status in _REDIRECTS else None
                if location is None or method not in ("GET", "HEAD"):
                    read, is_cut = _read(response, found, most, cut, clock)
                    return Answer(status=response.status, headers=found.all(), url=asked, body=read, is_cut=is_cut)
            hop, asked = hop + 1, location
            if hop > MAX_REDIRECTS:
                raise Refusal("http:redirects", f"it leads on and on; {MAX_REDIRECTS} redirects are followed")
            following = urls.join(target, location)
            if following.origin != target.origin:
                given = {name: value for name, value in given.items() if name.lower() in PASSED_ON}
            target = following
    except Refusal as refusal:
        raise NotFetched(rule=refusal.rule, hop=hop, url=urls.shown(asked), reason=str(refusal)) from refusal


def connect(host: str, port: int, *, policy: Policy, seconds: float) -> socket.socket:
    """A connection for another protocol, by the same rules: to an address that is public or allowed, at a port that the
    policy has. Its timeout is what is left of ``seconds``. Raises :class:`NotFetched`."""
    clock = _Clock(seconds)
    try:
        target = urls.parse(f"https://{f'[{host}]' if ':' in host else host}:{port}/")
        addresses = _checked_addresses(target, policy, clock)
        connection = _CheckedAddresses(addresses, clock).connect(target.host, port)
        connection.settimeout(clock.left())
    except Refusal as refusal:
        raise NotFetched(rule=refusal.rule, hop=0, url=f"{host}:{port}", reason=str(refusal)) from refusal
    return connection


def allowed() -> Policy:
    """What the settings allow: the one place where they are read for outbound requests."""
    from django.conf import settings

    return policy_of(private_cidrs=settings.HTTP_ALLOWED_PRIVATE_CIDRS, ports=settings.HTTP_ALLOWED_PORTS)


# --- the request -------------------------------------------------------------------------------------------------


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """The caller's headers; raises Refusal with http:header for those that nobody may set, or that cannot be sent."""
    if (
        len(headers) > _MAX_HEADERS
        or sum(len(name) + len(value) for name, value in headers.items()) > _MAX_HEADER_BYTES
    ):
        raise Refusal("http:header", f"{_MAX_HEADERS} headers of {_MAX_HEADER_BYTES} bytes together are the most")
    if len({name.lower() for name in headers}) < len(headers):
        raise Refusal("http:header", "a header is named twice")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise Refusal("http:header", f"{name[:40]!r} is no name of a header")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            raise Refusal("http:header", f"the header {name} is not yours to set; leave it out")
        if not _HEADER_VALUE.fullmatch(value):
            raise Refusal("http:header", f"the header {name} holds what is not printable ASCII")
    return {name: value.strip() for name, value in headers.items()}


def _request(method: str, target: Target, given: Mapping[str, str], body: bytes) -> httpcore2.Request:
    sent = {
        "Host": target.authority,
        "User-Agent": "nanohost",
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate, br",
        "Connection": "close",
    }
    if traceparent := os.environ.get("TRACEPARENT"):  # in a tool's process, of the call that runs
        sent["traceparent"] = traceparent
    names = {name.lower() for name in given}
    sent = {name: value for name, value in sent.items() if name.lower() not in names} | dict(given)
    if body or method not in ("GET", "HEAD"):
        sent["Content-Length"] = str(len(body))
    return httpcore2.Request(method, _address_of(target), headers=list(sent.items()), content=body)


def _address_of(target: Target) -> httpcore2.URL:
    return httpcore2.URL(
        scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
    )


# --- the answer --------------------------------------------------------------------------------------------------


class _Headers:
    """An answer's headers, as text."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._items = [(name.decode("ascii", "replace").lower(), _as_text(value)) for name, value in raw]

    def first(self, name: str) -> str | None:
        return next((value for each, value in self._items if each == name), None)

    def joined(self, name: str) -> str:
        return ",".join(value for each, value in self._items if each == name)

    def all(self) -> dict[str, str]:
        return dict(reversed(self._items))


def _as_text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _read(response: httpcore2.Response, found: _Headers, most: int, cut: bool, clock: "_Clock") -> tuple[bytes, bool]:
    """The body, and whether there was more of it."""
    body = bytearray()
    for piece in decoded(_while_time_lasts(response, clock), found.joined("content-encoding"), most=most):
        body += piece
        if len(body) > most:
            if not cut:
                raise Refusal("http:size", f"its body is larger than {most} bytes")
            del body[most:]
            return bytes(body), True
        clock.left()  # also where a little that was received goes on and on
    return bytes(body), False


def _while_time_lasts(response: httpcore2.Response, clock: "_Clock") -> Iterator[bytes]:
    for chunk in response.iter_stream():
        clock.left()
        yield chunk


# --- the connection ----------------------------------------------------------------------------------------------


class _Clock:
    """The deadline of everything a request takes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, more than 0; raises Refusal with http:time if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.refusal()
        return left

    def refusal(self) -> Refusal:
        return Refusal("http:time", f"there was no whole answer within {self._seconds:g} s")


@contextmanager
def _connected(
    target: Target, policy: Policy, clock: _Clock, proxy: Proxy | None
) -> Iterator[httpcore2.HTTPConnection]:
    """A connection to a target that has passed all checks; raises Refusal for one that does not."""
    addresses = _checked_addresses(target, policy, clock)
    connection = httpcore2.HTTPConnection(
        _address_of(target).origin,
        ssl_context=_trust() if target.scheme == "https" else None,
        network_backend=_CheckedAddresses(addresses, clock, proxy),
    )
    with closing(connection):
        yield connection


def _checked_addresses(target: Target, policy: Policy, clock: _Clock) -> list[Address]:
    """All addresses of a target; raises Refusal if one of them, or its port, is not allowed."""
    if target.port not in policy.ports:
        allowed = ", ".join(str(port) for port in sorted(policy.ports))
        raise Refusal("http:port", f"port {target.port} is not allowed; those that are: {allowed}")
    addresses = _resolve(target, clock)
    for address in addresses:
        if why := denial_reason(address, private=policy.private):
            raise Refusal("http:address", f"{_named(target, address)} {why}, so it is not fetched")
    return addresses


def _named(target: Target, address: Address) -> str:
    return str(address) if target.host == str(address) else f"{target.host} has the address {address}, which"


def _resolve(target: Target, clock: _Clock) -> list[Address]:
    """The addresses of a host, all of them; raises Refusal with http:name if there are none, with http:time if late."""
    try:
        return [ip_address(target.host)]
    except ValueError:
        pass
    # The system's resolver takes as long as it likes; a thread of its own can be left behind.
    found: queue.SimpleQueue[list[Address] | OSError] = queue.SimpleQueue()
    resolver = threading.Thread(target=_look_up, args=(target, found), name="resolver", daemon=True)
    resolver.start()
    try:
        answer = found.get(timeout=clock.left())
    except queue.Empty:
        raise clock.refusal() from None
    resolver.join()  # it has nothing more to do, and a tool's process that a call leaves a thread in is not used again
    if isinstance(answer, OSError) or not answer:
        raise Refusal("http:name", f"the name {target.host} cannot be resolved") from None
    return answer


def _look_up(target: Target, found: "queue.SimpleQueue[list[Address] | OSError]") -> None:
    try:
        answers = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        # Without the zone that a link-local one has: it is refused, and the others need none.
        found.put([ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers])
    except (OSError, ValueError) as error:
        found.put(error if isinstance(error, OSError) else OSError(str(error)))


@cache
def _trust() -> ssl.SSLContext:
    """The system's certificates; read once a process, since that takes 30 ms."""
    return httpcore2.default_ssl_context()


class _CheckedAddresses(httpcore2.NetworkBackend):
    """Connects to the addresses it was given, one after the other, whatever name it is asked for."""

    def __init__(self, addresses: list[Address], clock: _Clock, proxy: Proxy | None = None) -> None:
        self._addresses = addresses
        self._clock = clock
        self._proxy = proxy

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        return _TimedStream(self.connect(host, port), self._clock)

    def connect(self, host: str, port: int) -> socket.socket:
        """A connection to the first address that answers; raises Refusal with http:connect, http:proxy or http:time."""
        reason = ""
        for number, address in enumerate(self._addresses, 1):
            left = self._clock.left()
            # A third of the time that is left for one that is silent, as long as there are others.
            patience = left if number == len(self._addresses) else left / 3
            try:
                if self._proxy:
                    return _tunnelled(self._proxy, address, port, patience, self._clock)
                return _connect(address, port, patience)
            except OSError as error:
                reason = error.strerror or "it does not answer"
        self._clock.left()
        raise Refusal("http:connect", f"no connection to {host}, port {port}: {reason}")


def _connect(address: Address, port: int, seconds: float) -> socket.socket:
    """A connection to an address; raises OSError."""
    match address:
        case IPv4Address():
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        case IPv6Address():
            connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect((str(address), port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


# Of a proxy's answer.
_MAX_PROXY_BYTES = 16 * 1024


def _tunnelled(proxy: Proxy, address: Address, port: int, seconds: float, clock: _Clock) -> socket.socket:
    """A connection to an address through a proxy; raises OSError, and Refusal with http:proxy."""
    try:
        connection = socket.create_connection((proxy.host, proxy.port), timeout=seconds)
    except OSError as error:
        clock.left()
        raise Refusal("http:proxy", f"the proxy is not reached: {error.strerror or 'it does not answer'}") from None
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        where = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        if proxy.credentials:
            lines.append(f"Proxy-Authorization: Basic {b64encode(proxy.credentials.encode()).decode()}")
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        head = bytearray()
        # One at a time: what follows is of the tunnel.
        while not head.endswith(b"\r\n\r\n") and len(head) < _MAX_PROXY_BYTES:
            connection.settimeout(clock.left())
            if not (byte := connection.recv(1)):
                break
            head += byte
        status = bytes(head[:12]).split(b" ")[1:2]
        if not head.endswith(b"\r\n\r\n") or status != [b"200"]:
            said = status[0].decode("ascii", "replace") if status else "nothing"
            raise Refusal("http:proxy", f"the proxy makes no connection: it answered {said}")
    except TimeoutError:
        connection.close()
        raise clock.refusal() from None
    except BaseException:
        connection.close()
        raise
    return connection


class _TimedStream(httpcore2.NetworkStream):
    """A connection whose every read and write ends with the deadline of the whole."""

    def __init__(self, connection: socket.socket, clock: _Clock) -> None:
        self._connection = connection
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._connection.settimeout(self._clock.left())
            return self._connection.recv(max_bytes)
        except TimeoutError:
            raise self._clock.refusal() from None
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        ahead = memoryview(buffer)
        try:
            while ahead:
                self._connection.settimeout(self._clock.left())
                ahead = ahead[self._connection.send(ahead) :]
        except TimeoutError:
            raise self._clock.refusal() from None
        except OSError as error:  # the server may have answered all the same: httpcore2 looks
            raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        self._connection.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        try:
            self._connection.settimeout(self._clock.left())  # of the whole handshake, not of a read in it
            secured = ssl_context.wrap_socket(self._connection, server_hostname=server_hostname)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise self._clock.refusal() from None
            if isinstance(error, (OSError, ValueError)):
                reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or "it broke off"
                raise Refusal("http:tls", f"no secure connection to {server_hostname}: {reason}") from None
            raise
        return _TimedStream(secured, self._clock)


@contextmanager
def _said_plainly() -> Iterator[None]:
    """What goes wrong on the wire, as a Refusal."""
    try:
        yield
    except (httpcore2.ProtocolError, httpcore2.NetworkError, httpcore2.ConnectionNotAvailable) as error:
        raise Refusal(
            "http:protocol", f"the server's answer cannot be read: {error or 'the connection broke'}"
        ) from None
