"""Broken on purpose: each guarantee is taken out of a copy of the code, and its tests turn red."""

from pathlib import Path

import pytest

from tests.faults.mutants import MUTANTS, Mutant, copy_of_the_code, mutate, run_tests

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def test_unbroken_code_passes_them_all(tmp_path: Path) -> None:
    root = copy_of_the_code(tmp_path / "copy")
    run = run_tests(root, tuple(test for mutant in MUTANTS for test in mutant.caught_by))
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_guarantee_turns_its_tests_red(mutant: Mutant, tmp_path: Path) -> None:
    root = copy_of_the_code(tmp_path / "copy")
    mutate(root, mutant)
    run = run_tests(root, mutant.caught_by)
    assert run.returncode == 1, run.stdout[-3000:] + run.stderr[-3000:]
    assert mutant.says in run.stdout
    for test in mutant.caught_by:
        assert f"FAILED {test}" in run.stdout or f"ERROR {test}" in run.stdout, f"{test} did not see it"
