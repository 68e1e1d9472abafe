"""A process keeps its threads on one core, leaves it to others' work, and what it starts is not kept there."""

import os
import subprocess
import sys

import pytest

from nanohost.lib.one_core import better_core
from tests.support.hosts import ROOT

pytestmark = [
    pytest.mark.shapeless(reason="each process does it alike"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one core to offer"),
]

NO_SIBLINGS = {0: (), 1: (), 2: (), 3: ()}
PAIRS = {0: (1,), 1: (0,), 2: (3,), 3: (2,)}


@pytest.mark.parametrize(
    ("own", "busy", "siblings", "best"),
    [
        pytest.param(0.9, {0: 0.9, 1: 0.0}, NO_SIBLINGS, 0, id="alone on its core"),
        pytest.param(0.5, {0: 1.0, 1: 0.0}, NO_SIBLINGS, 1, id="beside another, and a core is idle"),
        pytest.param(0.5, {0: 1.0, 1: 0.3, 2: 0.1}, NO_SIBLINGS, 2, id="to the one that is least used"),
        pytest.param(0.5, {0: 0.9, 1: 0.35}, NO_SIBLINGS, 0, id="not for a little"),
        pytest.param(0.5, {0: 1.0, 1: 0.0, 2: 0.9, 3: 0.9}, NO_SIBLINGS, 1, id="not where it is as busy"),
        pytest.param(0.9, {0: 0.9, 1: 0.9, 2: 0.0, 3: 0.0}, PAIRS, 2, id="away from a busy sibling"),
        pytest.param(0.9, {0: 0.9, 1: 0.0, 2: 0.9, 3: 0.0}, PAIRS, 0, id="not to the sibling of a busy one"),
        pytest.param(0.9, {0: 0.9, 1: 0.0}, PAIRS, 0, id="its own work on its sibling is no reason"),
        pytest.param(0.5, {0: 1.0, 1: 0.7}, NO_SIBLINGS, 1, id="beside another on a full core, and one has time left"),
        pytest.param(0.5, {0: 1.0, 1: 0.9}, NO_SIBLINGS, 0, id="no core has time left"),
        pytest.param(0.5, {0: 0.9, 1: 0.7}, NO_SIBLINGS, 0, id="its core has time left"),
        pytest.param(0.95, {0: 1.0, 1: 0.7}, NO_SIBLINGS, 0, id="alone on its core, which is full"),
        pytest.param(0.9, {1: 0.0}, NO_SIBLINGS, 0, id="of its own core nothing is known"),
    ],
)
def test_the_core_with_the_least_of_others_work(own, busy, siblings, best):
    assert better_core(0, own=own, busy=busy, siblings=siblings) == best


# Each begins with a thread that was there before.
BEGINNING = """
import contextlib, os, subprocess, sys, threading, time
from nanohost.lib import one_core
every = os.sched_getaffinity(0)
done = threading.Event()
threading.Thread(target=done.wait, daemon=True).start()
def cores():
    found = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            found.append(os.sched_getaffinity(int(thread)))
    return found
def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, cores()
    print("so it is")
one_core.LOOK_SECONDS = 0.02
"""
# Of a child: the cores it may use.
CHILD = 'subprocess.run([sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"], stdout=-1).stdout'


def told(script: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", BEGINNING + script], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_all_threads_are_on_one_core_also_those_to_come():
    told("""
one_core.keep_to_one_core()
threading.Thread(target=done.wait, daemon=True).start()
assert len(cores()) == 4 and len(cores()[0]) == 1 and cores().count(cores()[0]) == 4, cores()
""")


def test_what_it_starts_may_use_all_cores():
    told(f"""
one_core.keep_to_one_core()
with one_core.all_cores():
    assert int({CHILD}) == len(every)
assert int({CHILD}) == 1
assert len(os.sched_getaffinity(0)) == 1
""")


def test_what_a_process_starts_that_keeps_to_no_core_is_as_it_was():
    told(f"""
with one_core.all_cores():
    assert int({CHILD}) == len(every)
""")


# In the place of the kernel's file, what tells that all cores are busy but the ``idle`` one, which none is at first.
KEPT = """
class Stat:
    ticks = 0
    def read_text(self):
        self.ticks += 1000
        busy = {core: 0 if core == idle else self.ticks for core in every}
        return "cpu  0 0 0 0 0 0 0 0 0 0\\n" + "".join(f"cpu{c} {n} 0 0 0 0 0 0 0 0 0\\n" for c, n in busy.items())
one_core.STAT, idle = Stat(), None
one_core.keep_to_one_core()
(here,) = os.sched_getaffinity(0)
"""


def test_it_leaves_a_core_that_others_use_for_one_that_is_idle():
    assert told(f"""{KEPT}
idle = min(every - {{here}})
until(lambda: all(each == {{idle}} for each in cores()))
""")


def test_it_does_not_move_while_something_is_started():
    assert told(f"""{KEPT}
with one_core.all_cores():
    idle = min(every - {{here}})
    read = one_core.STAT.ticks + 20_000
    until(lambda: one_core.STAT.ticks > read)
    assert {{here}} in cores() and {{idle}} not in cores(), cores()
until(lambda: all(each == {{idle}} for each in cores()))
""")


def test_whoever_places_the_process_by_hand_has_the_last_word():
    assert told(f"""{KEPT}
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), every)
idle = min(every - {{here}})
until(lambda: "one-core" not in [thread.name for thread in threading.enumerate()])
assert all(each == every for each in cores()), cores()
""")


def test_what_is_started_by_a_process_that_was_placed_by_hand_stays_where_that_is():
    told(f"""
one_core.keep_to_one_core()
(here,) = os.sched_getaffinity(0)
os.sched_setaffinity(0, every - {{here}})
with one_core.all_cores():
    assert int({CHILD}) == len(every) - 1
assert os.sched_getaffinity(0) == every - {{here}}
""")


def test_it_begins_when_what_is_just_being_started_has_started():
    told(f"""
with one_core.all_cores():
    beginning = threading.Thread(target=one_core.keep_to_one_core)
    beginning.start()
    beginning.join(0.2)
    assert int({CHILD}) == len(every)
beginning.join()
assert len(os.sched_getaffinity(0)) == 1
""")


def test_a_word_of_the_kernel_that_it_does_not_understand_is_as_none():
    assert told(f"""{KEPT}
Stat.read_text = lambda self: "cpu  0 0\\ncpu0 0 0\\n"
until(lambda: all(each == every for each in cores()))
""")


def test_without_the_kernels_word_it_keeps_to_no_core():
    assert told("""
from pathlib import Path
one_core.STAT = Path("/nonexistent")
one_core.keep_to_one_core()
until(lambda: all(each == every for each in cores()))
""")


def test_a_process_of_one_core_is_left_alone():
    told("""
os.sched_setaffinity(0, {min(every)})
one_core.keep_to_one_core()
assert "one-core" not in [thread.name for thread in threading.enumerate()]
""")
