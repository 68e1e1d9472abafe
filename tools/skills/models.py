"""What people have decided about skills."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import models


def validate_agents(names: Any) -> None:
    """A list of names of agents."""
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        raise ValidationError('Agents are a list of names, such as ["default"].')


class SkillSetting(models.Model):
    """Which agents may use a skill. Without a row, all may, of those that stand in folders of this machine; what is
    uploaded has one, and nobody may at first."""

    name = models.CharField(max_length=64, unique=True, help_text="Name of the skill.")
    agents = models.JSONField(
        default=list, blank=True, validators=[validate_agents], help_text="The agents that may use it, by name."
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        verbose_name = "skill"

    def __str__(self) -> str:
        return self.name

    def said(self) -> dict[str, Any]:
        """What the audit log is told of it."""
        return {"name": self.name, "agents": self.agents}
