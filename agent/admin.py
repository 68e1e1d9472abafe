"""Agents in the admin: who answers, with which model, within which limits, with which tools."""

import json
from collections.abc import Collection
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
)

from agent import files, simulator, skills
from agent.llm.providers import PROVIDERS
from agent.models import (
    DEFAULT_AGENT,
    DOCUMENTS,
    FILES,
    MAX_DOCUMENT_CHARS,
    MAX_RETENTION_DAYS,
    PROMPT_DOCUMENTS,
    RETAINED,
    Agent,
    AgentVersion,
    ProviderOutage,
    Taint,
    VersionState,
    validate_answer_schema,
    validate_fallbacks,
)
from agent.spending import admin as spending_admin  # noqa: F401 -- which registers pages as well
from nanohost.lib.admin import Lines, ModelAdmin, ReadOnlyAdmin, diff, link_to, link_to_list
from tools import registry
from tools.admin import ToolSettingAdmin
from tools.models import ToolSetting
from tools.registry import ORIGIN


def _document(name: str, help_text: str) -> forms.CharField:
    box = UnfoldAdminTextareaWidget(attrs={"rows": 8})
    return forms.CharField(
        label=name, required=False, strip=False, max_length=MAX_DOCUMENT_CHARS, widget=box, help_text=help_text
    )


def _days(label: str, help_text: str) -> forms.IntegerField:
    return forms.IntegerField(
        label=label,
        required=False,
        min_value=1,
        max_value=MAX_RETENTION_DAYS,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text=f"{help_text} In days. Empty: for ever.",
    )


class AgentForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """Tools as checkboxes, documents as texts."""

    tools = forms.MultipleChoiceField(
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        required=False,
        help_text="Those it may use, unless it may use every tool. Each must be enabled, too.",
    )

    provider = forms.ChoiceField(
        required=False,
        choices=[("", "as the model's name says"), *((name, name) for name in PROVIDERS)],
        widget=UnfoldAdminSelectWidget,
        help_text="The provider of its models. docs/models.md explains how one is chosen.",
    )
    fallback_models = Lines(
        required=False,
        validators=[validate_fallbacks],
        help_text="Models that replace it, one per line, in order, while it fails or a prompt is too long for it.",
    )

    written_documents = forms.MultipleChoiceField(
        label="documents its tools may change",
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        required=False,
        choices=[(name, name) for name in FILES],
        help_text="As files of its workspace, such as USER.md, in untainted conversations of its check-in owner. All"
        " its prompts have them, whoever it works for.",
    )

    answer_schema = forms.CharField(
        required=False,
        strip=True,
        validators=[validate_answer_schema],
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8}),
        help_text="A JSON Schema that its answers have to fit, which are JSON then. Empty: they are text. "
        "docs/models.md tells what becomes of one that does not.",
    )

    document_agents = _document("AGENTS", "How it is to work.")
    document_soul = _document("SOUL", "Who it is: its character, and how it speaks.")
    document_user = _document("USER", "Whom it works for.")
    document_tools = _document("TOOLS", "How its tools are to be used.")
    document_identity = _document("IDENTITY", "What else it is to know of itself.")
    document_heartbeat = _document(
        "HEARTBEAT",
        "What it does on its own, such as a list of tasks. Headings, comments and ticked boxes are ignored.",
    )

    keep_messages = _days(
        "Messages",
        "Messages and their summaries. They are also deleted while a conversation continues; later prompts lack them.",
    )
    keep_sent = _days(
        "Prompts sent", "The records of what models were sent, and replaced versions of the agent itself."
    )
    keep_results = _days("Tool results", "Arguments and results of tool calls. The names of the tools are kept.")
    keep_memory = _days("Memory", "Replaced versions of the long-term memory, and notes. The current version is kept.")
    keep_history = _days("History log", "What happened, as the agent finds it with its tool recall.")

    class Meta:
        model = Agent
        fields = [
            "name",
            "display_name",
            "system_prompt",
            "model",
            "provider",
            "fallback_models",
            "reasoning_effort",
            "answer_schema",
            "temperature",
            "memory_window",
            "context_window",
            "output_reserve",
            "every_tool",
            "tools",
            "approvals",
            "max_tool_rounds",
            "max_turn_tokens",
            "taint",
            "may_reschedule",
            "is_evaluated_first",
            "written_documents",
            "check_in_owner",
            "check_in_minutes",
            "check_in_deliver_to",
        ]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        known = [tool.name for tool in registry.everything()]
        gone = sorted(set(self.instance.tools) - set(known))
        choices = [(name, name) for name in known]
        choices += [(name, f"{name} (no longer registered by any code)") for name in gone]
        if "taint" in self.fields:  # whoever may only look has no field of it
            self.fields["taint"].required = False
        field = self.fields["tools"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = choices
        for name in DOCUMENTS:
            self.fields[_field_of(name)].initial = self.instance.documents.get(name, "")
        for name in RETAINED:
            self.fields[_days_of(name)].initial = self.instance.retention.get(name)

    def clean_taint(self) -> str:
        """What it was, if the form does not say."""
        given: str = self.cleaned_data["taint"]
        return given or self.instance.taint

    def clean(self) -> dict[str, Any] | None:
        """Refuse what was written over a version that is not the latest any more: the page holds all of the agent, and
        would undo what somebody else, or the agent itself, has changed meanwhile."""
        seen = self.data.get("seen_version")
        if seen and self.instance.pk:
            latest = Agent.objects.select_for_update().values_list("version", flat=True).get(pk=self.instance.pk)
            if seen != str(latest):
                raise forms.ValidationError(
                    f"Nothing was saved: there is a version {latest} since you opened this page. Versions"
                    " shows the changes; if you save now, the values of this page replace them."
                )
        return super().clean()

    def save(self, commit: bool = True) -> Agent:
        texts = {name: self.cleaned_data[_field_of(name)] for name in DOCUMENTS}
        self.instance.documents = {name: text for name, text in texts.items() if text.strip()}
        days = {name: self.cleaned_data[_days_of(name)] for name in RETAINED}
        self.instance.retention = {name: number for name, number in days.items() if number}
        agent: Agent = super().save(commit)
        return agent


def _field_of(document: str) -> str:
    return f"document_{document.lower()}"


def _days_of(retained: str) -> str:
    return f"keep_{retained}"


@admin.register(Agent)
class AgentAdmin(ModelAdmin):
    """A change counts from the next time on that a worker takes a turn: one that runs ends as it was begun."""

    form = AgentForm
    list_display = [
        "name",
        "display_name",
        "version",
        "model_asked",
        "tools_allowed",
    ]
    list_display += ["taint", "updated_at"]
    list_filter = ["taint"]
    list_before_template = "admin/agent/unguarded.html"
    change_form_before_template = "admin/agent/seen_version.html"
    search_fields = ["name"]
    search_fields_of_editors = ["display_name", "system_prompt"]
    labels: ClassVar = {"may_reschedule": "allow scheduling from scheduled turns"}
    fieldsets = [
        (None, {"fields": ["name", "display_name", "system_prompt"]}),
        (
            "Model",
            {
                "fields": [
                    *("model", "provider", "fallback_models"),
                    *("reasoning_effort", "temperature", "answer_schema"),
                ]
            },
        ),
        ("Prompt documents", {"fields": [_field_of(name) for name in PROMPT_DOCUMENTS]}),
        ("Check-ins", {"fields": ["document_heartbeat", "check_in_owner", "check_in_minutes", "check_in_deliver_to"]}),
        ("Tools", {"fields": ["every_tool", "tools", "approvals", "taint", "may_reschedule", "written_documents"]}),
        (
            "Limits",
            {"fields": ["max_tool_rounds", "max_turn_tokens", "memory_window", "context_window", "output_reserve"]},
        ),
        ("Retention", {"fields": [_days_of(name) for name in RETAINED]}),
        ("Files", {"fields": ["workspaces"]}),
        ("Versions", {"fields": ["is_evaluated_first", "version", "versions", "created_at", "updated_at"]}),
    ]

    def get_urls(self) -> list[Any]:
        return [*files.urls(), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        unguarded = list(Agent.objects.filter(taint=Taint.OFF).values("pk", "name"))
        return super().changelist_view(request, {"unguarded": unguarded, **(extra_context or {})})

    def get_readonly_fields(self, request: HttpRequest, obj: Agent | None = None) -> list[str]:
        # Clients and the audit of tool calls know an agent by its name.
        return ["version", "versions", "workspaces", "created_at", "updated_at", *(["name"] if obj else [])]

    def save_model(self, request: HttpRequest, obj: Agent, form: Any, change: bool) -> None:
        by = request.user.get_username()
        # Whoever switches that off has said that it is not to wait.
        if change and obj.is_evaluated_first and Agent.objects.filter(pk=obj.pk, is_evaluated_first=True).exists():
            if version := obj.propose_version(by=by):
                link = link_to("agent_agentversion", version.pk, f"Version {version.number}")
                messages.info(request, format_html("{} waits for its evaluation; it is not live yet.", link))
            return
        obj.save_version(by=by)

    def delete_model(self, request: HttpRequest, obj: Agent) -> None:
        obj.remove()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Agent]) -> None:
        for agent in queryset:
            agent.remove()

    def name_of(self, row: Agent) -> str:
        """What people call it."""
        return row.called

    @admin.display(description="earlier versions")
    def versions(self, agent: Agent) -> str:
        return link_to_list("agent_agentversion", "View all versions", agent=agent.pk) if agent.pk else "–"

    def has_delete_permission(self, request: HttpRequest, obj: Agent | None = None) -> bool:
        if obj and obj.name == DEFAULT_AGENT:
            return False  # conversations start with it where none is named
        return super().has_delete_permission(request, obj)

    @admin.display(description="its owners' files")
    def workspaces(self, agent: Agent) -> str:
        address = reverse("admin:agent_agent_files", args=[agent.pk]) if agent.pk else ""
        return format_html('<a href="{}">View files</a>', address) if address else "–"

    @admin.display(description="model")
    def model_asked(self, agent: Agent) -> str:
        return agent.model or f"{settings.LLM_MODEL_DEFAULT} (LLM_MODEL_DEFAULT)"

    @admin.display(description="tools")
    def tools_allowed(self, agent: Agent) -> str:
        return "every enabled tool" if agent.every_tool else ", ".join(agent.tools) or "none"


# The tools' own page knows no agents.
admin.site.unregister(ToolSetting)


@admin.register(ToolSetting)
class AgentsToolAdmin(ToolSettingAdmin):
    """The tools' page, with the agents that may use each, and the simulator."""

    readonly_fields = [*ToolSettingAdmin.readonly_fields, "simulator", "agents"]
    fieldsets = [
        *ToolSettingAdmin.fieldsets[:1],
        ("Who may use it", {"fields": ["agents", "simulator"]}),
        *ToolSettingAdmin.fieldsets[1:],
    ]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.simulator_view)
        return [path("simulate/", view, name="simulator"), *skills.urls(), *super().get_urls()]

    def simulator_view(self, request: HttpRequest) -> HttpResponse:
        """Would a call run, and which rule decides?"""
        if not request.user.has_perms(["tools.view_toolsetting", "agent.view_agent"]):
            raise PermissionDenied
        told = self.admin_site.each_context(request) | {"title": "Simulator", "opts": self.opts}
        said = simulator.context(request, tainted_by=self.tainted_by, destinations=self.destinations)
        return TemplateResponse(request, "admin/agent/simulator.html", told | said)

    def tainted_by(self, conversation_id: UUID) -> str:
        """What has tainted a conversation, if anything has: who knows conversations says so."""
        return ""

    def destinations(self, agent: Agent) -> Collection[str]:
        """Where an agent may write, by name: who knows channels says so."""
        return (ORIGIN,)

    @admin.display(description="simulator")
    def simulator(self, setting: ToolSetting) -> str:
        address = f"{reverse('admin:simulator')}?{urlencode({'tool': setting.name})}"
        return format_html('<a href="{}">Would a call run, and which rule decides?</a>', address)

    @admin.display(description="agents")
    def agents(self, setting: ToolSetting) -> str:
        """Whoever owns a conversation with one of these."""
        may = [each for each in Agent.objects.order_by("name") if each.allowed_tools().include(setting.name)]
        links = ((link_to("agent_agent", each.pk, each.name),) for each in may)
        return format_html("{} (for all owners of conversations)", format_html_join(", ", "{}", links) or "none")


@admin.register(AgentVersion)
class AgentVersionAdmin(ReadOnlyAdmin):
    """What an agent was from one change to the next."""

    list_display = ["agent", "number", "state", "created_at", "made_by", "changed"]
    list_filter = ["agent", "state"]
    list_select_related = ["agent"]
    fields = ["agent", "number", "state", "why", "created_at", "made_by", "differences"]
    readonly_fields = ["differences"]
    actions = ["go_back"]

    @admin.action(description="Restore the selected version of the agent", permissions=["restore"])
    def go_back(self, request: HttpRequest, queryset: QuerySet[AgentVersion]) -> None:
        chosen = list(queryset.select_related("agent")[:2])
        if len(chosen) != 1:
            messages.error(request, "Nothing was done: choose one version.")
            return
        (version,) = chosen
        if version.state in (VersionState.PENDING, VersionState.REFUSED):
            messages.error(request, f"Nothing was done: version {version.number} is {version.state}.")
            return
        version.agent.take_over(version, by=request.user.get_username())
        messages.success(request, f"{version.agent.name} is as it is in version {version.number}, as a new version.")

    def has_restore_permission(self, request: HttpRequest) -> bool:
        """Whoever may change agents: it is a change like any other."""
        return request.user.has_perm("agent.change_agent")

    @admin.display(description="differences to the version before")
    def differences(self, version: AgentVersion) -> str:
        return diff(as_text(version.before()), as_text(version.profile))


@admin.register(ProviderOutage)
class ProviderOutageAdmin(ReadOnlyAdmin):
    """Providers that failed for several turns in a row, and are or were left alone for a while."""

    nothing_yet = "A provider that fails for several turns in a row appears here; it is tried again later."
    list_display = ["provider", "stands", "since", "until", "ended_at", "code", "times"]
    fields = ["provider", "stands", "since", "until", "ended_at", "code", "times"]
    readonly_fields = ["stands"]

    @admin.display(description="now")
    def stands(self, outage: ProviderOutage) -> str:
        if outage.until is None:
            return "working"
        return "paused" if outage.until > timezone.now() else "asked again"


def as_text(profile: dict[str, Any]) -> str:
    """A profile as lines: its documents as they are, the rest as JSON."""
    lines = [
        f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in profile.items() if name != "documents"
    ]
    for name, text in profile.get("documents", {}).items():
        lines += ["", f"## {name}", *text.splitlines()]
    return "\n".join(lines)
