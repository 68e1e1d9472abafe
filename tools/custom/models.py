"""The files of workspaces that are tools, or could be."""

from typing import Self

from django.conf import settings
from django.db import models

from tools.seen_tools import SeenTool, SeenToolQuerySet


class CustomToolQuerySet(SeenToolQuerySet["CustomTool"]):
    """Look-ups that say what they mean."""

    def there(self) -> Self:
        """Those that could be tools."""
        return super().there().filter(unfit="")


class CustomTool(SeenTool):
    """A file in the folder ``tools/`` of a workspace. It may be used there while it is what somebody has seen."""

    workspace = models.CharField(max_length=100, help_text="The agent and owner whose workspace has it.")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.CASCADE,
        related_name="+",
        help_text="The owner of the workspace. Empty: it is shared.",
    )
    file = models.CharField(max_length=255, help_text="Its file name in the workspace.")
    source = models.TextField(blank=True, help_text="The content of the file.")
    flagged = models.JSONField(default=list, help_text="Findings of the scan that a person should review.")
    unfit = models.CharField(max_length=500, blank=True, help_text="Why it cannot be used as a tool.")
    seen_source = models.TextField(blank=True, default="", help_text="The reviewed content.")

    objects = CustomToolQuerySet.as_manager()

    class Meta:
        ordering = ["full_name"]
        verbose_name = "custom tool"
        constraints = [models.UniqueConstraint(fields=["workspace", "file"], name="one_custom_tool_a_file")]

    @property
    def state(self) -> str:
        """What people have seen of it, in a few words."""
        return "cannot be a tool" if self.unfit and not self.gone else super().state
