"""Several beats and workers by mistake, as real processes: each time of each schedule makes one turn all the same."""

import pytest

from tests.support.hosts import CELERY, PROCESSES, Host
from tests.support.wait import wait_until

pytestmark = pytest.mark.production(reason="an embedded host has one beat; test_ticking.py has threads instead")

# Schedules with ten times behind them each, all of which are made up for, and none to come.
MAKE = """
from datetime import timedelta
from django.contrib.auth import get_user_model
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from nanohost.lib import clock
from scheduler import series

PeriodicTask.objects.filter(name="tick").update(interval=IntervalSchedule.objects.create(every=1, period="seconds"))
owner, now = get_user_model().objects.get(username="admin"), clock.read()
for _ in range(100):
    series.create(owner_id=owner.pk, prompt="Hello", every_seconds=60, missed="all", ends_at=now.isoformat(),
                  now=now - timedelta(seconds=630))
"""


@pytest.fixture
def crowd(tmp_path):
    """A host with four beats and two workers, not started yet."""
    host = Host(tmp_path, beat=True)
    host._commands |= {f"beat-{number}": (*CELERY, "beat", "--pidfile=") for number in range(3)}
    host._commands |= {"worker-1": PROCESSES["worker"]}
    yield host
    host.kill()


@pytest.mark.faults  # for the time it takes
@pytest.mark.timeout(300)
def test_four_beats_and_two_workers_fire_a_thousand_times_once_each(crowd):
    assert crowd.manage("shell", "--no-imports", "-c", MAKE).stderr == ""
    crowd.start()
    ended = "SELECT count(*) AS n FROM scheduler_schedulerun WHERE ended_at IS NOT NULL AND state = 'fired'"
    wait_until(lambda: crowd.sql(ended)[0]["n"] == 1_000, seconds=240)
    found = crowd.sql("SELECT schedule_id, slot, turn_id FROM scheduler_schedulerun")
    turns = crowd.sql("SELECT id FROM conversations_turn WHERE status = 'succeeded'")
    assert len(found) == len({(run["schedule_id"], run["slot"]) for run in found}) == 1_000
    assert {run["turn_id"] for run in found} == {turn["id"] for turn in turns}
    assert len(turns) == 1_000
