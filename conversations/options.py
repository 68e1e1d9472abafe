"""What a turn was asked with besides words: its caller's instructions, tools and parameters. Turns keep it, as JSON.

``/api/v1`` asks with none; ``/v1`` does.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from agent.llm.base import ModelRequest

# What a model has to call, beside the name of one tool.
NONE, REQUIRED = "none", "required"


@dataclass(frozen=True, kw_only=True)
class Options:
    """``instructions``: layered onto the agent's prompt. ``tools``: functions of the caller's own, in the chat format:
    calls of them are for the caller to run. ``tool_choice``: the name of a tool, NONE or REQUIRED, or empty: the
    model's to choose. ``is_named_choice``: it is a tool's name, whatever it is. ``is_plain``: without the host's tools.
    ``parameters``: of each model call, by their names in Chat Completions. ``metadata``: the caller's own. ``brought``:
    how many of the turn's answers came with the request, and are not of this host. ``turn_tokens``: how many tokens the
    turn may use, of a sub-agent's task; 0: as many as its agent says."""

    instructions: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str = ""
    is_named_choice: bool = False
    is_plain: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    brought: int = 0
    turn_tokens: int = 0

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> "Options":
        """Those of a turn; what a newer release has stored besides is left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in (stored or {}).items() if name in known}) if stored else NOTHING

    def as_json(self) -> dict[str, Any]:
        """As a turn keeps them."""
        return {name: value for name, value in asdict(self).items() if value}

    def most_tokens(self, of_agent: int | None) -> int | None:
        """How many tokens the turn may use; None: there is no limit. ``of_agent``: what its agent says."""
        return min((each for each in (self.turn_tokens or None, of_agent) if each is not None), default=None)

    @property
    def offers_none(self) -> bool:
        """Whether no tool is offered, neither the host's nor the caller's."""
        return self.tool_choice == NONE and not self.is_named_choice

    def offered(self) -> list[dict[str, Any]]:
        """The caller's tools, as far as the model is told of them."""
        return [] if self.offers_none else self.tools

    def names(self) -> frozenset[str]:
        """Of the caller's tools."""
        return frozenset(tool["function"]["name"] for tool in self.tools)

    def applied(self, request: ModelRequest, *, is_first: bool) -> dict[str, Any]:
        """What changes in a request. ``is_first``: it is the first since the caller was heard; only that one is made to
        call something, or the model would never come to an end."""
        given = dict(self.parameters)
        changes: dict[str, Any] = {}
        if (most := given.pop("max_tokens", None)) is not None:
            changes["max_tokens"] = most
        if (effort := given.pop("reasoning_effort", None)) is not None:
            changes["effort"] = _EFFORTS.get(effort, effort)
        if (temperature := given.pop("temperature", None)) is not None:
            changes["temperature"] = temperature
        if given:
            changes["parameters"] = given
        if is_first and request.tools:
            if self.is_named_choice:
                changes["tool_choice"] = self.tool_choice
            elif self.tool_choice == REQUIRED:
                changes["must_call"] = True
        return changes


# How much it is to think, of which we have three words.
_EFFORTS = {"none": "", "minimal": "low", "xhigh": "high"}

NOTHING = Options()
