"""The files of workspaces that are tools, or could be."""

from django.conf import settings
from django.db import models
from django.db.models import F


class CustomToolQuerySet(models.QuerySet["CustomTool"]):
    """Look-ups that say what they mean."""

    def waiting(self) -> "CustomToolQuerySet":
        """Those that could be tools, and that nobody has seen as they are."""
        return self.filter(gone=False, unfit="").exclude(seen_hash=F("hash"))

    def seen(self) -> "CustomToolQuerySet":
        """Those that somebody has seen as they are."""
        return self.filter(gone=False, unfit="", seen_hash=F("hash"))


class CustomTool(models.Model):
    """A file in the folder ``tools/`` of a workspace. It may be used there while it is what somebody has seen."""

    workspace = models.CharField(max_length=100, help_text="Where it stands: the agent and the owner.")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.CASCADE,
        related_name="+",
        help_text="Whose the workspace is. Empty: it is shared.",
    )
    file = models.CharField(max_length=255, help_text="Its name in that folder.")
    full_name = models.CharField(max_length=64, unique=True, help_text="As models know it, and as it is enabled.")
    source = models.TextField(blank=True, help_text="What stands in it.")
    description = models.TextField(blank=True, help_text="What it says that it does.")
    schema = models.JSONField(default=dict, help_text="JSON Schema of its arguments.")
    flagged = models.JSONField(default=list, help_text="What the scan found that a person should look at.")
    unfit = models.CharField(max_length=500, blank=True, help_text="Why it cannot be a tool.")
    hash = models.CharField(max_length=64, blank=True, help_text="SHA-256 of its content.")
    seen_hash = models.CharField(max_length=64, blank=True, default="", help_text="The hash that somebody has seen.")
    seen_source = models.TextField(blank=True, default="", help_text="What somebody has seen.")
    seen_by = models.CharField(max_length=200, blank=True, default="", help_text="Who has seen it.")
    seen_at = models.DateTimeField(null=True, blank=True, help_text="When.")
    changed_at = models.DateTimeField(null=True, blank=True, help_text="When it was found changed last.")
    gone = models.BooleanField(default=False, help_text="Whether the file is not there any more.")

    objects = CustomToolQuerySet.as_manager()

    class Meta:
        ordering = ["full_name"]
        verbose_name = "custom tool"
        constraints = [models.UniqueConstraint(fields=["workspace", "file"], name="one_custom_tool_a_file")]

    def __str__(self) -> str:
        return self.full_name

    @property
    def is_seen(self) -> bool:
        """Whether somebody has seen it as it is."""
        return bool(self.seen_hash) and self.seen_hash == self.hash

    @property
    def state(self) -> str:
        """What people have seen of it, in a few words."""
        if self.gone:
            return "gone"
        if self.unfit:
            return "cannot be a tool"
        if self.is_seen:
            return "seen"
        return "changed since it was seen" if self.seen_hash else "new"
