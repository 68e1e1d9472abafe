"""The days and months of budgets, where the clocks are changed as well."""

from datetime import UTC, datetime, timedelta

import pytest

from agent.spending.periods import Every, period_of

pytestmark = pytest.mark.shapeless(reason="computing with times")


def of(every: Every, at: str, zone: str = "Europe/Berlin") -> tuple[str, str, float]:
    """The first day of a period, when it ends, and its hours."""
    period = period_of(every, datetime.fromisoformat(at), zone)
    assert period.begins <= datetime.fromisoformat(at) < period.ends
    return period.start.isoformat(), period.ends.isoformat(), (period.ends - period.begins) / timedelta(hours=1)


@pytest.mark.parametrize(
    ("at", "start", "ends", "hours"),
    [
        ("2026-03-04T12:00+00:00", "2026-03-04", "2026-03-04T23:00:00+00:00", 24),
        ("2026-03-04T22:59+00:00", "2026-03-04", "2026-03-04T23:00:00+00:00", 24),
        ("2026-03-04T23:00+00:00", "2026-03-05", "2026-03-05T23:00:00+00:00", 24),
        ("2026-03-29T12:00+00:00", "2026-03-29", "2026-03-29T22:00:00+00:00", 23),
        ("2026-10-25T12:00+00:00", "2026-10-25", "2026-10-25T23:00:00+00:00", 25),
    ],
)
def test_a_day_is_the_hosts_own(at, start, ends, hours):
    assert of(Every.DAY, at) == (start, ends, hours)


def test_a_clock_that_is_set_back_is_in_the_day_before():
    """The latest period is remembered."""
    days = [of(Every.DAY, f"2026-03-{at}T12:00+00:00")[0] for at in ("05", "04", "05", "06")]
    assert days == ["2026-03-05", "2026-03-04", "2026-03-05", "2026-03-06"]


def test_a_day_without_a_midnight_begins_with_its_first_moment():
    """In Brazil, the clocks were once put forward at midnight."""
    before = of(Every.DAY, "2018-11-04T02:59+00:00", "America/Sao_Paulo")
    after = of(Every.DAY, "2018-11-04T03:00+00:00", "America/Sao_Paulo")
    assert (before, after[0], after[2]) == (("2018-11-03", "2018-11-04T03:00:00+00:00", 24), "2018-11-04", 23)


def test_of_two_midnights_a_day_begins_with_the_first():
    """In Cuba, one o'clock is put back to midnight."""
    assert of(Every.DAY, "2026-11-01T04:00+00:00", "America/Havana") == (
        *("2026-11-01", "2026-11-02T05:00:00+00:00", 25),
    )
    assert of(Every.DAY, "2026-11-01T05:30+00:00", "America/Havana")[0] == "2026-11-01"


@pytest.mark.parametrize(
    ("at", "start", "ends"),
    [
        ("2026-02-28T22:59+00:00", "2026-02-01", "2026-02-28T23:00:00+00:00"),
        ("2026-02-28T23:00+00:00", "2026-03-01", "2026-03-31T22:00:00+00:00"),
        ("2026-12-31T22:00+00:00", "2026-12-01", "2026-12-31T23:00:00+00:00"),
    ],
)
def test_a_month_is_the_calendars(at, start, ends):
    assert of(Every.MONTH, at)[:2] == (start, ends)


def test_every_moment_is_in_one_period_each():
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for every in Every:
        for hour in range(0, 24 * 400, 7):
            of(every, (moment + timedelta(hours=hour)).isoformat(), "Asia/Kolkata")
