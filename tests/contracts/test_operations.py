"""docs/operations.md: its commands, log lines, figures and queries are the code's."""

import re

import pytest
import yaml
from django.db import connection

from conversations.errors import TurnProblem
from conversations.kinds import KINDS
from tests.support.sources import ROOT, read_settings, readers, tracked_files

TEXT = (ROOT / "docs" / "operations.md").read_text()
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]

shapeless = pytest.mark.shapeless(reason="it reads files")


def first_cells(*, after: str) -> list[str]:
    """The first column of the first table after some words, without its head."""
    table = re.search(r"(?:^\|.*\n)+", TEXT.split(after, 1)[1], re.MULTILINE)[0]
    return [line.split(" | ")[0].strip("| `") for line in table.splitlines()[2:]]


@shapeless
def test_the_table_of_processes_has_each_service_s_command():
    commands = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", TEXT, re.MULTILINE))
    assert commands == {name: SERVICES[name]["command"] for name in SERVICES if name not in ("postgres", "redis")}


@shapeless
def test_every_log_line_it_explains_is_one_the_code_writes():
    lines = first_cells(after="Log lines (`event`), and what to do")
    assert len(lines) > 10
    source = "\n".join(
        path.read_text() for path in tracked_files() if path.suffix == ".py" and "tests" not in path.parts
    )
    assert [line for line in lines if line not in source] == []


@shapeless
def test_every_part_of_readiness_is_explained():
    parts = re.findall(r"_passes\(_(\w+)\)", (ROOT / "conversations" / "web" / "health.py").read_text())
    parts += [kind.check for kind in KINDS if kind.check]
    assert len(parts) == 5
    assert set(first_cells(after="GET /health/ready")) == {*parts, "web"}


@shapeless
def test_every_code_it_names_is_one():
    named = set(re.findall(r"`((?:turn|llm)_(?!timeout`)\w+)`", TEXT.split("Rows, and what to do:")[1]))
    assert len(named) > 4
    assert named - {"turn_id"} <= TurnProblem.codes.keys()


@shapeless
def test_every_default_it_names_is_the_code_s_or_compose_s(monkeypatch):
    for reader in readers():
        monkeypatch.delenv(reader.name, raising=False)
    defaults = read_settings()
    named = set(re.findall(r"`([A-Z_]+)` \((\d+)\)", TEXT))
    assert len(named) > 5
    for name, figure in named:
        composed = SERVICES["web"]["environment"].get(name)
        assert figure in (f"{defaults[name]:g}", str(composed).removeprefix(f"${{{name}:-").removesuffix("}")), name


@pytest.mark.production(reason="the queries are PostgreSQL's")
@pytest.mark.django_db
def test_every_query_runs():
    blocks = re.findall(r"^```sql\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for query in ";".join(blocks).split(";"):
        if "SELECT" in query:
            with connection.cursor() as cursor:
                cursor.execute(query)
