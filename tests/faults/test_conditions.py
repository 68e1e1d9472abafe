"""What else a deployment meets: servers that are there and refuse, locks, junk, storms. A small dose each.

Judged as the others: nothing accepted is lost, doubled, out of order or left open, and nobody ends by itself.
"""

import itertools
import random
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.faults import conditions
from tests.faults.client import judge, wait_until_ended
from tests.faults.cluster import LEASE_SECONDS, Cluster
from tests.faults.servers import binary, need_servers
from tests.faults.trials import SEED, Trial, background, glances, strikes, thinks
from tests.support.hosts import KEY
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(600),
    pytest.mark.shapeless(reason="it brings servers and nodes of its own"),
]

# For so many seconds, under load.
DOSE = 4.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    need_servers(wanted=True)
    with Cluster(workers=2, toolboxes=2, most_attempts=5) as running:
        yield running


@pytest.fixture
def trial(request: pytest.FixtureRequest, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Iterator[Trial]:
    """A trial in which calls of tools may be interrupted; judged once all that was accepted has ended."""
    cluster.wait_until_ready()
    cluster.ended.clear()  # what an earlier trial has failed for
    trial = Trial(cluster, random.Random(SEED))
    trial.clients.certain = False
    yield trial
    trial.wait()
    cluster.wait_for(trial.heard_at_once, "a notification that is heard", seconds=60)
    ended = judge(cluster)
    with capsys.disabled():
        figures = f"{len(trial.turns)} turns; all so far: {dict(ended)}; answers: {dict(trial.clients.answers)}"
        print(f"\n{request.node.name}: FAULTS_SEED={SEED}; {figures}")  # noqa: T201 -- how much was tried


def under_load(trial: Trial, *moments: Callable[[Cluster], AbstractContextManager[object]]) -> None:
    """Each of them for a dose, one after the other, with some time between."""
    with trial.load(clients=4, talks=8), asking(trial):
        for moment in moments:
            conditions.wait_out(1)
            with moment(trial.cluster):
                conditions.wait_out(DOSE)
        conditions.wait_out(1)


@contextmanager
def asking(trial: Trial) -> Iterator[None]:
    """Clients that ask on and on, whatever became of what they asked: the doors meet the fault, too."""
    enough = threading.Event()

    def go_on() -> None:
        talks = [trial.clients.talk() for _ in range(6)]
        for number in itertools.count():
            trial.ask(talks[number % 6], glances if number % 3 else lambda name: thinks(name, 0.1))
            if enough.wait(0.3):
                return

    with background([go_on] * 2):
        try:
            yield
        finally:
            enough.set()


def repeated(act: Callable[[Cluster], object], trial: Trial, shortest: float, longest: float) -> Callable[..., object]:
    def moment(cluster: Cluster) -> AbstractContextManager[None]:
        return conditions.often(partial(act, cluster), shortest=shortest, longest=longest, rng=trial.rng)

    return moment


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def test_sessions_are_cut_time_and_again(trial: Trial) -> None:
    under_load(trial, repeated(conditions.end_sessions, trial, 0.05, 0.8))


def test_statements_are_cancelled_as_by_a_tiny_timeout(trial: Trial) -> None:
    under_load(trial, repeated(conditions.cancel_statements, trial, 0.002, 0.05))


ROWS = [f"SELECT 1 FROM {table} FOR UPDATE" for table in ("conversations_conversation", "conversations_turn")]
TABLES = [f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE" for table in ("conversations_turn", "tools_toolcall")]


@pytest.mark.parametrize("statements", [[ROWS[0]], [ROWS[1]], TABLES[:1], TABLES[1:]])
def test_somebody_holds_locks(trial: Trial, statements: list[str]) -> None:
    under_load(trial, lambda cluster: conditions.locked(cluster, *statements))


def test_postgresql_is_read_only(trial: Trial) -> None:
    under_load(trial, conditions.read_only)


def test_postgresqls_disk_is_full(trial: Trial) -> None:
    under_load(trial, conditions.disk_full)


def test_it_is_dumped_and_restored_under_load(trial: Trial) -> None:
    """The copy is as of one moment, and whole: what had ended has its answer, and numbers have no gaps."""
    with trial.load(clients=4, talks=8):
        conditions.wait_out(2)
        copy_database(trial.cluster, "restored")
        with conditions.connect_to(trial.cluster, "restored") as copy, trial.cluster.postgresql.connect() as database:
            wait_until(lambda: turns_in(database) > turns_in(copy))
    with conditions.connect_to(trial.cluster, "restored") as copy:
        assert turns_in(copy) > 0
        unanswered = copy.execute(
            "SELECT 1 FROM conversations_turn t WHERE status = 'succeeded' AND NOT EXISTS (SELECT 1 FROM"
            " conversations_message m WHERE m.turn_id = t.id AND role = 'assistant' AND tool_calls IS NULL)"
        ).fetchall()
        gaps = copy.execute(
            "SELECT 1 FROM conversations_message WHERE seq IS NOT NULL"
            " GROUP BY conversation_id HAVING max(seq) <> count(*)"
        ).fetchall()
    assert (unanswered, gaps) == ([], [])


def turns_in(database: Any) -> int:
    """How many are stored there."""
    (row,) = database.execute("SELECT count(*) AS n FROM conversations_turn").fetchall()
    found: int = row["n"]
    return found


def copy_database(cluster: Cluster, name: str) -> None:
    dump = subprocess.run([binary("pg_dump"), cluster.postgresql.url], capture_output=True, check=True)
    with cluster.postgresql.connect() as database:
        database.execute(f"CREATE DATABASE {name}")
    url = conditions.url_of(cluster, name)
    restore = [binary("psql"), "--set=ON_ERROR_STOP=1", "--quiet", "--no-psqlrc", url]
    subprocess.run(restore, input=dump.stdout, capture_output=True, check=True)


# --- Redis -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition", [conditions.redis_full, conditions.redis_demoted, conditions.redis_password_changed]
)
def test_redis_is_there_and_refuses(trial: Trial, condition: Callable[..., AbstractContextManager[None]]) -> None:
    under_load(trial, condition)


def test_redis_forgets_its_scripts_too(trial: Trial) -> None:
    under_load(trial, repeated(conditions.flush_with_scripts, trial, 0.05, 0.5))


# --- nodes, clocks, readers ------------------------------------------------------------------------------------------


def test_all_workers_and_toolboxes_are_stopped_past_their_lease(trial: Trial) -> None:
    steps = (
        lambda name: thinks(name, 1.5),
        lambda name: glances(name, seconds=1.5),
        lambda name: strikes(name, seconds=1),
    )
    for _ in range(2):
        asked = [trial.ask(trial.clients.talk(), steps[number % 3]) for number in range(18)]
        trial.cluster.wait_for(trial.asked_models, "a model that is asked")
        nodes = [node for kind in ("worker", "toolbox") for node in trial.cluster.of(kind)]
        with ExitStack() as stopped:
            for node in nodes:
                node.process.send_signal(signal.SIGSTOP)
                stopped.callback(node.process.send_signal, signal.SIGCONT)
            conditions.wait_out(LEASE_SECONDS + 2)
        wait_until_ended(trial.cluster, asked)


def test_a_web_nodes_clock_is_ten_minutes_off(trial: Trial) -> None:
    for seconds in (600, -600):
        node = trial.cluster.add("web", clock=seconds)
        trial.cluster.wait_until_ready()
        with trial.load(clients=4, talks=8):
            conditions.wait_out(DOSE)
        trial.wait()
        trial.cluster.stop(node)


def test_readers_vanish(trial: Trial) -> None:
    """Streams that are dropped in the middle, half of them by a reset, beside those that ask."""
    address = trial.cluster.of("web")[0].address
    gone = 0
    with trial.load(clients=4, talks=8):
        for number in range(40):
            turn = trial.ask(trial.clients.talk(), lambda name: thinks(name, 0.5))
            gone += vanish(address, turn.id, reset=bool(number % 2))
    assert gone == 40


def vanish(address: str, turn_id: str, *, reset: bool) -> bool:
    """Begin to read a turn's events, and go away."""
    url = httpx2.URL(address)
    request = f"GET /api/v1/turns/{turn_id}/events HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    with socket.create_connection((url.host, url.port), timeout=10) as reader:
        reader.sendall(request.encode())
        begun = reader.recv(20).startswith(b"HTTP/1.1 200")
        if reset:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return begun


# The last: what nobody takes out of the queues stays in the way of others.
def test_there_is_junk_in_the_queues(trial: Trial) -> None:
    under_load(trial, repeated(conditions.put_junk, trial, 0.2, 0.8))
