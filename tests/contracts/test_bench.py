"""The benchmark runs; what it finds is no matter of right and wrong."""

import subprocess
import sys

import pytest

from tests.bench import speed
from tests.bench.growth import GrowthLine, needs, predicted, rate_of
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
    needed = {(row[0], row[1]) for row in rows if len(row) == 11}
    assert {("echo", "1,000"), ("tool", "1,000")} < needed
    assert {"conversation", "turn", "message", "tool call"} <= {row[0] for row in rows}
    assert "in a warm process" in {row[0] for row in rows}


def test_a_goal_tells_whether_it_is_met():
    at_most, at_least = speed.GOALS[0], next(goal for goal in speed.GOALS if goal.at_least)
    assert [at_most.is_met(speed.EMBEDDED, ms) for ms in (5.0, 5.1)] == [True, False]
    assert [at_least.is_met(speed.PRODUCTION, a_second) for a_second in (200, 199.9)] == [True, False]


def turns_of(turn: str, rate: float, *, everything: float, workers: int = 1) -> GrowthLine:
    """As workers have done 100 of them: 5 ms of CPU of one of them each."""
    costs = {"worker": 5.0, "web": 4.0, "toolbox": 0.0, "PostgreSQL": 2.5, "Redis": 0.2, "all": everything}
    return GrowthLine(turn, workers, 1, 100, rate, {**costs, "transactions": 3.0, "log": 6500.0}, places=200)


def test_workers_do_as_many_times_what_one_does_until_something_is_full():
    one, most = turns_of("echo", 180, everything=8), turns_of("echo", 200, everything=10, workers=4)
    assert predicted(one, one, 1, cores=2) == (180, "workers")
    assert predicted(one, most, 2, cores=8) == (360, "workers")
    assert predicted(one, most, 4, cores=2) == (200, "cores")
    assert predicted(one, most, 2, cores=2) == (250, "cores")
    rate, full = predicted(one, most, 3, cores=2)
    assert (round(rate), full) == (222, "cores")  # one worker beyond the cores, of two: 9 ms
    slow = turns_of("200 ms", 100, everything=8)  # of the second that they took, the model took a fifth
    rate, full = predicted(slow, slow, 2, cores=8)
    assert (round(rate), full) == (167, "workers")


def test_what_more_turns_need_is_what_one_costs_times_their_number():
    echo = turns_of("echo", 180, everything=8)
    assert needs(echo, 1000) == ["echo", "1,000", "7", "5", "0", "2.5", "0.2", "3,000", "6.5", "10,000", "50"]
    assert needs(echo, rate_of(echo, 16))[:3] == ["echo", "2,560", "16"]
