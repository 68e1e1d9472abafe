"""The release before is upgraded under load, node by node, and this one is rolled back the same way; no turn fails.

By the steps of docs/operations.md: prepared first, then toolboxes, web nodes and workers, and beat; back in the other
order, on the newer database. Every node is a process of its own release's code. FAULTS_SEED repeats the names.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scheduler.system_jobs import SYSTEM_JOBS
from tests.faults import releases
from tests.faults.client import RowsSeen, judge
from tests.faults.cluster import Cluster
from tests.faults.servers import need_servers
from tests.faults.trials import SEED, Trial
from tests.support.hosts import KEY, PLAIN, ROOT

FORMER = releases.former()
ORDER = ("toolbox", "web", "worker", "beat")
# Turns that each release has to end, in each of its times.
ENOUGH = 20

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(3600),
    pytest.mark.shapeless(reason="it brings servers and nodes of its own"),
]


@pytest.fixture
def former(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The code of a release before."""
    commit = FORMER[request.param]
    if reason := releases.why_not(commit):
        pytest.skip(reason)
    return releases.unpack(commit, tmp_path / "former")


@pytest.fixture
def cluster(former: Path) -> Iterator[Cluster]:
    need_servers(wanted=True)
    with Cluster(workers=2, toolboxes=2, most_attempts=5, code=former) as running:
        yield running


@pytest.mark.parametrize("former", FORMER, indirect=True)
def test_an_upgrade_and_the_way_back_fail_no_turn(cluster: Cluster, former: Path, capsys) -> None:
    trial = Trial(cluster, random.Random(SEED))
    ended: Counter[str] = Counter()

    def work(during: str) -> None:
        """Until those that run now have ended so many turns more."""
        pids = {node.pid for node in cluster.of("worker")}
        before = _ended_by(cluster, pids)
        cluster.wait_for(lambda: _ended_by(cluster, pids) >= before + ENOUGH, f"turns {during}")
        ended[during] = _ended_by(cluster, pids) - before

    with trial.load(clients=4, talks=8):
        work("before")
        cluster.code = ROOT
        cluster.prepare()
        work("by the release before on the newer database")
        for kind in ORDER:
            trial.replace(kind)
        work("after the upgrade")
        # What the release before does not know: it waits there, unless somebody deletes it.
        with cluster.postgresql.connect() as database:
            database.execute("UPDATE tools_toolsetting SET enabled = true WHERE name = 'ask'")
        kept, deleted = trial.clients.talk(), trial.clients.talk()
        answered = trial.ask(kept, asks)
        with _web(cluster) as web:
            message = json.dumps({"question": "deleted", "script": asks("deleted")})
            web.post(f"/conversations/{deleted}/chat", json={"message": message}).raise_for_status()
        cluster.wait_for(lambda: len(_pending(cluster)) == 2, "questions")
        cluster.code = former
        for kind in reversed(ORDER):
            trial.replace(kind)
        work("after the way back")
        with _web(cluster) as web:
            assert web.delete(f"/conversations/{deleted}").status_code == 204
        cluster.code = ROOT
        for kind in ORDER:
            trial.replace(kind)
        work("after the second upgrade")
        (question,) = _pending(cluster)
        assert question["turnId"] == answered.id
        with _web(cluster) as web:
            web.post(f"/questions/{question['questionId']}/answer", json={"answer": "Blue"}).raise_for_status()
    trial.wait()
    judged = judge(cluster)
    assert len(trial.clients.addresses) >= 2 * len(cluster.of("web"))
    assert _faults(cluster, former) == []
    with capsys.disabled():
        print(f"\nFAULTS_SEED={SEED}; {len(trial.turns)} turns, {dict(judged)}; ended {dict(ended)}")  # noqa: T201 -- to repeat it


def asks(name: str) -> list[dict[str, Any]]:
    """The owner is asked something."""
    arguments = {"question": "Which colour?", "options": ["Red", "Blue"]}
    return [{"call": [{"name": "ask", "arguments": arguments}]}, {"say": f"{name}: {{results}}"}]


def _web(cluster: Cluster) -> httpx2.Client:
    address = cluster.wait_for(lambda: cluster.of("web")[0].address, "a web node")
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx2.Client(base_url=f"{address}/api/v1", headers=headers, timeout=60, verify=PLAIN)


def _faults(cluster: Cluster, former: Path) -> list[str]:
    """What nodes stumbled over; but for jobs that the release before does not know: beat sends them nevertheless, its
    workers drop them, and they are sent again."""
    lines = [line for path in cluster.root.glob("*-*.log") for line in path.read_text(errors="replace").splitlines()]
    known = (former / "scheduler/system_jobs.py").read_text()
    unknown = [f"KeyError: '{job.task}'" for job in SYSTEM_JOBS if f'"{job.task}"' not in known]
    return [line for line in lines if "Traceback" in line and not any(job in line for job in unknown)]


def _pending(cluster: Cluster) -> list[dict[str, Any]]:
    with _web(cluster) as web:
        found: list[dict[str, Any]] = (
            web.get("/questions", params={"state": "pending"}).raise_for_status().json()["results"]
        )
    return found


def _ended_by(cluster: Cluster, pids: set[int]) -> int:
    rows = RowsSeen(cluster).turns.values()
    return sum(bool(row["ended_at"]) and int(row["worker"].split(":")[1]) in pids for row in rows if row["worker"])
