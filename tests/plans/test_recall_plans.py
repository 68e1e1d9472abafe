"""What a search of the history log reads grows neither with what others have, nor with how common a word is: the plans
of PostgreSQL, with 30,000 entries of one owner and 15,000 of others. Nothing here is timed."""

from datetime import date
from importlib import import_module
from typing import Any

import pytest
from django.db import connection

from memory import index, log
from tests.support.factories import OwnerFactory
from tests.support.query_plan import ExplainedStatement, explained

pytestmark = [
    pytest.mark.production(reason="the plans are PostgreSQL's; tests/unit/memory/test_recall.py has those of SQLite"),
    pytest.mark.django_db,
    pytest.mark.timeout(300),
]

ENTRIES = 30_000

# 20 words each, of 5,000. All have "everywhere", those of others have "foreign"; the older half has "olden", and every
# 6,000th "needle".
ROWS = """
INSERT INTO memory_historyentry (agent, owner_id, kind, content, words, model, happened_at, created_at)
    SELECT 'default', %(owner)s, 'entry', repeat('content ', 30),
           (SELECT string_agg(%(mark)s || 'w' || (n::bigint * k * 7919 + k * k) %% 5000, ' ')
            FROM generate_series(1, 20) k)
           || ' ' || %(mark)s || 'everywhere' || ' ' || %(mark)s || %(own)s
           || CASE WHEN n <= %(entries)s / 2 THEN ' ' || %(mark)s || 'olden' ELSE '' END
           || CASE WHEN n %% 6000 = 77 THEN ' ' || %(mark)s || 'needle' ELSE '' END,
           '', timestamptz '2024-01-01' + n * interval '1 minute', now()
    FROM generate_series(1, %(entries)s) n
"""


def fill(owner_id: int, entries: int, own: str) -> None:
    mark = index.marked([""], agent="default", owner_id=owner_id)[0]
    with connection.cursor() as cursor:
        cursor.execute(ROWS, {"owner": owner_id, "mark": mark, "entries": entries, "own": own})


@pytest.fixture
def statements(owner: Any) -> Any:
    """What a query ran: ``statements("rain")``, in a log that is long."""
    (make_index,) = import_module("memory.migrations.0001_initial").INDEXES["postgresql"]
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX entries_by_word")
    fill(owner.pk, ENTRIES, "own")
    for _ in range(5):
        fill(OwnerFactory().pk, ENTRIES // 10, "foreign")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what is still to be checked keeps an index from being made
        cursor.execute(make_index)

    def run(query: str, *, found: int) -> list[ExplainedStatement]:
        with explained() as ran:
            entries = log.recall(agent="default", owner_id=owner.pk, query=query, today=date(2026, 3, 10))
        assert len(entries) == found
        assert ran
        return ran

    return run


@pytest.mark.parametrize("counted", [False, True], ids=["fresh", "analysed"])
def test_a_search_reads_the_latest_and_what_it_finds(statements, counted):
    if counted:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE memory_historyentry")
    few = {
        "needle": 5,
        "everywhere": 10,
        "nowhere": 0,
        "foreign": 0,
        "everywhere needle": 5,
        "nowhere at all": 0,
        "w123 w": 10,
    }
    for query, found in few.items():
        for statement in statements(query, found=found):
            assert not statement.scanned(), statement
            # The newest 500; or each entry that has the words.
            assert statement.rows() <= 1_500, statement
            assert statement.blocks <= 4_000, statement


def test_what_only_old_entries_have_is_read_once(statements):
    """The dearest case: all that are found are sorted."""
    for statement in statements("olden", found=10):
        assert not statement.scanned(), statement
        assert statement.rows() <= ENTRIES // 2 + 1, statement
