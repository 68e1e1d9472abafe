"""kill -9 in the middle of compactions: nothing is lost, and nothing consolidated twice."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.db import connection

from conversations.engine.compacting import compaction
from conversations.models import Compaction, CompactionStatus, Conversation, Message
from memory.models import HistoryEntry, Memory, MemoryVersion
from tests.faults.compacting import POINTS
from tests.support.compacting import KEEP, run

pytestmark = pytest.mark.django_db(transaction=True)

SEED = int(os.environ.get("FAULTS_SEED", "") or random.SystemRandom().randrange(10**6))


@pytest.fixture
def victims() -> Iterator[subprocess.Popen[str]]:
    """Where workers die, on this test's database."""
    name = str(connection.settings_dict["NAME"])
    arguments = [sys.executable, "-m", "tests.faults.compacting", name]
    running = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield running
    running.stdin.close()
    assert running.wait(timeout=20) == 0


def dies(victims: subprocess.Popen[str], row: Compaction, point: str) -> bool:
    """Whether a worker that took this compaction has died at the point; it may never come by."""
    victims.stdin.write(f"{row.pk} {point}\n")
    victims.stdin.flush()
    return int(victims.stdout.readline()) == -signal.SIGKILL


def check(conversation: Conversation, row: Compaction) -> None:
    """All is done, once."""
    conversation.refresh_from_db()
    row.refresh_from_db()
    assert row.status == CompactionStatus.DONE
    assert (row.first_seq, row.through_seq) == (1, 24)
    assert conversation.consolidated_through == 24
    assert list(Message.objects.filter(type="SUMMARY").values_list("seq", flat=True)) == [conversation.summary_seq]
    assert Message.objects.filter(type="NORMAL").count() == 44
    (entry,) = HistoryEntry.objects.all()
    assert (entry.first_seq, entry.last_seq) == (1, 24)
    assert [version.number for version in MemoryVersion.objects.all()] == [1]
    assert Memory.objects.get().version == 1


def kill_at(points: list[str], victims: subprocess.Popen[str], conversation: Conversation, fill: object) -> None:
    reached = []
    for point in points:
        for model in (Compaction, Message, HistoryEntry, MemoryVersion, Memory):
            model.objects.all().delete()
        Conversation.objects.update(next_seq=1, consolidated_through=0, summary_seq=None)
        fill(44)
        compaction.request(conversation.pk, None, keep_tokens=KEEP)
        (row,) = Compaction.objects.all()
        if dies(victims, row, point):
            reached.append(point)
        Compaction.objects.filter(status="running").update(lease_until=row.created_at)
        run(row)
        check(conversation, row)
    assert len(reached) >= 0.8 * len(points), f"FAULTS_SEED={SEED}: only {reached} were reached"


def test_a_worker_that_dies_in_mid_compaction_leaves_it_to_the_next(victims, conversation, fill):
    chosen = random.Random(SEED).sample(POINTS[:6], 2) + random.Random(SEED).sample(POINTS[6:], 3)
    kill_at(chosen, victims, conversation, fill)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_thirty_kills_lose_nothing_and_repeat_nothing(victims, conversation, fill, capsys):
    with capsys.disabled():
        print(f"\nFAULTS_SEED={SEED}")  # noqa: T201 -- to repeat it
    rng = random.Random(SEED)
    kill_at([*POINTS, *rng.choices(POINTS, k=30 - len(POINTS))], victims, conversation, fill)
