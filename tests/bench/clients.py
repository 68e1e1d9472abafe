"""Clients that cost next to nothing: a socket each, kept, and just enough of HTTP to read an answer to its end."""

import json
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Took:
    """Milliseconds until the first piece of the answer's text, and until its end; and its body."""

    first: float
    whole: float
    body: bytes


class Client:
    """A connection to a server, over which one request at a time is made."""

    def __init__(self, address: str, key: str) -> None:
        parts = urlsplit(address)
        self._at = parts.hostname, parts.port
        self._host = f"{parts.hostname}:{parts.port}"
        self._key = key
        self._socket: socket.socket | None = None
        self.connect()

    def connect(self) -> None:
        """Connect, or connect anew."""
        if self._socket:
            self._socket.close()
        self._socket = socket.create_connection(self._at, timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used_at = time.monotonic()

    def close(self) -> None:
        """Hang up."""
        assert self._socket
        self._socket.close()

    def post(self, path: str, body: Any, *, first: bytes = b"") -> Took:
        """Post JSON; raises ValueError for what is not 2xx. ``first``: what the first piece is known by."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        if time.monotonic() - self._used_at > 3:  # servers close what is silent for 5 s
            self.connect()
        assert self._socket
        began = time.perf_counter()
        self._socket.sendall(head.encode() + content)
        received, first_at = bytearray(), 0.0
        while not _is_whole(received):
            part = self._socket.recv(65536)
            if not part:
                raise ValueError(f"{path}: the answer broke off: {bytes(received[-500:])!r}")
            received += part
            if not first_at and first in received:
                first_at = time.perf_counter()
        ended = time.perf_counter()
        self._used_at = time.monotonic()
        if not received.startswith(b"HTTP/1.1 2"):
            raise ValueError(f"{path}: {bytes(received[:2000])!r}")
        return Took(1000 * (first_at - began), 1000 * (ended - began), bytes(received.partition(b"\r\n\r\n")[2]))


def _is_whole(received: bytearray) -> bool:
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(received[:end]).lower()
    if b"transfer-encoding: chunked" in head:
        return received.endswith(b"\r\n0\r\n\r\n")
    return len(received) >= end + 4 + int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])


class BenchClient(Client):
    """Somebody who talks with a host, in one conversation."""

    def __init__(self, address: str, key: str) -> None:
        super().__init__(address, key)
        self.begin()

    def begin(self) -> None:
        """Begin a new conversation."""
        made = self.post("/api/v1/conversations", {}).body
        self.chat = f"/api/v1/conversations/{json.loads(made)['conversationId']}/chat"

    def ask(self, model: str, *, stream: bool = False) -> Took:
        """One turn."""
        body = {"message": "Hello", "model": model} | ({"stream": True} if stream else {})
        took = self.post(self.chat, body, first=b"event: message.delta" if stream else b"")
        assert b"word0" in took.body, took.body
        return took


class Direct(Client):
    """Somebody who asks the model itself what a host would ask it."""

    def ask(self, model: str, *, stream: bool = True) -> Took:
        """One call of the model; two where there is a tool to be called between them."""
        asked: list[dict[str, Any]] = [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "Hello"},
        ]
        took = self._ask(model, asked)
        if not model.startswith("tool"):
            return took
        again = self._ask(model, [*asked, {"role": "tool", "tool_call_id": "call_1", "content": "now"}])
        return Took(took.whole + again.first, took.whole + again.whole, again.body)

    def _ask(self, model: str, messages: list[dict[str, Any]]) -> Took:
        body = {"model": model, "messages": messages, "stream": True}
        return self.post("/v1/chat/completions", body, first=b'"delta"')
