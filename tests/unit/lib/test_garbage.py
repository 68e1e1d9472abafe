"""Garbage is looked for, seldom, and not among what was loaded."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from nanohost.lib.garbage import THRESHOLDS
from tests.support.hosts import ROOT, environment_of

pytestmark = pytest.mark.shapeless(reason="each process does it alike")

# As a command or a worker begins: both switch the search off before they load anything.
BEGINNINGS = {
    "a command": "import manage, os, gc; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'nanohost.settings');"
    " gc.disable(); manage.load_apps()",
    "a worker": "import gc, django, nanohost.celery; django.setup()",
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_process_that_has_loaded_looks_seldom_and_not_among_that(beginning, tmp_path):
    told = f"{beginning}; print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 50_000)"
    ran = subprocess.run(
        [sys.executable, "-c", told], cwd=ROOT, env=environment_of(tmp_path), capture_output=True, text=True, check=True
    )
    assert ran.stdout.split("\n")[-2] == f"True {THRESHOLDS} True"


def test_a_service_that_has_started_gives_back_what_it_needed_for_that(tmp_path):
    circles = "[(each := [bytes(2000)]).append(each) for _ in range(20_000)] and None"
    held = "int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize() / 2**20"
    told = (
        "import gc, resource; from nanohost.lib import garbage, process; process.share_one_heap(); gc.disable();"
        f" {circles}; before = {held}; garbage.leave_out_what_there_is(); print(before - {held} > 30)"
    )
    ran = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def test_a_service_that_has_started_comes_to_stand_in_large_pages():
    told = (
        "import threading; from nanohost.lib import garbage, process; asked = threading.Event();"
        " process.use_large_pages = asked.set; garbage.LOADED_AFTER = 0; garbage.leave_out_what_there_is();"
        " print(asked.wait(60))"
    )
    ran = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


# Prints how many large pages were made, and how much more memory the process then takes, in MiB.
LARGE_PAGES = """
import mmap, resource
from nanohost.lib import process
{memory}
pages = lambda: int(open('/proc/self/statm').read().split()[1])
before = pages()
print(process.use_large_pages(), (pages() - before) * resource.getpagesize() >> 20)
"""
# 32 MiB: all of it in use; half of its pages; none.
MEMORY = {
    "in use": "held = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); held.write(bytes(32 << 20))",
    "half in use": (
        "held = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "for at in range(0, 32 << 20, 8192): held[at] = 1"
    ),
    "not in use": "held = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
}


def _large_pages(memory: str) -> tuple[int, int]:
    told = LARGE_PAGES.format(memory=MEMORY[memory])
    ran = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    made, more = map(int, ran.stdout.split())
    return made, more


def test_what_is_in_use_comes_to_stand_in_large_pages_and_nothing_else_does():
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    release = tuple(int(each) for each in platform.release().split(".")[:2])
    # Linux before 6.1, or one that is told to make none; a host changes nothing there.
    if not enabled.exists() or "[never]" in enabled.read_text() or release < (6, 1):
        pytest.skip("this kernel makes no large pages")
    assert _large_pages("in use")[0] >= 12
    for memory in ("half in use", "not in use"):
        made, more = _large_pages(memory)
        assert made <= 4, "what the interpreter itself holds"
        assert more <= 4
