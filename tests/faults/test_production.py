"""Faults on the production shape: processes and servers killed, stopped, restarted, silenced and emptied under work.

A small dose in the suite, the full one under ``make faults``. The clocks of half the workers and toolboxes are ten
minutes ahead, those of the others ten behind. Judged by a ledger outside of the database: every
accepted message ends as it should, every effect happens once at most.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from tests.faults.client import judge, judge_models, percentile, percentiles, recoveries
from tests.faults.cluster import LEASE_SECONDS, SWEEP_SECONDS, Cluster
from tests.faults.servers import need_servers
from tests.faults.trials import POINTS, SEED, Trial, in_threads

# Seconds from a death to the end of the turns it hit.
RECOVERY = LEASE_SECONDS + SWEEP_SECONDS + 5

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.shapeless(reason="it brings servers and nodes of its own"),
]
full = pytest.mark.faults


@pytest.fixture(scope="module")
def small() -> Iterator[Cluster]:
    """The cluster of the small doses."""
    with Cluster(workers=2, toolboxes=2, most_attempts=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def large() -> Iterator[Cluster]:
    """The cluster of the full ones."""
    with Cluster(workers=4, toolboxes=3, most_attempts=5) as cluster:
        yield cluster


@pytest.fixture
def trial(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Iterator[Trial]:
    """A trial on the small cluster, or on the large one; prints its seed and its figures, and judges at the end."""
    is_full = request.node.get_closest_marker("faults")
    need_servers(wanted=bool(is_full) or os.environ.get("CI") == "true")
    cluster: Cluster = request.getfixturevalue("large" if is_full else "small")
    with capsys.disabled():
        print(f"\n{request.node.name}: FAULTS_SEED={SEED}")  # noqa: T201 -- to repeat it
    cluster.wait_until_ready()
    trial = Trial(cluster, random.Random(SEED))
    yield trial
    ended = judge(cluster)
    assert len(trial.clients.addresses) > 1, "one web node was asked, and no other"
    with capsys.disabled():
        figures = f"{len(trial.turns)} turns; all so far: {dict(ended)}; answers: {dict(trial.clients.answers)}"
        print(f"{'; '.join(trial.figures)}; {figures}")  # noqa: T201 -- how much was tried


def judge_recovery(trial: Trial, *, least: int) -> None:
    """All turns that were hit have ended, soon enough."""
    seconds = recoveries(trial.cluster, trial.turns, trial.since)
    assert len(seconds) >= least
    trial.figures.append(f"{len(seconds)} turns hit: {percentiles(seconds)}")
    assert percentile(seconds, 99) <= RECOVERY


@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=full)])
def test_workers_killed_in_mid_model_call(trial: Trial, kills: int) -> None:
    trial.kill_workers(kills)
    judge_recovery(trial, least=kills)


@pytest.mark.parametrize(("writes", "reads"), [(2, 1), pytest.param(100, 50, marks=full)])
def test_toolboxes_killed_in_mid_tool(trial: Trial, writes: int, reads: int) -> None:
    points = trial.rng.sample(POINTS, len(POINTS))  # the small dose reaches two of them
    wanted = [*(points[number % len(points)] for number in range(writes)), *["during"] * reads]
    assert trial.kill_toolboxes(wanted) == Counter(wanted)
    trial.judge_effects_at_points()
    judge_recovery(trial, least=writes + reads)


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=full)])
def test_nodes_that_were_stopped_past_their_lease_write_nothing(trial: Trial, times: int) -> None:
    held: dict[str, list[int]] = {"worker": [], "toolbox": []}

    def stop(kind: str) -> None:
        for _ in range(times):
            held[kind].append(trial.stop_past_the_lease(kind))

    in_threads([partial(stop, kind) for kind in held])
    trial.figures.append(f"held when stopped: {held}")
    assert all(count for counts in held.values() for count in counts)


@pytest.mark.parametrize("how", ["FLUSHALL", "restart", "hang"])
@pytest.mark.parametrize(
    ("times", "queued", "seconds"), [(1, 10, 2.0), pytest.param(5, 50, 10.0, marks=full)], ids=["once", "five times"]
)
def test_redis_is_lost(trial: Trial, how: str, times: int, queued: int, seconds: float) -> None:
    slowest = [trial.lose_redis(how, queued=queued, seconds=seconds) for _ in range(times)]
    trial.figures.append(f"longest time to an answer meanwhile: {max(slowest):.2f} s")
    assert max(slowest) < 5, "an answer waited for Redis"


@pytest.mark.faults
def test_redis_is_away_for_two_minutes(trial: Trial) -> None:
    assert trial.lose_redis("restart", queued=50, seconds=120) < 5, "an answer waited for Redis"


@pytest.mark.parametrize(
    ("restarts", "shortest", "longest"), [(2, 1, 2), pytest.param(15, 10, 30, marks=full)], ids=["twice", "for 5 min"]
)
def test_postgresql_restarts_under_load(trial: Trial, restarts: int, shortest: float, longest: float) -> None:
    trial.restart_postgresql([trial.rng.uniform(shortest, longest) for _ in range(restarts)])
    trial.figures.append(f"{restarts} restarts")
    assert trial.heard_at_once() or trial.heard_at_once()


@pytest.mark.parametrize(("times", "most", "talks"), [(1, 1, 4), pytest.param(10, None, 8, marks=full)])
def test_rolling_restarts_fail_no_turn(trial: Trial, times: int, most: int | None, talks: int) -> None:
    """``most``: so many nodes of a kind; None: all."""
    with trial.load(clients=talks // 2, talks=talks):
        longest = max(trial.roll(most) for _ in range(times))
    trial.wait()
    trial.figures.append(f"restarted {times} times, the longest stop {longest:.1f} s")
    assert longest < 15  # 10 on a machine that has nothing else to do


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=full)])
def test_three_workers_claim_what_is_queued(trial: Trial, count: int) -> None:
    trial.cluster.scale("worker", 3)
    trial.cluster.wait_until_ready()
    for _ in range(5):  # on a busy machine one of them may wake up when the others have claimed all
        trial.claim_race(count)
        if len(claims := trial.claims_by_worker()) == 3:
            break
    judge_models(trial.cluster, trial.turns)
    trial.figures.append(f"claims: {claims}")
    assert len(claims) == 3


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=full)])
def test_clocks_ten_minutes_apart_steal_no_lease(trial: Trial, times: int) -> None:
    for _ in range(times):
        trial.work_past_the_lease()
    judge_models(trial.cluster, trial.turns)


# The last: nobody waits for those that it leaves to be started again.
@pytest.mark.parametrize("count", [1, pytest.param(5, marks=full)])
def test_a_turn_that_kills_its_worker_fails_at_its_bound(trial: Trial, count: int) -> None:
    trial.killing_turns(count)
    deaths = trial.deaths_by_poison()
    trial.figures.append(f"workers that each of them killed: {deaths}")
    assert deaths == [trial.cluster.most_attempts + 1] * count
