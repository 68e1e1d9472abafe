"""What an import has stored, in parts, for an export to give it back and for those whose part it is to take it over."""

from typing import Any

from django.db import models


class PartKind(models.TextChoices):
    """Of what a part tells."""

    AGENT = "agent", "the defaults of an agent"
    PROVIDER = "provider", "a provider of models"
    CHANNEL = "channel", "a channel"
    MCP_SERVER = "mcp_server", "an MCP server"
    SETTING = "setting", "other settings"
    UNKNOWN = "unknown", "what nobody here knows"


class ConfigPart(models.Model):
    """A part of a config.json: one channel, one MCP server, one provider.

    Its secrets stand in files: where ``settings`` has null, ``secrets`` may say which file has the value.
    """

    kind = models.CharField(max_length=10, choices=PartKind.choices, help_text="What it configures.")
    name = models.CharField(max_length=200, help_text="Name of the channel, server, provider or agent.")
    enabled = models.BooleanField(
        default=False, help_text="Whether it is in use here. Imported parts are off at first."
    )
    was_enabled = models.BooleanField(default=False, help_text="Whether it was enabled in the imported file.")
    settings = models.JSONField(default=dict, help_text="Its settings in the file, without secrets, in camelCase.")
    secrets = models.JSONField(default=list, help_text="The files that have its secrets: path, file, member.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = "part of nanobot's configuration"
        verbose_name_plural = "parts of nanobot's configuration"
        default_permissions = ()
        ordering = ["kind", "name"]
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="one_part_of_a_kind_and_name")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {self.name}"

    def said(self) -> dict[str, Any]:
        """What the audit log is told of it."""
        return {"settings": self.settings, "secrets": self.secrets, "was_enabled": self.was_enabled}
