"""``manage.py chat``, in a terminal of its own (a pty) and without one, against a running host."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conversations.management import terminal
from tests.support.hosts import KEY, ROOT, Host

# Longer than any answer takes on a busy machine.
SECONDS = 60


def environment(home: Path, **more: str) -> dict[str, str]:
    """Of somebody at another machine, who has nothing but a key."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "DATA_DIR": str(home / "var"),
        "DJANGO_SETTINGS_MODULE": "nanohost.settings",
        "NANOHOST_API_KEY": KEY,
        **more,
    }


class Terminal:
    """The command, as somebody sees it."""

    def __init__(self, host: Host, home, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        given = environment(home, TERM="xterm", COLUMNS="80")
        command = [sys.executable, "manage.py", "chat", "--url", host.address, *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=given)
        os.close(theirs)
        self.seen = ""

    def enter(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, words: str) -> str:
        """What is seen until these words are, without what only draws."""
        end = time.monotonic() + SECONDS
        while words not in self.seen and time.monotonic() < end:
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    more = os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # it has ended
                    break
                if "\x1b[6n" in more:  # where is the cursor?
                    os.write(self._ours, b"\x1b[1;1R")
                self.seen += re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r", "", more)
        assert words in self.seen, self.seen
        seen, _, self.seen = self.seen.partition(words)
        return seen

    def close(self) -> int:
        code = self.process.wait(timeout=SECONDS)
        os.close(self._ours)
        return code


@pytest.fixture
def at_terminal(host: Host, tmp_path) -> Iterator[Terminal]:
    running = Terminal(host, tmp_path, "--conversation", f"cli:{tmp_path.name}")
    yield running
    running.process.kill()
    running.process.wait()


def test_somebody_talks_in_a_terminal(at_terminal, tmp_path):
    at_terminal.until("You:")
    at_terminal.enter("Hello, **you**\r")
    at_terminal.until("Hello, **you**")
    # It waits until there is the answer to the first.
    at_terminal.enter("/help\r")
    at_terminal.until("/reset")
    at_terminal.enter("exit\r")
    assert at_terminal.close() == 0
    history = tmp_path / ".local" / "state" / "nanohost" / "chat_history"
    assert "Hello, **you**" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


@pytest.fixture
def run(host: Host, tmp_path):
    """Run the command without a terminal."""

    def run(*arguments: str, said: str = "", key: str = KEY, url: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", "chat", "--url", url or host.address, *arguments]
        given = {"input": said, "env": environment(tmp_path, NANOHOST_API_KEY=key), "cwd": ROOT}
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, **given)

    return run


def test_without_a_terminal_lines_are_said_and_answers_printed(run):
    one = run("-m", "What time is it?")
    assert (one.returncode, one.stderr) == (0, "")
    assert one.stdout.strip()
    two = run(said="/help\n\nexit\nnever said\n")
    assert two.returncode == 0
    assert "/new" in two.stdout
    assert "\x1b" not in one.stdout + two.stdout


def test_what_is_wrong_is_said_in_a_sentence(run):
    for ran, words in (
        (run("--agent", "nobody"), "There is no agent named 'nobody'"),
        (run(key="nh_wrong_key"), "Is the key in NANOHOST_API_KEY right?"),
        (run(url="http://127.0.0.1:9"), "There is no host at http://127.0.0.1:9"),
        (run(url="nowhere"), "is not an address"),
    ):
        assert ran.returncode == 1
        assert words in ran.stderr
        assert "Traceback" not in ran.stderr


def test_what_a_model_says_moves_no_cursor():
    assert terminal.harmless("a\x1b[2Jb\x9b1mc\rd\te\n") == "a[2Jb1mcd\te\n"


def test_a_stream_that_is_cut_is_gone_on_with_where_it_was():
    text = "Hel\u2028 \u0085"
    whole = f'id: 1\nevent: message.delta\r\ndata: {{"message": 0, "offset": 0, "text": "{text}"}}\n\n'
    cut = f"{whole}: a comment\n\nid: 2\nevent: message.delta\n".encode()
    for size in (1, 7, len(cut)):
        (event,) = terminal.read_events(cut[at : at + size] for at in range(0, len(cut), size))
        assert (event.id, event.name, event.data["text"]) == ("1", "message.delta", text)
