"""What stands at the side of every page: the registry's pages, in the groups that people think in."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import escape
from django.utils.text import capfirst

from conversations.admin import approval
from nanohost.console import queue_page, retention_page, usage_page
from tools.models import Approval

WORK, AGENTS, TOOLS, SCHEDULES, SYSTEM = "Work", "Agents & memory", "Tools", "Schedules", "System"
GROUPS = (WORK, AGENTS, TOOLS, SCHEDULES, SYSTEM)

# By app; whatever is not named, such as an app of the user's own, belongs to the system.
_OF_APP = {
    "conversations": WORK,
    "agent": AGENTS,
    "memory": AGENTS,
    "tools": TOOLS,
    "scheduler": SCHEDULES,
    "django_celery_beat": SCHEDULES,
}
_OF_MODEL = {
    "tools.approval": WORK,
    "conversations.webhookendpoint": SYSTEM,
    "conversations.delivery": SYSTEM,
    "conversations.worker": SYSTEM,
    "agent.provideroutage": SYSTEM,
}

# In the order in which they stand in their group; names of Material Symbols, whose font the theme brings.
_ICONS = {
    "conversations.conversation": "forum",
    "conversations.turn": "sync_alt",
    "tools.approval": "approval",
    "conversations.message": "chat",
    "conversations.deferredmessage": "schedule_send",
    "conversations.compaction": "compress",
    "conversations.webhookendpoint": "webhook",
    "conversations.delivery": "outbox",
    "conversations.worker": "memory",
    "agent.agent": "smart_toy",
    "agent.agentversion": "history",
    "agent.budget": "savings",
    "agent.modelprice": "sell",
    "agent.provideroutage": "cloud_off",
    "memory.memory": "psychology",
    "memory.memoryversion": "history",
    "memory.historyentry": "menu_book",
    "tools.toolsetting": "construction",
    "tools.toolcall": "receipt_long",
    "tools.settingchange": "edit_note",
    "scheduler.schedule": "event",
    "scheduler.schedulerun": "event_available",
    "scheduler.checkin": "monitor_heart",
    "django_celery_beat.periodictask": "schedule",
    "scheduler.jobrun": "task_alt",
    "accounts.apikey": "key",
    "accounts.auditentry": "policy",
    "accounts.legalhold": "gavel",
    "auth.user": "person",
    "auth.group": "group",
    "axes.accessattempt": "lock",
}


def group_of(label: str) -> str:
    """The group a model's page stands in; ``label`` is ``app.model``."""
    return _OF_MODEL.get(label) or _OF_APP.get(label.partition(".")[0], SYSTEM)


def _place(label: str) -> int:
    return list(_ICONS).index(label) if label in _ICONS else len(_ICONS)


def groups(request: HttpRequest) -> list[dict[str, Any]]:
    """The groups with the pages this user may see."""
    items: dict[str, list[dict[str, Any]]] = {name: [] for name in GROUPS}
    for model, page in sorted(admin.site._registry.items(), key=lambda item: _place(item[0]._meta.label_lower)):
        if page.has_view_or_change_permission(request) and page.has_module_permission(request):
            label = model._meta.label_lower
            link = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
            items[group_of(label)].append(
                {
                    # The theme shows it as it is.
                    "title": escape(capfirst(model._meta.verbose_name_plural)),
                    "icon": _ICONS.get(label, "table_rows"),
                    "link": link,
                    **({"badge": count} if model is Approval and (count := approval.waiting()) else {}),
                }
            )
    if request.user.has_perms(queue_page.VIEW):
        items[WORK].insert(0, {"title": "Queue", "icon": "pending_actions", "link": reverse("queue")})
    if request.user.has_perms(usage_page.VIEW):
        items[WORK].append({"title": "Usage", "icon": "payments", "link": reverse("usage")})
    if request.user.has_perms(retention_page.VIEW):
        items[SYSTEM].append({"title": "Retention", "icon": "auto_delete", "link": reverse("retention")})
    overview = {"title": "Overview", "icon": "dashboard", "link": reverse("admin:index")}
    shown = [{"title": name, "items": items[name], "separator": True} for name in GROUPS if items[name]]
    return [{"items": [overview]}, *shown]
