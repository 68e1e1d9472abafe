"""The overview: how much there was, how it went, how long it took, what waits; each figure leads to its rows."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from conversations.kinds import KINDS
from conversations.models import Worker
from conversations.statuses import FINAL, TURN_STATUSES, TurnStatus, WaitingFor
from nanohost.console import attention, charts, figures, first_run, queue
from nanohost.console.charts import Series
from nanohost.console.diagnosis import HELD, QUEUED, RUNNING, WAITING
from nanohost.console.links import list_of
from nanohost.console.models import Hour
from nanohost.lib import clock
from nanohost.lib.text import duration
from tools.models import CallStatus


@dataclass(frozen=True, kw_only=True)
class Window:
    """How far back is looked, and how many hours one bar of the chart stands for."""

    name: str
    hours: int
    hours_a_bar: int


WINDOWS = (
    Window(name="24 hours", hours=24, hours_a_bar=1),
    Window(name="7 days", hours=7 * 24, hours_a_bar=6),
    Window(name="30 days", hours=30 * 24, hours_a_bar=24),
)

# How the list of turns finds those that are in a state.
_OPEN: dict[str, dict[str, str]] = {
    QUEUED: {"status__exact": TurnStatus.QUEUED, "waiting_for__exact": ""},
    RUNNING: {"status__exact": TurnStatus.RUNNING},
    WAITING: {"status__exact": TurnStatus.WAITING},
    HELD: {"status__exact": TurnStatus.QUEUED, "waiting_for__exact": WaitingFor.INTAKE},
}

# So many error codes have a colour of their own.
MAX_CODES = 5

_TOKENS = ("prompt_tokens", "completion_tokens")

# How tool calls are drawn, by status.
_OF_CALLS = {
    CallStatus.SUCCESS: "succeeded",
    CallStatus.FAILED: "failed",
    CallStatus.REJECTED: "rejected",
    CallStatus.UNKNOWN: "unknown",
}


def callback(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the console's first page shows to those who may see turns and tool calls."""
    context["title"] = "Overview"
    context["first_run"] = first_run.is_due(request.user)
    if request.user.has_perms(["conversations.view_turn", "tools.view_toolcall"]):
        chosen = next((each for each in WINDOWS if each.name == request.GET.get("window")), WINDOWS[0])
        context["overview"] = overview(chosen)
        context |= attention.of_request(request)
    return context


def overview(window: Window) -> dict[str, Any]:
    """The figures of a window, as the template takes them."""
    total = figures.look()
    now = timezone.now()
    begin = figures.hour_of(now) - (window.hours - 1) * figures.HOUR
    length = timedelta(hours=window.hours)
    both = list(Hour.objects.filter(hour__gte=begin - length))
    hours = [each for each in both if each.hour >= begin]
    earlier = [each for each in both if each.hour < begin]
    before = figures.total_of(figures.total_of(each.turns for each in earlier).values())
    turns = figures.total_of(each.turns for each in hours)
    calls = figures.total_of(each.calls for each in hours)
    every = figures.total_of(turns.values())
    ended = sum(every.get(status, 0) for status in FINAL)
    waiting = queue.look()
    heard_after = clock.read() - timedelta(seconds=Worker.SILENT_SECONDS)
    return {
        "window": window,
        "windows": WINDOWS,
        "missing_before": figures.counted_since(total, begin),
        "turns": ended,
        "turns_an_hour": ended / window.hours,
        "turns_link": _turns(begin),
        "outcomes": [
            {
                "status": status,
                "label": TURN_STATUSES[status].label,
                "count": every.get(status, 0),
                "share": 100 * every.get(status, 0) / ended if ended else None,
                "link": _turns(begin, status__exact=status),
            }
            for status in FINAL
        ],
        **_times(every),
        "answered_link": _turns(begin, status__exact=TurnStatus.SUCCEEDED),
        "models": [
            {
                "name": name,
                "turns": sum(each[status] for status in FINAL),
                "prompt_tokens": each["prompt_tokens"],
                "completion_tokens": each["completion_tokens"],
                **_times(each),
                # The others are among all.
                "link": _turns(begin, **({} if name == figures.OTHERS else {"model__exact": name})),
            }
            for name, each in sorted(turns.items(), key=lambda item: -item[1]["prompt_tokens"])
        ],
        "calls": [
            {"status": status, "count": calls.get(status, 0), "link": _calls(begin, status__exact=status)}
            for status in CallStatus
            if status in calls or status == CallStatus.SUCCESS
        ],
        "queue": waiting,
        "queued": waiting.turns[QUEUED],
        "queued_link": list_of("conversations_turn", **_OPEN[QUEUED], o=1),
        "open": [
            {"status": state, "count": count, "link": list_of("conversations_turn", **_OPEN[state])}
            for state, count in waiting.turns.items()
            if count or state != HELD
        ],
        "workers": [
            {"queue": kind.queue, "count": waiting.workers[kind.queue], "link": _workers(kind.queue, heard_after)}
            for kind in KINDS
        ],
        "sandboxes": Worker.objects.sandboxes(),
        "charts": _charts(hours, earlier, begin, window),
        "change": _change(ended, sum(before.get(status, 0) for status in FINAL)),
        "change_link": _turns(begin - length, created_at__lt=begin.isoformat()),
    }


def _times(each: figures.Figures) -> dict[str, float | None]:
    """How long answers took."""
    return _percentiles(each.get("took", {}), each.get(figures.LONGEST, 0.0))


def _waits(each: figures.Figures) -> dict[str, float | None]:
    """How long turns were queued; the longest may still be."""
    longest = each.get(figures.LONGEST_WAIT, 0.0)
    return _percentiles(each.get("waited", {}), longest) | {"longest": longest or None}


def _percentiles(steps: dict[str, int], longest: float) -> dict[str, float | None]:
    return {name: figures.percentile(steps, share, longest=longest) for name, share in (("p50", 0.5), ("p95", 0.95))}


def _turns(begin: datetime, **filters: object) -> str:
    return list_of("conversations_turn", created_at__gte=begin.isoformat(), **filters)


def _calls(begin: datetime, **filters: object) -> str:
    return list_of("tools_toolcall", created_at__gte=begin.isoformat(), **filters)


def _workers(queue_name: str, heard_after: datetime) -> str:
    alive = Worker.heard_since(heard_after.isoformat())
    return list_of("conversations_worker", queues__contains=queue_name, **alive)


def _charts(hours: Iterable[Hour], earlier: list[Hour], begin: datetime, window: Window) -> list[dict[str, Any]]:
    """What happened, step by step; each step leads to its turns or calls. ``earlier``: the hours of the period before,
    with which each chart is compared."""
    length = timedelta(hours=window.hours_a_bar)
    steps = [begin + at * length for at in range(window.hours // window.hours_a_bar)]
    by_step: list[list[Hour]] = [[] for _ in steps]
    for hour in hours:
        at = (hour.hour - begin) // length
        if 0 <= at < len(steps):
            by_step[at].append(hour)
    turns = [figures.total_of(each for hour in some for each in hour.turns.values()) for some in by_step]
    calls = [figures.total_of(hour.calls for hour in some) for some in by_step]
    now, now_calls = figures.total_of(turns), figures.total_of(calls)
    before = figures.total_of(each for hour in earlier for each in hour.turns.values())
    calls_before = figures.total_of(hour.calls for hour in earlier)
    since_before, until_before = begin - timedelta(hours=window.hours), begin.isoformat()

    def linked(link: Callable[..., str], **filters: object) -> dict[str, Any]:
        links = [link(since, created_at__lt=(since + length).isoformat(), **filters) for since in steps]
        return {"links": links, "steps": steps, "hours": window.hours_a_bar}

    def compared(chart: dict[str, Any], told: str, link: Callable[..., str], **filters: object) -> dict[str, Any]:
        address = link(since_before, created_at__lt=until_before, **filters)
        return chart | {"compared": told, "compared_link": address}

    a_step = {1: "hour", 24: "day"}.get(window.hours_a_bar, f"{window.hours_a_bar} hours")
    outcomes = [
        Series(name=TURN_STATUSES[status].label, css=status, values=[each.get(status, 0) for each in turns])
        for status in FINAL
    ]
    tokens = [
        Series(name=name, css=css, values=[each.get(column, 0) for each in turns])
        for name, css, column in (("prompt", "p50", "prompt_tokens"), ("completion", "p95", "completion_tokens"))
    ]
    by_status = [
        Series(name=status.lower(), css=css, values=[each.get(status, 0) for each in calls])
        for status, css in _OF_CALLS.items()
    ]
    of_turns, failed = linked(_turns), {"status__exact": TurnStatus.FAILED}
    return [
        compared(
            charts.bars(f"Turns per {a_step}", series=outcomes, **of_turns),
            _change(_sum(now, FINAL), _sum(before, FINAL)),
            _turns,
        ),
        compared(
            charts.lines(f"Response time per {a_step}", series=_lines(map(_times, turns)), show=duration, **of_turns),
            _slower(_times(now)["p95"], _times(before)["p95"]),
            _turns,
        ),
        compared(
            charts.bars(
                f"Failed turns per {a_step}, by error code",
                series=_by_code(turns, now, begin),
                **linked(_turns, **failed),
            ),
            _change(now.get(TurnStatus.FAILED, 0), before.get(TurnStatus.FAILED, 0)),
            _turns,
            **failed,
        ),
        compared(
            charts.lines(f"Queue age per {a_step}", series=_lines(map(_waits, turns)), show=duration, **of_turns),
            _slower(_waits(now)["p95"], _waits(before)["p95"]),
            _turns,
        ),
        compared(
            charts.bars(f"Tokens per {a_step}", series=tokens, **of_turns),
            _change(_sum(now, _TOKENS), _sum(before, _TOKENS)),
            _turns,
        ),
        compared(
            charts.bars(f"Tool calls per {a_step}", series=by_status, **linked(_calls)),
            _change(_sum(now_calls, _OF_CALLS), _sum(calls_before, _OF_CALLS)),
            _calls,
        ),
    ]


def _sum(of: figures.Figures, names: Iterable[str]) -> int:
    return sum(of.get(name, 0) for name in names)


def _lines(steps: Iterable[dict[str, float | None]]) -> list[Series]:
    """Of each name, a line through its values."""
    values = list(steps)
    return [Series(name=name, css=name, values=[each[name] for each in values]) for name in values[0]]


def _by_code(turns: list[figures.Figures], now: figures.Figures, begin: datetime) -> list[Series]:
    """The error codes that most turns failed with, and the others together; hours that an earlier release counted are
    among these."""
    codes: Counter[str] = Counter(now.get("errors", {}))
    most = [code for code, _ in codes.most_common(MAX_CODES)]
    drawn = [
        Series(
            name=code,
            css=f"series-{at}",
            values=[each.get("errors", {}).get(code, 0) for each in turns],
            link=_turns(begin, error_code=code),
        )
        for at, code in enumerate(most)
    ]
    # What fails between the two counts has a code and is not among those that failed until they are counted again.
    others = [max(0, each.get(TurnStatus.FAILED, 0) - _sum(each.get("errors", {}), most)) for each in turns]
    return [*drawn, *([Series(name="others", css=f"series-{MAX_CODES}", values=others)] if any(others) else [])]


def _slower(now: float | None, before: float | None) -> str:
    """How the 95th percentile compares with that of the period before."""
    if before is None:
        return "none in the period before"
    return f"p95 {duration(now)}; {duration(before)} in the period before"


def _change(now: int, before: int) -> str:
    """How much more or less there was than in the period before."""
    if not before:
        return "none in the period before"
    share = 100 * (now - before) / before
    return f"{abs(share):.0f} % {'more' if share >= 0 else 'less'} than in the period before"
