"""Charts as HTML and SVG, drawn by the server: axes with values, a link behind each step of time, the same as a table.

No script draws them, so that they are there at once, under the strictest policy, for a keyboard and a screen reader.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

# Of the drawing, in its own units: it is stretched to its place.
WIDTH, HEIGHT = 960.0, 160.0
# Values at the axis of values, besides 0, and times at that of time.
MAX_TICKS, MAX_TIMES = 4, 7


@dataclass(frozen=True, kw_only=True)
class Series:
    """What is drawn in one colour: a value for each step of time; None where there is none. ``link``: to its rows."""

    name: str
    css: str
    values: Sequence[float | None]
    link: str = ""


def bars(title: str, *, steps: Sequence[datetime], links: Sequence[str], series: Sequence[Series], hours: int,
         show: Callable[[float], str] = lambda value: f"{value:,.0f}") -> dict[str, Any]:  # fmt: skip
    """Bars, one above the other. ``hours``: that a step stands for. ``show``: a value as people read it."""
    sums = (sum(each.values[at] or 0 for each in series) for at in range(len(steps)))
    top = _top(max(sums, default=0), is_whole=True)
    width = WIDTH / max(len(steps), 1)
    drawn = []
    for at, since in enumerate(steps):
        y, parts = HEIGHT, []
        for each in series:
            height = round(HEIGHT * (each.values[at] or 0) / top, 2)
            y = round(y - height, 2)
            if height:
                parts.append({"status": each.css, "y": y, "height": height})
        told = [f"{show(value)} {each.name}" for each in series if (value := each.values[at])]
        drawn.append({"x": round(at * width, 2), "since": _moment(since), "parts": parts, "link": links[at]}
                     | {"told": ", ".join(told) or "none"})  # fmt: skip
    return _chart(title, steps, series, top, hours, show) | {"bars": drawn, "step": round(width, 2)} | {
        "bar_width": round(width * 0.8, 2), "width": WIDTH, "height": HEIGHT}  # fmt: skip


def lines(title: str, *, steps: Sequence[datetime], links: Sequence[str], series: Sequence[Series], hours: int,
          show: Callable[[float], str]) -> dict[str, Any]:  # fmt: skip
    """Lines through the values, with a gap where there is none; each step leads somewhere, as a bar does."""
    top = max(
        _LEAST_TOP, _top(max((value or 0 for each in series for value in each.values), default=0), is_whole=False)
    )
    chart = bars(title, steps=steps, links=links, series=(), hours=hours, show=show)
    for at, bar in enumerate(chart["bars"]):
        told = [f"{each.name} {show(value)}" for each in series if (value := each.values[at]) is not None]
        bar["told"] = ", ".join(told) or "none"
    width = WIDTH / max(len(steps), 1)

    def place(at: int, value: float) -> tuple[float, float]:
        return round((at + 0.4) * width, 2), round(HEIGHT - HEIGHT * value / top, 2)

    paths = []
    for each in series:
        points = [place(at, value) if value is not None else None for at, value in enumerate(each.values)]
        path, is_on = [], False
        for point in points:
            if point:
                path.append(f"{'L' if is_on else 'M'}{point[0]:g} {point[1]:g}")
            is_on = point is not None
        dots = [{"x": point[0], "y": point[1]} for point in points if point]
        paths.append({"css": each.css, "path": " ".join(path), "dots": dots})
    return chart | _chart(title, steps, series, top, hours, show) | {"paths": paths}


def _chart(title: str, steps: Sequence[datetime], series: Sequence[Series], top: float, hours: int,
           show: Callable[[float], str]) -> dict[str, Any]:  # fmt: skip
    every = max(1, math.ceil(len(steps) / MAX_TIMES))
    form = "%H:%M" if hours == 1 else "%b %d"
    return {
        "title": title,
        "series": [{"name": each.name, "css": each.css, "link": each.link} for each in series],
        "ticks": [show(top * number / MAX_TICKS) for number in range(MAX_TICKS, -1, -1)],
        "times": [f"{timezone.localtime(each):{form}}" for each in steps[::every]],
        "zone": settings.TIME_ZONE,
        "rows": [
            {"since": _moment(since), "values": ["–" if (v := each.values[at]) is None else show(v) for each in series]}
            for at, since in enumerate(steps)
        ],
    }


def _moment(moment: datetime) -> str:
    return f"{timezone.localtime(moment):%Y-%m-%d %H:%M %Z}"


# An axis ends at one of these, times a power of ten: four equal steps lead there.
_TOPS = (1, 2, 4, 8)
# That of lines at least here: seconds are told by tenths, and no two values of an axis are told alike.
_LEAST_TOP = 0.4


def _top(most: float, *, is_whole: bool) -> float:
    """Where an axis of values ends. ``is_whole``: of things that are counted, there are no parts."""
    if most <= 0:
        return float(MAX_TICKS)
    size = 10.0 ** math.floor(math.log10(most))
    tops = (size * factor * power for power in (1, 10) for factor in _TOPS)
    return next(top for top in tops if top >= most and (not is_whole or top % MAX_TICKS == 0))
