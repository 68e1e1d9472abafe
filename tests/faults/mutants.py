"""Five guarantees, each taken out of a copy of the code: the tests named here must then fail, and say why."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.host import ROOT

NOT_COPIED = (".venv", ".git", "var", "__pycache__", ".*_cache", ".hypothesis")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """``edits``: file, what stands there exactly once, and what takes its place. ``says``: part of the failure."""

    name: str
    edits: tuple[tuple[str, str, str], ...]
    caught_by: tuple[str, ...]
    says: str


MUTANTS = (
    Mutant(
        name="no fence check",
        edits=(
            (
                "conversations/claims.py",
                "Turn.objects.filter(pk=claim.turn_id, fence=claim.fence, status=TurnStatus.RUNNING)",
                "Turn.objects.filter(pk=claim.turn_id)",
            ),
        ),
        caught_by=("tests/test_guarantees.py::test_a_worker_that_was_taken_over_writes_nothing",),
        says="DID NOT RAISE FenceLost",
    ),
    Mutant(
        name="no unique index",
        edits=(
            (
                "conversations/migrations/0001_initial.py",
                """condition=models.Q(("status__in", ("running", "waiting"))),
                fields=("conversation",),
                name="one_active_turn_a_conversation",""",
                """fields=("id",),
                name="one_active_turn_a_conversation",""",
            ),
        ),
        caught_by=(
            "tests/test_guarantees.py::test_the_database_admits_one_active_turn_a_conversation",
            "tests/test_guarantees.py::test_a_claim_that_the_index_refuses_is_no_claim",
        ),
        says="DID NOT RAISE IntegrityError",
    ),
    Mutant(
        name="ring before commit",
        edits=(
            (
                "conversations/doorbell.py",
                "transaction.on_commit(lambda: _publish(task, row_id))",
                "_publish(task, row_id)",
            ),
        ),
        caught_by=(
            "tests/test_guarantees.py::test_nobody_hears_a_ring_before_its_commit",
            "tests/test_guarantees.py::test_a_ring_whose_transaction_fails_is_never_heard",
        ),
        says="Left contains one more item: ('turn', UUID(",
    ),
    Mutant(
        name="no sweeper",
        edits=(
            (
                "conversations/worker.py",
                "            asyncio.create_task(self._every(settings.SWEEP_SECONDS, self._sweep)),\n",
                "",
            ),
        ),
        caught_by=("tests/test_faults_kill.py::test_a_turn_in_mid_model_call_is_handed_back_at_no_cost[SIGTERM]",),
        says="it did not come to that in time",
    ),
    Mutant(
        # As READ COMMITTED shows them: siblings that end at the same time have not committed yet when they are counted.
        name="siblings counted, and only the last call rings",
        edits=(
            (
                "tools/gate.py",
                "            _store(call, outcome, duration_ms)\n",
                "            siblings = ToolCall.objects.open().filter(turn_id=call.turn_id).exclude(pk=call.pk)\n"
                "            siblings = siblings.count()\n"
                "            _store(call, outcome, duration_ms)\n",
            ),
            (
                "tools/gate.py",
                "        _audit(call, outcome, duration_ms)\n        then(call)\n",
                "        _audit(call, outcome, duration_ms)\n        if not siblings:\n            then(call)\n",
            ),
        ),
        caught_by=("tests/test_guarantees.py::test_calls_that_end_side_by_side_ring_for_their_turn",),
        says="nobody rang for the turn",
    ),
)


def copy_of_the_code(to: Path) -> Path:
    """The tree without what is made from it."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return to


def mutate(root: Path, mutant: Mutant) -> None:
    """Apply the edits; fails if the code no longer reads as they expect."""
    for name, old, new in mutant.edits:
        text = (root / name).read_text()
        assert text.count(old) == 1, f"{name} has changed: {text.count(old)} places read {old!r}"
        (root / name).write_text(text.replace(old, new))


def run_tests(root: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy, with this environment's Python and nothing else of it."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--numprocesses", "0", "-m", "", *tests],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
