"""uvicorn's HTTP/1.1 with bounds on a request's head: httptools itself gathers one that never ends, in memory, and
uvicorn keeps a connection on which none arrives for ever. And with a way to hang up, which ASGI has none for."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Far above what the gateway answers with a problem of its own; this is for what never gets there.
MAX_HEAD_BYTES = 128 * 1024

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: 30\r\n"
    b"connection: close\r\n\r\n"
    b"The request's head is too long"
)


# In a request's scope: ends its connection at once, with what was not sent yet. A mere close waits until its client has
# taken that, which one that reads no more never does.
HANG_UP = "nanohost.hang_up"


class BoundedHeads(HttpToolsProtocol):
    """For ``uvicorn.Config(http=…)``."""

    # From the connection's start, or a head's first byte, to the head's end.
    head_seconds = 30.0

    _in_head = False
    _just_begun = False
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_is_here()
        self._timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _head_is_here(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            return
        if self._just_begun:  # the end of an earlier body may have come along with the head's beginning
            self._just_begun = False
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head, self._just_begun, self._head_bytes = True, True, 0
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_is_here()
        self.scope[HANG_UP] = self.transport.abort  # type: ignore[literal-required]  # servers add what they like
        super().on_headers_complete()
