"""The benchmark runs; what it finds is no matter of right and wrong."""

import subprocess
import sys

import pytest

from tests.bench import speed
from tests.faults.servers import missing_binaries
from tests.support.browser import chromium
from tests.support.hosts import ROOT


@pytest.mark.faults  # with them, for the time it takes
@pytest.mark.timeout(300)
@pytest.mark.shapeless(reason="it starts both shapes itself")
@pytest.mark.skipif(bool(missing_binaries()), reason="it needs PostgreSQL and Redis of its own")
def test_it_measures_turns_and_requests_in_both_shapes():
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=290
    )
    assert ran.returncode == 0, ran.stderr
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in ran.stdout.splitlines() if "|" in line]
    shown = {(row[0], row[2]) for row in rows if row[-1] in ("met", "not met")}
    measured = [goal for goal in speed.GOALS if goal.name != speed.DRAWN or chromium()]
    assert shown == {(goal.name, shape) for goal in measured for shape in goal.bounds}
    assert [row[0] for row in rows if row[1] == "1 + 1"] == ["echo", "200 ms", "tool"]
    assert "in a warm process" in {row[0] for row in rows}


def test_a_goal_tells_whether_it_is_met():
    at_most, at_least = speed.GOALS[0], next(goal for goal in speed.GOALS if goal.at_least)
    assert [at_most.is_met(speed.EMBEDDED, ms) for ms in (5.0, 5.1)] == [True, False]
    assert [at_least.is_met(speed.PRODUCTION, a_second) for a_second in (200, 199.9)] == [True, False]
