"""Deleting in small transactions: how many rows the next one has, and what takes too long is undone."""

import json
import time

import pytest
from django.db import OperationalError, connection

from nanohost.accounts.models import AuditEntry, UnsealedEntry
from nanohost.lib.erasing import FIRST_ROWS, MAX_ROWS, MAX_SECONDS, USUAL_SECONDS, Erased, Pace, from_pairs

pytestmark = pytest.mark.django_db(transaction=True)

# A statement that takes as long as it is let.
SLOW = {
    "postgresql": "SELECT pg_sleep(5)",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3e7) SELECT max(i) FROM n",
}


def test_after_a_slow_transaction_the_next_has_half_and_after_a_quick_one_twice_as_many_rows():
    pace = Pace()
    assert pace.rows == FIRST_ROWS
    pace.took(USUAL_SECONDS * 1.1)
    assert pace.rows == FIRST_ROWS // 2
    pace.took(USUAL_SECONDS * 0.7)
    assert pace.rows == FIRST_ROWS // 2
    pace.took(USUAL_SECONDS * 0.1)
    assert pace.rows == FIRST_ROWS // 2 * 2


def test_it_stays_within_its_bounds():
    pace = Pace()
    for _ in range(20):
        pace.took(0)
    assert pace.rows == MAX_ROWS
    for _ in range(20):
        pace.took(10)
    assert pace.rows == 1


def test_what_takes_too_long_is_undone_and_tried_with_half_as_many():
    tried = []

    def erase(rows):
        tried.append(rows)
        UnsealedEntry.objects.create(entry_id=-rows)
        if rows > FIRST_ROWS // 4:
            with connection.cursor() as cursor:
                cursor.execute(SLOW[connection.vendor])
        return rows

    began = time.monotonic()
    assert Pace().transact(erase) == FIRST_ROWS // 4
    assert tried == [FIRST_ROWS, FIRST_ROWS // 2, FIRST_ROWS // 4]
    assert list(UnsealedEntry.objects.filter(entry_id__lt=0).values_list("entry_id", flat=True)) == [-tried[-1]]
    assert time.monotonic() - began > 2 * MAX_SECONDS


def test_a_single_row_may_take_as_long_as_it_needs():
    def erase(rows):
        until = time.monotonic() + 1.5 * MAX_SECONDS
        while time.monotonic() < until:
            AuditEntry.objects.count()
        return rows

    pace = Pace(rows=1)
    assert pace.transact(erase) == 1


def test_what_fails_otherwise_is_not_tried_again():
    tried = []

    def erase(rows):
        tried.append(rows)
        raise OperationalError("no such table")

    with pytest.raises(OperationalError):
        Pace().transact(erase)
    assert len(tried) == 1


def test_the_hash_is_of_what_was_said_and_not_of_the_order():
    rows = [(1, "one"), (2, "two")]

    def hash_of(rows):
        erased = Erased()
        for key, said in rows:
            erased.add(AuditEntry, key, said)
        return erased.hash

    assert hash_of(rows) == hash_of(rows[::-1])
    assert len({hash_of(rows), hash_of([(1, "one"), (2, "too")]), hash_of([(1, "one"), (3, "two")]), hash_of([])}) == 4


def test_the_log_is_told_counts_that_it_takes_for_no_secrets():
    erased = Erased()
    erased.add(AuditEntry, 1)
    erased.add(AuditEntry, 2)
    assert from_pairs(json.loads(json.dumps(erased.told()))["rows"]) == {"accounts_auditentry": 2}
