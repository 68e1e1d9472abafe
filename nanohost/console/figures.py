"""Counting what happened, hour by hour.

Of a month with a million tool calls each look would take seconds. So each hour's figures are kept: counted again while
anything that was asked for in it is open, and for a while after its end; then they stand. An hour's figures never
go down: what was deleted has happened all the same, and Prometheus takes a counter that falls for a restart.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import (
    Count,
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Func,
    IntegerField,
    Max,
    Q,
    QuerySet,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce
from django.utils import timezone

from conversations.models import Turn
from conversations.statuses import FINAL, OPEN, TurnStatus
from nanohost.console import uses
from nanohost.console.models import Hour, Total
from tools.models import OPEN_CALL, ToolCall

HOUR = timedelta(hours=1)

# Of what is committed late, because its transaction took long or a clock is off.
_LATE = timedelta(minutes=15)

# In seconds, from the question to the answer: Prometheus' buckets.
BOUNDS = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 120, 300, 600)

# A percentile is read off between two steps, each longer than the one before by so much: it is off by a tenth at most.
STEP = 1.1

# Of these figures the sum of two is the larger.
LONGEST, LONGEST_WAIT = "longest", "longest_wait"
_LARGEST = (LONGEST, LONGEST_WAIT)

# A request may name any model, so their names are a stranger's to choose: so many are told apart.
MAX_MODELS = {"hour": 20, "total": 50}
OTHERS = "(others)"

# Whoever looks again within so many seconds is shown the same.
_FRESH = timedelta(seconds=10)

Figures = dict[str, Any]


def refresh(*, seconds: float) -> int:
    """Count what may have changed, the newest hour first, for so many seconds at most; the rest is left to the next.
    Returns how many hours were counted.

    One process at a time does; others go on with what is stored.
    """
    Total.objects.get_or_create(pk=1)
    enough = time.monotonic() + seconds
    now = timezone.now()
    counted = 0
    for hour in _due(now):
        with transaction.atomic():
            total = Total.objects.select_for_update(skip_locked=True).filter(pk=1).first()
            if total is None:  # somebody else is at it
                break
            _store(hour, total, now)
        counted += 1
        if counted > 1 and time.monotonic() > enough:  # besides this hour, one at least: it gets on
            break
    return counted


def look() -> Total:
    """The sum of all there was, counted just now as far as that is quick."""
    total = Total.objects.filter(pk=1).first()
    if total is None or total.counted_at is None or timezone.now() - total.counted_at > _FRESH:
        refresh(seconds=0.1)
        total = Total.objects.get(pk=1)
    return total


def counted_since(total: Total, begin: datetime) -> datetime | None:
    """The hour before which something is not counted yet; None if all is, from ``begin`` on."""
    return total.since if total.since and (earlier := _latest_before(total.since)) and earlier >= begin else None


def hour_of(moment: datetime) -> datetime:
    """The hour a moment is in."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _due(now: datetime) -> Iterator[datetime]:
    """The hours to count: this one, those that are not settled or have something open, and those never counted."""
    total = Total.objects.get(pk=1)
    this = hour_of(now)
    yield this
    if total.until:
        yield from _hours(total.until + HOUR, this)
    unsettled = set(Hour.objects.filter(settled=False).values_list("hour", flat=True))
    # A turn of a settled hour may have been taken up again.
    opened = {hour_of(moment) for moment in Turn.objects.open().values_list("created_at", flat=True)[:1000]}
    opened = {hour for hour in opened if hour >= (total.since or this)}
    yield from sorted((unsettled | opened) - {this}, reverse=True)
    hour = total.since or this
    while earlier := _latest_before(hour):
        yield (hour := earlier)


def _hours(begin: datetime, end: datetime) -> list[datetime]:
    return [begin + number * HOUR for number in range(int((end - begin) / HOUR))]


def _latest_before(hour: datetime) -> datetime | None:
    """The last hour before this one in which anything was asked for."""
    latest = [
        model.objects.filter(created_at__lt=hour).order_by("-created_at").values_list("created_at", flat=True).first()
        for model in (Turn, ToolCall)
    ]
    return max((hour_of(moment) for moment in latest if moment), default=None)


def _store(hour: datetime, total: Total, now: datetime) -> None:
    row, _ = Hour.objects.get_or_create(hour=hour)
    turns, calls = _turns_of(hour), _calls_of(hour)
    is_open = any(each["open"] for each in turns.values()) or any(calls.get(status) for status in OPEN_CALL)
    is_open = uses.count(hour) or is_open
    for each in turns.values():
        del each["open"]
    calls = {status: count for status, count in calls.items() if status not in OPEN_CALL}
    before = {"turns": row.turns, "calls": row.calls}
    row.turns = _highest(row.turns, turns)
    row.calls = _highest(row.calls, calls)
    row.settled = not is_open and hour + HOUR + _LATE < now
    row.save()
    more = _less(row.turns, before["turns"])
    total.turns = add(total.turns, _few(more, known=total.turns, most=MAX_MODELS["total"]))
    total.calls = add(total.calls, _less(row.calls, before["calls"]))
    # Nothing between them is left out, wherever counting stops.
    if total.since is None or hour < total.since:
        total.since = hour
    if total.until is None or hour == total.until + HOUR:
        total.until = hour
    total.counted_at = now
    total.save()


class _Step(Func):
    """Of a time, the number of the step that it falls in: the first that is no shorter."""

    output_field = IntegerField()
    _template = f"CAST(CEILING(LN(%s) / LN({STEP})) AS INTEGER)"

    def as_postgresql(self, compiler: Any, connection: Any, **options: Any) -> Any:
        seconds = "GREATEST(EXTRACT(EPOCH FROM %(expressions)s), 0.001)"
        return self.as_sql(compiler, connection, template=self._template % seconds, **options)

    def as_sqlite(self, compiler: Any, connection: Any, **options: Any) -> Any:
        seconds = "MAX(%(expressions)s / 1000000.0, 0.001)"
        return self.as_sql(compiler, connection, template=self._template % seconds, **options)


def _turns_of(hour: datetime) -> Figures:
    took = ExpressionWrapper(F("ended_at") - F("created_at"), output_field=DurationField())
    answered = Q(status=TurnStatus.SUCCEEDED)
    within = {
        f"within_{at}": Count("pk", filter=answered & Q(took__lte=timedelta(seconds=bound)))
        for at, bound in enumerate(BOUNDS)
    }
    asked = Turn.objects.filter(created_at__gte=hour, created_at__lt=hour + HOUR).annotate(took=took)
    rows = (
        asked.values("model")
        .order_by()
        .annotate(
            **{str(status): Count("pk", filter=Q(status=status)) for status in FINAL},
            open=Count("pk", filter=Q(status__in=OPEN)),
            prompt_tokens=Sum("prompt_tokens"),
            completion_tokens=Sum("completion_tokens"),
            model_calls=Sum("model_calls"),
            model_ms=Sum("model_ms"),
            seconds=Sum("took", filter=answered),
            **within,
        )
    )
    found: Figures = {}
    for row in rows:
        each: Figures = dict(row)
        model = each.pop("model")
        each["seconds"] = each["seconds"].total_seconds() if each["seconds"] else 0.0
        each["within"] = [each.pop(f"within_{at}") for at in range(len(BOUNDS))]
        found[model] = each | {"took": {}, LONGEST: 0.0, "errors": {}, "waited": {}, LONGEST_WAIT: 0.0}
    steps = asked.filter(answered).annotate(step=_Step(F("took"))).values("model", "step").order_by()
    counted = steps.annotate(n=Count("pk"), slowest=Max("took")).values_list("model", "step", "n", "slowest")
    for model, step, number, slowest in counted:
        if model in found:  # or the first of its model has just ended: it is counted the next time
            found[model]["took"][str(step)] = number
            found[model][LONGEST] = max(found[model][LONGEST], slowest.total_seconds())
    _add_errors(found, asked)
    _add_waits(found, asked)
    return _few(found, known={}, most=MAX_MODELS["hour"])


def _add_errors(found: Figures, asked: QuerySet[Turn]) -> None:
    """How many failed, by the code that their clients were told."""
    failed = asked.filter(status=TurnStatus.FAILED).values("model", "error_code").order_by().annotate(n=Count("pk"))
    for model, code, number in failed.values_list("model", "error_code", "n"):
        if model in found:
            found[model]["errors"][code] = number


def _add_waits(found: Figures, asked: QuerySet[Turn]) -> None:
    """How long they were queued until a worker took them up. Those that nobody has taken up yet, or ever, count among
    the longest alone: a queue that stands still shows."""
    taken_up = Coalesce("started_at", "ended_at", Value(timezone.now(), output_field=DateTimeField()))
    waited = ExpressionWrapper(taken_up - F("created_at"), output_field=DurationField())
    steps = asked.annotate(waited=waited, step=_Step(F("waited"))).values("model", "step").order_by()
    counted = steps.annotate(n=Count("pk", filter=Q(started_at__isnull=False)), slowest=Max("waited"))
    for model, step, number, slowest in counted.values_list("model", "step", "n", "slowest"):
        if model in found:
            if number:
                found[model]["waited"][str(step)] = number
            found[model][LONGEST_WAIT] = max(found[model][LONGEST_WAIT], slowest.total_seconds())


def _calls_of(hour: datetime) -> Figures:
    rows = ToolCall.objects.filter(created_at__gte=hour, created_at__lt=hour + HOUR).values("status").order_by()
    return {row["status"]: row["n"] for row in rows.annotate(n=Count("pk"))}


# --- figures: numbers, lists of numbers, and figures by name -------------------------------------------------------


def add(one: Any, other: Any) -> Any:
    """Figures that are the sum of two."""
    return _merged(one, other, lambda a, b: a + b)


def total_of(many: Iterable[Any]) -> Any:
    """The sum of figures."""
    result: Any = {}
    for each in many:
        result = add(result, each)
    return result


def _highest(one: Any, other: Any) -> Any:
    return _merged(one, other, max)


def _less(one: Any, other: Any) -> Any:
    return _merged(one, other, lambda a, b: a - b)


def _merged(one: Any, other: Any, how: Any) -> Any:
    if isinstance(one, dict):
        pairs = ((name, one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other]))
        return {
            name: _merged(
                _nothing(b) if a is None else a, _nothing(a) if b is None else b, max if name in _LARGEST else how
            )
            for name, a, b in pairs
        }
    if isinstance(one, list):
        return [how(a, b) for a, b in zip(one, other, strict=True)]
    return how(one, other)


def _nothing(like: Any) -> Any:
    return {} if isinstance(like, dict) else [0] * len(like) if isinstance(like, list) else 0


def _few(by_model: Figures, *, known: Figures, most: int) -> Figures:
    """The models with the most turns, and the others together; those that are known stay."""
    room = most - len(known)
    asked = Counter({name: each["succeeded"] + each["failed"] for name, each in by_model.items() if name not in known})
    kept = {*known, *(name for name, _ in asked.most_common(max(room, 0)))}
    named = {name: each for name, each in by_model.items() if name in kept}
    others = [each for name, each in by_model.items() if name not in kept]
    return add(named, {OTHERS: total_of(others)}) if others else named


def percentile(took: dict[str, int], share: float, *, longest: float = math.inf) -> float | None:
    """Seconds within which this share was answered, read off between two steps; None where nothing was.

    ``longest``: what the slowest took; nothing is told that took longer.
    """
    wanted = share * sum(took.values())
    if not wanted:
        return None
    below = 0
    for step in sorted(map(int, took)):
        count = took[str(step)]
        if below + count >= wanted:
            break
        below += count
    low, high = STEP ** (step - 1), STEP**step
    return min(longest, low + (high - low) * (wanted - below) / count)
