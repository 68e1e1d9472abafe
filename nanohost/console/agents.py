"""All about an agent on one page: what it is and was, may use, remembers, did last, and when it is spoken to."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Length
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminTextInputWidget

from agent.admin import AgentAdmin, AgentsToolAdmin, as_text
from agent.models import DOCUMENTS, Agent, AgentVersion, Taint
from conversations.engine import inbox, outgoing
from conversations.models import Conversation, Turn
from memory.models import Memory
from nanohost.accounts import holds
from nanohost.console import holding, known_models
from nanohost.lib.admin import diff, shown
from nanohost.lib.text import duration
from scheduler.models import Schedule
from tools import gate
from tools.models import ToolSetting

# Of each kind, so many are listed; among the latest turns of all agents, so many are looked at.
MOST, MAX_VERSIONS, LATEST_TURNS = 20, 50, 500

READERS = [
    *("agent.view_agent", "agent.view_agentversion", "memory.view_memory", "tools.view_toolsetting"),
    *("scheduler.view_schedule", "conversations.view_turn", "conversations.view_conversation"),
]

# What is shown of the profile, by the names it has there, and what stands in for what is empty.
_LIMITS: dict[str, tuple[str, Callable[[], str]]] = {
    "memory_window": (
        "Messages that every prompt has",
        lambda: f"MEMORY_WINDOW, {settings.MEMORY_WINDOW}, and a summary past {settings.MEMORY_COMPACT_AFTER}",
    ),
    "context_window": ("Context window, in tokens", lambda: f"LLM_CONTEXT_WINDOW, {settings.LLM_CONTEXT_WINDOW}"),
    "output_reserve": ("of which kept for the answer", lambda: f"LLM_OUTPUT_RESERVE, {settings.LLM_OUTPUT_RESERVE}"),
    "max_tool_rounds": ("Tool rounds a turn", lambda: f"AGENT_MAX_TOOL_ROUNDS, {settings.AGENT_MAX_TOOL_ROUNDS}"),
    "max_turn_tokens": ("Tokens a turn", lambda: "no limit"),
    "heartbeat_minutes": ("Minutes between check-ins", lambda: f"HEARTBEAT_MINUTES, {settings.HEARTBEAT_MINUTES}"),
}


class Suggesting(UnfoldAdminTextInputWidget):
    """A line of text with a list to choose from: each with what is said of it."""

    def __init__(self, suggested: list[tuple[str, str]]) -> None:
        super().__init__(attrs={"list": "suggested", "autocomplete": "off"})
        self._suggested = suggested

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        options = format_html_join("", '<option value="{}">{}</option>', self._suggested)
        written = super().render(name, value, attrs, renderer)
        return format_html('{}<datalist id="suggested">{}</datalist>', written, options)


admin.site.unregister(Agent)
# Nor does the simulator know conversations.
admin.site.unregister(ToolSetting)


@admin.register(ToolSetting)
class WholeToolAdmin(AgentsToolAdmin):
    """The tools' pages, with a simulator that knows what has entered a conversation."""

    def tainted_by(self, conversation_id: UUID) -> str:
        found = Conversation.objects.filter(pk=conversation_id).values_list("tainted_by", flat=True)
        return found.first() or ""

    def destinations(self, agent: Agent) -> list[str]:
        return outgoing.names(agent)


@admin.register(Agent)
class WholeAgentAdmin(AgentAdmin):
    """The agents' own page knows neither schedules nor turns."""

    list_display = [*AgentAdmin.list_display, "whole"]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.whole_view)
        return [path("<int:pk>/whole/", view, name="agent_agent_whole"), *super().get_urls()]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        if db_field.name == "model":
            options["widget"] = Suggesting(known_models.suggested())
        return super().formfield_for_dbfield(db_field, request, **options)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """With what a legal hold keeps in the way."""
        to_delete, counts, needed, protected = super().get_deleted_objects(objs, request)
        placed = holds.placed()
        held = [f"{agent}: {holds.told(hold)}" for agent in objs for hold in holding.on_agent(agent, placed)]
        return to_delete, counts, set() if held else needed, [*protected, *held]

    def get_fieldsets(self, request: HttpRequest, obj: Agent | None = None) -> Any:
        return [*super().get_fieldsets(request, obj), *([("More", {"fields": ["whole"]})] if obj else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Agent | None = None) -> list[str]:
        return [*super().get_readonly_fields(request, obj), "whole"]

    @admin.display(description="details")
    def whole(self, agent: Agent) -> str:
        return format_html('<a href="{}">View</a>', reverse("admin:agent_agent_whole", args=[agent.pk]))

    def whole_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """All about an agent."""
        if not request.user.has_perms(READERS):
            raise PermissionDenied
        agent = Agent.objects.filter(pk=pk).first()
        if agent is None:
            raise Http404("There is no such agent; perhaps it was deleted.")
        told = {"title": shown(agent.called), "opts": self.opts, "may_change": self.has_change_permission(request)}
        told["may_ask"] = request.user.has_perm("conversations.requeue_turn")
        told |= profile_of(agent) | versions_of(agent, request) | doings_of(agent)
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "console/agent.html", context)


def profile_of(agent: Agent) -> dict[str, Any]:
    """What it is now, and what it may use."""
    limits, profile = [], agent.profile()
    for name, (label, otherwise) in _LIMITS.items():
        value = profile[name]
        limits.append((label, otherwise() if value is None else value))
    documents = [("System prompt", agent.system_prompt or "The host's own.")]
    documents += [(name, agent.documents[name]) for name in DOCUMENTS if agent.documents.get(name)]
    tools = [
        {"name": tool.name, "rule": rule, "simulator": _simulator(agent, tool.name)}
        for tool, rule in gate.survey(agent_tools=replace(agent.allowed_tools(), workspace=gate.ANY_WORKSPACE))
    ]
    gone = [] if agent.every_tool else sorted(set(agent.tools) - {tool["name"] for tool in tools})
    return {
        "agent": agent,
        "model": shown(agent.model) or f"LLM_MODEL_DEFAULT, {settings.LLM_MODEL_DEFAULT}",
        "asked_of": asked_of(agent),
        "fallbacks": [shown(name) for name in agent.fallback_models],
        "effort": agent.get_reasoning_effort_display(),
        "answer_schema": shown(agent.answer_schema),
        "limits": limits,
        "prompt_tokens": agent.prompt_tokens(),
        "taint": agent.get_taint_display(),
        "is_unguarded": agent.taint == Taint.OFF,
        "documents": [(name, shown(text)) for name, text in documents],
        "tools": sorted(tools, key=lambda tool: (tool["rule"] is not None, tool["name"])),
        "gone": [shown(name) for name in gone],
    }


def asked_of(agent: Agent) -> list[str]:
    """Who is asked for its model, and why, as each kind of live worker would choose: only they know the keys."""
    told = known_models.choices(agent.own_model(), agent.provider, known_models.alive())
    return [shown(f"{who}: {why}") for who, why in told]


def _simulator(agent: Agent, tool: str) -> str:
    return f"{reverse('admin:simulator')}?{urlencode({'tool': tool, 'agent': agent.name})}"


def versions_of(agent: Agent, request: HttpRequest) -> dict[str, Any]:
    """Its versions, and the differences between two of them; between the last two, if no others are asked for."""
    versions = list(AgentVersion.objects.filter(agent=agent).defer("profile").order_by("-number")[:MAX_VERSIONS])
    newer = _number(request, "newer") or agent.version
    older = _number(request, "older") or max(newer - 1, 0)
    asked = AgentVersion.objects.filter(agent=agent, number__in=(older, newer))
    profiles = dict(asked.values_list("number", "profile"))
    told: dict[str, Any] = {"versions": versions, "older": older, "newer": newer}
    if newer in profiles and (older in profiles or not older):
        before = as_text(profiles[older]) if older else ""
        told["differences"] = diff(before, as_text(profiles[newer]))
    return told


def _number(request: HttpRequest, name: str) -> int:
    given = request.GET.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0


def doings_of(agent: Agent) -> dict[str, Any]:
    """What it remembers of whom, when it is spoken to by the clock, and what it did last."""
    memories = Memory.objects.filter(agent=agent.name).select_related("owner").defer("content", "notes")
    schedules = Schedule.objects.filter(agent=agent, cancelled_at=None).select_related("owner")
    turns = _latest_turns(agent)
    again = inbox.asked_again(turns)
    numbers = dict(AgentVersion.objects.filter(agent=agent).values_list("number", "pk").order_by("-number")[:1000])
    return {
        "memories": memories.annotate(chars=Length("content")).order_by("-updated_at")[:MOST],
        "schedules": schedules.order_by("-active", "-pk")[:MOST],
        "turns": [
            {
                "row": turn,
                "owner": shown(turn.owner.get_username()),
                "model": shown(turn.model),
                "took": duration(turn.run_seconds),
                "version": numbers.get(turn.agent_version or 0),
                "again": again.get(turn.pk),
                "may_be_asked_again": inbox.may_be_asked_again(turn, again),
            }
            for turn in turns
        ],
        "latest_turns": LATEST_TURNS,
        "most": MOST,
    }


def _latest_turns(agent: Agent) -> list[Turn]:
    """One after the other: asked for all at once, PostgreSQL would read every turn there is of an agent with few."""
    latest = dict(Turn.objects.order_by("-created_at").values_list("pk", "conversation_id")[:LATEST_TURNS])
    own = Conversation.objects.filter(pk__in=set(latest.values()), agent=agent).values_list("pk", flat=True)
    mine = set(own)
    chosen = [pk for pk, conversation_id in latest.items() if conversation_id in mine][:MOST]
    found = Turn.objects.filter(pk__in=chosen).defer("sent").prefetch_related("owner")
    return sorted(found, key=lambda turn: turn.created_at, reverse=True)
