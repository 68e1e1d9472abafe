"""Custom tools in the admin: what stands in their files, what the scan found, and what somebody has seen of them."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join

from nanohost.lib.admin import diff, excerpt, shown
from tools.custom import catalogue
from tools.custom.models import CustomTool
from tools.seeing import SeenToolAdmin, link_to_setting


class StateFilter(admin.SimpleListFilter):
    """By what somebody has seen."""

    title, parameter_name = "state", "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            *(("waiting", "to be seen"), ("changed", "changed since it was seen"), ("seen", "seen")),
            *(("unfit", "cannot be a tool"), ("gone", "gone")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[CustomTool]) -> QuerySet[CustomTool]:
        match self.value():
            case "waiting":
                return queryset & CustomTool.objects.waiting()
            case "changed":
                return queryset & CustomTool.objects.changed()
            case "seen":
                return queryset & CustomTool.objects.seen()
            case "unfit":
                return queryset.filter(gone=False).exclude(unfit="")
            case "gone":
                return queryset.filter(gone=True)
        return queryset


@admin.register(CustomTool)
class CustomToolAdmin(SeenToolAdmin):
    """The Python files in the folder tools/ of workspaces. One that is new or was changed is refused until somebody
    has seen it."""

    nothing_yet = "With CUSTOM_TOOLS, Python files in the folder tools/ of a workspace are listed here."
    list_display = ["full_name", "state", "workspace", "says", "flags", "changed_at", "seen_by", "seen_at"]
    list_filter = [StateFilter]
    search_fields = ["full_name", "workspace"]
    readonly_fields = ["state", "says", "flags", "found", "difference", "may_it_run"]
    fieldsets: ClassVar[Any] = [
        (None, {"fields": ["full_name", "state", "workspace", "file", "may_it_run"]}),
        ("What it says", {"fields": ["says", "found", "difference", "hash", "changed_at"]}),
        ("What was seen", {"fields": ["seen_hash", "seen_by", "seen_at"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[CustomTool]:
        rows: QuerySet[CustomTool] = super().get_queryset(request)
        match = request.resolver_match
        is_list = match is not None and str(match.url_name).endswith("_changelist")
        return rows.defer("source", "seen_source") if is_list else rows

    def see(self, request: HttpRequest, tool: CustomTool, *, expected: str, allow: bool) -> bool:
        return catalogue.see(tool, expected=expected, by=request.user.get_username(), allow=allow)

    @admin.display(description="state")
    def state(self, tool: CustomTool) -> str:
        return format_html("{}: {}", tool.state, shown(tool.unfit)) if tool.unfit and not tool.gone else tool.state

    @admin.display(description="its own description")
    def says(self, tool: CustomTool) -> str:
        return excerpt(tool.description)

    @admin.display(description="flagged")
    def flags(self, tool: CustomTool) -> str:
        return str(len(tool.flagged) or "–")

    @admin.display(description="what the scan flagged")
    def found(self, tool: CustomTool) -> str:
        lines = format_html_join("\n", "{}", ((shown(str(each)),) for each in tool.flagged))
        return format_html('<pre class="code">{}</pre>', lines) if tool.flagged else "nothing"

    @admin.display(description="source")
    def difference(self, tool: CustomTool) -> str:
        """What is different from what was seen; or all of it."""
        before, now = catalogue.what_is_told(tool)
        if before and before != now:
            return diff(before, now)
        return format_html('<pre class="code">{}</pre>', shown(now))

    @admin.display(description="as a tool of this host")
    def may_it_run(self, tool: CustomTool) -> str:
        return link_to_setting(tool.full_name)
