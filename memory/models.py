"""What is known (long-term memory) and what happened (the history log), for each agent of each owner.

Agents stand here by their names, and conversations and turns by their ids: what is remembered outlives them.
"""

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

# What is learnt where untrusted text has entered says so.
_TAINT: Any = {"max_length": 255, "blank": True, "default": "", "db_default": ""}


class Memory(models.Model):
    """The head: all that a prompt needs, in one row for an agent and an owner."""

    agent = models.CharField(max_length=64, help_text="Name of the agent.")
    # Without an index of its own, as below: it comes first in another one.
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    version = models.PositiveIntegerField(default=0, help_text="The number of its latest version; 0: there is none.")
    content = models.TextField(blank=True)
    notes_on = models.DateField(null=True, blank=True, help_text="The day the notes are of.")
    notes = models.TextField(blank=True, help_text="That day's notes, one per line; only the latest if there are many.")
    tainted_by = models.CharField(**_TAINT, help_text="The untrusted source of some of the content, if any.")
    notes_tainted_by = models.CharField(**_TAINT, help_text="The untrusted source of some of the notes, if any.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-updated_at"]
        verbose_name_plural = "memory"
        constraints = [models.UniqueConstraint(fields=["owner", "agent"], name="one_memory_an_agent_and_owner")]
        indexes = [models.Index(fields=["-updated_at"], name="memories_by_time")]

    def __str__(self) -> str:
        return f"{self.agent}, of owner {self.owner_id}"


class MemoryVersion(models.Model):
    """One content that a memory had, or would have had if it had not been kept aside. Append-only."""

    class Source(models.TextChoices):
        COMPACTION = "compaction"
        REMEMBER = "remember"
        PERSON = "person"
        API = "api"
        IMPORT = "import"
        RESTORE = "restore"

    agent = models.CharField(max_length=64, help_text="Name of the agent.")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    number = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: it was not applied.")
    content = models.TextField(blank=True)
    base = models.PositiveIntegerField(help_text="The number of the version it was rewritten from.")
    source = models.CharField(max_length=10, choices=Source.choices, help_text="What made it.")
    conversation_id = models.UUIDField(null=True, blank=True)
    turn_id = models.UUIDField(null=True, blank=True)
    first_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The first message it came from.")
    last_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The last message it came from.")
    model = models.CharField(max_length=128, blank=True, help_text="The model that wrote it.")
    made_by = models.CharField(max_length=200, blank=True, help_text="The name of the person who made it.")
    tainted_by = models.CharField(**_TAINT, help_text="The untrusted source of some of it, if any.")
    aside_because = models.TextField(blank=True, help_text="Why it was not applied.")
    settled_at = models.DateTimeField(null=True, blank=True, help_text="When somebody decided whether to apply it.")
    settled_by = models.CharField(max_length=200, blank=True, help_text="The person who decided.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["owner", "agent", "number"], name="one_version_a_number")]
        indexes = [
            models.Index(fields=["owner", "agent", "-id"], name="versions_in_order"),
            # Few are kept aside, and fewer wait for somebody's decision.
            models.Index(fields=["-id"], condition=Q(number=None, settled_at=None), name="versions_to_decide_on"),
        ]

    def __str__(self) -> str:
        return f"{self.agent}, of owner {self.owner_id}, {f'version {self.number}' if self.number else 'kept aside'}"


class HistoryEntry(models.Model):
    """Something that happened. Append-only."""

    class Kind(models.TextChoices):
        ENTRY = "entry"
        # Messages as they were, where no model could be had to tell of them.
        RAW = "raw"
        NOTE = "note"

    agent = models.CharField(max_length=64, help_text="Name of the agent.")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    kind = models.CharField(max_length=5, choices=Kind.choices, help_text="entry, raw messages, or a note of the day.")
    content = models.TextField()
    # Its index is made by hand, in the migration: each database has a kind of its own. See memory.index.
    words = models.TextField(editable=False, help_text="The words it can be found by.")
    conversation_id = models.UUIDField(null=True, blank=True)
    turn_id = models.UUIDField(null=True, blank=True)
    first_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The first message it covers.")
    last_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The last message it covers.")
    model = models.CharField(max_length=128, blank=True, help_text="The model that wrote it.")
    # Null, for otherwise SQLite would make the table anew, without the triggers of its index.
    tainted_by = models.CharField(max_length=255, null=True, blank=True, help_text="Its untrusted source, if any.")
    day = models.DateField(null=True, blank=True, help_text="The day a note is of.")
    happened_at = models.DateTimeField(help_text="Start of the period it covers.")
    happened_until = models.DateTimeField(null=True, blank=True, help_text="End of the period it covers.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-happened_at", "-id"]
        verbose_name_plural = "history entries"
        indexes = [models.Index(fields=["owner", "agent", "-happened_at", "-id"], name="entries_in_order")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.agent}, {self.happened_at:%Y-%m-%d}"
