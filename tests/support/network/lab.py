"""A laboratory for outbound requests: a network namespace of its own, where every address is local.

Every IPv4 and IPv6 address that can be connected to leads to the servers of :mod:`.inside`, which count
each connection by the address it was made to. So a request that gets where it must not is seen, and reaches nobody.
Names are answered by a DNS server of the lab's own; certificates are of its own authority. The client under test runs
in a process of its own (:mod:`tests.support.network.client`), whose memory is measured.

Needs ``unshare`` and ``ip``, and to be allowed user namespaces, or to be root. Where that is not possible, CI fails,
and others are told why these tests were left out.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import ROOT

# With and without a user namespace; who is root may be denied the one or the other.
_WAYS_IN = (["unshare", "-Urnm"], ["unshare", "-nm"])


@cache
def way_in() -> list[str]:
    """The command that puts another into namespaces of its own; empty if there is none."""
    if shutil.which("unshare") and shutil.which("ip"):
        for way in _WAYS_IN:
            if subprocess.run([*way, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0:
                return way
    return []


def need_a_lab() -> None:
    """Skip the test where there can be no lab, and say so; in CI, fail it."""
    if not way_in():
        reason = "NOT TESTED: where outbound requests get to; this needs unshare, ip and namespaces (user, or as root)"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def answer(body: bytes | str = b"", *, status: int = 200, **headers: str) -> bytes:
    """An HTTP answer as bytes; ``content_type="text/plain"`` is a header."""
    raw = body.encode() if isinstance(body, str) else body
    told = {"content_length": str(len(raw))} | headers
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name.replace('_', '-')}: {value}" for name, value in told.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def redirect(location: str, *, status: int = 302) -> bytes:
    return answer(status=status, location=location)


class Lab:
    """The outside of it: sets names and pages, has the client fetch, and asks which addresses were reached."""

    def __init__(self, directory: Path) -> None:
        self._log = (directory / "log").open("w+")
        self._process = subprocess.Popen(
            [*way_in(), sys.executable, "-m", "tests.support.network.inside", str(directory)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=20)
        self._process.stdout.close()
        self._log.close()

    def ask(self, command: str, **arguments: Any) -> Any:
        self._process.stdin.write(json.dumps({"command": command} | arguments) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise AssertionError(f"the lab has ended:\n{self._log.read()}")
        told = json.loads(line)
        assert "trace" not in told, told["trace"]
        return told["value"]

    # --- what there is to be found -------------------------------------------------------------------------------

    def name(
        self,
        name: str,
        a: Sequence[str] | Sequence[list[str]] = (),
        aaaa: Sequence[str] | Sequence[list[str]] = (),
        *,
        cname: str = "",
        silent: bool = False,
    ) -> None:
        """Have a name resolve. A list of lists is answered in turn, its last for good; ``silent``: not at all."""
        records = {"A": _in_turn(a), "AAAA": _in_turn(aaaa)}
        self.ask("name", name=name, records=records, cname=cname, silent=silent)

    def page(self, url: str, *chunks: bytes, pause: float = 0, endless: bool = False) -> str:
        """Have a URL answered with these bytes, ``pause`` seconds apart, the last one for ever if ``endless``."""
        encoded = [base64.b64encode(chunk).decode() for chunk in chunks]
        self.ask("page", url=url, chunks=encoded, pause=pause, endless=endless)
        return url

    # --- what is done --------------------------------------------------------------------------------------------

    def fetch(self, url: str, **options: Any) -> dict[str, Any]:
        """What :func:`tools.outbound.client.fetch` returns, or its refusal: ``rule``, ``hop``, ``url``, ``message``."""
        return self.ask("fetch", url=url, **options)

    def fetch_all(self, urls: Iterable[str], **options: Any) -> list[dict[str, Any]]:
        return [self.fetch(url, **options) for url in urls]

    def connect(self, address: str, port: int = 80) -> bool:
        """Whether a plain client gets a connection to an address."""
        return self.ask("connect", address=address, port=port)

    def tool(self, **arguments: Any) -> dict[str, Any]:
        """What a call of http_get comes to in a tool's process: ``ok``, ``text`` and ``rule``."""
        return self.ask("tool", arguments=arguments)

    # --- what came of it -----------------------------------------------------------------------------------------

    def connections(self) -> list[str]:
        """The addresses and ports connected to since this was asked last, such as ``10.0.0.1 80``."""
        return self.ask("connections")

    def requests(self) -> list[str]:
        """The heads of the requests received since this was asked last."""
        return self.ask("requests")


def _in_turn(answers: Sequence[str] | Sequence[list[str]]) -> list[list[str]]:
    return [list(each) for each in answers] if answers and not isinstance(answers[0], str) else [list(answers)]
