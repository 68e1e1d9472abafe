"""Agent profiles: who answers, with which model, within which limits, with which tools."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from tools.gate import AgentTools

DEFAULT_AGENT = "default"


def validate_tool_names(names: Any) -> None:
    """The allow list is a list of names."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValidationError('A list of tool names is needed, such as ["time"].')


class Agent(models.Model):
    """An agent profile. Conversations keep the agent they were started with."""

    name = models.SlugField(max_length=64, unique=True, help_text="What the API calls it.")
    system_prompt = models.TextField(blank=True, help_text="What the model is told before every conversation.")
    model = models.CharField(max_length=128, blank=True, help_text="Empty: LLM_MODEL_DEFAULT.")
    every_tool = models.BooleanField(default=False, help_text="May use every tool that is enabled.")
    tools = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_tool_names],
        help_text="Otherwise, the names of those it may use.",
    )
    max_tool_rounds = models.PositiveIntegerField(
        null=True, blank=True, help_text="Rounds of tool calls in one turn. Empty: AGENT_MAX_TOOL_ROUNDS."
    )
    max_turn_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="Tokens one turn may use, prompts and answers together. Empty: no limit."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def allowed_tools(self) -> AgentTools:
        """The allow list as the gate takes it."""
        return AgentTools(names=None if self.every_tool else frozenset(self.tools))
