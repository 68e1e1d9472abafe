"""What was used, of which model, by whom, and what it has cost: kept hour by hour, read by day."""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import Case, Count, F, IntegerField, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Coalesce, TruncDate

from agent.spending.money import as_money
from conversations.models import OPEN_COMPACTION, Compaction, Replay, Turn
from conversations.replay_models import OPEN_REPLAY
from nanohost.accounts import audit
from nanohost.accounts.models import ApiKey
from nanohost.console.models import Use
from nanohost.lib.downloads import as_cell

HOUR = timedelta(hours=1)

# By which it is added up: the column of each.
GROUPS = {"model": "model", "agent": "agent", "key": "api_key_id", "owner": "owner_id", "day": "day", "kind": "kind"}
# What stands for a key where a replay was asked: no key has such a number.
REPLAYS = -1
KINDS = {"turns": "turns and summaries", "replays": "replays"}

# Days of a range, and rows of an answer.
MAX_DAYS, MAX_ROWS = 366, 1000

_WHOSE = ("day", "model", "agent", "owner_id", "api_key_id")


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What was used. ``cost``: in millionths of the currency, as far as it is known; None: nothing of it is."""

    turns: int = 0
    calls: int = 0
    unpriced_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: int | None = 0


@dataclass(frozen=True, kw_only=True)
class Line:
    """The sums of a model, agent, API key, owner, day or kind of work. ``name``: what people call it; empty: no key."""

    name: str
    sums: Sums


@dataclass(frozen=True, kw_only=True)
class Report:
    """Days from the first to the last. ``more``: how many lines are left out, those that cost least."""

    first: date
    last: date
    group_by: str
    lines: Sequence[Line]
    total: Sums
    more: int = 0


_SUMS = tuple(each.name for each in fields(Sums))


# --- counting ----------------------------------------------------------------------------------------------------


def count(hour: datetime) -> bool:
    """Count an hour, in the caller's transaction. Whether something asked for in it may still cost more."""
    kept = {tuple(row[name] for name in _WHOSE): row for row in Use.objects.filter(hour=hour).values(*_WHOSE, *_SUMS)}
    changed = []
    for key, sums in _counted(hour).items():
        before = kept.get(key)
        # What was deleted has been used all the same.
        now = {name: max(sums[name], before[name] if before else 0) for name in _SUMS}
        if before is None or any(before[name] != now[name] for name in _SUMS):
            changed.append(Use(hour=hour, **dict(zip(_WHOSE, key, strict=True)), **now))
    Use.objects.bulk_create(
        changed, update_conflicts=True, unique_fields=["hour", *_WHOSE], update_fields=list(_SUMS), batch_size=500
    )
    is_open: bool = _within(Compaction, hour).filter(status__in=OPEN_COMPACTION).exists()
    return is_open or _within(Replay, hour).filter(status__in=OPEN_REPLAY).exists()


def _within(model: Any, hour: datetime) -> Any:
    return model.objects.filter(created_at__gte=hour, created_at__lt=hour + HOUR)


def _counted(hour: datetime) -> dict[tuple[Any, ...], dict[str, int]]:
    day = TruncDate("created_at", tzinfo=ZoneInfo(settings.TIME_ZONE))
    whose = {"its_agent": F("conversation__agent__name"), "its_day": day}
    sums = {
        "calls": Sum("model_calls"),
        "unpriced_calls": Coalesce(Sum("model_calls", filter=Q(cost=None)), 0),
        "sum_prompt_tokens": Sum("prompt_tokens"),
        "sum_cached_tokens": Sum("cached_tokens"),
        "sum_completion_tokens": Sum("completion_tokens"),
        "sum_cost": Coalesce(Sum("cost"), 0),
    }
    turns = _within(Turn, hour).annotate(**whose, key_id=Coalesce("api_key_id", 0))
    turns = (
        turns.order_by()
        .values("its_day", "model", "its_agent", "owner_id", "key_id")
        .annotate(turns=Count("pk"), **sums)
    )
    # With what is not asked for by a key, nor in a turn.
    made = (
        _within(Compaction, hour)
        .filter(model_calls__gt=0)
        .annotate(**whose, whose=F("conversation__owner_id"), key_id=Value(0), turns=Value(0, IntegerField()))
    )
    made = made.order_by().values("its_day", "model", "its_agent", "whose", "key_id", "turns").annotate(**sums)
    again = _within(Replay, hour).filter(model_calls__gt=0)
    again = again.annotate(
        its_agent=F("agent__name"), its_day=day, key_id=Value(REPLAYS), turns=Value(0, IntegerField())
    )
    again = again.order_by().values("its_day", "model", "its_agent", "owner_id", "key_id", "turns").annotate(**sums)
    found: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in (*turns, *made, *again):
        owner_id = row.get("owner_id") or row.get("whose")
        key = (row["its_day"], row["model"], row["its_agent"], owner_id, row["key_id"])
        into = found.setdefault(key, dict.fromkeys(_SUMS, 0))
        for name in _SUMS:
            into[name] += row.get(f"sum_{name}", row.get(name, 0))
    return found


# --- reading -----------------------------------------------------------------------------------------------------


def report(
    *,
    group_by: str,
    first: date,
    last: date,
    owner_id: int | None = None,
    agents: Collection[str] | None = None,
    most: int = MAX_ROWS,
) -> Report:
    """What was used on these days. ``owner_id``, ``agents``: by whom alone; None: by all."""
    rows = _used(first, last)
    if owner_id is not None:
        rows = rows.filter(owner_id=owner_id)
    if agents is not None:
        rows = rows.filter(agent__in=list(agents))
    sums = {f"sum_{name}": Coalesce(Sum(name), 0) for name in _SUMS}
    column = GROUPS[group_by]
    # The total is of all, however many are left out; so they are counted where all are read anyhow.
    found = list(rows.order_by().values(column).annotate(**sums))
    by_day = group_by == "day"
    found.sort(key=lambda row: (row[column],) if by_day else (-row["sum_cost"], -row["sum_prompt_tokens"], row[column]))
    shown = found[:most]
    names = _names(group_by, [row[column] for row in shown])
    return Report(
        first=first,
        last=last,
        group_by=group_by,
        lines=[Line(name=names[row[column]], sums=_sums([row])) for row in shown],
        total=_sums(found),
        more=len(found) - len(shown),
    )


def _used(first: date, last: date) -> QuerySet[Any]:
    kind = Case(When(api_key_id=REPLAYS, then=Value("replays")), default=Value("turns"))
    return Use.objects.filter(day__range=(first, last)).annotate(kind=kind)


def by_day(*, group_by: str, first: date, last: date, most: int) -> dict[str, dict[date, Sums]]:
    """The same day by day, of the lines that cost most, by what people call them; none where it is by day already."""
    if group_by == "day":
        return {"all": dict(_days(_used(first, last)))}
    column = GROUPS[group_by]
    rows = _used(first, last).order_by()
    largest = rows.values(column).annotate(of_cost=Sum("cost"), of_tokens=Sum("prompt_tokens"))
    values = list(largest.order_by("-of_cost", "-of_tokens", column).values_list(column, flat=True)[:most])
    names = _names(group_by, values)
    found = {names[value] or "without a key": dict(_days(rows.filter(**{column: value}))) for value in values}
    others = dict(_days(rows.exclude(**{f"{column}__in": values})))
    return found | ({"others": others} if others else {})


def _days(rows: QuerySet[Any]) -> Iterator[tuple[date, Sums]]:
    sums = {f"sum_{name}": Coalesce(Sum(name), 0) for name in _SUMS}
    for row in rows.order_by().values("day").annotate(**sums):
        yield row["day"], _sums([row])


def _sums(rows: Sequence[dict[str, Any]]) -> Sums:
    totals = {name: sum(row[f"sum_{name}"] for row in rows) for name in _SUMS}
    is_known = totals["calls"] > totals["unpriced_calls"] or totals["calls"] == 0
    return Sums(**totals | {"cost": totals["cost"] if is_known else None})


def _names(group_by: str, values: Sequence[Any]) -> dict[Any, str]:
    """What people call them; of who is gone, the number is left."""
    if group_by == "owner":
        found = dict(get_user_model().objects.filter(pk__in=values).values_list("pk", "username"))
        return {value: str(found.get(value, f"user {value}")) for value in values}
    if group_by == "key":
        keys = {key.pk: str(key) for key in ApiKey.objects.filter(pk__in=values)}
        told = {0: "", REPLAYS: KINDS["replays"]}
        return {value: told.get(value, keys.get(value, f"key {value}")) for value in values}
    if group_by == "kind":
        return {value: KINDS[value] for value in values}
    return {value: value.isoformat() if isinstance(value, date) else value for value in values}


# --- as a table --------------------------------------------------------------------------------------------------


def export(report: Report) -> str:
    """As a file of values; the audit log is told of it."""
    said = {"groupBy": report.group_by, "from": report.first, "to": report.last}
    audit.record("usage.exported", kind=Use._meta.label_lower, after=said)
    return as_csv(report)


def as_csv(report: Report) -> str:
    """Lines of comma-separated values, the first with their names."""
    written = io.StringIO()
    table = csv.writer(written)
    table.writerow([report.group_by, *_SUMS, "currency"])
    for line in report.lines:
        cells = asdict(line.sums) | {"cost": as_money(line.sums.cost) or ""}
        table.writerow([as_cell(line.name), *cells.values(), settings.CURRENCY])
    return written.getvalue()
