"""What `make mutants` takes for granted: the survivors it knows stand in the code, and each has its reason."""

import tomllib

import pytest

from tests.mutation.__main__ import TESTS, Survivor, seeing
from tests.support.hosts import ROOT

pytestmark = pytest.mark.shapeless(reason="reads files")

LISTED = tomllib.loads((ROOT / "tests" / "mutation" / "survivors.toml").read_text()).get("survivor", [])


# Of the lines that a mistake makes, those that stand in the code anyway.
OF_ANY_CODE = {"", "break", "continue"}


@pytest.mark.parametrize("survivor", LISTED, ids=lambda each: f"{each['file']}: {each['line']}"[:80])
def test_a_known_survivor_stands_in_the_code_and_has_a_reason(survivor):
    lines = [line.strip() for line in (ROOT / survivor["file"]).read_text().splitlines()]
    assert survivor["line"] in lines, "the line has changed: see whether its mistakes are seen now"
    assert not set(survivor["becomes"]) & {*lines} - OF_ANY_CODE
    assert len(survivor["reason"].split()) > 3


@pytest.mark.parametrize("module", TESTS)
def test_the_modules_that_are_always_tried_have_tests(module):
    assert (ROOT / module).is_file()
    assert all((ROOT / test).is_file() for tests in seeing(module) for test in tests)


def test_another_modules_tests_are_those_that_import_it():
    quick, slow = seeing("agent/loop.py")
    assert "tests/unit/agent/test_loop.py" in quick
    assert slow == []


ORIGINAL = "a = 0\n\n\n@cache\ndef f(): ...\n"


@pytest.mark.parametrize(
    ("source", "line", "becomes"),
    [(ORIGINAL.replace("0", "1"), "a = 0", "a = 1"), (ORIGINAL.replace("\n\n\n@cache", ""), "@cache", "")],
)
def test_a_mistake_is_told_by_its_line_and_what_that_becomes(source, line, becomes):
    """A decorator is taken out with the empty lines before it."""
    made = Survivor.of("a.py", ORIGINAL, source)
    assert (made.line, made.becomes) == (line, becomes)
