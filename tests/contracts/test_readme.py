"""The README and the pages that go on from it: every command is run, in order. Every setting is in docs/settings.md.

The blocks marked ``bash`` go to one shell, in a copy of the project, as a reader would type them. Replaced are what
never ends and what would run this suite again: ``[SETTING=…] make run`` is a host that is started with those settings
on the copy's data (a port of its own stands for 8000, and the key it shows for ``nh_…``), and ``make test`` and ``make
stack``, which tests/host/test_stack.py runs, are looked up in the Makefile. A block marked ``json`` is what the
commands before it print; ``…`` stands for anything. A block marked ``sh`` shows usage and is not run.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hosts import Host
from tests.support.sources import READ_ELSEWHERE, ROOT, read_settings, readers, tracked_files

pytestmark = pytest.mark.shapeless(reason="the README is read once; its first command is the embedded host")

# The README, and the pages that use the host, key and shell of its "Five minutes".
PAGES = ("README.md", "docs/schedules.md", "docs/import.md")
SETTINGS_PAGE = (ROOT / "docs" / "settings.md").read_text()
DONE = "--- the block is done:"


class Reader:
    """Somebody who follows the pages: one shell, one host at a time, in a copy of the project."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        for path in tracked_files():
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        (copy / ".venv").symlink_to(sys.prefix)
        (copy / "var").mkdir(mode=0o700)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = str(free.getsockname()[1])
        self.host: Host | None = None
        self.key = ""
        self.shell = subprocess.Popen(
            ["bash"],
            cwd=copy,
            env={"PATH": os.environ["PATH"], "HOME": str(copy)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def follow(self, block: str) -> str:
        """Do what a block says; returns what it printed."""
        if run := re.fullmatch(r"((?:\w+=\S+ )*)make run\n", block):
            self.start(dict(setting.split("=", 1) for setting in run[1].split()))
            return ""
        if found := re.fullmatch(r"make (test|stack)(?: N=3)?\n", block):
            assert re.search(rf"^{found[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            return ""
        assert block == "make secrets\n" or not re.search(r"\bmake\b", block), (
            "a block of its own, so that it can be replaced"
        )
        block = block.replace("nh_…", self.key).replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        self.shell.stdin.write(f"set -e\n{block}\nset +e; echo '{DONE}'\n")
        self.shell.stdin.flush()
        printed = ""
        for line in self.shell.stdout:
            if line.startswith(DONE):
                return printed
            printed += line
        raise AssertionError(f"the shell ended in:\n{block}\n{printed}")

    def start(self, settings: dict[str, str]) -> None:
        self.stop()
        unset = {"NANOHOST_API_KEY": "", "NANOHOST_ADMIN_PASSWORD": "", "NANOHOST_EXTRA_APPS": ""}
        settings = {name: value.replace("…", "abcdefghijkl") for name, value in settings.items()}
        self.host = Host(self.copy / "var", empty=True, PORT=self.port, **unset | settings)
        self.host.root = self.copy
        self.host.start()
        self.key = self.key or re.search(r"API key +(nh_\S+)", self.host.log_text())[1]

    def stop(self) -> None:
        if self.host:
            assert self.host.stop() == 0

    def leave(self) -> None:
        self.shell.kill()
        self.shell.communicate()
        if self.host:
            self.host.kill()


@pytest.fixture
def reader(tmp_path):
    reader = Reader(tmp_path)
    yield reader
    reader.leave()


def as_pattern(expected: str) -> str:
    """What is expected, blanks aside."""
    return ".*".join(re.escape(part) for part in re.sub(r"\s", "", expected).split("…"))


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not shutil.which("curl"), reason="the README's commands are for curl; there is none")
def test_every_command_does_what_the_pages_say(reader):
    for page in PAGES:
        if page != "README.md":
            reader.start({})  # the scripted model again
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        assert {kind for kind, _ in blocks} - {"sh"} <= {"bash", "json", "python"}
        printed = ""
        for kind, block in blocks:
            if kind == "bash":
                printed = reader.follow(block)
            elif kind == "python":
                reader.start({})  # no model of the README's answers here
                assert reader.follow(f".venv/bin/python - <<'END'\n{block}END\n").strip()
            elif kind == "json":
                matches = re.fullmatch(as_pattern(block), re.sub(r"\s", "", printed))
                assert matches, f"{page}:\n{block}\nbut:\n{printed}"


def test_the_readme_takes_five_minutes_and_says_to_stop_one_host_before_the_next():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 200
    _, *later = re.split(r"^```bash\n(?:\w+=\S+ )*make run\n```$", text, flags=re.MULTILINE)
    assert len(later) == 3
    # Between the first host and the second.
    assert "Stop the host (Ctrl-C) first." in later[0]


# --- docs/settings.md ---------------------------------------------------------------------------------------------


def documented() -> dict[str, str]:
    """Each setting of the page with its default."""
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*?) \| .+ \|$", SETTINGS_PAGE, re.MULTILINE)
    assert len(rows) == SETTINGS_PAGE.count("\n| `")
    assert len(rows) == len(dict(rows))
    return {name: default.strip("`") for name, default in rows}


def as_text(value: object) -> str:
    """A default as the page writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(value)) or "none"
    if isinstance(value, dict):
        return ", ".join(value) or "none"
    if isinstance(value, Path):
        return str(value.relative_to(ROOT))
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def test_every_setting_is_on_the_page_once_with_its_default_and_nothing_else_is(monkeypatch):
    for reader in readers():
        monkeypatch.delenv(reader.name, raising=False)
    settings = read_settings()
    defaults = {reader.name: as_text(settings[reader.name]) for reader in readers()} | dict.fromkeys(
        READ_ELSEWHERE, "none"
    )
    defaults |= dict.fromkeys(("SECRET_KEY", "WEBHOOK_KEY"), "none")  # made, not known
    assert documented() == defaults


def test_nobody_else_reads_the_environment():
    """Or a setting would be on no page. What processes inherit is passed on, not read."""
    allowed = {"nanohost/lib/env.py", "nanohost/lib/redaction.py", "tools/sandbox/child.py"}
    allowed |= {"tools/agent_tools.py"}  # TIME_ZONE, in a process that does without Django
    allowed |= {"tools/outbound/client.py"}  # TRACEPARENT, which that process is told for a call
    found = set()
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if name.endswith(".py") and not name.startswith("tests/") and name not in allowed:
            source = path.read_text()
            for told in ("DJANGO_SETTINGS_MODULE", "CELERY_SKIP_CHECKS"):  # what we tell Django and Celery
                source = source.replace(f'os.environ.setdefault("{told}"', "")
            if "os.environ" in source or "getenv" in source:
                found.add(name)
    assert found == set()


def test_what_is_read_elsewhere_is_known():
    """Outside the settings, ``env`` reads the secrets that nothing keeps, and nothing more."""
    sources = [path.read_text() for path in tracked_files() if path.suffix == ".py" and "tests" not in path.parts]
    read = {name for source in sources for name in re.findall(r'\benv\.\w+\(\s*"(\w+)"', source)}
    assert read == {reader.name for reader in readers()} | set(READ_ELSEWHERE)
