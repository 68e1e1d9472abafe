"""What tools have in common that are refused until somebody has seen them as they are: of MCP servers, and of
workspaces. Their pages: :mod:`tools.seeing`."""

from typing import Self, TypeVar

from django.db import models
from django.db.models import F

_Tool = TypeVar("_Tool", bound="SeenTool")


class SeenToolQuerySet(models.QuerySet[_Tool]):
    """Look-ups that say what they mean."""

    def there(self) -> Self:
        """Those that could be used."""
        return self.filter(gone=False)

    def seen(self) -> Self:
        """Those that somebody has seen as they are."""
        return self.there().filter(seen_hash=F("hash"))

    def waiting(self) -> Self:
        """Those that nobody has seen as they are, the changed ones among them."""
        return self.there().exclude(seen_hash=F("hash"))

    def changed(self) -> Self:
        """Those that somebody has seen, and that are something else by now."""
        return self.waiting().exclude(seen_hash="")


class SeenTool(models.Model):
    """A tool that may be used while it is what somebody has seen."""

    full_name = models.CharField(
        max_length=64, unique=True, help_text="The name that models use, and under which it is enabled."
    )
    description = models.TextField(blank=True, help_text="Description from its source.")
    schema = models.JSONField(default=dict, help_text="JSON Schema of its arguments.")
    hash = models.CharField(max_length=64, blank=True, help_text="SHA-256 of the content that has to be reviewed.")
    seen_hash = models.CharField(max_length=64, blank=True, default="", help_text="The hash of the reviewed content.")
    seen_by = models.CharField(max_length=200, blank=True, default="", help_text="Who reviewed it.")
    seen_at = models.DateTimeField(null=True, blank=True, help_text="When.")
    changed_at = models.DateTimeField(null=True, blank=True, help_text="When a change was last found.")
    gone = models.BooleanField(default=False, help_text="Whether it no longer exists at its source.")

    class Meta:
        abstract = True

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
        if self.is_seen:
            return "seen"
        return "changed since it was seen" if self.seen_hash else "new"
