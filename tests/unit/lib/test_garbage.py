"""Garbage is looked for, seldom, and not among what was loaded."""

import subprocess
import sys

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
