"""A server on loopback that speaks a platform's protocol: it keeps what it is asked, and fails as it is told."""

import json
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.receiver import Says

Answer = tuple[int, Any]


@dataclass(frozen=True)
class Asked:
    """A request. ``path``: unquoted part by part; ``headers``: names in lower case; ``said``: the JSON of its body, if
    it is JSON; ``raw``: its bytes."""

    method: str
    path: tuple[str, ...]
    query: dict[str, str]
    headers: dict[str, str]
    said: Any
    raw: bytes = b""


def form_of(asked: Asked) -> dict[str, bytes]:
    """The parts of a form that was sent, by the names of its fields."""
    head = f"Content-Type: {asked.headers['content-type']}\r\n\r\n".encode()
    form = BytesParser(policy=HTTP).parsebytes(head + asked.raw)
    parts = {str(each.get_param("name", header="content-disposition")): each for each in form.iter_parts()}
    return {name: bytes(each.get_payload(decode=True)) for name, each in parts.items()}


class HttpPeer:
    """Answers by :meth:`respond`; of requests that send something, the first ones as it is told."""

    def __init__(self, settings: Any) -> None:
        self.asked: list[Asked] = []
        # Files that messages bring, and whether they are available.
        self.files: dict[str, bytes] = {}
        self.has_files = True
        self._faults: list[Says] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        settings.HTTP_ALLOWED_PRIVATE_CIDRS = ["127.0.0.0/8"]
        settings.HTTP_ALLOWED_PORTS = [str(self.port)]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, *faults: Says) -> None:
        """The next requests that send something are answered so; those after them as ever."""
        self._faults = list(faults)

    def respond(self, asked: Asked) -> Answer:
        """Status and JSON, or bytes, of an answer."""
        raise NotImplementedError

    def file(self, name: str) -> Answer:
        """A file, or that there is none for now."""
        return (200, self.files[name]) if self.has_files else (500, {})

    def is_sent(self, asked: Asked) -> bool:
        """Whether a request sends a message."""
        raise NotImplementedError

    def take(self, asked: Asked) -> Says:
        with self._lock:
            self.asked.append(asked)
            if self._faults and self.is_sent(asked):
                return self._faults.pop(0)
            status, said = self.respond(asked)
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        return Says(status, body=body)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                asked = Asked(
                    method=self.command,
                    path=tuple(unquote(part) for part in parts.path.split("/") if part),
                    query={name: values[0] for name, values in parse_qs(parts.query).items()},
                    headers={name.lower(): value for name, value in self.headers.items()},
                    said=json.loads(body) if body and "json" in self.headers.get("content-type", "json") else None,
                    raw=body,
                )
                says = peer.take(asked)
                if says.resets:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    return
                self.send_response(says.status)
                for name, value in (*says.headers, ("Content-Length", str(len(says.body)))):
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(says.body)

            def do_GET(self) -> None:
                self.do_POST()

            def do_PUT(self) -> None:
                self.do_POST()

            def do_PATCH(self) -> None:
                self.do_POST()

            def log_message(self, *_: Any) -> None:
                pass

            def finish(self) -> None:
                with suppress(OSError, ValueError):
                    super().finish()

        return Handler
