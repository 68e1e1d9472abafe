"""The overview: how much there was, how it went, how long it took, what waits; each figure leads to its rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from conversations.kinds import KINDS
from conversations.models import Worker
from conversations.statuses import FINAL, TURN_STATUSES, TurnStatus, WaitingFor
from nanohost.console import attention, figures, queue
from nanohost.console.diagnosis import HELD, QUEUED, RUNNING, WAITING
from nanohost.console.links import list_of
from nanohost.console.models import Hour
from nanohost.lib import clock
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

# Of the chart, in its own units.
_WIDTH, _HEIGHT = 960, 160


def callback(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the console's first page shows to those who may see turns and tool calls."""
    context["title"] = "Overview"
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
    hours = list(Hour.objects.filter(hour__gte=begin))
    turns = figures.total_of(each.turns for each in hours)
    calls = figures.total_of(each.calls for each in hours)
    every = figures.total_of(turns.values())
    ended = sum(every.get(status, 0) for status in FINAL)
    waiting = queue.look()
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
            {"queue": kind.queue, "count": waiting.workers[kind.queue], "link": _workers(kind.queue)} for kind in KINDS
        ],
        "sandboxes": Worker.objects.sandboxes(),
        "chart": _chart(hours, begin, window),
    }


def _times(each: figures.Figures) -> dict[str, float | None]:
    took, longest = each.get("took", {}), each.get(figures.LONGEST, 0.0)
    return {name: figures.percentile(took, share, longest=longest) for name, share in (("p50", 0.5), ("p95", 0.95))}


def _turns(begin: datetime, **filters: object) -> str:
    return list_of("conversations_turn", created_at__gte=begin.isoformat(), **filters)


def _calls(begin: datetime, **filters: object) -> str:
    return list_of("tools_toolcall", created_at__gte=begin.isoformat(), **filters)


def _workers(queue_name: str) -> str:
    heard_after = clock.read() - timedelta(seconds=Worker.SILENT_SECONDS)
    alive = {"ended_at__isnull": True, "heartbeat_at__gt": heard_after.isoformat()}
    return list_of("conversations_worker", queues__contains=queue_name, **alive)


def _chart(hours: Iterable[Hour], begin: datetime, window: Window) -> dict[str, Any]:
    """Bars, one above the other by outcome; each leads to its turns."""
    step = timedelta(hours=window.hours_a_bar)
    counts = [dict.fromkeys(FINAL, 0) for _ in range(window.hours // window.hours_a_bar)]
    for each in hours:
        at = (each.hour - begin) // step
        for model in each.turns.values():
            for status in FINAL:
                counts[at][status] += model[status]
    most = max(1, *(sum(count.values()) for count in counts))
    width = _WIDTH / len(counts)
    bars = []
    for at, count in enumerate(counts):
        since, top, parts = begin + at * step, float(_HEIGHT), []
        for status in FINAL:
            height = round(_HEIGHT * count[status] / most, 2)
            top = round(top - height, 2)
            if height:
                parts.append({"status": status, "y": top, "height": height})
        numbers = (f"{number} {TURN_STATUSES[status].label}" for status, number in count.items() if number)
        told = ", ".join(numbers) or "none"
        link = _turns(since, created_at__lt=(since + step).isoformat())
        bars.append({"x": round(at * width, 2), "since": since, "parts": parts, "told": told, "link": link})
    chart = {"bars": bars, "most": most, "width": _WIDTH, "height": _HEIGHT}
    return chart | {"step": round(width, 2), "bar_width": round(width * 0.8, 2)}
