"""Brokers that misbehave."""

import socket
import threading
from contextlib import suppress
from typing import Self


class SilentBroker:
    """A broker that accepts connections, counts them, and never says a word."""

    def __init__(self) -> None:
        self.accepted: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                self.accepted.append(self._socket.accept()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self.accepted:
            connection.close()
