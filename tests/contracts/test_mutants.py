"""Broken on purpose: each guarantee is taken out of a copy of the code, and its tests turn red."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests import shapes
from tests.faults.mutants import MUTANTS, Mutant, copy_of_the_code, file_of, mutate, run_tests
from tests.support.hosts import ROOT

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.shapeless(reason="each mutant names its shape, and is run on it from either"),
]

# Run with every suite, so that this does not rot: of those the quickest.
QUICK = "no fence check"


def needs_its_servers(shape: str) -> None:
    """Skip where there are none; those that were named must answer."""
    if shape == shapes.PRODUCTION:
        try:
            shapes.find_servers()
        except shapes.ServerMissing as missing:
            if os.environ.get("TEST_DATABASE_URL") or os.environ.get("TEST_REDIS_URL"):
                raise
            pytest.skip(str(missing))


def is_caught(mutant: Mutant, root: Path) -> None:
    mutate(root, mutant)
    run = run_tests(root, mutant.caught_by, shape=mutant.shape)
    assert run.returncode == 1, run.stdout[-3000:] + run.stderr[-3000:]
    assert mutant.says in run.stdout, run.stdout[-3000:]
    for test in mutant.caught_by:
        assert f"FAILED {test}" in run.stdout or f"ERROR {test}" in run.stdout, f"{test} did not see it"


@pytest.mark.faults
@pytest.mark.parametrize("shape", [shapes.EMBEDDED, shapes.PRODUCTION])
def test_unbroken_code_passes_them_all(shape: str, tmp_path: Path) -> None:
    needs_its_servers(shape)
    root = copy_of_the_code(tmp_path / "copy")
    tests = tuple(test for mutant in MUTANTS if mutant.shape == shape for test in mutant.caught_by)
    run = run_tests(root, tests, shape=shape)
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.faults
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_guarantee_turns_its_tests_red(mutant: Mutant, tmp_path: Path) -> None:
    needs_its_servers(mutant.shape)
    is_caught(mutant, copy_of_the_code(tmp_path / "copy"))


def test_a_lost_fence_turns_its_test_red(tmp_path: Path) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == QUICK)
    is_caught(mutant, copy_of_the_code(tmp_path / "copy"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_edit_fits_the_code_and_every_test_is_there(mutant: Mutant, tmp_path: Path) -> None:
    for name in {file_of(place) for place, _, _ in mutant.edits}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    mutate(tmp_path, mutant)
    for name in {file_of(place) for place, _, _ in mutant.edits}:
        compile((tmp_path / name).read_text(), name, "exec")
    for test in mutant.caught_by:
        file, _, function = test.partition("[")[0].partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE), test
