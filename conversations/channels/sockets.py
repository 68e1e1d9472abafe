"""Websockets to platforms: by the outbound rules, in JSON, with a connection that is lost as an ordinary answer."""

import json
import logging
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from conversations.channels.base import Permanent, Retry
from conversations.channels.calls import failure_of, once_more
from tools.outbound import client
from tools.outbound.client import NotFetched, allowed

# Seconds for opening; bytes of one message; seconds that a goodbye may take.
OPENING, MAX_BYTES, GOODBYE = 20.0, 8 * 1024 * 1024, 2.0
# A server that says goodbye with it has lost us, or nobody has said anything (RFC 6455, 7.4.1).
LOST = 1006

# Frames hold tokens: what the library tells of them is for nobody.
_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.CRITICAL)


class Lost(Exception):
    """The connection is no more. ``code``: what the platform said, or :data:`LOST`."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"The connection was closed ({code}{f': {reason}' if reason else ''})")
        self.code = code


class Socket:
    """A connection, of one thread; :meth:`close` may be called by another, whose reader then gets :class:`Lost`."""

    def __init__(self, url: str) -> None:
        """Open it. ``url``: ws or wss; it may hold a secret, and is in no error. Raises :class:`Retry` and
        :class:`Permanent`."""
        self._connection = _opened(url)
        self._sign: threading.Event | None = None

    def receive(self, seconds: float) -> Any:
        """The next message's JSON; None if none comes in that time, or if it is no JSON. Raises :class:`Lost`."""
        try:
            said = self._connection.recv(timeout=max(seconds, 0.0))
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            raise _lost(error) from None
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            return None

    def send(self, said: Mapping[str, Any]) -> None:
        """Send a message as JSON; raises :class:`Lost`."""
        try:
            self._connection.send(json.dumps(said, ensure_ascii=False, separators=(",", ":")))
        except ConnectionClosed as error:
            raise _lost(error) from None

    def check(self) -> None:
        """Ask the other side for a sign of life; raises :class:`Lost` if it gave none since it was last asked."""
        if self._sign and not self._sign.is_set():
            raise Lost(LOST)
        try:
            self._sign = self._connection.ping()
        except ConnectionClosed as error:
            raise _lost(error) from None

    def close(self, code: int = 1000) -> None:
        """Say goodbye, and wait a little for the other side; it never fails."""
        with suppress(WebSocketException, OSError):
            self._connection.close(code)


def _opened(url: str) -> ClientConnection:
    parts = urlsplit(url)
    is_tls, began = parts.scheme == "wss", time.monotonic()
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise Permanent("The platform returned an invalid address for its websocket")
    try:
        port = parts.port or (443 if is_tls else 80)
        connection = client.connect(parts.hostname, port, policy=allowed(), seconds=OPENING)
    except ValueError:
        raise Permanent("The platform returned an invalid address for its websocket") from None
    except NotFetched as error:
        raise once_more(failure_of(error)) from None
    try:
        return connect(
            url,
            sock=connection,
            ssl=ssl.create_default_context() if is_tls else None,
            proxy=None,
            compression=None,
            open_timeout=max(OPENING - (time.monotonic() - began), 1.0),
            close_timeout=GOODBYE,
            ping_interval=None,  # each platform has a heartbeat of its own
            max_size=MAX_BYTES,
            logger=_quiet,
            legacy=True,
        )
    except (WebSocketException, OSError, EOFError) as error:
        connection.close()
        raise Retry(f"No websocket is opened ({type(error).__name__})") from None


def _lost(error: ConnectionClosed) -> Lost:
    told = error.rcvd
    return Lost(told.code, told.reason[:100]) if told else Lost(LOST)
