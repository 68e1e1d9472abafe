"""Tools in the admin: which may run, with which permissions and limits; who changed that; every call asked for."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms.models import construct_instance
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path, reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from nanohost.accounts.exporting import ExportedAdmin
from nanohost.lib.admin import TOGGLE, GrowingAdmin, KnownValues, ModelAdmin, excerpt, link_to_list, table
from nanohost.lib.moments import when
from tools import gate, registry
from tools.changes import FIELDS, changing
from tools.custom import admin as custom_admin  # noqa: F401 -- which registers a page
from tools.errors import UnknownTool
from tools.gate import AgentTools
from tools.mcp import admin as mcp_admin  # noqa: F401 -- which registers pages as well
from tools.models import SettingChange, ToolCall, ToolSetting
from tools.permissions import Permission, grantable
from tools.requirements import KNOWN

# The latest changes that a tool's own page shows.
MAX_CHANGES = 10

EFFECTS = {
    "read": "reads only",
    "write": "has side effects: is never run twice for one call",
    "rows": "changes rows of this database only: together with the outcome of its call, or not at all",
}


class ToolSettingForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """Grants as checkboxes; caps within the environment's."""

    grants = forms.MultipleChoiceField(
        choices=lambda: [(str(each), str(each)) for each in grantable()],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        required=False,
        help_text="Each permission the tool needs must be granted. The settings' PERMISSIONS_GRANTED is the ceiling.",
    )

    class Meta:
        model = ToolSetting
        fields = FIELDS

    def clean_max_input_bytes(self) -> int | None:
        return self._within("max_input_bytes", "TOOL_MAX_INPUT_BYTES", settings.TOOL_MAX_INPUT_BYTES)

    def clean_max_output_bytes(self) -> int | None:
        return self._within("max_output_bytes", "TOOL_MAX_OUTPUT_BYTES", settings.TOOL_MAX_OUTPUT_BYTES)

    def _within(self, field: str, ceiling: str, most: int) -> int | None:
        """The cap; one that was set before the ceiling was lowered stays, and keeps nobody from changing the rest."""
        cap: int | None = self.cleaned_data[field]
        if cap is not None and cap > most and field in self.changed_data:
            raise forms.ValidationError(f"{ceiling}, the ceiling, is {most} bytes.")
        return cap


@admin.register(ToolSetting)
class ToolSettingAdmin(ModelAdmin):
    """Which tools may run, and within which limits. A change counts from the next decision of the gate on: at once."""

    form = ToolSettingForm
    list_display = ["name", "in_code", "enabled", "state", "needs", "granted", "approval", "effects", "limits"]
    list_filter = ["enabled"]
    search_fields = ["name"]
    readonly_fields = ["name", "description", "state", "needs", "ceiling", "effects", "defined_in", "takes", "schema"]
    readonly_fields += ["limits", "log", "calls", "updated_at"]
    fieldsets: ClassVar[Any] = [
        (None, {"fields": ["name", "description", "state", "enabled", "grants", "needs", "ceiling", "effects"]}),
        ("Consent", {"fields": ["approval", "four_eyes"]}),
        ("Arguments", {"fields": ["takes", "schema", "defined_in"]}),
        ("Limits", {"fields": ["limits", *FIELDS[2:-2]]}),
        ("History", {"fields": ["calls", "log", "updated_at"]}),
    ]
    actions = ["enable", "disable"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # tools are registered in code

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    change_form_outer_before_template = "admin/tools/grants.html"
    list_before_template = "admin/tools/grants.html"

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(require_POST(self.grant_view))
        return [path("<int:pk>/grant/", view, name="tool_grant"), *super().get_urls()]

    def grant_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Grant a tool what it needs and has not got, as far as the settings' ceiling goes."""
        setting = ToolSetting.objects.filter(pk=pk).first()
        if setting is None:
            raise Http404("There is no such tool.")
        if not self.has_change_permission(request, setting):
            raise PermissionDenied
        with changing(setting.name, by=request.user.get_username()) as changed:
            granted = lacking(changed)
            changed.grants = [*changed.grants, *granted]
        if granted:
            self.log_change(request, changed, f"Granted {', '.join(granted)}.")
        told = f"{setting.name} is granted {', '.join(granted)}." if granted else f"{setting.name} lacks no grant."
        self.message_user(request, told, messages.SUCCESS)
        return redirect("../change/")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return super().changelist_view(
            request, {**self._lacking(request, ToolSetting.objects.order_by("name")), **(extra_context or {})}
        )

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        setting = self.get_object(request, unquote(object_id)) if object_id else None
        lack = self._lacking(request, [setting] if setting else [])
        return super().changeform_view(request, object_id, form_url, {**lack, **(extra_context or {})})

    def _lacking(self, request: HttpRequest, among: Iterable[ToolSetting]) -> dict[str, Any]:
        """Of these tools, those that are enabled in vain, with what each lacks."""
        lack = [
            {"name": each.name, "grants": granted, "address": reverse("admin:tool_grant", args=[each.pk])}
            for each in among
            if each.enabled and (granted := lacking(each))
        ]
        return {"lacking": lack, "may_grant": self.has_change_permission(request)}

    @admin.display(description="may it run?")
    def state(self, setting: ToolSetting) -> str:
        """Whether the gate lets it run for an agent that may use every tool."""
        try:
            gate.admit(
                setting.name,
                agent_tools=AgentTools(names=None, workspace=gate.ANY_WORKSPACE),
                decided={setting.name: setting},
            )
        except gate.Refused as refusal:
            return f"No, {refusal.rule}: {refusal}"
        return "Yes, for every agent that may use it"

    @admin.display(description="description")
    def description(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        return tool.description if tool else "This tool no longer exists in the code."

    @admin.display(description="needs")
    def needs(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        return ", ".join(tool.permissions) if tool and tool.permissions else "no permission"

    @admin.display(description="in code", boolean=True)
    def in_code(self, setting: ToolSetting) -> bool:
        return _registered(setting) is not None

    @admin.display(description="ceiling of the settings")
    def ceiling(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        allowed = not settings.TOOLS_ALLOWED or setting.name in settings.TOOLS_ALLOWED
        said = [f"TOOLS_ALLOWED {'has it' if allowed else 'leaves it out'}"]
        for permission in tool.permissions if tool else ():
            within = permission in grantable() and permission in settings.PERMISSIONS_GRANTED
            said.append(f"PERMISSIONS_GRANTED {'has' if within else 'leaves out'} {permission}")
        return " · ".join(said)

    @admin.display(description="arguments")
    def takes(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        if tool is None:
            return "–"
        needed = tool.schema.get("required", [])
        cells = (
            (name, _kind_of(each), "yes" if name in needed else "no", each.get("description", ""))
            for name, each in tool.schema.get("properties", {}).items()
        )
        return table(("argument", "kind", "needed", "what it is"), cells) or "none"

    @admin.display(description="JSON Schema")
    def schema(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        return format_html('<pre class="code">{}</pre>', json.dumps(tool.schema, indent=2)) if tool else "–"

    @admin.display(description="calls")
    def calls(self, setting: ToolSetting) -> str:
        return link_to_list("tools_toolcall", "View all calls", tool_name=setting.name)

    @admin.display(description="granted")
    def granted(self, setting: ToolSetting) -> str:
        return ", ".join(setting.grants) or "–"

    @admin.display(description="effects")
    def effects(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        if tool is None:
            return "–"
        return EFFECTS[tool.effects]

    @admin.display(description="limits in effect")
    def limits(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        if tool is None:
            return "–"
        rates = (
            (setting.calls_per_minute_conversation, "conversation"),
            (setting.calls_per_minute_owner, "owner"),
        )
        each = [f"{setting.timeout(tool):g} s", f"{setting.input_bytes()} bytes in, {setting.output_bytes()} out"]
        each += [f"{calls} a minute for one {of}" for calls, of in rates if calls is not None]
        return " · ".join(each)

    @admin.display(description="change log")
    def log(self, setting: ToolSetting) -> str:
        latest = SettingChange.objects.filter(tool_name=setting.name).order_by("-id")[:MAX_CHANGES]
        cells = ((when(each.changed_at), each.changed_by, what_changed(each)) for each in latest)
        every = link_to_list("tools_settingchange", "all changes", tool_name=setting.name)
        return format_html("{} {}", table(("when", "who", "what"), cells), every)

    @admin.display(description="defined in")
    def defined_in(self, setting: ToolSetting) -> str:
        tool = _registered(setting)
        return tool.defined_in if tool else "–"

    @admin.action(description="Enable the selected tools", permissions=[TOGGLE])
    def enable(self, request: HttpRequest, chosen: QuerySet[ToolSetting]) -> None:
        self._set_enabled(request, chosen, True)

    @admin.action(description="Disable the selected tools", permissions=[TOGGLE])
    def disable(self, request: HttpRequest, chosen: QuerySet[ToolSetting]) -> None:
        self._set_enabled(request, chosen, False)

    def save_model(self, request: HttpRequest, obj: ToolSetting, form: Any, change: bool) -> None:
        with changing(obj.name, by=request.user.get_username()) as setting:
            # What the form did not change may have been changed meanwhile.
            construct_instance(form, setting, fields=form.changed_data)
        self._warn(request, setting)

    def _set_enabled(self, request: HttpRequest, chosen: QuerySet[ToolSetting], enabled: bool) -> None:
        for name in chosen.values_list("name", flat=True):
            with changing(name, by=request.user.get_username()) as setting:
                setting.enabled = enabled
            self.log_change(request, setting, "Enabled." if enabled else "Disabled.")
        word = "enabled" if enabled else "disabled"
        self.message_user(request, f"{len(chosen)} tools are {word}.", messages.SUCCESS)
        for setting in chosen.filter(enabled=True):
            self._warn(request, setting)

    def _warn(self, request: HttpRequest, setting: ToolSetting) -> None:
        if setting.enabled and (granted := lacking(setting)):
            told = f"{setting.name} is enabled, and is refused until it is granted {', '.join(granted)}."
            self.message_user(request, told, messages.WARNING)


def lacking(setting: ToolSetting) -> list[str]:
    """The permissions that its tool needs, that it was not granted, and that may be granted to it."""
    tool = _registered(setting)
    needed = [str(each) for each in tool.permissions] if tool else []
    may_be = [each for each in needed if each in grantable() and each in settings.PERMISSIONS_GRANTED]
    return [each for each in may_be if each not in setting.grants]


def _kind_of(schema: dict[str, Any]) -> str:
    """What an argument may be, in a word or two."""
    several = [_kind_of(each) for each in schema.get("anyOf", ())]
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    return " or ".join(several) or str(schema.get("type", "anything"))


def what_changed(change: SettingChange) -> str:
    """Each field, as it was and as it is since."""
    fields = change.before.items()
    return "; ".join(f"{name}: {json.dumps(was)} → {json.dumps(change.after.get(name))}" for name, was in fields)


def _registered(setting: ToolSetting) -> registry.RegisteredTool | None:
    try:
        return registry.get(setting.name)
    except UnknownTool:
        return None


class ToolFilter(KnownValues):
    """By a registered tool; models ask for others, too."""

    title, parameter_name = "tool", "tool_name"

    def values(self) -> list[str]:
        return [tool.name for tool in registry.everything()]


@admin.register(SettingChange)
class SettingChangeAdmin(ExportedAdmin, GrowingAdmin):
    """Who changed what about a tool, and when."""

    nothing_yet = "Who enables, disables or limits a tool is listed here."
    exported = ("changed_at", "tool_name", "changed_by", "before", "after")
    list_display = ["changed_at", "tool_name", "changed_by", "what"]
    list_filter = [ToolFilter]
    search_fields = ["tool_name"]
    search_help_text = "A tool's name."
    fields = ["tool_name", "changed_at", "changed_by", "before", "after"]

    @admin.display(description="what")
    def what(self, change: SettingChange) -> str:
        return what_changed(change)


class RuleFilter(KnownValues):
    """By the rule that refused it, or what ended it."""

    title, parameter_name = "rule", "rule"

    def values(self) -> Sequence[str]:
        return (
            *("not_registered", "not_in_ceiling"),
            *(f"requires:{needed}" for needed in (*KNOWN, "bubblewrap", "sandbox")),
            *("not_enabled", "withheld", "not_for_agent"),
            *(f"permission_ceiling:{permission}" for permission in Permission),
            *(f"permission:{permission}" for permission in Permission),
            *("input_size", "arguments", "denied", "destination", "document", "document:tainted"),
            *("tainted", "rate:conversation", "rate:owner"),
            *("consent:denied", "consent:expired", "consent:missing", "consent:changed"),
            *("limit:tool_rounds", "limit:time", "limit:tokens"),
            *(
                "raised",
                "timeout",
                "crashed",
                "interrupted",
                "output",
                "processes",
                "disk",
                "unavailable",
                "mcp_changed",
                "custom_changed",
            ),
            *("cancelled", "deleted", "turn_time", "turn_ended"),
        )


@admin.register(ToolCall)
class ToolCallAdmin(ExportedAdmin, GrowingAdmin):
    """Every call that was asked for, refused ones included. Kept when its conversation is deleted."""

    nothing_yet = "Every call of a tool that a model asks for appears here, refused ones included."
    exported = (
        *("id", "created_at", "tool_name", "status", "rule", "agent", "owner_id", "conversation_id", "turn_id"),
        *("duration_ms", "arguments", "result"),
    )
    list_display = ["created_at", "tool_name", "status", "rule", "agent", "duration_ms", "result_begins", "turn_id"]
    list_filter = ["created_at", "status", ToolFilter, RuleFilter]
    search_fields = ["id", "turn_id", "conversation_id", "tool_name"]
    search_help_text = "An id (or its beginning) of a call, turn or conversation; a tool's name."
    fieldsets = [
        (None, {"fields": ["id", "tool_name", "status", "rule", "arguments", "result"]}),
        (
            "Related",
            {"fields": ["turn_id", "conversation_id", "owner_id", "agent", "request_id", "call_id", "position"]},
        ),
        ("Time", {"fields": ["created_at", "started_at", "ended_at", "duration_ms"]}),
        (
            "Internals",
            {
                "classes": ["collapse"],
                "fields": ["effects", "worker", "attempts", "fence", "lease_until", "notified_at", "arguments_hash"],
            },
        ),
    ]

    @admin.display(description="result")
    def result_begins(self, call: ToolCall) -> str:
        return excerpt(call.result)
