"""The protocol of turns and calls as a model, and the program held against it. FAULTS_SEED repeats the runs."""

import os
import random
from pathlib import Path

import pytest

from agent.llm.base import Completion
from tests.faults import protocol
from tests.faults.mutants import MUTANTS, copy_of_the_code, mutate, run_tests
from tests.faults.protocol import CALL_CLAIMS, ENDS, FINISHES, TAKES_EFFECT, Played

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(protocol.missing()), reason=f"these are missing: {', '.join(protocol.missing())}"),
]

RUNS = 25


@pytest.mark.shapeless(reason="spin reads a page of docs")
@pytest.mark.parametrize("fair", [False, True], ids=["nothing twice", "every turn ends"])
def test_the_model_holds(tmp_path: Path, fair: bool) -> None:
    assert protocol.errors_of(tmp_path, fair=fair, workers=2, toolboxes=2, faults=4) == 0


@pytest.mark.shapeless(reason="spin reads a page of docs")
@pytest.mark.parametrize(
    ("stands", "instead", "fair"),
    [
        ("atomic { turn == RUNNING && fence == mine && call != NONE", "atomic { call != NONE", False),
        ("call = UNKNOWN; call_fence++; DONE;          /*", "call = QUEUED; call_fence++; DONE;          /*", False),
        (":: atomic { gone && turn == RUNNING && !expired -> expired = true }", "", True),
    ],
    ids=["a finish without its fence", "a call that is run again", "a lease that never runs out"],
)
def test_a_model_without_a_guarantee_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands: str, instead: str, fair: bool
) -> None:
    text = protocol.MODEL.read_text()
    assert text.count(stands) == 1
    (tmp_path / "broken.pml").write_text(text.replace(stands, instead))
    monkeypatch.setattr(protocol, "MODEL", tmp_path / "broken.pml")
    assert protocol.errors_of(tmp_path, fair=fair, workers=2, toolboxes=2, faults=3) > 0


@pytest.mark.django_db(transaction=True)
def test_what_the_program_does_the_model_can_do(say, tool_settings, tmp_path, capsys) -> None:
    tool_settings("append_line", grants=["FS_WRITE"])
    seed = int(os.environ.get("FAULTS_SEED") or random.randrange(10**6))
    with capsys.disabled():
        print(f"\nFAULTS_SEED={seed}")  # noqa: T201 -- for who wants the runs again
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "append_line", "arguments": '{"path": "/x", "line": "y"}'},
    }
    asks, longest = Completion(tool_calls=(call,)), [(0, 0)]
    for number in range(RUNS):
        played = Played(say(f"Hello {number}"), asks, random.Random(seed + number))
        trace = played.play(moves=random.Random(seed + number).randrange(4, 25))
        assert protocol.errors_of(tmp_path, fair=False, trace=trace, faults=60) > 0, f"the model cannot do {trace}"
        assert played.effects <= 1, f"an effect happened {played.effects} times: {trace}"
        longest = max(longest, trace, key=lambda each: (any(kind == ENDS for kind, _ in each), len(each)))
    # What no program of ours may do, it refuses.
    at = next(at for at, (kind, _) in enumerate(longest) if kind == TAKES_EFFECT)
    twice = [*longest[: at + 1], (CALL_CLAIMS, longest[at][1] + 1), (TAKES_EFFECT, longest[at][1] + 1)]
    late = [*longest[:-1], (FINISHES, max(1, longest[-1][1] - 1) if longest[-1][1] > 1 else 9)]
    for refused in (twice, late):
        assert protocol.errors_of(tmp_path, fair=False, trace=refused, faults=60) == 0, refused


@pytest.mark.shapeless(reason="a mutant is run on the shape that it names")
@pytest.mark.parametrize(
    "name",
    ["no fence check", "a call's outcome is stored without its fence", "what a dead worker started is run again"],
)
def test_a_trace_of_a_broken_program_is_refused(name: str, tmp_path: Path) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    root = copy_of_the_code(tmp_path / "copy")
    mutate(root, mutant)
    run = run_tests(
        root,
        (f"tests/faults/test_protocol.py::{test_what_the_program_does_the_model_can_do.__name__}",),
        shape=mutant.shape,
    )
    assert "the model cannot do" in run.stdout, run.stdout[-3000:] + run.stderr[-3000:]
