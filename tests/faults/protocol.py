"""The model of docs/protocol, checked by spin; and what the program does, as runs that the model must be able to do."""

import random
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from agent.llm.base import Completion
from conversations.engine import steps, turn_control
from conversations.engine.turns import claim_and_load
from conversations.errors import FenceLost
from conversations.models import Turn
from conversations.statuses import TurnStatus
from nanohost.lib.clock import Now
from tests.faults.interleave import coming_between
from tests.support.hosts import ROOT
from tools import calls
from tools.calls import Outcome
from tools.errors import CallLost
from tools.models import CallStatus, ToolCall

MODEL = ROOT / "docs" / "protocol" / "turns.pml"
NEEDED = ("spin", "gcc")

# As the model numbers them.
CLAIMS, ASKS, FINISHES, CALL_CLAIMS, DOUBTS, TAKES_EFFECT, ENDS, CANCELS = range(1, 9)

# What happened, and the fence of who did it.
Event = tuple[int, int]
Trace = list[Event]


def missing() -> list[str]:
    """Programs that are needed and are not there."""
    return [name for name in NEEDED if not shutil.which(name)]


def errors_of(folder: Path, *, fair: bool, trace: Trace | None = None, **sizes: int) -> int:
    """How many errors spin finds in all runs of the model: of safety, or with ``fair`` that not every turn ends.
    ``trace``: only runs that do this; there is one if an error is found."""
    shutil.copy(MODEL, folder / "turns.pml")
    if trace is not None:
        kinds, numbers = zip(*trace, strict=True)
        listed = "".join(f"kinds[{at}] = {kind}; numbers[{at}] = {numbers[at]}; " for at, kind in enumerate(kinds))
        (folder / "trace.h").write_text(
            f"#define LENGTH {len(trace)}\nbyte kinds[{len(trace)}], numbers[{len(trace)}];\n"
            f"bool is_read = false;\ninit {{ d_step {{ {listed}is_read = true }} }}\n"
        )
    defined = [f"-D{name.upper()}={size}" for name, size in sizes.items()] + (["-DTRACE"] if trace is not None else [])
    _run(folder, "spin", *defined, "-a", "turns.pml")
    _run(folder, "gcc", *(("-DNFAIR=3",) if fair else ("-DSAFETY", "-DNOCLAIM")), "-o", "pan", "pan.c")
    # What is not in a trace cannot go on; that is no error.
    options = ("-a", "-f") if fair else ("-E",) if trace is not None else ()
    said = _run(folder, "./pan", *options, "-m1000000")
    (line,) = (line for line in said.splitlines() if ", errors: " in line)
    assert "max search depth too small" not in said
    return int(line.rpartition(" ")[2])


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass
class Played:
    """The real program's functions, called in an order that a seed draws: two workers, two toolboxes, leases that run
    out under who holds them, crashes, and a person who may cancel; some of it in the middle of what another does,
    before any of its statements. ``trace``: what has happened."""

    turn: Turn
    asks: Completion
    rng: random.Random
    trace: Trace = field(default_factory=list)
    effects: int = 0
    _claims: dict[int, Any] = field(default_factory=dict)
    _calls: dict[int, tuple[ToolCall, bool]] = field(default_factory=dict)
    # What whoever is in the middle of something has stored by now, for those who come between.
    _seen: Callable[[], Event | None] = field(default=lambda: None)

    def play(self, *, moves: int) -> Trace:
        """So many moves, and then without faults until the turn has ended."""
        faults: list[Callable[[int], None]] = [self._crash_worker, self._crash_toolbox, self._expire, self._cancel]
        work: list[Callable[[int], None]] = [self._work, self._tool]
        for _ in range(moves):
            chosen, place = self.rng.choices([*work, *faults], [6, 6, 1, 1, 2, 0.3])[0], self.rng.randrange(2)
            if chosen in work and self.rng.random() < 0.4:
                with coming_between(self.rng.randrange(8), lambda place=place: self._come_between(1 - place)):
                    chosen(place)
            else:
                chosen(place)
        for _ in range(40):
            if Turn.objects.filter(pk=self.turn.pk, status__in=(TurnStatus.SUCCEEDED, TurnStatus.CANCELLED)).exists():
                return self.trace
            self._expire(0)
            for place in (0, 1):
                self._tool(place)
                self._work(place)
        raise AssertionError(f"the turn does not end: {self.trace}")

    def _act(self, act: Callable[[], Event | None], seen: Callable[[], Event | None]) -> None:
        """Do it, and tell what it has stored. ``seen``: the same as the database has it, if nobody else has moved."""
        self._seen = seen
        done = act()
        if done and self._seen is seen:
            self.trace.append(done)
        self._seen = lambda: None

    def _come_between(self, place: int) -> None:
        """Others move, perhaps as the leases have run out; what has been stored by then is told before."""
        seen, stored = self._seen, self._seen()
        if stored:
            self.trace.append(stored)
        if self.rng.random() < 0.7:
            self._expire(place)
        for move in self.rng.choices([self._work, self._tool, self._cancel], [5, 5, 1], k=2):
            move(place)
        self._seen = (lambda: None) if stored else seen

    def _call(self) -> ToolCall | None:
        return ToolCall.objects.filter(turn_id=self.turn.pk).first()

    def _work(self, place: int) -> None:
        """Claim the turn, or store what the claim was for."""
        held = self._claims.pop(place, None)
        worker, before = f"worker-{place}", Turn.objects.get(pk=self.turn.pk).fence

        def claim() -> Event | None:
            taken = claim_and_load(self.turn.pk, worker=worker)
            if taken:
                self._claims[place] = taken[0]
            return (CLAIMS, taken[0].fence) if taken else None

        def claimed() -> Event | None:
            turn = Turn.objects.get(pk=self.turn.pk)
            return (CLAIMS, turn.fence) if turn.worker == worker and turn.fence > before else None

        def ask() -> Event | None:
            with suppress(FenceLost):
                steps.store_calls(held, self.asks, limit=None)
                return ASKS, held.fence
            return None

        def finish() -> Event | None:
            with suppress(FenceLost):
                steps.finish(held, Completion(content="Done."), reply="Done.")
                return FINISHES, held.fence
            return None

        if held is None:
            self._act(claim, claimed)
        elif self._call() is None:
            self._act(ask, lambda: (ASKS, held.fence) if self._call() else None)
        else:
            answered = Turn.objects.filter(pk=self.turn.pk, status=TurnStatus.SUCCEEDED)
            is_open = not answered.exists()
            self._act(finish, lambda: (FINISHES, held.fence) if is_open and answered.exists() else None)

    def _tool(self, place: int) -> None:
        """Claim the call, have its effect, or store its outcome."""
        call, has_effect = self._calls.pop(place, (self._call(), None))
        if call is None:
            return
        toolbox, fence, status = f"toolbox-{place}", call.fence, call.status

        def claim() -> Event | None:
            taken = calls.claim(call.pk, worker=toolbox)
            if taken and not taken.ended:
                self._calls[place] = taken, False
            return (DOUBTS if taken.ended else CALL_CLAIMS, taken.fence) if taken else None

        def claimed() -> Event | None:
            stored = ToolCall.objects.get(pk=call.pk)
            if stored.fence == fence:
                return None
            return (DOUBTS if stored.ended else CALL_CLAIMS), stored.fence

        def end() -> Event | None:
            with suppress(CallLost):
                calls.end(call, Outcome(status=CallStatus.SUCCESS, result="done"), duration_ms=1)
                return ENDS, fence
            return None

        def ended() -> Event | None:
            stored = ToolCall.objects.get(pk=call.pk)
            return (ENDS, fence) if stored.status == CallStatus.SUCCESS != status else None

        if has_effect is None:
            self._act(claim, claimed)
        elif not has_effect:
            self.effects += 1
            self.trace.append((TAKES_EFFECT, fence))
            self._calls[place] = call, True
        else:
            self._act(end, ended)

    def _crash_worker(self, place: int) -> None:
        self._claims.pop(place, None)

    def _crash_toolbox(self, place: int) -> None:
        self._calls.pop(place, None)

    def _expire(self, _: int) -> None:
        """The leases of the turn and of its call run out: whoever holds them stalls, is cut off, or is gone."""
        past = Now() - timedelta(seconds=1)
        Turn.objects.filter(pk=self.turn.pk, lease_until__isnull=False).update(lease_until=past, attempts=0)
        ToolCall.objects.filter(turn_id=self.turn.pk, lease_until__isnull=False).update(lease_until=past)

    def _cancel(self, _: int) -> None:
        turn = Turn.objects.get(pk=self.turn.pk)
        if turn.status in (TurnStatus.QUEUED, TurnStatus.WAITING):
            turn_control.cancel_turn(turn)
            self.trace.append((CANCELS, turn.fence))
