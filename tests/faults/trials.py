"""What is done to a cluster under work, fault by fault, until all that was asked for has ended."""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.faults.client import Clients, RowsSeen, TurnSeen, all_ended, wait_until_ended
from tests.faults.cluster import LEASE_SECONDS, PATIENCE, Cluster, Node

# Printed with each trial, and given again to repeat it.
SEED = int(os.environ.get("FAULTS_SEED", "") or random.SystemRandom().randrange(10**6))

# A toolbox dies before the effect, beside it, after it, and once the answer is stored and nobody was told.
POINTS = ("before", "beside", "after", "stored")


class Trial:
    """A cluster with clients. ``turns``: all that was accepted; ``figures``: what is worth telling."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.clients = Clients(cluster)
        self.turns: list[TurnSeen] = []
        self.figures: list[str] = []
        self.since = time.time()
        self._prefix = f"{rng.randrange(16**6):06x}{time.time_ns() % 16**6:06x}"
        self._lock = threading.Lock()
        self._asked = 0

    def name(self) -> str:
        """A turn's name, unlike any other."""
        with self._lock:
            self._asked += 1
            return f"{self._prefix}-{self._asked}"

    def ask(self, conversation: str, steps: Callable[[str], list[dict[str, Any]]], **more: Any) -> TurnSeen:
        """Ask; ``steps`` makes the script of the turn's name."""
        name = self.name()
        turn = self.clients.ask(conversation, name, steps(name), **more)
        with self._lock:
            self.turns.append(turn)
        return turn

    def wait(self, *, seconds: float = PATIENCE) -> list[TurnSeen]:
        """Until all have ended; returns them."""
        wait_until_ended(self.cluster, self.turns, seconds=seconds)
        return self.turns

    def happened(self, kind: str) -> list[dict[str, Any]]:
        """The ledger's entries of that kind, since this trial began."""
        return [entry for entry in self.cluster.ledger.of(kind) if entry["at"] >= self.since]

    # --- kill -9 -----------------------------------------------------------------------------------------------------

    def kill_workers(self, count: int) -> None:
        """kill -9 of workers that are in the middle of model calls, a call of each turn at most."""
        talks = [self.clients.talk() for _ in range(2 * len(self.cluster.of("worker")))]
        hurt: set[str] = set()
        kills, until = 0, time.monotonic() + 60 + 20 * count
        latest: dict[str, TurnSeen] = {}
        while kills < count:
            assert time.monotonic() < until, f"{kills} kills only"
            for talk in talks:
                if talk not in latest or all_ended(self.cluster, [latest[talk]]):
                    latest[talk] = self.ask(talk, lambda name: thinks(name, 1.0))
            asked = self.asked_models()
            for pid, names in asked.items():
                # How soon others take over is measured: so there are others.
                if hurt.isdisjoint(names) and self.rng.random() < 0.2 and set(self.cluster.ready("worker")) > {pid}:
                    self.cluster.kill(pid, f"{self._prefix}-kill-{kills}")
                    # Those that were answered just before are not in mid call.
                    kills += bool(set(names) & set(self._calls_by_pid().get(pid, [])))
                    hurt |= set(names)
                    break
            time.sleep(0.05)
        self.wait()

    def asked_models(self) -> dict[int, list[str]]:
        """The turns of this trial whose models are asked at the moment, by their worker's pid."""
        return {pid: names for pid, names in self._calls_by_pid().items() if self.cluster.has(pid)}

    def _calls_by_pid(self) -> dict[int, list[str]]:
        """Those that have begun and not ended, the dead ones' too."""
        open_calls: dict[str, int] = {}
        for entry in self.cluster.ledger.read():
            if entry["kind"] == "model began" and entry["name"].startswith(self._prefix):
                open_calls[entry["name"]] = entry["pid"]
            elif entry["kind"] == "model ended" and open_calls.get(entry["name"]) == entry["pid"]:
                del open_calls[entry["name"]]
        by_pid: dict[int, list[str]] = {}
        for name, pid in open_calls.items():
            by_pid.setdefault(pid, []).append(name)
        return by_pid

    def kill_toolboxes(self, wanted: list[str]) -> Counter[str]:
        """Tools kill their toolboxes: at one of ``POINTS``, or "during" a look. Returns what was reached."""
        self.clients.certain = False
        wanted = self.rng.sample(wanted, len(wanted))
        points: dict[str, str] = {}
        tries, most = Counter[str](), 20 + 3 * len(wanted)

        def reached() -> Counter[str]:
            died = {entry["name"] for entry in self.happened("died")}
            return Counter(point for mark, point in points.items() if mark in died)

        def work() -> None:
            talk = self.clients.talk()
            while True:
                with self._lock:
                    if not wanted:
                        return
                    point = wanted.pop()
                # How soon others take over is measured: so there are others.
                self.cluster.wait_for(lambda: len(self.cluster.ready("toolbox")) > 1, "a second toolbox")
                tries[point] += 1
                assert tries[point] <= most, f"no toolbox dies at the point {point!r}"
                turn = self.ask(talk, partial(glances if point == "during" else strikes, kill=point))
                points[f"{turn.name}/1"] = point
                wait_until_ended(self.cluster, [turn])
                if not any(entry["name"] == f"{turn.name}/1" for entry in self.happened("died")):
                    with self._lock:
                        wanted.append(point)  # another one's death came first

        in_threads([work] * (len(self.cluster.of("toolbox")) - 1))
        return reached()

    def judge_effects_at_points(self) -> None:
        """What is said of a call whose toolbox died fits where it died."""
        effects = {entry["name"] for entry in self.happened("effect")}
        looks = Counter(entry["name"] for entry in self.happened("glance"))
        died = {entry["name"] for entry in self.happened("died")}
        rows = RowsSeen(self.cluster)
        for call in (call for turn in self.turns for call in rows.calls[turn.id]):
            asked = json.loads(call["arguments"])
            if asked["mark"] not in died:
                continue
            if asked["kill"] == "during":
                assert looks[asked["mark"]] >= 2, "a read that was interrupted is run again"
                continue
            took_effect = asked["mark"] in effects
            if asked["kill"] == "stored":
                # What was stored may also be that another toolbox had died in it before.
                assert call["status"] == "UNKNOWN" or took_effect, call
                continue
            assert call["status"] == "UNKNOWN", call
            assert asked["kill"] == "beside" or took_effect == (asked["kill"] == "after"), call

    def killing_turns(self, count: int) -> None:
        """Turns that kill their worker whenever their model is asked, among neighbours whose models take longer."""
        for _ in range(count):
            talks = [self.clients.talk() for _ in range(7)]
            self.ask(talks.pop(), lambda name: thinks(name, 0), expects="failed turn_crashed", killsAfter=0.7)
            for talk in talks:
                self.ask(talk, lambda name: thinks(name, 1.5))
            self.wait()

    def deaths_by_poison(self) -> list[int]:
        """How many workers each of :meth:`killing_turns` killed."""
        return list(Counter(entry["name"] for entry in self.happened("died")).values())

    # --- SIGSTOP -----------------------------------------------------------------------------------------------------

    def stop_past_the_lease(self, kind: str) -> int:
        """SIGSTOP of a node in mid call until others have ended its turns, then SIGCONT; returns how many it had.

        What is stored then stays as it is, though the node goes on and reports.
        """
        steps = {
            "worker": lambda name: thinks(name, 1.5),
            "toolbox": lambda name: glances(name, seconds=1.5),
        }[kind]
        mine = [self.ask(self.clients.talk(), steps) for _ in range(6)]
        names = {turn.name for turn in mine}
        node = self.cluster.wait_for(lambda: self._busy_with(kind, names), f"a {kind} in mid call")
        node.process.send_signal(signal.SIGSTOP)
        try:
            held = self._held_by(node, mine)
            wait_until_ended(self.cluster, mine)
            rows = RowsSeen(self.cluster).of(mine)
        finally:
            node.process.send_signal(signal.SIGCONT)
        for _ in range(2):  # heartbeats: by then it has tried to store all that it held on to
            since = time.time()
            self.cluster.wait_for(lambda since=since: self._heartbeat(node) > since, "a heartbeat")
        assert RowsSeen(self.cluster).of(mine) == rows, "a stale write landed"
        return held

    def _busy_with(self, kind: str, names: set[str]) -> Node | None:
        asked = self.asked_models()
        for node in self.cluster.of(kind):
            calls = self._calls_of(node) if kind == "toolbox" else []
            if any(call["status"] == "RUNNING" for call in calls) or not names.isdisjoint(asked.get(node.pid, [])):
                return node
        return None

    def _calls_of(self, node: Node) -> list[dict[str, Any]]:
        with self.cluster.postgresql.connect() as database:
            query = "SELECT * FROM tools_toolcall WHERE worker LIKE %s"
            return database.execute(query, [f"%:{node.pid}:%"]).fetchall()

    def _held_by(self, node: Node, turns: list[TurnSeen]) -> int:
        if node.kind == "toolbox":
            return sum(call["status"] == "RUNNING" for call in self._calls_of(node))
        rows = RowsSeen(self.cluster)
        held = [rows.turns[turn.id] for turn in turns]
        return sum(row["status"] == "running" and f":{node.pid}:" in row["worker"] for row in held)

    def _heartbeat(self, node: Node) -> float:
        with self.cluster.postgresql.connect() as database:
            query = "SELECT heartbeat_at FROM conversations_worker WHERE name LIKE %s ORDER BY started_at DESC"
            row = database.execute(query, [f"%:{node.pid}:%"]).fetchone()
        return row["heartbeat_at"].timestamp() if row else 0.0

    # --- servers -----------------------------------------------------------------------------------------------------

    def lose_redis(self, how: str, *, queued: int, seconds: float) -> float:
        """Redis is emptied, restarted or silent while turns are queued; returns the longest time to an answer.

        While it is away, what is asked is answered all the same; afterwards a notification is heard at once again.
        """
        talks = [self.clients.talk() for _ in range(queued // 2)]
        away, back = {
            "FLUSHALL": (self.cluster.redis.flush, lambda: None),
            "restart": (partial(self.cluster.redis.stop, signal.SIGKILL), self.cluster.redis.start),
            "hang": (self.cluster.redis.hang, self.cluster.redis.go_on),
        }[how]
        with self._workers_stopped():
            for number in range(queued):
                self.ask(talks[number % len(talks)], self._mixed(number))
            rows = RowsSeen(self.cluster)
            assert {rows.turns[turn.id]["status"] for turn in self.turns[-queued:]} == {"queued"}
            with self.cluster.redis.connect() as redis:
                assert redis.llen("turns") > 0, "there is no notification to lose"
            self.clients.slowest = 0.0
            away()
        try:
            self._ask_for(seconds)
        finally:
            back()
        self.wait(seconds=60)
        slowest = self.clients.slowest
        self.cluster.wait_for(self.heard_at_once, "a notification that is heard", seconds=20 + seconds)
        return slowest

    def _ask_for(self, seconds: float) -> None:
        """Go on asking for so long; all of it has to end, though with Redis away nothing is notified."""
        until, asked = time.monotonic() + seconds, []
        while time.monotonic() < until:
            asked.append(self.ask(self.clients.talk(), lambda name: thinks(name, 0.1)))
            time.sleep(0.3)
        wait_until_ended(self.cluster, asked)

    def heard_at_once(self) -> bool:
        """Whether a turn with a tool call ends before any sweep would have found it, or the call."""
        turn = self.ask(self.clients.talk(), lambda name: strikes(name))
        wait_until_ended(self.cluster, [turn])
        row = RowsSeen(self.cluster).turns[turn.id]
        return bool((row["ended_at"] - row["created_at"]).total_seconds() < LEASE_SECONDS - 1)

    def restart_postgresql(self, pauses: list[float]) -> None:
        """Stop and start PostgreSQL, in this or that way, after each pause, under load."""
        self.clients.certain = False  # a toolbox cannot renew a call's lease meanwhile
        ways = [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL]
        with self.load(clients=4, talks=8):
            for number, pause in enumerate(pauses):
                time.sleep(pause)
                self.cluster.postgresql.stop(ways[number % len(ways)])
                time.sleep(self.rng.uniform(0.2, 2.0))
                self.cluster.postgresql.start()
            time.sleep(1)
        self.wait()

    # --- restarts, claims, clocks ------------------------------------------------------------------------------------

    def roll(self, most: int | None = None) -> float:
        """Stop each node by SIGTERM, a toolbox in mid tool, with others in their places; the longest stop.

        ``most``: so many of a kind only.
        """
        old = [node for kind in ("web", "worker", "toolbox") for node in self.cluster.of(kind)[:most]]
        for node in old:
            self.cluster.add(node.kind)
        self.cluster.wait_until_ready()
        longest = 0.0
        for node in old:
            if node.kind == "toolbox":
                self.cluster.wait_for(lambda node=node: self._strikes(node), "a toolbox in mid tool")
            longest = max(longest, self.cluster.stop(node))
        return longest

    def replace(self, kind: str) -> None:
        """Each node of a kind by one of the code that the cluster runs now; a toolbox is stopped in mid tool."""
        old = self.cluster.of(kind)
        if kind == "beat":  # of which there is one at most, and which nobody else waits for
            self.cluster.wait_for(lambda: all(node.is_alive for node in old), "beat")
        else:
            self.cluster.scale(kind, 2 * len(old))
            self.cluster.wait_until_ready()
        for node in old:
            if kind == "toolbox":
                self.cluster.wait_for(lambda node=node: self._strikes(node), "a toolbox in mid tool")
            self.cluster.stop(node)
        self.cluster.scale(kind, len(old))

    def _strikes(self, node: Node) -> bool:
        """Whether it runs a tool with an effect."""
        return any(call["status"] == "RUNNING" and call["tool_name"] == "strike" for call in self._calls_of(node))

    def claim_race(self, count: int) -> None:
        """Queue so many turns while every worker is stopped, then have them go on at once."""
        talks = [self.clients.talk() for _ in range(count // 20)]

        def queue(mine: list[str]) -> None:
            for number in range(20):
                for talk in mine:
                    self.ask(talk, self._quick(number))

        with self._workers_stopped():
            in_threads([lambda mine=talks[part::4]: queue(mine) for part in range(4)])
        self.wait(seconds=60 + count / 5)

    def claims_by_worker(self) -> list[int]:
        """How many turns each worker ended."""
        rows = RowsSeen(self.cluster)
        return list(Counter(rows.turns[turn.id]["worker"] for turn in self.turns).values())

    def work_past_the_lease(self) -> None:
        """Models and tools that take longer than a lease, until every worker and toolbox has had one."""
        idle = {node.pid for kind in ("worker", "toolbox") for node in self.cluster.of(kind)}
        for _ in range(5):
            long = (lambda name: thinks(name, LEASE_SECONDS + 2), lambda name: strikes(name, seconds=LEASE_SECONDS + 2))
            asked = [self.ask(self.clients.talk(), steps) for steps in long for _ in range(4)]
            self.wait()
            thinking = {turn.name for turn in asked[:4]}
            idle -= {entry["pid"] for entry in self.happened("model began") if entry["name"] in thinking}
            calls = RowsSeen(self.cluster).calls
            idle -= {int(call["worker"].split(":")[1]) for turn in asked[4:] for call in calls[turn.id]}
            if not idle:
                return
        raise AssertionError(f"they had nothing to hold: {idle}")

    @contextmanager
    def _workers_stopped(self) -> Iterator[None]:
        """Nobody takes a turn, until all go on at once."""
        workers = self.cluster.of("worker")
        for node in workers:
            node.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for node in workers:
                node.process.send_signal(signal.SIGCONT)

    # --- work --------------------------------------------------------------------------------------------------------

    @contextmanager
    def load(self, *, clients: int, talks: int) -> Iterator[None]:
        """Clients that go on asking, each in conversations of its own."""
        enough = threading.Event()

        def work() -> None:
            mine, number = [self.clients.talk() for _ in range(talks // clients)], 0
            asked: list[TurnSeen] = []
            while not enough.is_set():
                asked = [self.ask(talk, self._mixed(number + place)) for place, talk in enumerate(mine)]
                number += 1
                while not enough.is_set() and not all_ended(self.cluster, asked):
                    time.sleep(0.05)

        with background([work] * clients):
            try:
                yield
            finally:
                enough.set()

    def _mixed(self, number: int) -> Callable[[str], list[dict[str, Any]]]:
        """Now a model that thinks, now a tool with an effect, now one without."""
        kinds = (
            lambda name: thinks(name, 0.3),
            lambda name: strikes(name, seconds=1.5),  # longer than a worker takes to see that it shall stop
            lambda name: glances(name, seconds=0.2),
        )
        return kinds[number % len(kinds)]

    def _quick(self, number: int) -> Callable[[str], list[dict[str, Any]]]:
        return (lambda name: glances(name)) if number % 10 == 9 else (lambda name: thinks(name, 0))


# --- what a turn does ------------------------------------------------------------------------------------------------


def thinks(name: str, seconds: float) -> list[dict[str, Any]]:
    """The model answers after so long."""
    return [{"sleep": seconds, "say": f"{name}:"}]


def strikes(name: str, kill: str = "", seconds: float = 0) -> list[dict[str, Any]]:
    """A tool with an effect, which may kill its toolbox."""
    return _calls(name, "strike", kill, seconds)


def glances(name: str, kill: str = "", seconds: float = 0) -> list[dict[str, Any]]:
    """A tool without, which may do so too."""
    return _calls(name, "glance", kill, seconds)


def _calls(name: str, tool: str, kill: str, seconds: float) -> list[dict[str, Any]]:
    arguments = {"mark": f"{name}/1", "kill": kill, "seconds": seconds}
    return [{"call": [{"name": tool, "arguments": arguments}]}, {"say": f"{name}: {{results}}"}]


# --- threads ---------------------------------------------------------------------------------------------------------


def in_threads(jobs: list[Callable[[], object]]) -> None:
    """Run jobs side by side; raises the first failure once all have ended."""
    with background(jobs):
        pass


@contextmanager
def background(jobs: list[Callable[[], object]]) -> Iterator[None]:
    """Run jobs beside the body, and wait for them; raises the first failure of theirs."""
    failures: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
