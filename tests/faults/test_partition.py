"""Hosts that are cut off from each other, pair by pair, while turns with effects run. FAULTS_SEED repeats the order.

Judged by the ledger outside: nothing that was accepted is lost, and no effect happens twice.
"""

import random
from collections.abc import Iterator

import pytest

from tests.faults import partition
from tests.faults.client import judge
from tests.faults.partition import Apart, Network
from tests.faults.servers import need_servers
from tests.faults.trials import SEED, Trial, in_threads, strikes

WHY_NOT = partition.why_not()
TURNS = 200

# Those that talk to each other. Nobody talks to a web node or to a worker, but for the judge.
PAIRS = (
    *(("web", "postgresql"), ("web", "redis"), ("worker", "postgresql"), ("worker", "redis")),
    *(("toolbox", "postgresql"), ("toolbox", "redis"), ("beat", "postgresql"), ("beat", "redis")),
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(3600),
    pytest.mark.shapeless(reason="it brings servers and hosts of its own"),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Apart]:
    need_servers(wanted=True)
    with Network() as network, Apart(network, workers=2, toolboxes=2, most_attempts=5) as running:
        yield running


@pytest.mark.parametrize("seconds", [5, 40, 120])
@pytest.mark.parametrize("pair", PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_a_cut_loses_nothing_and_repeats_nothing(cluster: Apart, pair: tuple[str, str], seconds: int, capsys) -> None:
    rng = random.Random(f"{SEED} {pair} {seconds}")
    cluster.wait_until_ready()
    trial = Trial(cluster, rng)
    trial.clients.certain = False  # whose toolbox was cut off, of such a call nobody knows

    def talk() -> None:
        conversation = trial.clients.talk()
        for _ in range(TURNS // 8):
            trial.ask(conversation, lambda name: strikes(name, seconds=rng.random() / 10))

    def cut() -> None:
        cluster.wait_for(lambda: len(trial.turns) >= rng.randrange(8, 40), "turns")
        with cluster.network.cut(*pair):
            cluster.wait_for_seconds(seconds)

    in_threads([*[talk] * 8, cut])
    trial.wait(seconds=240 + seconds)
    ended = judge(cluster)
    with capsys.disabled():
        print(f"\n{pair} {seconds} s, FAULTS_SEED={SEED}: {dict(ended)}")  # noqa: T201 -- to repeat it
