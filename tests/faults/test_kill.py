"""kill -9 at seeded points, SIGTERM and Ctrl-C in the middle of work: nothing is lost, nothing runs twice."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.points import Point, draw
from tests.faults.stopping import StoppedHost
from tests.faults.torture import Torture

SEED = int(os.environ.get("FAULTS_SEED", "") or random.SystemRandom().randrange(10**6))

# A recovery that is killed as well: what it meets first.
RECOVERY = [
    Point(stage="recovery", place=place, moment=moment)
    for place, moment in (("lease.claim", "after"), ("calls.claim", "after"), ("notification", "before"))
]


pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.embedded(reason="what dies is the one process; test_faults_production.py has the deaths of many"),
]


def test_three_kills_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kill_at_points(tmp_path, stages={"model", "effect", "finish"}, count=3, capsys=capsys)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_sixty_kills_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kill_at_points(tmp_path, stages=None, count=60, capsys=capsys)


def kill_at_points(data_dir: Path, *, stages: set[str] | None, count: int, capsys: Any) -> None:
    """``stages``: one point of each; None: all points, one round of the catalogue after the other."""
    with capsys.disabled():
        print(f"\nFAULTS_SEED={SEED}")  # noqa: T201 -- to repeat it
    rng = random.Random(SEED)
    began, missed, done = time.monotonic(), [], set()
    with Torture(data_dir) as torture:
        for point in draw(rng):
            if stages is not None and (point.stage not in stages or point.stage in done):
                continue
            again = None if stages else rng.choice([*RECOVERY, *[None] * 9])
            try:
                reached = torture.round(point, again=again)
            except BaseException as failure:
                failure.add_note(f"FAULTS_SEED={SEED}, killed at {point}, then at {again}, in {data_dir}")
                raise
            if reached:
                done.add(point.stage)
            else:
                missed.append(str(point))
            assert len(missed) <= 10, f"points that were never reached: {missed}"
            if sum(torture.kills.values()) - torture.kills["recovery"] == count:
                break
        torture.judge_all()
    with capsys.disabled():
        figures = f"{len(torture.talks)} conversations, {dict(torture.ended)}, {time.monotonic() - began:.0f} s"
        print(f"kills: {dict(torture.kills)}; never reached: {missed}; {figures}")  # noqa: T201 -- how much was tried


# Ctrl-C is what test_serve.py stops a host with in every run.
@pytest.fixture(
    scope="module",
    params=[signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.faults)],
    ids=["SIGTERM", "Ctrl-C"],
)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoppedHost:
    """A host that was stopped while it awaited a model and ran tools, and started again."""
    return StoppedHost(tmp_path_factory.mktemp("stopped"), request.param)


def test_a_stop_takes_less_than_ten_seconds(stopped: StoppedHost) -> None:
    assert stopped.seconds < 10


def test_a_turn_in_mid_model_call_is_released_at_no_cost(stopped: StoppedHost) -> None:
    assert stopped.between["model"]["turn"] == ["waiting", "retry", 0]
    assert stopped.after["model"]["assistantMessage"] == "at last"


def test_a_read_that_was_stopped_runs_again_at_no_cost(stopped: StoppedHost) -> None:
    assert stopped.between["read"] == {"turn": ["waiting", "tools", 0], "calls": [["QUEUED", 0]]}
    assert stopped.after["read"]["toolCalls"][0]["status"] == "SUCCESS"
    assert stopped.looks.read_text().count("looked") == 2


def test_a_write_in_mid_effect_is_given_time_to_end(stopped: StoppedHost) -> None:
    assert stopped.between["short write"]["calls"] == [["SUCCESS", 1]]
    assert stopped.after["short write"]["status"] == "succeeded"
    assert stopped.effects.read_text().count("short") == 1


def test_a_write_that_takes_too_long_is_unknown_and_not_repeated(stopped: StoppedHost) -> None:
    assert stopped.between["long write"]["calls"] == [["UNKNOWN", 1]]
    assert stopped.after["long write"]["assistantMessage"].startswith("UNKNOWN")
    assert stopped.effects.read_text().count("long") == 1
