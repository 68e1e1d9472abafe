"""Clients that note what they were promised, and the judge who holds rows and ledger against it."""

import itertools
import json
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import psycopg

from tests.faults.cluster import PATIENCE, Cluster
from tests.support.hosts import KEY
from tests.support.wait import rest

ENDED = ("succeeded", "failed", "cancelled")

# Seconds. The longest that anything is away is 120.
ACCEPTED_WITHIN = 240.0


@dataclass(frozen=True, kw_only=True)
class TurnSeen:
    """A turn that was accepted: answered with 2xx."""

    id: str
    name: str
    conversation: str


class Clients:
    """Ask until there is a 2xx, each question with its own Idempotency-Key, at any of the web nodes.

    ``answers`` counts what was answered; ``slowest`` is the longest time, in seconds, that an answer took, or that one
    was waited for in vain; ``addresses``: the nodes that were asked. ``certain``: nobody is hurt who runs tools, so no
    call's outcome may be unknown.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.answers: Counter[str] = Counter()
        self.slowest = 0.0
        self.addresses: Counter[str] = Counter()
        self.certain = True
        self._own = threading.local()
        self._requests = itertools.count()

    def talk(self) -> str:
        """A new conversation's id."""
        return str(self._post("/conversations", {})["conversationId"])

    def ask(
        self, conversation: str, name: str, steps: Sequence[dict[str, Any]], *, expects: str = "succeeded", **more: Any
    ) -> TurnSeen:
        """Ask; returns once that is accepted and the ledger knows it. ``expects``: how it is to end, with its code."""
        message = json.dumps({"question": name, **more, "script": steps})
        accepted = self._post(f"/conversations/{conversation}/chat", {"message": message}, key=name)
        turn = TurnSeen(id=accepted["turnId"], name=name, conversation=conversation)
        promise = {"turn": turn.id, "conversation": conversation, "expects": expects, "certain": self.certain}
        self.cluster.ledger.tell("accepted", name, **promise)
        return turn

    def _post(self, path: str, body: dict[str, Any], *, key: str | None = None) -> dict[str, Any]:
        until = time.monotonic() + ACCEPTED_WITHIN
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                answer = self._client().post(path, json=body, headers={"Idempotency-Key": key} if key else {})
            except (httpx2.TransportError, IndexError) as error:  # or there is no web node at the moment
                self._own.clients = {}
                self.answers[type(error).__name__] += 1
                time.sleep(0.1)
                continue
            finally:
                self.slowest = max(self.slowest, time.monotonic() - began)
            self.answers[str(answer.status_code)] += 1
            if answer.is_success:
                told: dict[str, Any] = answer.json()
                return told
            assert answer.status_code == 503, f"{answer.status_code} {answer.text}"
            time.sleep(0.1)
        raise AssertionError(f"not accepted within {ACCEPTED_WITHIN} s: {self.answers}\n{self.cluster.logs()}")

    def _client(self) -> httpx2.Client:
        """This thread's, to one of the web nodes there are now."""
        addresses = [address for node in self.cluster.of("web") if (address := node.address)]
        address = addresses[next(self._requests) % len(addresses)]
        self.addresses[address] += 1
        clients = self._own.__dict__.setdefault("clients", {})
        if address not in clients:
            headers = {"Authorization": f"Bearer {KEY}"}
            clients[address] = httpx2.Client(base_url=f"{address}/api/v1", headers=headers, timeout=30, verify=False)
        return clients[address]


def all_ended(cluster: Cluster, turns: Iterable[TurnSeen]) -> bool:
    """Whether all of them have ended, as the database has it; False while it is away."""
    ids = [turn.id for turn in turns]
    with suppress(psycopg.OperationalError), cluster.postgresql.connect() as database:
        query = "SELECT count(*) AS n FROM conversations_turn WHERE id = ANY(%s::uuid[]) AND status = ANY(%s)"
        row = database.execute(query, [ids, list(ENDED)]).fetchone()
        return row is not None and row["n"] == len(ids)
    return False


def wait_until_ended(cluster: Cluster, turns: Sequence[TurnSeen], *, seconds: float = PATIENCE) -> None:
    """Return once all of them have ended; fails if that takes too long, and tells which have not."""
    began = time.monotonic()
    while not all_ended(cluster, turns):
        if time.monotonic() > began + seconds:
            rows = RowsSeen(cluster)
            missing = [dict(rows.turns[turn.id]) for turn in turns if rows.turns[turn.id]["status"] not in ENDED]
            raise AssertionError(f"not ended within {seconds} s: {missing}\nsee {cluster.root}\n{cluster.logs()}")
        rest(began)


class RowsSeen:
    """What the database holds now: turns by id, transcripts by conversation, calls by turn."""

    def __init__(self, cluster: Cluster) -> None:
        # All as of one moment: a compaction may end in between.
        with cluster.postgresql.connect() as database, database.transaction():
            database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            found = database.execute("SELECT * FROM conversations_turn").fetchall()
            self.turns: dict[str, dict[str, Any]] = {str(row["id"]): row for row in found}
            self.transcripts: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for row in database.execute("SELECT * FROM conversations_message WHERE seq IS NOT NULL ORDER BY seq"):
                self.transcripts[str(row["conversation_id"])].append(row)
            self.compactions: dict[str, list[dict[str, Any]]] = defaultdict(list)
            done = "SELECT * FROM conversations_compaction WHERE status = 'done' ORDER BY first_seq"
            for row in database.execute(done):
                self.compactions[str(row["conversation_id"])].append(row)
            self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for row in database.execute("SELECT * FROM tools_toolcall ORDER BY position"):
                self.calls[str(row["turn_id"])].append(row)

    def of(self, turns: Iterable[TurnSeen]) -> list[Any]:
        """All that is stored of some turns."""
        return [
            (
                self.turns[turn.id],
                [row for row in self.transcripts[turn.conversation] if str(row["turn_id"]) == turn.id],
                self.calls[turn.id],
            )
            for turn in turns
        ]


def judge(cluster: Cluster) -> Counter[str]:
    """Hold everything there is against the ledger; returns how turns and calls ended."""
    rows = RowsSeen(cluster)
    accepted = {entry["turn"]: entry for entry in cluster.ledger.of("accepted")}
    assert set(accepted) - set(rows.turns) == set(), "a 2xx for a row that is not stored"
    assert set(rows.turns) - set(accepted) == set(), "a turn that nobody was told of: an Idempotency-Key made two"
    effects = Counter(entry["name"] for entry in cluster.ledger.of("effect"))
    assert set(effects.values()) <= {1}, f"effects that were repeated: {effects.most_common(5)}"
    ended: Counter[str] = Counter()
    for turn_id, entry in accepted.items():
        _judge_turn(entry, rows.turns[turn_id], rows, effects)
        ended[rows.turns[turn_id]["status"]] += 1
        ended.update(call["status"] for call in rows.calls[turn_id])
    for conversation, transcript in rows.transcripts.items():
        _judge_order(transcript, [row for row in rows.turns.values() if str(row["conversation_id"]) == conversation])
        _judge_summaries(transcript, rows.compactions[conversation])
    assert cluster.ended == [], f"somebody ended by itself: {cluster.ended}"
    return ended


def _judge_turn(entry: dict[str, Any], turn: dict[str, Any], rows: RowsSeen, effects: Counter[str]) -> None:
    told = f"{turn['status']} {turn['error_code']}".strip()
    assert told == entry["expects"], f"{entry['name']} is {told}: {turn}"
    own = [row for row in rows.transcripts[entry["conversation"]] if str(row["turn_id"]) == entry["turn"]]
    calls = rows.calls[entry["turn"]]
    roles = [row["role"] for row in own]
    assert roles.count("user") == 1, roles
    assert roles[0] == "user", roles
    results = [(row["tool_call_id"], row["content"]) for row in own if row["role"] == "tool"]
    assert results == [(call["call_id"], call["result"]) for call in calls], "a result without its call, or changed"
    answers = [row["content"] for row in own if row["role"] == "assistant" and row["tool_calls"] is None]
    if turn["status"] != "succeeded":
        assert answers == [], "an answer of a turn that failed"
        return
    assert len(answers) == 1, f"{entry['name']} was answered {len(answers)} times"
    assert own[-1]["content"] == answers[0]
    assert answers[0].startswith(f"{entry['name']}:"), f"{answers[0]!r} is not an answer to {entry['name']}"
    for call in calls:
        _judge_call(call, effects, answers[0], certain=entry["certain"])


def _judge_call(call: dict[str, Any], effects: Counter[str], answer: str, *, certain: bool) -> None:
    if call["tool_name"] != "strike":
        assert call["status"] == "SUCCESS", call
        return
    mark = json.loads(call["arguments"])["mark"]
    if call["status"] == "UNKNOWN" and not certain:
        assert call["result"].startswith("UNKNOWN"), call
        assert "UNKNOWN" in answer, "the model was not told"
    else:
        assert (call["status"], effects[mark]) == ("SUCCESS", 1), (call, effects[mark])


def _judge_order(transcript: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """One number after the other, one turn after the other, as they were accepted, and none before its predecessor."""
    assert [row["seq"] for row in transcript] == list(range(1, len(transcript) + 1)), "numbers are missing"
    turns.sort(key=lambda turn: turn["number"])
    places = {turn["id"]: place for place, turn in enumerate(turns)}
    in_order = [places[row["turn_id"]] for row in transcript if row["type"] == "NORMAL"]
    assert in_order == sorted(in_order), "turns mixed, or out of order"
    for before, after in itertools.pairwise(turns):
        assert before["ended_at"] <= after["started_at"], f"two turns at once: {before['id']}, {after['id']}"


def _judge_summaries(transcript: list[dict[str, Any]], compactions: list[dict[str, Any]]) -> None:
    """Every message is in one summary's range at most, and there is one summary for each."""
    ranges = [(row["first_seq"], row["through_seq"]) for row in compactions]
    for (_, through), (first, _) in itertools.pairwise(ranges):
        assert through < first, f"consolidated twice: {ranges}"
    summaries = [row["seq"] for row in transcript if row["type"] == "SUMMARY"]
    assert sorted(row["summary_seq"] for row in compactions) == summaries


def judge_models(cluster: Cluster, turns: Iterable[TurnSeen]) -> None:
    """Each model call once, and no two of a conversation at the same time; for turns whose workers nobody hurt."""
    conversation_of = {turn.name: turn.conversation for turn in turns}
    talks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in cluster.ledger.read():
        if entry["kind"] in ("model began", "model ended") and entry["name"] in conversation_of:
            talks[conversation_of[entry["name"]]].append(entry)
    for entries in talks.values():
        kinds = [entry["kind"] for entry in entries]
        assert kinds == ["model began", "model ended"] * (len(kinds) // 2), f"two models at once: {entries}"
        for began, over in zip(entries[::2], entries[1::2], strict=True):
            assert (began["name"], began["pid"], began["step"]) == (over["name"], over["pid"], over["step"]), entries
        asked = [(entry["name"], entry["step"]) for entry in entries[::2]]
        assert len(set(asked)) == len(asked), f"a model was asked twice: {asked}"


def recoveries(cluster: Cluster, turns: Iterable[TurnSeen], since: float) -> list[float]:
    """Seconds from the last death of a turn's worker in its model's call, or of its toolbox in its tool's call, to the
    turn's end."""
    rows = RowsSeen(cluster)
    deaths: dict[str, float] = {}
    asked: dict[str, int] = {}
    died: dict[int, float] = {}
    for entry in cluster.ledger.read():
        if entry["at"] < since:
            continue
        if entry["kind"] == "model began":
            asked[entry["name"]] = entry["pid"]
        elif entry["kind"] == "model ended":
            asked.pop(entry["name"], None)
        elif entry["kind"] == "died":
            died[entry["pid"]] = entry["at"]
            deaths |= dict.fromkeys((name for name, pid in asked.items() if pid == entry["pid"]), entry["at"])
            deaths[entry["name"].split("/")[0]] = entry["at"]
    ends: dict[str, float] = {}
    for turn in turns:
        ends[turn.name] = rows.turns[turn.id]["ended_at"].timestamp()
        for call in rows.calls[turn.id]:
            if call["rule"] == "crashed" and (at := died.get(int(call["worker"].split(":")[1]))):
                deaths[turn.name] = max(at, deaths.get(turn.name, 0))
    return sorted(ends[name] - at for name, at in deaths.items() if name in ends)


def percentiles(seconds: Sequence[float]) -> str:
    """p50, p99 and the most."""
    return f"p50 {percentile(seconds, 50):.1f} s, p99 {percentile(seconds, 99):.1f} s, most {max(seconds):.1f} s"


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many percent do not exceed; of sorted values."""
    return values[math.ceil(len(values) * percent / 100) - 1]
