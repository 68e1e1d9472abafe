"""100,000 schedules, of which a thousand are due, with the ledger of their past; PostgreSQL only, made in seconds."""

from datetime import timedelta

from django.db import connection

SCHEDULES, DUE, RUNS = 100_000, 1_000, 200_000

# Those that are due come within ``spread``, from ``begin`` on. Of the others every tenth is paused, its last time long
# past, and the rest come hours later. The first tenth have runs behind them.
_SCHEDULES = """
INSERT INTO scheduler_schedule
    (id, owner_id, agent_id, description, prompt, deliver_to, kind, every_seconds, expression, zone, phase, missed,
     missed_most, active, paused_because, next_at, runs, failures, revision, created_at, updated_at)
    SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, %(owner)s, %(agent)s, 'number ' || n,
           'Hello', '{}', 'every', 86400, '', 'Europe/Berlin', at - interval '1 day', 'once', 10,
           n <= %(due)s OR n %% 10 > 0, '', at, 0, 0, 0, now() - n * interval '1 minute', now()
    FROM generate_series(1, %(schedules)s) n, LATERAL (
        SELECT now() + CASE WHEN n <= %(due)s THEN %(begin)s + n * %(spread)s / %(due)s
                            WHEN n %% 10 = 0 THEN interval '-1 year' ELSE interval '3 hours' END) due (at)
"""
_RUNS = """
INSERT INTO scheduler_schedulerun (id, schedule_id, slot, state, by_hand, attempts, error, created_at, ended_at)
    SELECT ('018f0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
           ('01900000-0000-7000-8000-' || lpad(to_hex(1 + n %% (%(schedules)s / 10)), 12, '0'))::uuid,
           at, CASE WHEN n %% 1000 = 0 THEN 'failed' ELSE 'fired' END, false, 1, '', at, at
    FROM generate_series(1, %(runs)s) n, LATERAL (SELECT now() - (%(runs)s - n + 1) * interval '20 seconds') ran (at)
"""


def fill(*, owner_id: int, agent_id: int, begin: timedelta, spread: timedelta) -> None:
    """Fill empty tables, and have PostgreSQL count what there is."""
    with connection.cursor() as cursor:
        of_whom = {"owner": owner_id, "agent": agent_id, "schedules": SCHEDULES, "due": DUE}
        cursor.execute(_SCHEDULES, of_whom | {"begin": begin, "spread": spread})
        cursor.execute(_RUNS, {"schedules": SCHEDULES, "runs": RUNS})
        cursor.execute("ANALYZE scheduler_schedule, scheduler_schedulerun")
