"""Next times, held against a walk over every minute that knows nothing of cronsim, around changes of the clock."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.times import At, BadTiming, Cron, Every, check_expression, latest, next_after, preview, time_of, zone_of

pytestmark = pytest.mark.shapeless(reason="it computes")

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

# Days on which the clock is changed: by an hour in the night, by half an hour, at midnight, by two hours; and never.
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),
    "America/Santiago": ("2026-09-06", "2026-04-05"),
    "Africa/Cairo": ("2026-04-24", "2026-10-30"),
    "Antarctica/Troll": ("2026-03-29", "2026-10-25"),
    "Asia/Kolkata": ("2026-05-05",),
}
BERLIN = ZoneInfo("Europe/Berlin")


# --- the oracle ---------------------------------------------------------------------------------------------------


@cache
def numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        bounds = (low, high) if span == "*" else (int(first), int(last or first))
        found |= set(range(bounds[0], bounds[1] + 1, int(step or 1)))
    return found


def shows(expression: str, wall: datetime) -> bool:
    """Whether a clock that shows this makes the expression true, by crontab(5)."""
    minute, hour, day, month, weekday = expression.split()
    of_month = wall.day in numbers(day, 1, 31)
    of_week = wall.isoweekday() % 7 in {number % 7 for number in numbers(weekday, 0, 7)}
    right_day = of_month and of_week if "*" in (day[0], weekday[0]) else of_month or of_week
    right_month = wall.month in numbers(month, 1, 12)
    return right_day and right_month and wall.minute in numbers(minute, 0, 59) and wall.hour in numbers(hour, 0, 23)


def walk(expression: str, zone: ZoneInfo, since: datetime, until: datetime) -> Iterator[datetime]:
    """Every minute at which it runs. It looks at the clock once a minute, a day before the span as well."""
    minute, hour, *_ = expression.split()
    fixed = "*" not in (minute[0], hour[0])
    now, furthest = since.replace(second=0, microsecond=0) - DAY, None
    while now <= until:
        wall = now.astimezone(zone).replace(tzinfo=None)
        runs = shows(expression, wall)
        if fixed and furthest:
            # What was shown before does not run again, and what was jumped over runs now.
            runs = runs and wall > furthest
            while furthest + MINUTE < wall:
                furthest += MINUTE
                runs = runs or shows(expression, furthest)
        furthest = max(furthest or wall, wall)
        if runs and now > since:
            yield now
        now += MINUTE


# --- cron ---------------------------------------------------------------------------------------------------------


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> str:
    number = st.integers(low, high)
    kind = draw(st.sampled_from(["*", "*/n", "n", "n", "n,n", "n-n", "n-n/n"]))
    first, last = sorted(draw(st.lists(number, min_size=2, max_size=2, unique=True)))
    step = draw(st.sampled_from([2, 5, 7, 15, 20, 30]))
    texts = {"*": "*", "*/n": f"*/{step}", "n": f"{first}", "n,n": f"{last},{first}", "n-n": f"{first}-{last}"}
    return texts.get(kind, f"{first}-{last}/{step}")


@st.composite
def spans(draw: st.DrawFn) -> tuple[ZoneInfo, datetime]:
    """A zone, and a moment some hours before or behind a change of its clock."""
    name = draw(st.sampled_from(list(CHANGES)))
    day = datetime.fromisoformat(draw(st.sampled_from(CHANGES[name]))).replace(tzinfo=UTC)
    return ZoneInfo(name), day + timedelta(seconds=draw(st.integers(-20 * 3600, 30 * 3600)))


@st.composite
def expressions(draw: st.DrawFn) -> str:
    hour = st.one_of(fields(0, 23), fields(0, 3), st.sampled_from(["1", "2", "3", "0-3"]))
    day, weekday = st.sampled_from(["*", "*", "5", "29", "24-31", "*/2"]), st.sampled_from(["*", "*", "0", "6,7"])
    return f"{draw(fields(0, 59))} {draw(hour)} {draw(day)} {draw(st.sampled_from(['*', '3-11']))} {draw(weekday)}"


@settings(max_examples=150)
@given(expressions(), spans())
@example("* 3 * * *", (ZoneInfo("Australia/Lord_Howe"), datetime(2026, 10, 3, 0, 0, tzinfo=UTC)))
@example("* 0 6 * *", (ZoneInfo("America/Santiago"), datetime(2026, 9, 5, 23, 0, tzinfo=UTC)))
@example("30 2 * * *", (BERLIN, datetime(2026, 10, 25, 1, 10, tzinfo=UTC)))  # 02:10, the second time
def test_cron_runs_when_a_walk_over_every_minute_says(expression, span):
    zone, since = span
    until = since + timedelta(hours=40)
    found = list(takewhile(lambda at: at <= until, Cron(expression, zone).after(since)))
    assert found == list(walk(expression, zone, since, until))


@settings(max_examples=50)
@given(expressions(), spans(), st.integers(1, 8))
@example("* 2 * * *", (ZoneInfo("America/New_York"), datetime(2026, 3, 8, 7, 0, tzinfo=UTC)), 70)
def test_the_latest_are_the_last_of_the_walk(expression, span, most):
    zone, since = span
    until = since + timedelta(hours=30)
    walked = list(walk(expression, zone, since - MINUTE, until))
    assert (
        latest(Cron(expression, zone), since=since, until=until, most=most)
        == [at for at in walked if at >= since][-most:]
    )


def test_rare_days_are_found():
    assert next_after(Cron("0 12 29 2 *", BERLIN), datetime(2026, 1, 1, tzinfo=UTC)) == datetime(
        2028, 2, 29, 11, tzinfo=UTC
    )
    assert next_after(Cron("*/30 * L * *", BERLIN), datetime(2026, 2, 3, tzinfo=UTC)) == datetime(
        2026, 2, 27, 23, tzinfo=UTC
    )


# --- the others ---------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(spans(), st.timedeltas(MINUTE, 3 * DAY), st.integers(0, 5 * 86_400))
def test_an_interval_is_elapsed_time_and_keeps_its_phase(span, every, seconds):
    zone, phase = span
    every -= timedelta(microseconds=every.microseconds)
    since, until = phase + timedelta(seconds=seconds), phase + timedelta(days=7)
    walked, at = [], phase
    while (at := at + every) <= until:
        walked += [at] if at > since else []
    timing = Every(every, phase, zone)
    assert list(takewhile(lambda at: at <= until, timing.after(since))) == walked
    assert (
        latest(timing, since=since + MINUTE, until=until, most=5) == [at for at in walked if at >= since + MINUTE][-5:]
    )


@settings(max_examples=100)
@given(spans())
def test_a_time_is_when_a_clock_first_shows_it_or_jumps_over_it(span):
    zone, near = span
    wanted = near.astimezone(zone).replace(tzinfo=None, second=0, microsecond=0)
    walked = (near.replace(second=0, microsecond=0) - 2 * DAY + each * MINUTE for each in range(3 * 1440))
    first = next(at for at in walked if at.astimezone(zone).replace(tzinfo=None) >= wanted)
    assert time_of(wanted.isoformat(), zone) == first
    assert next_after(At(first, zone), first) is None
    assert next_after(At(first, zone), first - MINUTE) == first


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:00:00+00:00"),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30:00+00:00"),
        ("2026-10-25T02:30+01:00", "Europe/Berlin", "2026-10-25T01:30:00+00:00"),
        ("2026-10-04T02:15", "Australia/Lord_Howe", "2026-10-03T15:30:00+00:00"),
        ("2030-12-31", "Asia/Kolkata", "2030-12-30T18:30:00+00:00"),
        ("2030-12-31T09:00Z", "Asia/Kolkata", "2030-12-31T09:00:00+00:00"),
    ],
)
def test_a_time_is_read_in_its_zone(text, zone, expected):
    assert time_of(text, ZoneInfo(zone)).isoformat() == expected


# --- previews -----------------------------------------------------------------------------------------------------


NIGHTLY, HOURLY = Cron("30 2 * * *", BERLIN), Cron("30 * * * *", BERLIN)


@pytest.mark.parametrize(
    ("timing", "since", "shown", "note"),
    [
        (
            NIGHTLY,
            "2026-03-28T12:00Z",
            "03:00",
            "02:30 does not exist on that day: it runs when the clock jumps over it.",
        ),
        (NIGHTLY, "2026-10-24T12:00Z", "02:30", "02:30 comes twice on that day: it runs the first time."),
        (HOURLY, "2026-10-25T00:00Z", "02:30", "02:30 comes twice on that day: it runs both times."),
        (HOURLY, "2026-10-25T01:00Z", "02:30", "02:30 comes twice on that day: it runs both times."),
        (HOURLY, "2026-03-29T00:45Z", "03:30", "02:30 does not exist on that day: nothing runs then."),
        (NIGHTLY, "2026-04-28T12:00Z", "02:30", ""),
    ],
)
def test_a_preview_says_what_a_change_of_the_clock_does_to_cron(timing, since, shown, note):
    (told,) = preview(timing, datetime.fromisoformat(since), most=1)
    assert (f"{told.at.astimezone(BERLIN):%H:%M}", told.note) == (shown, note)


@pytest.mark.parametrize(("day", "way", "shown"), [("2026-03-28", "forward", "09:00"), ("2026-10-24", "back", "07:00")])
def test_a_preview_of_an_interval_says_that_it_is_elapsed_time(day, way, shown):
    phase = datetime.fromisoformat(f"{day}T08:00").replace(tzinfo=BERLIN).astimezone(UTC)
    (told,) = preview(Every(DAY, phase, BERLIN), phase, most=1)
    assert f"{told.at.astimezone(BERLIN):%H:%M}" == shown
    assert told.note == f"The clock is put {way} before this: an interval is elapsed time."


@pytest.mark.parametrize(("hour", "which"), [(0, "first"), (1, "second")])
def test_a_preview_of_a_time_that_comes_twice_says_which_it_is(hour, which):
    at = datetime(2026, 10, 25, hour, 30, tzinfo=UTC)
    (told,) = preview(At(at, BERLIN), at - DAY)
    assert told.note == f"02:30 comes twice on that day: this is the {which} time."


def test_a_preview_ends_where_the_times_do():
    assert len(preview(At(datetime(2026, 5, 1, tzinfo=UTC), BERLIN), datetime(2026, 1, 1, tzinfo=UTC))) == 1
    assert len(preview(Cron("* * * * *", BERLIN), datetime(2026, 1, 1, tzinfo=UTC))) == 10


# --- what makes no sense ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("0 0 30 2 *", "never matches: there is no such day"),
        ("0 0 31 4,6 *", "never matches"),
        ("*/10 0 9 * * *", "seconds are not supported"),
        ("@daily", "has five fields (minute, hour,"),
        ("", "this has 0"),
        ("60 * * * *", "its minute is not valid"),
        ("0 0 0 * *", "its day-of-month is not valid"),
        ("0 0 * * MON-FOO", "its day-of-week is not valid"),
        ("0 " * 200, "200 characters at most"),
    ],
)
def test_an_expression_that_makes_no_sense_is_refused(expression, why):
    with pytest.raises(BadTiming) as refused:
        check_expression(expression)
    assert why in str(refused.value)


@settings(max_examples=300)
@given(st.lists(st.text("0123456789*/-,L#W MONsun²", max_size=6), min_size=5, max_size=5).map(" ".join))
def test_an_expression_is_refused_with_a_sentence_or_has_a_next_time(expression):
    refused = ""
    try:
        check_expression(expression)
    except BadTiming as error:
        refused = str(error)
    assert refused.endswith(".") or next_after(Cron(expression, BERLIN), datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("name", ["Europe/Nowhere", "", "/etc/passwd", "../UTC", "Europe", "x" * 300, "\0"])
def test_a_zone_there_is_none_of_is_refused(name):
    with pytest.raises(BadTiming, match="There is no zone named"):
        zone_of(name)


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-02-30T09:00", "0001-01-01T00:00", "9999-12-31T23:59-14:00"])
def test_a_time_that_makes_no_sense_is_refused(text):
    with pytest.raises(BadTiming, match="is not a time"):
        time_of(text, BERLIN)
