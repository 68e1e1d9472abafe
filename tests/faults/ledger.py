"""A ledger outside of the database: what clients were promised, what tools did, what models were asked, who was killed.

A process of its own on a Unix socket, so that it outlives everybody who tells it something. Each entry is one line of
JSON; ``at`` is when it came in, in seconds of the machine's clock, by the ledger's own reading. Whoever tells something
is answered with how often the same was told before, so that a tool can die the first time only.
"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.servers import leashed
from tests.support.hosts import ROOT

# In DATA_DIR, which is among the few variables a tool's process is given.
SOCKET, ENTRIES = "ledger", "ledger.jsonl"


def tell(data_dir: str | Path, kind: str, name: str, **more: Any) -> int:
    """Have something recorded; returns how often this kind of thing was recorded of this name before."""
    with socket.socket(socket.AF_UNIX) as ledger:
        ledger.settimeout(30)
        ledger.connect(str(Path(data_dir) / SOCKET))
        ledger.sendall(json.dumps({"kind": kind, "name": name, **more}).encode() + b"\n")
        return int(ledger.makefile().readline())


class Ledger:
    """The ledger's process, and what stands in it so far."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.entries: list[dict[str, Any]] = []
        self._read_to = 0
        self._reading = threading.Lock()
        command = leashed([sys.executable, "-m", "tests.faults.ledger", str(data_dir)])
        self._process = subprocess.Popen(command, cwd=ROOT)
        until = time.monotonic() + 60
        while not (data_dir / SOCKET).exists():
            assert time.monotonic() < until, "the ledger did not start"
            time.sleep(0.02)

    def tell(self, kind: str, name: str, **more: Any) -> int:
        return tell(self.data_dir, kind, name, **more)

    def read(self) -> list[dict[str, Any]]:
        """All entries, with those that came since the last look."""
        with self._reading, (self.data_dir / ENTRIES).open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.entries.append(json.loads(line))
                self._read_to += len(line)
            return list(self.entries)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All entries of a kind."""
        return [entry for entry in self.read() if entry["kind"] == kind]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


async def _keep(data_dir: Path) -> None:
    told: Counter[tuple[str, str]] = Counter()
    with (data_dir / ENTRIES).open("ab", buffering=0) as entries:

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                entry = json.loads(line)
                entries.write(json.dumps({"at": time.time(), **entry}).encode() + b"\n")
                which = (entry["kind"], entry["name"])
                writer.write(b"%d\n" % told[which])
                told[which] += 1
            writer.close()

        server = await asyncio.start_unix_server(listen, data_dir / SOCKET, backlog=500)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_keep(Path(sys.argv[1])))
