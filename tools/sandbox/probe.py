"""``python -m tools.sandbox.probe``: try from inside whether a box holds. Reads what to try from its argument, in JSON,
and writes what was kept from it: :data:`FILES` and so on, each true if it holds."""

import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from nanohost.lib.process import libc
from tools.sandbox.box import Box

FILES, PROCESSES, SIGNALS, NETWORK, NAMESPACES = "files", "processes", "signals", "network", "namespaces"


def main(asked: dict[str, Any]) -> dict[str, bool]:
    """``asked``: the box, a ``file`` that must not be read, the ``host``'s pid, and a ``port`` that it listens on."""
    box = Box(**asked["box"])
    box.change_user()
    box.enter()
    host, port = asked["host"], asked["port"]
    return {
        FILES: _fails(lambda: os.open(asked["file"], os.O_RDONLY)),
        PROCESSES: _fails(lambda: os.open(f"/proc/{host}/environ", os.O_RDONLY)),
        SIGNALS: _fails(lambda: os.kill(host, 0)),
        NETWORK: _fails(lambda: socket.create_connection(("127.0.0.1", port), timeout=1)),
        NAMESPACES: _fails(_make_a_user_namespace),
    }


def _fails(do: Callable[[], object]) -> bool:
    try:
        do()
    except OSError:
        return True
    return False


def _make_a_user_namespace() -> None:
    if libc().unshare(0x10000000):
        raise OSError


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
