"""MCP servers in the admin: which there are, how they do, and what somebody has seen of their tools."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import Count, F, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from nanohost.accounts import audit
from nanohost.lib.admin import TOGGLE, ModelAdmin, diff, excerpt, link_to, shown, table
from nanohost.lib.moments import when
from nanohost.lib.redaction import redact
from tools.mcp import catalogue, checks
from tools.mcp.models import TOOL_OF_A_SERVER, McpServer, McpTool, Transport
from tools.seeing import SeenToolAdmin, link_to_setting

_HOW = ["name", "enabled", "transport", "command", "arguments", "environment", "network"]
_HOW += ["url", "headers", "timeout_seconds"]


@admin.register(McpServer)
class McpServerAdmin(ModelAdmin):
    """The MCP servers of this host. A new one is off; its tools are, each, until somebody has seen them."""

    nothing_yet = "An MCP server that is added here, or by manage.py mcp add, is listed here."
    list_display = ["name", "enabled", "transport", "runs", "failures", "state", "waiting", "listed_at"]
    list_filter = ["enabled"]
    search_fields = ["name"]
    readonly_fields = ["state", "failures", "by_setting", "its_tools", "no_tools", "listed_at", "updated_at"]
    fieldsets: ClassVar[Any] = [
        (None, {"fields": ["name", "enabled", "state"]}),
        ("How it is reached", {"fields": _HOW[2:]}),
        ("Tools", {"fields": ["its_tools", "no_tools", "listed_at"]}),
        ("Internals", {"classes": ["collapse"], "fields": ["by_setting", "failures", "updated_at"]}),
    ]
    actions = ["check_now", "enable", "disable"]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return super().get_fieldsets(request, obj) if obj else [(None, {"fields": ["name", *_HOW[2:]]})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # Its tools are called by its name, and agents allow them by it.
        return [*self.readonly_fields, *(["name"] if obj else [])]

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Its tools go with it; nobody needs to be allowed that by itself."""
        objects, counts, needed, protected = super().get_deleted_objects(objs, request)
        return objects, counts, set(needed) - {TOOL_OF_A_SERVER}, protected

    @admin.display(description="program or address")
    def runs(self, server: McpServer) -> str:
        if server.transport != Transport.STDIO:
            return excerpt(redact(server.url), 60)
        return excerpt(" ".join([server.command, *map(str, server.arguments)]), 60)

    @admin.display(description="how it does")
    def state(self, server: McpServer) -> str:
        if server.check_asked_at:
            return format_html("a check was requested {}", when(server.check_asked_at))
        if server.last_error and server.last_error_at:
            return format_html(
                "{}, {}: {}",
                f"failed {server.failures} times in a row" if server.failures > 1 else "failed",
                when(server.last_error_at),
                shown(server.last_error),
            )
        return "no error" if server.listed_at else "not checked yet"

    def get_queryset(self, request: HttpRequest) -> QuerySet[McpServer]:
        to_be_seen = Q(tools__gone=False) & ~Q(tools__seen_hash=F("tools__hash"))
        rows: QuerySet[McpServer] = super().get_queryset(request)
        return rows.annotate(to_be_seen=Count("tools", filter=to_be_seen))

    @admin.display(description="to be seen")
    def waiting(self, server: Any) -> str:
        return str(server.to_be_seen or "–")

    @admin.display(description="tools")
    def its_tools(self, server: McpServer) -> str:
        rows = [
            (link_to("tools_mcptool", tool.pk, tool.full_name), tool.state, tool.hash[:12], excerpt(tool.description))
            for tool in server.tools.all()
        ]
        return table(("tool", "state", "pin", "what it says"), rows) or "none yet: check the server"

    @admin.display(description="what cannot be a tool")
    def no_tools(self, server: McpServer) -> str:
        rows = [(excerpt(name), excerpt(str(why))) for name, why in sorted(server.unfit.items())]
        return table(("name", "why"), rows) or "–"

    def save_model(self, request: HttpRequest, obj: McpServer, form: Any, change: bool) -> None:
        with transaction.atomic():
            before = McpServer.objects.select_for_update().get(pk=obj.pk).said() if change else None
            if not change:
                obj.save()
            elif form.changed_data:
                obj.save(update_fields=[*form.changed_data, "updated_at"])
            if not change or form.changed_data:
                action = "mcp_server.changed" if change else "mcp_server.added"
                audit.record(action, about=obj, name=obj.name, before=before, after=obj.said())

    def delete_model(self, request: HttpRequest, obj: McpServer) -> None:
        self.delete_queryset(request, McpServer.objects.filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[McpServer]) -> None:
        with transaction.atomic():
            for server in queryset:
                audit.record("mcp_server.deleted", about=server, name=server.name, before=server.said())
                server.delete()

    @admin.action(description="Check the selected servers", permissions=[TOGGLE])
    def check_now(self, request: HttpRequest, chosen: QuerySet[McpServer]) -> None:
        for server in chosen:
            checks.ask_for(server)
        self.message_user(request, "A worker of tools checks them; look again in a moment.", messages.SUCCESS)

    @admin.action(description="Enable the selected servers", permissions=[TOGGLE])
    def enable(self, request: HttpRequest, chosen: QuerySet[McpServer]) -> None:
        self._switch(request, chosen, on=True)

    @admin.action(description="Disable the selected servers", permissions=[TOGGLE])
    def disable(self, request: HttpRequest, chosen: QuerySet[McpServer]) -> None:
        self._switch(request, chosen, on=False)

    def _switch(self, request: HttpRequest, chosen: QuerySet[McpServer], *, on: bool) -> None:
        for server in chosen:
            catalogue.switch(server, on=on)
            self.log_change(request, server, "Enabled." if on else "Disabled.")
        word = "enabled" if on else "disabled"
        self.message_user(request, f"{len(chosen)} servers are {word}.", messages.SUCCESS)


class StateFilter(admin.SimpleListFilter):
    """By what somebody has seen."""

    title, parameter_name = "state", "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("waiting", "to be seen"), ("changed", "changed since it was seen"), ("seen", "seen"), ("gone", "gone")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[McpTool]) -> QuerySet[McpTool]:
        match self.value():
            case "waiting":
                return queryset & McpTool.objects.waiting()
            case "changed":
                return queryset & McpTool.objects.changed()
            case "seen":
                return queryset.filter(gone=False, seen_hash=F("hash"))
            case "gone":
                return queryset.filter(gone=True)
        return queryset


@admin.register(McpTool)
class McpToolAdmin(SeenToolAdmin):
    """The tools of MCP servers, and what somebody has seen of them. One that is new, or that its server has changed, is
    refused until somebody has."""

    nothing_yet = "The tools of an MCP server are listed here once it was checked."
    list_display = ["full_name", "state", "server", "says", "changed_at", "seen_by", "seen_at"]
    list_filter = [StateFilter, "server"]
    list_select_related = ["server"]
    search_fields = ["full_name"]
    readonly_fields = ["state", "says", "difference", "effects", "may_it_run"]
    fieldsets: ClassVar[Any] = [
        (None, {"fields": ["full_name", "server", "name", "state", "may_it_run", "effects"]}),
        ("What its server says", {"fields": ["difference", "hash", "changed_at"]}),
        ("What was seen", {"fields": ["seen_hash", "seen_by", "seen_at"]}),
    ]

    def see(self, request: HttpRequest, tool: McpTool, *, expected: str, allow: bool) -> bool:
        by = request.user.get_username()
        return catalogue.see(tool, expected=expected, by=by, reads="reads" in request.POST, allow=allow)

    @admin.display(description="state")
    def state(self, tool: McpTool) -> str:
        return tool.state

    @admin.display(description="what it says")
    def says(self, tool: McpTool) -> str:
        return excerpt(tool.description)

    @admin.display(description="description and schema")
    def difference(self, tool: McpTool) -> str:
        """What is different from what was seen; or all of it."""
        before, now = catalogue.what_is_told(tool)
        if before and before != now:
            return diff(before, now)
        return format_html('<pre class="code">{}</pre>', shown(now))

    @admin.display(description="effects")
    def effects(self, tool: McpTool) -> str:
        if tool.hints_read and tool.reads:
            return "reads only: its server says so, and this was accepted"
        return "its server says that it only reads; this was not accepted" if tool.hints_read else "has side effects"

    @admin.display(description="as a tool of this host")
    def may_it_run(self, tool: McpTool) -> str:
        return link_to_setting(tool.full_name)
