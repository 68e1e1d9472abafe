"""A run of replays whose host is killed in its midst: each replay ends once, and the report is stored."""

from collections.abc import Iterator

import pytest

from tests.support.api_client import chat, eventually, start
from tests.support.hosts import Host
from tests.support.scripts import script

BEGIN = """
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from conversations.engine.replaying import replay_sets
from conversations.engine.replaying.frozen import Changes
from conversations.models import Turn

second = IntervalSchedule.objects.create(every=1, period="seconds")
job = PeriodicTask.objects.get(name="evaluations")
job.interval = second
job.save()
of_set = replay_sets.collect("slow", [(turn, None) for turn in Turn.objects.all()])
replay_sets.start(of_set, Changes(model="another"), by="anna")
"""
STATES = "SELECT status, failures, model_calls FROM conversations_replay"


@pytest.fixture
def hasty(tmp_path) -> Iterator[Host]:
    host = Host(tmp_path, beat=True, TURN_LEASE_SECONDS="3").start()
    yield host
    host.kill()


def test_a_run_goes_on_after_its_host_was_killed_and_each_of_it_ends_once(hasty):
    with hasty.client() as client:
        for _ in range(6):
            chat(client, start(client), script({"sleep": 1.5, "say": "Done."})).raise_for_status()
    began = hasty.manage("shell", "--no-imports", "-c", BEGIN)
    assert began.returncode == 0, began.stderr
    eventually(lambda: [row for row in hasty.sql(STATES) if row["status"] == "running"], seconds=60)
    hasty.kill()
    left = [row["status"] for row in hasty.sql(STATES)]
    assert "running" in left, left
    hasty.start()
    ended = "SELECT report FROM conversations_replayrun WHERE ended_at IS NOT NULL"
    eventually(lambda: hasty.sql(ended), seconds=120)
    rows = hasty.sql(STATES)
    assert [row["status"] for row in rows] == ["succeeded"] * 6
    # Whoever was killed is counted, and what was not answered is asked once more, and no more.
    assert sum(row["failures"] for row in rows) >= left.count("running")
    assert {row["model_calls"] for row in rows if not row["failures"]} <= {1}
    (found,) = hasty.sql(ended)
    assert '"cases": 6' in str(found["report"]).replace("'", '"')
