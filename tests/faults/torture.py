"""Kill a host at a point, start it again, and judge from outside whether anything was lost, doubled or disordered.

What is judged on: a ledger of what was asked, the HTTP API, and files that side effects leave their marks in.
"""

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.points import Point
from tests.support.hosts import Host

# Asynchronous: a client is told 202 almost at once.
# In no sandbox: tools kill what they run for, and write to its ledger.
SETTINGS = {
    "NANOHOST_EXTRA_APPS": "tests.toolbox,tests.faults",
    "CHAT_WAIT_SECONDS": "0.02",
    "TOOL_SANDBOX": "none",
}
# Seconds; much longer than anything takes, since the machine may have other work.
PATIENCE = 120.0


@dataclass
class AskedQuestion:
    """What a client asks, and what it knows of its turn. ``marks``: what its tools are to leave, once each."""

    name: str
    script: list[dict[str, Any]]
    marks: list[str] = field(default_factory=list)
    cancel: bool = False
    turn_id: str = ""
    cancel_asked: bool = False

    @property
    def message(self) -> str:
        return json.dumps({"question": self.name, "script": self.script})


@dataclass
class Talk:
    """One conversation, its questions in the order they are asked, and its transcript as it was judged."""

    id: str
    questions: list[AskedQuestion]
    transcript: list[dict[str, Any]] = field(default_factory=list)

    def speak(self, host: Host) -> None:
        """Ask what has no answer to its request yet, each with its own key, until the host goes away."""
        try:
            with host.client() as client:
                for question in self.questions:
                    if not question.turn_id:
                        self._ask(client, question)
                    if question.cancel and not question.cancel_asked:
                        client.post(f"/turns/{question.turn_id}/cancel").raise_for_status()
                        question.cancel_asked = True
        except httpx2.TransportError:
            pass

    def _ask(self, client: httpx2.Client, question: AskedQuestion) -> None:
        response = client.post(
            f"/conversations/{self.id}/chat",
            json={"message": question.message},
            headers={"Idempotency-Key": f"{self.id}-{question.name}"},
        )
        # 409: it was cancelled by a request whose answer was lost.
        assert response.status_code in (200, 202) or (response.status_code == 409 and question.cancel), response.text
        question.turn_id = response.json()["turnId"]


class Torture:
    """A data directory whose hosts are killed, one after the other."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.effects = data_dir / "effects"
        self.looks = data_dir / "looks"
        self.talks: list[Talk] = []
        self.rounds = 0
        self.kills: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def __enter__(self) -> "Torture":
        self.host = self._host()
        try:
            self.host.start(seconds=PATIENCE)
            self.host.allow("leave_mark", "look", grants=("FS_WRITE",))
        except BaseException:
            self.host.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.host.kill()

    def _host(self, fault: Point | None = None) -> Host:
        return Host(self.data_dir, **SETTINGS, **({"FAULT_AT": str(fault)} if fault else {}))

    def _restart(self, fault: Point | None = None) -> None:
        self.host.kill()
        self.host = self._host(fault)
        self.host.start(seconds=PATIENCE)

    def round(self, point: Point, *, again: Point | None = None) -> bool:
        """Ask, be killed at the point (and once more while recovering), recover, judge; False if it was not reached."""
        self.rounds += 1
        if not point.inside_tool:
            self._restart(point)
        talks = self._talks(point)
        self._speak(talks)
        reached = self._died(talks)
        if reached:
            self.kills[point.stage] += 1
        if reached and again:
            self.kills["recovery"] += self._die_recovering(again, talks)
        self._restart()
        self._speak(talks)
        self._wait_until_ended(talks)
        with self.host.client() as client:
            for talk in talks:
                talk.transcript = self._judge(client, talk)
        if reached and point.inside_tool:
            self._judge_the_killing_call(talks, point)
        self.talks += talks
        return reached

    def judge_all(self) -> None:
        """Once more, at the end: what has ended does not change, and every mark counts."""
        self.ended.clear()
        with self.host.client() as client:
            for talk in self.talks:
                assert self._judge(client, talk) == talk.transcript, "a transcript changed after its end"
        asked = {mark for talk in self.talks for question in talk.questions for mark in question.marks}
        assert set(_lines(self.effects)) <= asked, "somebody left a mark that nobody asked for"

    # --- what is asked -----------------------------------------------------------------------------------------------

    def _talks(self, point: Point) -> list[Talk]:
        assert self.host.process is not None
        kill = {"kill": point.moment, "host": self.host.process.pid} if point.inside_tool else {}
        killing_write = kill if point.place == "leave_mark" else {}
        killing_look = kill if point.place == "look" else {}

        def name(letter: str, number: int) -> str:
            return f"{self.rounds}{letter}{number}"

        plans = {
            "a": [
                lambda n: self._plain(n),
                lambda n: self._tools(n, [[self._write(f"{n}-1")]]),
                lambda n: self._tools(
                    n,
                    [
                        [
                            self._write(f"{n}-1", **killing_write),
                            self._look(f"{n}-l"),
                            self._write(f"{n}-2", seconds=0.1),
                        ]
                    ],
                ),
                lambda n: self._slow(n),
            ],
            "b": [
                lambda n: self._tools(n, [[self._look(f"{n}-l", **killing_look)], [self._write(f"{n}-1")]]),
                lambda n: self._plain(n),
                lambda n: AskedQuestion(n, [{"fail": "unavailable", "times": 1, "retryAfter": 0.1, "say": f"{n}:"}]),
                lambda n: self._tools(n, [[self._write(f"{n}-1", seconds=0.1)]]),
            ],
            "c": [
                lambda n: self._slow(n),
                lambda n: self._tools(n, [[self._write(f"{n}-1"), self._write(f"{n}-2")]]),
                lambda n: AskedQuestion(n, [{"sleep": 0.5, "say": f"{n}:"}], cancel=True),
                lambda n: self._plain(n),
            ],
        }
        with self.host.client() as client:
            return [
                Talk(
                    client.post("/conversations").json()["conversationId"],
                    [plan(name(letter, number)) for number, plan in enumerate(plans[letter], 1)],
                )
                for letter in plans
            ]

    def _plain(self, name: str) -> AskedQuestion:
        return AskedQuestion(name, [{"say": f"{name}:"}])

    def _slow(self, name: str) -> AskedQuestion:
        return AskedQuestion(name, [{"sleep": 0.3, "say": f"{name}:"}])

    def _tools(self, name: str, rounds: list[list[dict[str, Any]]]) -> AskedQuestion:
        marks = [call["arguments"]["mark"] for calls in rounds for call in calls if call["name"] == "leave_mark"]
        return AskedQuestion(name, [*({"call": calls} for calls in rounds), {"say": f"{name}: {{results}}"}], marks)

    def _write(self, mark: str, **options: Any) -> dict[str, Any]:
        return {"name": "leave_mark", "arguments": {"path": str(self.effects), "mark": mark, **options}}

    def _look(self, mark: str, **options: Any) -> dict[str, Any]:
        return {"name": "look", "arguments": {"path": str(self.looks), "mark": mark, **options}}

    # --- what happens ------------------------------------------------------------------------------------------------

    def _speak(self, talks: list[Talk]) -> None:
        failures: list[BaseException] = []

        def speak(talk: Talk) -> None:
            try:
                talk.speak(self.host)
            except BaseException as failure:
                failures.append(failure)

        speakers = [threading.Thread(target=speak, args=(talk,)) for talk in talks]
        for speaker in speakers:
            speaker.start()
        for speaker in speakers:
            speaker.join()
        if failures:
            raise failures[0]

    def _die_recovering(self, point: Point, talks: list[Talk]) -> bool:
        try:
            self._restart(point)
        except RuntimeError as ended:
            if "ended with -9" not in str(ended):
                raise
            return True  # before it was ready
        self._speak(talks)
        return self._died(talks)

    def _died(self, talks: list[Talk]) -> bool:
        """Wait until the host has killed itself; False if all turns end before."""
        assert self.host.process is not None
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                if self.host.process.poll() is None and self._all_ended(talks):
                    return False
            except httpx2.TransportError:
                pass
            if self.host.process.poll() is not None:
                assert self.host.process.returncode == -9, self.host.log_text()[-3000:]
                return True
            time.sleep(0.05)
        raise AssertionError(f"the host neither died nor ended its turns:\n{self.host.log_text()[-3000:]}")

    def _wait_until_ended(self, talks: list[Talk]) -> None:
        until = time.monotonic() + PATIENCE
        while not self._all_ended(talks):
            assert time.monotonic() < until, f"turns did not end:\n{self._open(talks)}"
            time.sleep(0.05)

    def _all_ended(self, talks: list[Talk]) -> bool:
        return all(question.turn_id for talk in talks for question in talk.questions) and not self._open(talks)

    def _open(self, talks: list[Talk]) -> list[dict[str, Any]]:
        with self.host.client() as client:
            turns = [client.get(f"/turns/{question.turn_id}").json() for talk in talks for question in talk.questions]
        return [turn for turn in turns if turn["endedAt"] is None]

    # --- what is judged ----------------------------------------------------------------------------------------------

    def _judge(self, client: httpx2.Client, talk: Talk) -> list[dict[str, Any]]:
        """Every question answered once and in order, every call with one result; returns the transcript."""
        transcript = _pages(client, f"/conversations/{talk.id}/messages")
        assert [message["seq"] for message in transcript] == list(range(1, len(transcript) + 1))
        turns = {question.name: client.get(f"/turns/{question.turn_id}").json() for question in talk.questions}
        assert len({question.turn_id for question in talk.questions}) == len(talk.questions)
        started = [question for question in talk.questions if turns[question.name]["startedAt"]]
        in_order = [message["turnId"] for message in transcript if message["type"] == "NORMAL"]
        assert list(dict.fromkeys(in_order)) == [question.turn_id for question in started], "turns out of order"
        assert in_order == sorted(in_order, key=[question.turn_id for question in started].index), "turns mixed"
        marks = Counter(_lines(self.effects))
        for question in talk.questions:
            own = [message for message in transcript if message["turnId"] == question.turn_id]
            self._judge_turn(question, turns[question.name], own)
            self._judge_effects(question, turns[question.name], marks)
        return transcript

    def _judge_turn(self, question: AskedQuestion, turn: dict[str, Any], own: list[dict[str, Any]]) -> None:
        self.ended[turn["status"]] += 1
        self.ended.update(call["status"] for call in turn["toolCalls"])
        wanted = ("succeeded", "cancelled") if question.cancel else ("succeeded",)
        assert turn["status"] in wanted, turn
        roles = [message["role"] for message in own]
        assert roles.count("USER") == (1 if turn["startedAt"] else 0), roles
        assert roles[:1] != ["USER"] or own[0]["content"] == question.message
        results = [message for message in own if message["role"] == "TOOL"]
        assert len({message["toolCallId"] for message in results}) == len(results) == len(turn["toolCalls"])
        for before, role in pairwise(roles):
            assert role != "TOOL" or before in ("ASSISTANT", "TOOL"), f"a result without its call: {roles}"
        assert [message["content"] for message in results] == [call["result"] for call in turn["toolCalls"]]
        answers = [m for m in own if m["role"] == "ASSISTANT" and m["content"].startswith(f"{question.name}:")]
        if turn["status"] == "succeeded":
            assert answers == own[-1:], f"answered {len(answers)} times: {own}"
            assert turn["assistantMessage"] == own[-1]["content"]
        else:
            assert not answers

    def _judge_effects(self, question: AskedQuestion, turn: dict[str, Any], marks: Counter[str]) -> None:
        writes = [call for call in turn["toolCalls"] if call["toolName"] == "leave_mark"]
        assert len(writes) == len(question.marks), turn
        for call, mark in zip(writes, question.marks, strict=True):
            assert marks[mark] <= 1, f"{mark} took effect {marks[mark]} times"
            if call["status"] == "UNKNOWN":
                assert call["result"].startswith("UNKNOWN"), call
                assert "UNKNOWN" in turn["assistantMessage"], "the model was not told"
            else:
                assert (call["status"], marks[mark]) == ("SUCCESS", 1), (call, marks[mark])
        for call in turn["toolCalls"]:
            assert call["status"] == "SUCCESS" or call["toolName"] == "leave_mark", call

    def _judge_the_killing_call(self, talks: list[Talk], point: Point) -> None:
        """The call that killed the host: UNKNOWN if it writes, run again if it reads."""
        asked = talks[0].questions[2] if point.place == "leave_mark" else talks[1].questions[0]
        with self.host.client() as client:
            call = client.get(f"/turns/{asked.turn_id}").json()["toolCalls"][0]
        if point.place == "leave_mark":
            assert call["status"] == "UNKNOWN", call
            happened = _lines(self.effects).count(asked.marks[0])
            assert point.moment == "beside" or happened == {"before": 0, "after": 1}[point.moment]
        else:
            assert call["status"] == "SUCCESS", call
            assert _lines(self.looks).count(f"{asked.name}-l") == 2, "a read that was interrupted is run again"


def _pages(client: httpx2.Client, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    page = client.get(path, params={"limit": 200}).json()
    while True:
        rows += page["results"]
        if not page["next"]:
            return rows
        page = client.get(page["next"]).json()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
