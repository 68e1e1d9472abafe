"""Ways to servers, which can be cut and mended."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Way:
    """The way to PostgreSQL, which can be cut and mended: a loopback port that passes everything on.

    ``turned_away``: so many of the first who come find no server behind it.
    """

    def __init__(self, url: str, *, turned_away: int = 0) -> None:
        server = urlsplit(url)
        self._server = (server.hostname or "127.0.0.1", server.port or 5432)
        self.turned_away, self.came = turned_away, 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._accept()

    def cut(self) -> None:
        """Nobody listens any more, and every connection ends."""
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accept()

    def _accept(self) -> None:
        threading.Thread(target=self._pass_on, args=(self._listener,), daemon=True).start()

    def _pass_on(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                client = listener.accept()[0]
                self.came += 1
                if self.came <= self.turned_away:
                    client.close()
                    continue
                ends = [client, socket.create_connection(self._server)]
                self._open += ends
                for source, target in (ends, ends[::-1]):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                target.sendall(part)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
