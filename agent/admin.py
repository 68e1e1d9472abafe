"""Agents in the admin: who answers, with which model, within which limits, with which tools."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from agent.models import DEFAULT_AGENT, Agent
from nanohost.lib.admin import ModelAdmin
from tools import registry


class AgentForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """Tools as checkboxes."""

    tools = forms.MultipleChoiceField(
        widget=forms.CheckboxSelectMultiple,
        required=False,
        help_text="Those it may use, unless it may use every tool. Each must be enabled, too.",
    )

    class Meta:
        model = Agent
        fields = [
            "name",
            "system_prompt",
            "model",
            "every_tool",
            "tools",
            "max_tool_rounds",
            "max_turn_tokens",
        ]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        gone = sorted(set(self.instance.tools) - set(registry.names()))
        choices = [(name, name) for name in registry.names()]
        choices += [(name, f"{name} (no code registers it any more)") for name in gone]
        field = self.fields["tools"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = choices


@admin.register(Agent)
class AgentAdmin(ModelAdmin):
    """A change counts from the next time on that a worker takes a turn: one that runs ends as it was begun."""

    form = AgentForm
    list_display = ["name", "model_asked", "tools_allowed", "max_tool_rounds", "max_turn_tokens", "updated_at"]
    search_fields = ["name", "system_prompt"]
    fieldsets = [
        (None, {"fields": ["name", "system_prompt", "model"]}),
        ("Tools", {"fields": ["every_tool", "tools"]}),
        ("Limits of a turn", {"fields": ["max_tool_rounds", "max_turn_tokens"]}),
        ("Time", {"fields": ["created_at", "updated_at"]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Agent | None = None) -> list[str]:
        # Clients and the audit of tool calls know an agent by its name.
        return ["created_at", "updated_at", *(["name"] if obj else [])]

    def has_delete_permission(self, request: HttpRequest, obj: Agent | None = None) -> bool:
        if obj and obj.name == DEFAULT_AGENT:
            return False  # conversations start with it where none is named
        return super().has_delete_permission(request, obj)

    @admin.display(description="model", empty_value="LLM_MODEL_DEFAULT")
    def model_asked(self, agent: Agent) -> str | None:
        return agent.model or None

    @admin.display(description="tools")
    def tools_allowed(self, agent: Agent) -> str:
        return "every enabled tool" if agent.every_tool else ", ".join(agent.tools) or "none"
