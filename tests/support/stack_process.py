"""``manage.py stack`` running on a database and a Redis of its own, and what can be read off its processes."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from tests.support.hosts import HANGS_SECONDS, KEY, PLAIN, ROOT
from tests.support.wait import wait_until


class RunningStack:
    """The production shape by docker-compose.yml's commands, on this machine."""

    def __init__(self, folder: Path, *, database_url: str, redis_url: str, workers: int = 1, **own: str) -> None:
        self.folder = folder
        self.log = folder / "stack.log"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "DATA_DIR": str(folder),
            "PORT": "0",
            "NANOHOST_EXTRA_APPS": "tests.toolbox",
            "NANOHOST_API_KEY": KEY,
            "WEB_DRAIN_SECONDS": "0",
            **own,
        }
        self._command = [sys.executable, "manage.py", "stack", "--workers", str(workers)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "RunningStack":
        """Start it; returns when it has said that it is ready, and how it is reached."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(lambda: "Ctrl-C stops it." in self.printed() or self.process.poll() is not None, seconds=90)
        assert self.process.poll() is None, self.printed()
        return self

    def refusal(self) -> str:
        """The one line with which it ends."""
        ended = subprocess.run(
            self._command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=HANGS_SECONDS
        )
        assert ended.returncode == 1
        assert ended.stdout == ""
        (line,) = ended.stderr.splitlines()
        return line

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def address(self) -> str:
        return str(self._told()["address"])

    @property
    def pids(self) -> dict[str, int]:
        """Of each process, by its name."""
        return dict(self._told()["processes"])

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "stack" / "processes.json").read_text())
        return told

    def client(self) -> httpx2.Client:
        """An HTTP client of the API, at /api/v1."""
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx2.Client(base_url=f"{self.address}/api/v1", headers=headers, timeout=60, verify=PLAIN)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def leave(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def environment_of_process(pid: int) -> dict[str, str]:
    """What it was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


def command_of_process(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]


def descendants_of(pid: int) -> list[int]:
    """Its children, theirs, and so on."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):  # a child belongs to the thread that started it
        with suppress(FileNotFoundError, ProcessLookupError):  # that thread has ended
            children.update(map(int, (task / "children").read_text().split()))
    return sorted(children) + [found for child in sorted(children) for found in descendants_of(child)]


def cores_of(pid: int) -> set[frozenset[int]]:
    """The cores that its threads may use: of each, those; none if it has ended."""
    found = set()
    with suppress(FileNotFoundError):
        for each in os.listdir(f"/proc/{pid}/task"):
            with suppress(ProcessLookupError):  # that thread has
                found.add(frozenset(os.sched_getaffinity(int(each))))
    return found


def curl_line(printed: str) -> str:
    """The line to be pasted, as the announcement shows it."""
    return re.search(r"^  (curl .+)$", printed, re.MULTILINE)[1]
