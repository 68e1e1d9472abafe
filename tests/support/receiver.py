"""A receiver of webhooks: a real HTTP server on loopback, which keeps what it is sent and answers as it is told."""

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """A request. ``headers``: names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Says:
    """An answer. ``hangs``: never; ``resets``: the connection instead; ``drips``: a byte now and then."""

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    hangs: bool = False
    resets: bool = False
    drips: bool = False


class Receiver:
    """Answers 204 unless it is told otherwise: the answers in order, the last again and again."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._answers: list[Says] = [Says()]
        self._held: list[socket.socket] = []
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.request_queue_size = 128
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def answer(self, *answers: Says) -> None:
        self._answers = list(answers)

    @property
    def ids(self) -> list[str]:
        """The webhook-id of each request."""
        return [each.headers["webhook-id"] for each in self.received]

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, received: Received) -> Says:
        with self._lock:
            self.received.append(received)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def leave(self) -> None:
        with self._lock:
            self._at_once -= 1

    def hold(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        with self._lock:
            self._held.append(connection)

    def let_go(self) -> None:
        """End the connections that hang, without an answer."""
        with self._lock:
            held, self._held = self._held, []
        for connection in held:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                says = receiver.take(Received(self.path, headers, body))
                if says.hangs:
                    receiver.hold(self.connection)
                    with suppress(OSError):
                        self.connection.recv(1)  # until the sender hangs up, or it is let go
                elif says.resets:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                else:
                    self._say(says)
                receiver.leave()

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.take(Received(f"GET {self.path}", headers, b""))
                self._say(Says(200))

            def _say(self, says: Says) -> None:
                self.send_response(says.status)
                for name, value in (*says.headers, ("Content-Length", str(len(says.body)))):
                    self.send_header(name, value)
                self.end_headers()
                try:
                    if says.drips:
                        for byte in says.body:
                            self.wfile.write(bytes([byte]))
                            if receiver.over.wait(0.05):
                                return
                    elif says.status not in (204, 304):
                        self.wfile.write(says.body)
                except OSError:  # who has read enough hangs up
                    pass

            def log_message(self, *_: Any) -> None:
                pass

            def finish(self) -> None:
                with suppress(OSError, ValueError):
                    super().finish()

        return Handler
