"""The page *Usage*: tokens and money, by model, agent, API key, owner or day; and the same as a file."""

from datetime import datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from agent.spending.money import told_money
from nanohost.console import charts, figures, uses
from nanohost.console.charts import Series
from nanohost.console.links import list_of
from nanohost.console.uses import GROUPS, Report, Sums

VIEW = ("conversations.view_turn", "conversations.view_compaction")

# Days, by what people choose.
WINDOWS = {"today": 1, "7 days": 7, "30 days": 30, "365 days": 365}
USUAL = "30 days"

# Lines that a chart has a colour for; the others are drawn as one.
MAX_DRAWN = 5


@require_safe
def show(request: HttpRequest) -> HttpResponse:
    """The page."""
    found = _report(request)
    chosen = _chosen(request)
    total = figures.look()
    begin = timezone.make_aware(datetime.combine(found.first, time()))
    told: dict[str, Any] = {
        "title": "Usage",
        "report": found,
        "lines": [{"name": line.name or "without a key", **_told(line.sums)} for line in found.lines],
        "total": _told(found.total),
        "groups": [_link(name, group_by=name, window=chosen, current=found.group_by) for name in GROUPS],
        "windows": [_link(name, group_by=found.group_by, window=name, current=chosen) for name in WINDOWS],
        "file": f"{reverse('usage_csv')}?{urlencode({'group_by': found.group_by, 'window': chosen})}",
        "missing_before": figures.counted_since(total, begin),
        "zone": settings.TIME_ZONE,
    }
    told["charts"] = _charts(found)
    return TemplateResponse(request, "console/usage.html", admin.site.each_context(request) | told)


@require_safe
def as_file(request: HttpRequest) -> HttpResponse:
    """The same as comma-separated values."""
    found = _report(request)
    name = f"usage-{found.group_by}-{found.first}-{found.last}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(uses.export(found), content_type="text/csv; charset=utf-8", headers=headers)


def _report(request: HttpRequest) -> Report:
    if not request.user.has_perms(VIEW):
        raise PermissionDenied
    figures.look()
    group_by = request.GET.get("group_by", "model")
    last = timezone.localdate()
    first = last - timedelta(days=WINDOWS[_chosen(request)] - 1)
    return uses.report(group_by=group_by if group_by in GROUPS else "model", first=first, last=last)


def _charts(found: Report) -> list[dict[str, Any]]:
    """Cost and tokens day by day, of the largest lines; a day leads to its turns."""
    days = [found.first + timedelta(days=number) for number in range((found.last - found.first).days + 1)]
    steps = [timezone.make_aware(datetime.combine(day, time())) for day in days]
    ends = [*steps[1:], timezone.make_aware(datetime.combine(found.last + timedelta(days=1), time()))]
    links = [
        list_of("conversations_turn", created_at__gte=since.isoformat(), created_at__lt=until.isoformat())
        for since, until in zip(steps, ends, strict=True)
    ]
    lines = uses.by_day(group_by=found.group_by, first=found.first, last=found.last, most=MAX_DRAWN)
    told: dict[str, Any] = {"steps": steps, "links": links, "hours": 24}
    cost, tokens = [], []
    for at, (name, of_days) in enumerate(lines.items()):
        sums = [of_days.get(day, Sums()) for day in days]
        css = f"series-{at}"
        cost.append(Series(name=name, css=css, values=[each.cost or 0 for each in sums]))
        tokens.append(Series(name=name, css=css, values=[each.prompt_tokens + each.completion_tokens for each in sums]))
    by = "" if found.group_by == "day" else f", by {found.group_by}"
    return [
        charts.bars(f"Cost per day{by}", series=cost, show=_money, **told),
        charts.bars(f"Tokens per day{by}", series=tokens, **told),
    ]


def _money(millionths: float) -> str:
    return told_money(round(millionths), settings.CURRENCY)


def _chosen(request: HttpRequest) -> str:
    chosen = request.GET.get("window", USUAL)
    return chosen if chosen in WINDOWS else USUAL


def _link(name: str, *, group_by: str, window: str, current: str) -> dict[str, Any]:
    query = urlencode({"group_by": group_by, "window": window})
    return {"name": name, "address": f"?{query}", "is_current": name == current}


def _told(sums: Sums) -> dict[str, Any]:
    cost = told_money(sums.cost, settings.CURRENCY)
    return {
        "turns": sums.turns,
        "calls": sums.calls,
        "prompt_tokens": sums.prompt_tokens,
        "cached_tokens": sums.cached_tokens,
        "completion_tokens": sums.completion_tokens,
        "cost": cost if sums.cost is None or not sums.unpriced_calls else f"{cost} and more",
    }


urlpatterns = [
    path("", admin.site.admin_view(show), name="usage"),
    path("usage.csv", admin.site.admin_view(as_file), name="usage_csv"),
]
