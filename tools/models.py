"""What the admin decides about tools, and the record of every call."""

from typing import Any, Self

from django.core.exceptions import ValidationError
from django.db import models

from nanohost.lib.ids import new_id
from tools import registry
from tools.permissions import GRANTABLE


def validate_grants(grants: Any) -> None:
    """Grants are a list of grantable permissions."""
    if not isinstance(grants, list) or not set(grants) <= set(GRANTABLE):
        raise ValidationError(f"Grants are a list of {', '.join(GRANTABLE)}.")


class ToolSetting(models.Model):
    """What the admin decides about one tool. Without a row, or with a fresh one, a tool is refused."""

    name = models.CharField(max_length=64, unique=True, help_text="As the tool is registered.")
    enabled = models.BooleanField(default=False, help_text="A tool that is not enabled is refused.")
    grants = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_grants],
        help_text="The permissions it is granted; each one it declares is needed.",
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        verbose_name = "tool"

    def __str__(self) -> str:
        return self.name


def sync_settings() -> None:
    """Give each registered tool its row; ``time`` alone starts enabled. What people set is left as it is."""
    known = set(ToolSetting.objects.values_list("name", flat=True))
    fresh = [ToolSetting(name=name, enabled=name == "time") for name in registry.names() if name not in known]
    ToolSetting.objects.bulk_create(fresh, ignore_conflicts=True)


class CallStatus(models.TextChoices):
    """Where a call stands; the last four are final."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    REJECTED = "REJECTED"
    FAILED = "FAILED"
    # It was started and nobody knows whether it took effect; it is never run again.
    UNKNOWN = "UNKNOWN"


OPEN_CALL = (CallStatus.QUEUED, CallStatus.RUNNING)


class ToolCallQuerySet(models.QuerySet["ToolCall"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Calls without an outcome yet."""
        return self.filter(status__in=OPEN_CALL)


class ToolCall(models.Model):
    """One attempt of a model to use a tool: its state while it lives, its audit for good.

    What it belongs to stands here as plain ids, since an audit trail outlives what it audits.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation_id = models.UUIDField(db_index=True)
    turn_id = models.UUIDField()
    agent = models.CharField(max_length=64, help_text="Name of the agent.")
    request_id = models.CharField(max_length=64, blank=True)
    call_id = models.CharField(max_length=128, help_text="The model's own id of the call.")
    position = models.PositiveIntegerField(help_text="Its place among the calls of the turn.")
    tool_name = models.CharField(max_length=128, help_text="As the model wrote it.")
    arguments = models.TextField(help_text="As the model wrote them.")
    arguments_hash = models.CharField(max_length=64, help_text="SHA-256 of the arguments, hexadecimal.")
    effects = models.CharField(max_length=5, blank=True, help_text="read or write; empty for a tool nobody registered.")

    status = models.CharField(max_length=8, choices=CallStatus.choices, default=CallStatus.QUEUED)
    rule = models.CharField(max_length=64, blank=True, help_text="The rule that refused it, or what ended it.")
    result = models.TextField(blank=True, help_text="What the model is told.")

    fence = models.PositiveIntegerField(default=0, help_text="Raised by each claim; only the latest may write.")
    lease_until = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0, help_text="How often it was started.")
    worker = models.CharField(max_length=128, blank=True)
    rung_at = models.DateTimeField(null=True, blank=True, help_text="When a worker was last told of it.")

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    duration_ms = models.PositiveIntegerField(null=True, blank=True)

    objects = ToolCallQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["turn_id", "call_id"], name="one_call_of_an_id_a_turn"),
            models.UniqueConstraint(fields=["turn_id", "position"], name="one_call_a_position"),
        ]
        indexes = [
            models.Index(fields=["status", "rung_at"], name="calls_by_status"),
            models.Index(fields=["-created_at"], name="calls_by_time"),
            # What auditors look for. Few calls meet a rule, and only those are in the second.
            models.Index(fields=["tool_name", "-created_at"], name="calls_by_tool"),
            models.Index(fields=["rule", "-created_at"], condition=models.Q(rule__gt=""), name="calls_by_rule"),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.status}"

    @property
    def ended(self) -> bool:
        """Whether it has its outcome."""
        return self.status not in OPEN_CALL
