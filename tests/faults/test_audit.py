"""kill -9 of whoever writes into the audit log or seals it: the log is whole, and no alarm is false."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.db import connection

from nanohost.accounts import audit
from nanohost.accounts.audit import Head
from nanohost.accounts.models import AuditEntry, UnsealedEntry

pytestmark = pytest.mark.django_db(transaction=True)

SEED = int(os.environ.get("FAULTS_SEED", "") or random.SystemRandom().randrange(10**6))


@pytest.fixture
def victims() -> Iterator[subprocess.Popen[str]]:
    """Where they are killed, on this test's database."""
    arguments = [sys.executable, "-m", "tests.faults.auditing", str(connection.settings_dict["NAME"])]
    running = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield running
    running.stdin.close()
    assert running.wait(timeout=20) == 0


def kill(victims: subprocess.Popen[str], *, times: int) -> None:
    chance, heads = random.Random(SEED), [Head(0, audit.BEGINNING)]
    for number in range(times):
        victims.stdin.write(f"{chance.uniform(0, 20)}\n")
        victims.stdin.flush()
        assert victims.stdout.readline() == "killed\n"
        if number % 10 == 9:
            heads.append(audit.verify(heads))
    audit.seal()
    assert not UnsealedEntry.objects.exists()
    found = audit.verify(heads).number
    assert found == AuditEntry.objects.count(), f"FAULTS_SEED={SEED}"
    assert found > times


def test_a_log_whose_writers_are_killed_is_whole(victims: subprocess.Popen[str]) -> None:
    kill(victims, times=30)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_thousand_kills_raise_no_false_alarm(victims: subprocess.Popen[str]) -> None:
    kill(victims, times=1000)
