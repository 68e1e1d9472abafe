"""The benchmark runs; what it finds is no matter of right and wrong."""

import subprocess
import sys

import pytest

from tests.faults.servers import missing_binaries
from tests.host import ROOT


@pytest.mark.faults  # with them, for the time it takes
@pytest.mark.timeout(300)
@pytest.mark.shapeless(reason="it starts both shapes itself")
@pytest.mark.skipif(bool(missing_binaries()), reason="it needs PostgreSQL and Redis of its own")
def test_it_measures_turns_and_requests_in_both_shapes():
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=290
    )
    assert ran.returncode == 0, ran.stderr
    for line in (
        "echo, 1 worker(s)",
        "tool, 1 worker(s)",
        "2 at once",
        "chat, 20 client(s), embedded",
        "chat, 20 client(s), production",
    ):
        (found,) = [each for each in ran.stdout.splitlines() if each.startswith(line)]
        assert float(found[42:].split()[0]) > 0
