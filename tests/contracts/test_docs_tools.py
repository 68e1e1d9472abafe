"""docs/tools.md: its example is put into an app, tested, allowed and called; so is what ``tools new`` writes.

The blocks marked ``python`` are the files named above them. They go to a folder of their own, with a host on it.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils.module_loading import import_string

from tests import shapes
from tests.support import warm
from tests.support.api_client import start
from tests.support.hosts import ROOT, Host
from tests.support.scripts import script
from tools.changes import FIELDS
from tools.permissions import Permission
from tools.registry import tool
from tools.sandbox.forkserver import PASSED_ON
from tools.schemas import arguments_schema

PAGE = (ROOT / "docs" / "tools.md").read_text()
FILES = dict(re.findall(r"^`(\S+\.py)`\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)).splitlines()
BODY, SCHEMA = (json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))

shapeless = pytest.mark.shapeless(reason="it reads the page")
# Hosts of production have the tests' own tools in each of their tests.
embedded = pytest.mark.embedded(reason="the tools of an app are the same in a toolbox")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the apps are."""
    (tmp_path / "apps").mkdir()
    return tmp_path / "apps"


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's app, begun as the page begins it and filled in."""
    folder = tmp_path_factory.mktemp("followed")
    begun = manage(folder, *COMMANDS[0].split()[2:], "--directory", str(folder))
    assert begun.returncode == 0, begun.stderr
    for name, source in FILES.items():
        (folder / name).write_text(source)
    return folder


def manage(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "DATA_DIR": str(folder / "nothing")}
    return warm.run("manage.py", *arguments, env=environment, timeout=60)


def run_its_tests(folder: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    """Run an app's tests as the page does, which is from the checkout, with pytest's settings there."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(folder),
        "NANOHOST_EXTRA_APPS": "parcels" if (folder / "parcels").exists() else "",
        "DATA_DIR": str(folder),
        "TEST_SHAPE": shapes.EMBEDDED,
    }
    options = ["-q", "-n0", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(folder / path) for path in paths)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.fixture
def start_with(tmp_path: Path) -> Iterator[Any]:
    """Start a host with an app of the folder's."""
    hosts = []

    def begin(app: str, folder: Path) -> Host:
        (tmp_path / "data").mkdir(mode=0o700)
        hosts.append(Host(tmp_path / "data", NANOHOST_EXTRA_APPS=app, PYTHONPATH=str(folder)))
        return hosts[-1].start()

    yield begin
    for host in hosts:
        host.kill()


def chat_with(host: Host, body: dict[str, str]) -> dict[str, Any]:
    with host.client() as api:
        answer = api.post(f"/conversations/{start(api)}/chat", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# --- the page's example ------------------------------------------------------------------------------------------


@embedded
def test_the_example_is_refused_until_it_is_allowed_and_then_answers(followed, start_with):
    host = start_with("parcels", followed)
    refused = chat_with(host, BODY)
    assert '"rule": "not_enabled"' in refused["toolCalls"][0]["result"]
    (allow,) = (line for line in COMMANDS if "tools allow" in line)
    assert host.manage(*allow.split()[2:]).stdout == "parcel_fee is allowed.\n"
    answer = chat_with(host, BODY)
    assert [(call["status"], call["result"]) for call in answer["toolCalls"]] == [("SUCCESS", "9.00 EUR")]
    assert "9.00 EUR" in answer["assistantMessage"]
    assert f"`{answer['toolCalls'][0]['result']}`" in PAGE


@shapeless
def test_the_examples_own_tests_pass(followed):
    ran = run_its_tests(followed, "parcels")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("...")


@shapeless
def test_the_schema_is_the_examples(followed, monkeypatch):
    monkeypatch.syspath_prepend(str(followed))
    from tools import registry

    monkeypatch.setattr(registry, "_tools", {})
    monkeypatch.setattr(registry, "_awaiting_schema", {})
    function = import_string("parcels.agent_tools.parcel_fee")
    assert arguments_schema(function) == SCHEMA
    assert registry.get("parcel_fee").description == "Return what it costs to send a parcel, in euros."


# --- what `tools new` writes -------------------------------------------------------------------------------------


@embedded
def test_what_tools_new_writes_passes_its_test_and_can_be_called(folder, start_with):
    begun = manage(folder, "tools", "new", "rain", "--app", "town.garden", "--directory", str(folder))
    assert begun.returncode == 0, begun.stderr
    ran = run_its_tests(folder, "town/garden/tests/test_rain.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # The steps it prints.
    assert "export NANOHOST_EXTRA_APPS=town.garden\n" in begun.stdout
    assert f"export PYTHONPATH={folder}\n" in begun.stdout
    host = start_with("town.garden", folder)
    assert "tools allow rain\n" in begun.stdout
    assert host.manage("tools", "allow", "rain").stdout == "rain is allowed.\n"
    body = json.loads(re.search(r"^  '(.*)'$", begun.stdout, re.MULTILINE)[1])
    assert body == {
        "message": script({"call": [{"name": "rain", "arguments": {"text": "hello"}}]}, {"say": "{results}"})
    }
    assert chat_with(host, body)["toolCalls"][0]["result"] == "hello"


# --- what the page lists -----------------------------------------------------------------------------------------


def first_cells(section: str) -> set[str]:
    """What the first column of a section's table names."""
    rows = re.findall(r"^\| (`.*?) \|", PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0], re.MULTILINE)
    return {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}


@shapeless
def test_every_argument_of_the_decorator_is_on_the_page():
    assert first_cells("What the decorator takes") == set(inspect.signature(tool).parameters)
    for permission in Permission:
        assert f"`{permission}`" in PAGE


@shapeless
def test_every_field_and_every_rule_is_on_the_page():
    from tools.admin import RuleFilter

    listed = first_cells("What an admin decides")
    refusals = list(RuleFilter.values(None))
    refusals = refusals[: refusals.index("raised")]
    rules = {rule if rule.startswith("rate:") else re.sub(":.*", ":…", rule) for rule in refusals}
    assert listed == {*FIELDS, *rules}


@shapeless
def test_what_a_tools_process_has_is_what_the_page_says():
    section = PAGE.split("\n## What it can see\n")[1].split(";\n")[0]
    assert set(re.findall(r"`([A-Z_]+)`", section)) == set(PASSED_ON)


@shapeless
def test_the_readme_leads_to_it():
    assert "(docs/tools.md)" in (ROOT / "README.md").read_text()
