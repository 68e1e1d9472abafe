"""When a schedule is due: at a time, every so often, or by a cron expression, in a zone. Pure; moments are in UTC.

cronsim knows the calendar, and is asked for the times a clock on the wall shows. What they are in a zone is decided
here, as Debian's cron has it:

- An expression for fixed times (neither its minute nor its hour begins with ``*``) comes true once for each. A time
  that does not exist, since the clock is put forward, comes true when the clock jumps over it; one that comes twice,
  the first time.
- Any other goes by real time: it comes true whenever the clock shows it, so twice in an hour that comes twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
# Of intervals, in seconds.
SHORTEST, LONGEST = 60, 3660 * 86_400
LONGEST_EXPRESSION = 200
# Of times that people write. At the ends of the calendar, a time of one zone is none in another.
YEARS = range(1970, 9999)

FIELDS = "minute, hour, day of the month, month, day of the week"


class BadTiming(ValueError):
    """A time, an interval, an expression or a zone that makes no sense; says why, for whoever wrote it."""


@dataclass(frozen=True)
class At:
    """Once."""

    at: datetime
    zone: ZoneInfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Its times after a moment, in order."""
        if self.at > moment:
            yield self.at


@dataclass(frozen=True)
class Every:
    """Again and again, that long after ``phase``; elapsed time, whatever clocks are put to."""

    every: timedelta
    phase: datetime
    zone: ZoneInfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Its times after a moment, in order."""
        count = max(1, (moment - self.phase) // self.every + 1)
        while True:
            yield self.phase + count * self.every
            count += 1


@dataclass(frozen=True)
class Cron:
    """By an expression of five fields."""

    expression: str
    zone: ZoneInfo

    @property
    def at_fixed_times(self) -> bool:
        """Whether neither the minute nor the hour begins with a star."""
        minute, hour, *_ = self.expression.split()
        return not minute.startswith("*") and not hour.startswith("*")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Its times after a moment, in order."""
        return self._fixed(moment) if self.at_fixed_times else self._real(moment)

    def _fixed(self, moment: datetime) -> Iterator[datetime]:
        last = moment
        for wall in CronSim(self.expression, _wall(moment, self.zone)):
            # Several may not exist on one day: they are one when the clock jumps.
            if (at := _first_instant(wall, self.zone)) > last:
                yield at
                last = at

    def _real(self, moment: datetime) -> Iterator[datetime]:
        """From one change of the clock to the next it runs evenly, and cronsim's times are so long after UTC's."""
        moment = moment.replace(microsecond=0)  # as are changes of the clock, which are looked for from here
        known = moment  # until then the offset is the same
        since = _wall(moment, self.zone)
        while True:
            offset = _offset(moment, self.zone)
            for wall in CronSim(self.expression, since):
                at = (wall - offset).replace(tzinfo=UTC)
                while known < at and _offset(known, self.zone) == offset:
                    known += DAY
                if _offset(known, self.zone) != offset:
                    change = _change(known - DAY, known, self.zone)
                    if at >= change:
                        break
                yield at
            else:
                return
            moment = known = change
            since = _wall(change, self.zone) - SECOND  # the first it then shows counts as well


Timing = At | Every | Cron


def next_after(timing: Timing, moment: datetime) -> datetime | None:
    """The first time after a moment; None if there is none."""
    return next(timing.after(moment), None)


def latest(timing: Timing, *, since: datetime, until: datetime, most: int) -> list[datetime]:
    """The last ``most`` times of a span, both ends counted. It costs no more if there are more."""
    span = most * MINUTE
    while True:
        start = max(since, until - span)
        found = list(takewhile(lambda at: at <= until, timing.after(start - timedelta(microseconds=1))))
        if len(found) >= most or start == since:
            return found[-most:]
        span *= 2


def shortest_gap(timing: Timing) -> timedelta:
    """How often it comes at the most: the shortest time between two of its times, on a day with all of its hours. An
    expression's days do not count: each is taken for one of them. Of a single time, the longest there is."""
    if isinstance(timing, At):
        return timedelta.max
    if isinstance(timing, Every):
        return timing.every
    minute, hour, *_ = timing.expression.split()
    daily = CronSim(f"{minute} {hour} * * *", datetime(2000, 1, 1))
    walls = list(takewhile(lambda wall: wall < datetime(2000, 1, 3), daily))
    return min(later - earlier for earlier, later in pairwise(walls))


@dataclass(frozen=True)
class Preview:
    """A time to come, and what a change of the clock makes of it; "" if nothing."""

    at: datetime
    note: str


def preview(timing: Timing, moment: datetime, *, most: int = 10) -> list[Preview]:
    """The next times after a moment, with notes on changes of the clock."""
    shown: list[Preview] = []
    for at, _ in zip(timing.after(moment), range(most), strict=False):
        shown.append(Preview(at, _note(timing, shown[-1].at if shown else moment, at)))
    return shown


# --- from what people write --------------------------------------------------------------------------------------


def zone_of(name: str) -> ZoneInfo:
    """A zone by its name; raises :class:`BadTiming`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # of an absolute path, of a folder
        raise BadTiming(f"There is no zone named {name[:64]!r}; one is called Europe/Berlin, for example.") from None


def time_of(text: str, zone: ZoneInfo) -> datetime:
    """A time as ISO 8601 has it, in the zone unless it names an offset; raises :class:`BadTiming`."""
    try:
        given = datetime.fromisoformat(text)
        at = given.astimezone(UTC) if given.tzinfo else _first_instant(given, zone)
    except (ValueError, OverflowError):
        raise BadTiming(
            f"{text[:64]!r} is not a time; write it as 2030-12-31T09:00, with an offset or in the zone."
        ) from None
    if at.year not in YEARS:
        raise BadTiming(f"{text[:64]!r} is not within the years {YEARS[0]} to {YEARS[-1]}.")
    return at


def check_interval(seconds: int) -> None:
    """Raises :class:`BadTiming` for one that is too short or too long."""
    if not SHORTEST <= seconds <= LONGEST:
        raise BadTiming("An interval is from 60 seconds to ten years.")


def check_expression(expression: str) -> None:
    """Raises :class:`BadTiming` for one that cannot be read, or never comes true."""
    if len(expression) > LONGEST_EXPRESSION:
        raise BadTiming(f"A cron expression has {LONGEST_EXPRESSION} characters at most.")
    fields = len(expression.split())
    if fields == 6:
        raise BadTiming(f"A cron expression has five fields here ({FIELDS}): seconds are not supported.")
    if fields != 5:
        raise BadTiming(f"A cron expression has five fields ({FIELDS}), such as 30 9 * * MON-FRI; this has {fields}.")
    try:
        found = next(CronSim(expression, datetime(2000, 1, 1)), None)
    except (CronSimError, ValueError) as error:
        if str(error) == "Bad day-of-month" and _never_fits(expression):
            found = None
        else:
            raise BadTiming(f"The cron expression {expression!r} cannot be read: {_plainly(str(error))}.") from None
    if found is None:
        raise BadTiming(f"The cron expression {expression!r} never matches: there is no such day.")


def _never_fits(expression: str) -> bool:
    """cronsim calls a day that no chosen month has a bad one; without the months, it is none."""
    minute, hour, day, _, weekday = expression.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", datetime(2000, 1, 1))
    except (CronSimError, ValueError):
        return False
    return True


def _plainly(error: str) -> str:
    return f"its {error.removeprefix('Bad ')} is not valid" if error.startswith("Bad ") else error


# --- the zone's clock --------------------------------------------------------------------------------------------


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    """What a clock on the wall shows: naive."""
    return moment.astimezone(zone).replace(tzinfo=None)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _both(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The moment by the offset before a change of the clock, and by the one behind it; the same if none is near."""
    before, behind = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return before, behind


def _first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the clock first shows this or, if it never does, when it jumps over it."""
    before, behind = _both(wall, zone)
    return _change(behind, before, zone) if behind < before else before


def _change(earlier: datetime, later: datetime, zone: ZoneInfo) -> datetime:
    """When the clock is changed between two moments, to the second: the first of its new offset."""
    offset = _offset(earlier, zone)
    low, high = 0, int((later - earlier).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(earlier + middle * SECOND, zone) == offset:
            low = middle
        else:
            high = middle
    return earlier + high * SECOND


def _note(timing: Timing, before: datetime, at: datetime) -> str:
    first, second = _both(wall := _wall(at, timing.zone), timing.zone)
    if isinstance(timing, Every):
        changed = _offset(at, timing.zone) - _offset(before, timing.zone)
        way = "forward" if changed > timedelta() else "back"
        return f"The clock is put {way} before this: an interval is elapsed time." if changed else ""
    if isinstance(timing, At):
        which = "first" if at == first else "second"
        return f"{wall:%H:%M} comes twice on that day: this is the {which} time." if first < second else ""
    if first < second:
        runs = "the first time" if timing.at_fixed_times else "both times"
        return f"{wall:%H:%M} comes twice on that day: it runs {runs}."
    if gone := _left_out(timing, before, wall):
        instead = "it runs when the clock jumps over it" if timing.at_fixed_times else "nothing runs then"
        return f"{gone:%H:%M} does not exist on that day: {instead}."
    return ""


def _left_out(timing: Cron, before: datetime, until: datetime) -> datetime | None:
    """The first time of the expression that the clock jumps over, between one that came true and the next."""
    for wall in CronSim(timing.expression, _wall(before, timing.zone)):
        if wall >= until:
            break
        first, second = _both(wall, timing.zone)
        if second < first:
            return wall
    return None
