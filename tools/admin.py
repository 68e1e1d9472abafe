"""Tools in the admin: which may run, with which permissions; and every call that was asked for."""

from collections.abc import Sequence

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from nanohost.lib.admin import GrowingAdmin, KnownValues, ModelAdmin, excerpt
from tools import gate, registry
from tools.errors import UnknownTool
from tools.gate import AgentTools
from tools.models import ToolCall, ToolSetting
from tools.permissions import GRANTABLE, Permission


class ToolSettingForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """Grants as checkboxes."""

    grants = forms.MultipleChoiceField(
        choices=[(str(each), str(each)) for each in GRANTABLE],
        widget=forms.CheckboxSelectMultiple,
        required=False,
        help_text="Each permission the tool needs must be granted. The settings' PERMISSIONS_GRANTED is the ceiling.",
    )

    class Meta:
        model = ToolSetting
        fields = ["enabled", "grants"]


@admin.register(ToolSetting)
class ToolSettingAdmin(ModelAdmin):
    """Which tools may run. A change counts from the next decision of the gate on: at once."""

    form = ToolSettingForm
    list_display = ["name", "enabled", "state", "needs", "granted", "effects"]
    list_filter = ["enabled"]
    search_fields = ["name"]
    readonly_fields = ["name", "description", "state", "needs", "effects", "defined_in", "updated_at"]
    fields = ["name", "description", "state", "needs", "effects", "defined_in", "enabled", "grants", "updated_at"]
    actions = ["enable", "disable"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # tools are registered in code

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    @admin.display(description="may it run?")
    def state(self, setting: ToolSetting) -> str:
        """Whether the gate lets it run for an agent that may use every tool."""
        try:
            gate.admit(setting.name, agent_tools=AgentTools(names=None), decided={setting.name: setting})
        except gate.Refused as refusal:
            return f"No, {refusal.rule}: {refusal}"
        return "Yes, for every agent that may use it"

    @admin.display(description="description")
    def description(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        return tool.description if tool else "No code registers this tool any more."

    @admin.display(description="needs")
    def needs(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        return ", ".join(tool.permissions) if tool and tool.permissions else "no permission"

    @admin.display(description="granted")
    def granted(self, setting: ToolSetting) -> str:
        return ", ".join(setting.grants) or "–"

    @admin.display(description="effects")
    def effects(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        if tool is None:
            return "–"
        return "reads only" if tool.effects == "read" else "has side effects: is never run twice for one call"

    @admin.display(description="defined in")
    def defined_in(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        return f"{tool.module}.{tool.qualname}" if tool else "–"

    @admin.action(description="Enable the selected tools", permissions=["change"])
    def enable(self, request: HttpRequest, chosen: QuerySet[ToolSetting]) -> None:
        self._set_enabled(request, chosen, True)

    @admin.action(description="Disable the selected tools", permissions=["change"])
    def disable(self, request: HttpRequest, chosen: QuerySet[ToolSetting]) -> None:
        self._set_enabled(request, chosen, False)

    def _set_enabled(self, request: HttpRequest, chosen: QuerySet[ToolSetting], enabled: bool) -> None:
        for setting in chosen:
            setting.enabled = enabled
            setting.save(update_fields=["enabled", "updated_at"])
            self.log_change(request, setting, "Enabled." if enabled else "Disabled.")
        word = "enabled" if enabled else "disabled"
        self.message_user(request, f"{len(chosen)} tools are {word}.", messages.SUCCESS)


def _registered(setting: ToolSetting) -> registry.RegisteredTool | None:
    try:
        return registry.get(setting.name)
    except UnknownTool:
        return None


class ToolFilter(KnownValues):
    """By a registered tool; models ask for others, too."""

    title, parameter_name = "tool", "tool_name"

    def values(self) -> list[str]:
        return registry.names()


class RuleFilter(KnownValues):
    """By the rule that refused it, or what ended it."""

    title, parameter_name = "rule", "rule"

    def values(self) -> Sequence[str]:
        return (
            *("not_registered", "not_in_ceiling", "not_enabled", "not_for_agent"),
            *(f"permission_ceiling:{permission}" for permission in Permission),
            *(f"permission:{permission}" for permission in GRANTABLE),
            *("input_size", "arguments", "limit:tool_rounds", "limit:time", "limit:tokens"),
            *("raised", "timeout", "crashed", "interrupted", "output", "unavailable"),
            *("cancelled", "deleted", "turn_time", "turn_ended"),
        )


@admin.register(ToolCall)
class ToolCallAdmin(GrowingAdmin):
    """Every call that was asked for, refused ones included. Kept when its conversation is deleted."""

    list_display = ["created_at", "tool_name", "status", "rule", "agent", "duration_ms", "result_begins", "turn_id"]
    list_filter = ["created_at", "status", ToolFilter, RuleFilter]
    search_fields = ["id", "turn_id", "conversation_id", "tool_name"]
    search_help_text = "An id (or its beginning) of a call, turn or conversation; a tool's name."
    fieldsets = [
        (None, {"fields": ["id", "tool_name", "status", "rule", "arguments", "result"]}),
        ("Belongs to", {"fields": ["turn_id", "conversation_id", "agent", "request_id", "call_id", "position"]}),
        ("Time", {"fields": ["created_at", "started_at", "ended_at", "duration_ms"]}),
        (
            "How it is run",
            {"fields": ["effects", "worker", "attempts", "fence", "lease_until", "rung_at", "arguments_hash"]},
        ),
    ]

    @admin.display(description="result")
    def result_begins(self, call: ToolCall) -> str:
        return excerpt(call.result)
