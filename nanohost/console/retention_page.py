"""The page *Retention*: what each agent keeps for how long, what would go now, and what legal holds keep."""

import time
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.views.decorators.http import require_GET

from agent.models import RETAINED, Agent
from nanohost.accounts import holds
from nanohost.accounts.models import AuditEntry
from nanohost.lib import clock
from scheduler import retention
from scheduler.models import RetentionRun

VIEW = ("agent.view_agent", "accounts.view_legalhold")

# Somebody waits for the page: so long it counts. `manage.py retention --dry-run` counts all of it.
COUNT_SECONDS = 5.0

MAX_AGENTS, MAX_ENTRIES = 200, 10


@require_GET
def show(request: HttpRequest) -> HttpResponse:
    """The page."""
    if not request.user.has_perms(VIEW):
        raise PermissionDenied
    agents = Agent.objects.order_by("name")
    until = time.monotonic() + COUNT_SECONDS
    counted = [retention.count(rule, until=until) for rule in retention.rules(now=clock.read())[:MAX_AGENTS]]
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Retention",
        "counted": [_as_shown(each) for each in counted],
        "is_whole": all(each.is_whole for each in counted),
        "kept": agents.filter(retention={})[:MAX_AGENTS],
        "kinds": ", ".join(RETAINED),
        "holds": [holds.told(hold) for hold in holds.placed().holds],
        "run": RetentionRun.objects.filter(pk=RetentionRun.ONLY).first(),
        "entries": AuditEntry.objects.filter(action="retention.erased").order_by("-pk")[:MAX_ENTRIES],
    }
    return TemplateResponse(request, "console/retention.html", context)


def _as_shown(counted: retention.Count) -> dict[str, Any]:
    rule = counted.rule
    return {"agent": rule.agent, "kind": rule.kind, "days": rule.days, "before": rule.before, "held": counted.held} | {
        "rows": counted.rows.total(),
        "is_of_deleted": rule.is_of_deleted,
        "is_whole": counted.is_whole,
    }


urlpatterns = [path("", admin.site.admin_view(show), name="retention")]
