"""Which calls need a person's consent before they run: by the tool's setting and the agent's, the stricter of both."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

# Of an agent's modes: every tool that it does not name.
EVERY_TOOL = "*"


class Consent(models.TextChoices):
    """When a call needs consent."""

    NEVER = "never", "never"
    TAINTED = "tainted", "when its conversation is tainted"
    ALWAYS = "always", "always"


_STRICTER = {Consent.NEVER: 0, Consent.TAINTED: 1, Consent.ALWAYS: 2}


def mode_of(name: str, *, of_tool: str, of_agent: Mapping[str, str]) -> Consent:
    """When calls of a tool need consent. ``of_tool``: its setting. ``of_agent``: the agent's modes, by tool."""
    wanted = of_agent.get(name) or of_agent.get(EVERY_TOOL) or Consent.NEVER
    return max(Consent(of_tool), Consent(wanted), key=_STRICTER.__getitem__)


def validate_modes(modes: Any) -> None:
    """An agent's modes are ``{"tool": "never | tainted | always"}``."""
    if not isinstance(modes, dict) or not all(isinstance(name, str) and name for name in modes):
        raise ValidationError('Modes by tool are needed, such as {"http_get": "always"}; "*" is every other tool.')
    if unknown := sorted({str(mode) for mode in modes.values()} - set(Consent.values)):
        raise ValidationError(f"There is no mode {unknown[0]!r}; there are {', '.join(Consent.values)}.")
