"""A running host, started as a user starts it: ``manage.py serve`` in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).resolve().parent.parent
KEY = "nh_test1234_0123456789abcdefghij"


class Host:
    """One embedded host on a data directory; may be stopped, killed and started again."""

    def __init__(self, data_dir: Path, **environment: str) -> None:
        self.data_dir = data_dir
        self.log = data_dir / "host.log"
        self.root = ROOT
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(data_dir),
            "DJANGO_SETTINGS_MODULE": "nanohost.settings",
            "DATA_DIR": str(data_dir),
            "PORT": "0",
            "LOG_FORMAT": "json",
            "NANOHOST_API_KEY": KEY,
            "NANOHOST_ADMIN_PASSWORD": "correct horse battery",
            "NANOHOST_EXTRA_APPS": "tests.toolbox",
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self, *, seconds: float = 30) -> "Host":
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            start_of_log = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "serve"], cwd=self.root, env=self._environment, stdout=log, stderr=log
            )
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"the host ended with {self.process.returncode}:\n{self.log_text()[-3000:]}")
            found = re.search(r"Admin +(http://\S+)/admin/", self.log_text()[start_of_log:])
            if found:
                self.address = found.group(1)
                try:
                    if httpx2.get(f"{self.address}/health/ready", timeout=5).status_code == 200:
                        return self
                except httpx2.HTTPError:
                    pass
            time.sleep(0.05)
        raise TimeoutError(f"the host was not ready within {seconds} s:\n{self.log_text()[-3000:]}")

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def client(self, key: str | None = KEY, **options: Any) -> httpx2.Client:
        """An HTTP client of the API, at /api/v1."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=f"{self.address}/api/v1", headers=headers, timeout=60, **options)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``manage.py`` beside the host, on its data."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.root,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def kill(self) -> None:
        """kill -9."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, *, seconds: float = 15) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)
