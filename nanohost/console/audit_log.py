"""The audit log in the admin: searched by who, what, object and time, and exported."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.urls import path, reverse
from django.urls.exceptions import NoReverseMatch
from django.utils.html import format_html

from nanohost.accounts import audit
from nanohost.accounts.models import AuditEntry, AuditSeal
from nanohost.lib.admin import MAX_LISTED, GrowingAdmin, KnownValues, excerpt, have_history
from nanohost.lib.redaction import redact_known

# What can be done or decided, as the log calls it: the choices of the list's filter.
ACTIONS = (
    *("tool.admitted", "tool.refused", "tool.ended", "tool_setting.changed"),
    *(
        "mcp_server.added",
        "mcp_server.changed",
        "mcp_server.deleted",
        "mcp_tool.found",
        "mcp_tool.changed",
        "mcp_tool.seen",
        "custom_tool.found",
        "custom_tool.changed",
        "custom_tool.seen",
        "skill.uploaded",
        "skill.removed",
        "skill.allowed",
    ),
    *("share.made", "share.revoked", "response.deleted", "evaluation.exported"),
    *("consent.requested", "consent.seconded", "consent.decided", "consent.withdrawn"),
    *("hold.placed", "hold.released", "retention.erased", "user.erasing"),
    *("key.made", "key.changed", "key.revoked", "agent.made", "agent.changed", "agent.deleted"),
    *("schedule.made", "schedule.changed", "schedule.paused", "schedule.resumed", "schedule.cancelled"),
    *(
        "schedule.run_by_hand",
        "conversation.deleted",
        "message.deleted",
        "conversation.exported",
        "list.exported",
        "usage.exported",
        "audit.exported",
    ),
    *(
        "file.put",
        "file.deleted",
        "file.undone",
        "file.taken",
        "memory.trusted",
        "memory.restored",
        "memory.dismissed",
        "intake.paused",
        "intake.resumed",
    ),
    *("user.made", "user.changed", "user.deleted", "user.erased", "user.given", "user.taken"),
    *("role.made", "role.changed", "role.deleted", "role.given", "role.taken"),
    *("webhook.made", "webhook.changed", "webhook.rotated", "webhook.disabled", "webhook.tried", "delivery.sent_again"),
    *("delivery.cancelled", "delivery.changed", "channel.made", "channel.changed", "channel.rotated", "channel.tried"),
    *("channel.pairing_opened", "sender.paired", "sender.allowed", "sender.blocked", "sender.refused"),
    *("destination.made", "destination.changed", "destination.deleted"),
    *("price.made", "price.changed", "price.deleted"),
    *("budget.made", "budget.changed", "budget.deleted", "budget.warning", "budget.exceeded"),
    *("job.made", "job.changed", "job.deleted", "job.run_by_hand", "signed_in", "signed_out", "sign_in_failed"),
    *("provider.checked", "first_run.dismissed", "invitation.made", "invitation.used"),
    *("config_part.stored", "config.exported", "secret_file.written", "secret_file.removed"),
    *("console.added", "console.changed", "console.deleted"),
)


# Entries have the time at which their transaction began, which is no longer than this before their id was given.
LATE = timedelta(minutes=10)

# Databases and calendars end near the years 1 and 9999.
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)

# What stands before the name of somebody who acts; a search finds them without it as well.
_KINDS = ("user", "agent", "manage.py")

# What it can be done to.
OBJECTS = (
    *("tools.toolcall", "tools.toolsetting", "tools.approval", "accounts.apikey", "accounts.auditentry", "agent.agent"),
    *("tools.mcpserver", "tools.mcptool", "tools.customtool", "tools.skillsetting", "conversations.share"),
    *("conversations.channel", "conversations.sender", "conversations.destination"),
    *("scheduler.schedule", "conversations.conversation", "conversations.webhookendpoint", "conversations.delivery"),
    *(
        "agent.modelprice",
        "agent.budget",
        "memory.memory",
        "memory.memoryversion",
        "conversations.intakepause",
        "auth.user",
        "auth.group",
    ),
    "accounts.legalhold",
    "nanobot_config.configpart",
    "file",
    "workspace",
    "django_celery_beat.periodictask",
)


class ActionFilter(KnownValues):
    title, parameter_name = "what", "action"

    def values(self) -> Iterable[str]:
        return ACTIONS


class ObjectFilter(KnownValues):
    title, parameter_name = "object", "object_type"

    def values(self) -> Iterable[str]:
        return OBJECTS


class TimeFilter(admin.ListFilter):
    """From and until when, each to the minute or as ISO 8601 has it; what is no time is told, and narrows nothing.

    The list goes by ids, which an index of times bounds: a sort of all that has happened in a year would take long.
    """

    title = "time"
    template = "admin/accounts/audit_time.html"
    parameter_name = FROM = "from"
    UNTIL = "until"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        for name in (self.FROM, self.UNTIL):
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1].strip()

    def expected_parameters(self) -> list[str | None]:
        return [self.FROM, self.UNTIL]

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        """The form's fields, and what it has to send along."""
        others = [(name, value) for name, value in changelist.params.items() if name not in self.expected_parameters()]
        fields = [
            {"label": label, "name": name, "value": self.used_parameters.get(name, "")}
            for label, name in (("From", self.FROM), ("Until", self.UNTIL))
        ]
        query = changelist.get_query_string()
        yield {"others": others, "fields": fields, "zone": settings.TIME_ZONE, "query_string": query}

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        since, until = (self._time(request, name) for name in (self.FROM, self.UNTIL))
        if since and until and since >= until:
            messages.error(request, "“Until” has to be later than “From”: nothing has happened in between.")
            return queryset.none()
        by_time = AuditEntry.objects.order_by("at").values_list("pk", flat=True)
        if since:
            first = by_time.filter(at__gte=since - LATE).first()
            queryset = queryset.filter(at__gte=since, pk__gte=first) if first else queryset.none()
        if until:
            last = by_time.filter(at__lt=until + LATE).last()
            queryset = queryset.filter(at__lt=until, pk__lte=last) if last else queryset.none()
        return queryset

    def _time(self, request: HttpRequest, name: str) -> datetime | None:
        said = str(self.used_parameters.get(name, ""))
        try:
            moment: datetime | None = forms.DateTimeField(required=False).clean(said)
            return moment and min(max(moment, _EARLIEST), _LATEST)
        except (forms.ValidationError, OverflowError):
            messages.error(request, f"“{excerpt(said, 40)}” is no time: say it as 2026-01-31T09:30.")
            return None


@admin.register(AuditEntry)
class AuditEntryAdmin(GrowingAdmin):
    """Who has done and decided what. Nobody changes or deletes an entry: the database refuses, and the chain of hashes
    would show it."""

    nothing_yet = "What people and the host do and decide is recorded here."
    list_display = ["at", "actor", "action", "object", "change", "why"]
    list_filter = [TimeFilter, ActionFilter, ObjectFilter]
    more_lookups = (TimeFilter.FROM, TimeFilter.UNTIL)
    search_fields = ["actor", "object_id", "object_name", "request_id"]
    search_help_text = "All of one of these: who, an object's id or name, a request's id."
    fields = [
        *("at", "actor", "action", "object_type", "object_id", "object_name", "changed", "reason", "request_id"),
        *("number", "hash"),
    ]
    readonly_fields = ["changed", "number", "hash"]
    list_before_template = "admin/accounts/audit_export.html"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEntry], search_term: str
    ) -> tuple[QuerySet[AuditEntry], bool]:
        """Entries of which something is all of the term: the newest, as many as are listed. Each column is asked by
        itself, in the order of its own index; of them together, a database might read all that there is."""
        term = search_term.strip()
        if not term:
            return queryset, False
        asked = [{name: term} for name in self.search_fields] + [{"actor": f"{kind} {term}"} for kind in _KINDS]
        found: set[int] = set()
        for each in asked:
            found.update(queryset.filter(**each).order_by("-pk").values_list("pk", flat=True)[:MAX_LISTED])
        return queryset.filter(pk__in=nlargest(MAX_LISTED, found)), False

    @admin.display(description="object")
    def object(self, entry: AuditEntry) -> str:
        name = excerpt(entry.object_name or entry.object_id, 60)
        try:
            page = f"admin:{entry.object_type.replace('.', '_')}_change"
            return format_html('<a href="{}">{}</a>', reverse(page, args=[entry.object_id]), name)
        except NoReverseMatch:
            return name

    @admin.display(description="change")
    def change(self, entry: AuditEntry) -> str:
        return excerpt("; ".join(_differences(entry)), 120)

    @admin.display(description="why")
    def why(self, entry: AuditEntry) -> str:
        return excerpt(entry.reason, 80)

    @admin.display(description="changed")
    def changed(self, entry: AuditEntry) -> str:
        lines = "\n".join(_differences(entry))
        return format_html('<pre class="diff">{}</pre>', redact_known(lines)) if lines else "–"

    @admin.display(description="number in the chain")
    def number(self, entry: AuditEntry) -> str:
        seal = AuditSeal.objects.filter(entry_id=entry.pk).first()
        return str(seal.number) if seal else "not sealed yet"

    @admin.display(description="hash")
    def hash(self, entry: AuditEntry) -> str:
        seal = AuditSeal.objects.filter(entry_id=entry.pk).first()
        return seal.hash if seal else "–"

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.export_view)
        return [path("export.jsonl", view, name="audit_export"), *super().get_urls()]

    def export_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """All sealed entries as JSON lines."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        audit.record("audit.exported", kind="accounts.auditentry")
        answer = StreamingHttpResponse((f"{line}\n" for line in audit.lines()), content_type="application/jsonl")
        answer["Content-Disposition"] = 'attachment; filename="audit.jsonl"'
        return answer


def history_of(request: HttpRequest, kind: str, key: str) -> str | None:
    """Where all entries about an object are."""
    if not request.user.has_perm("accounts.view_auditentry"):
        return None
    return (
        f"{reverse('admin:accounts_auditentry_changelist')}?{urlencode({'object_type': kind, 'object_id__exact': key})}"
    )


have_history(history_of)


def _differences(entry: AuditEntry) -> list[str]:
    """What was changed, from what to what; or what was decided."""
    before, after = (json.loads(text) if text else {} for text in (entry.before, entry.after))
    said = []
    for name in sorted({*before, *after}):
        if name in before and name in after:
            said.append(f"{name}: {_word(before[name])} → {_word(after[name])}")
        else:
            said.append(f"{name}: {_word((after if name in after else before)[name])}")
    return said


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
