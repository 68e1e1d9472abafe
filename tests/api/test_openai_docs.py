"""docs/openai.md, held against the code."""

import re
from collections.abc import Iterator
from inspect import getmembers, isclass

import pytest
import yaml

from conversations.openai_api import errors, schema
from conversations.openai_api.parameters import PASSED_ON, REFUSED
from conversations.openai_api.schema import SETTINGS
from nanohost.lib.errors import Problem
from tests.support.hosts import KEY, ROOT, Host

PAGE = (ROOT / "docs/openai.md").read_text()


def test_the_page_tells_of_every_error_that_this_api_alone_has():
    told = {
        code: (int(status), meaning)
        for code, status, meaning in re.findall(r"^\| `(\w+)` \| (\d+) \| ([^`].+) \|$", PAGE, re.M)
    }
    kinds = [kind for _, kind in getmembers(errors, isclass) if kind.__module__ == errors.__name__]
    assert told == {kind.code: (kind.status, kind.title) for kind in kinds if issubclass(kind, Problem)}


def test_every_route_is_in_the_document_and_needs_a_key(host: Host):
    with host.client() as api:
        document = yaml.safe_load(api.get(f"{host.address}/api/schema/openai").text)
    (included,) = schema.patterns()
    routes = {re.sub(r"<\w+:(\w+)>", r"{\1}", f"/v1/{route.pattern}") for route in included.url_patterns}
    assert set(document["paths"]) == routes
    assert document["info"]["title"] == SETTINGS["TITLE"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["security"] == [{"apiKey": []}]
            assert "Scope: " in operation["description"]
    # Nothing is printed among the lines of JSON by what makes the document. (Celery warns of root, in its own words.)
    assert not re.search(r"Warning \[|enum naming", host.log_text())


def test_the_page_tells_of_every_parameter_that_is_read():
    (table,) = re.findall(r"^\| parameter \| effect \|\n(?:\|.*\n)+", PAGE, re.M)
    told = {
        name: becomes
        for names, becomes in re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.M)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert {name for name, becomes in told.items() if becomes.startswith("passed on")} == set(PASSED_ON)
    refused = {name for name, becomes in told.items() if "`unsupported_parameter`, since" in becomes}
    assert refused == set(REFUSED)


def test_the_page_names_tests_that_there_are():
    (_, suites) = PAGE.split("\n## Suites of others\n")
    named = set(re.findall(r"`(test_\w+)`", suites))
    tests = [path.read_text() for path in (ROOT / "tests/api").glob("test_openai_*.py")]
    assert len(named) > 30
    assert named <= {name for text in tests for name in re.findall(r"^def (test_\w+)", text, re.M)}


def examples() -> Iterator[str]:
    for page in (PAGE, (ROOT / "README.md").read_text()):
        yield from re.findall(r"```python\n(.*?)```", page, re.S)


@pytest.mark.parametrize("example", list(examples()))
def test_an_example_does_what_it_says(host: Host, example: str, capsys: pytest.CaptureFixture[str]):
    real = example.replace("http://127.0.0.1:8000", host.address).replace("nh_…", KEY)
    assert real.count(host.address) == real.count(KEY) == 1
    exec(real, {})
    assert capsys.readouterr().out.startswith(("The tool says: ", "You said: "))
