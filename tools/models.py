"""What the admin decides about tools, and the record of every call."""

from typing import Any, Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from nanohost.lib.clock import Now
from nanohost.lib.ids import new_id
from nanohost.lib.lease import Leased, LeaseQuerySet
from tools import registry
from tools.permissions import GRANTABLE

# The longest timeout an admin may set, in seconds. A turn has TURN_TIMEOUT_SECONDS, 600 unless set, for all it does.
MAX_TIMEOUT_SECONDS = 600

# The highest rate limit: so many entries of an index are read to see that it is reached.
MAX_CALLS_PER_MINUTE = 10_000


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
    timeout_seconds = models.FloatField(
        "timeout",
        null=True,
        blank=True,
        validators=[MinValueValidator(0.1), MaxValueValidator(MAX_TIMEOUT_SECONDS)],
        help_text=f"In seconds, 0.1 to {MAX_TIMEOUT_SECONDS}; a run that takes longer is stopped. "
        "Empty: the tool's own, or TOOL_TIMEOUT_SECONDS.",
    )
    max_input_bytes = models.PositiveIntegerField(
        "input cap",
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="In bytes; larger arguments are refused. TOOL_MAX_INPUT_BYTES is the ceiling. Empty: that.",
    )
    max_output_bytes = models.PositiveIntegerField(
        "output cap",
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="In bytes; the rest of a result is cut. TOOL_MAX_OUTPUT_BYTES is the ceiling. Empty: that.",
    )
    calls_per_minute_conversation = models.PositiveIntegerField(
        "rate limit of a conversation",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_CALLS_PER_MINUTE)],
        help_text="Calls in any 60 seconds; further ones are refused, and do not count. Empty: no limit.",
    )
    calls_per_minute_owner = models.PositiveIntegerField(
        "rate limit of an owner",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_CALLS_PER_MINUTE)],
        help_text="The same, in all conversations of an owner together. Empty: no limit.",
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        verbose_name = "tool"

    def __str__(self) -> str:
        return self.name

    def timeout(self, tool: registry.RegisteredTool) -> float:
        """Seconds a run may take: the admin's word, else the tool's own, else the settings'."""
        return self.timeout_seconds or tool.timeout or settings.TOOL_TIMEOUT_SECONDS

    def input_bytes(self) -> int:
        """Bytes that the arguments of a call may have; the environment's is the ceiling, whenever it was lowered."""
        return min(self.max_input_bytes or settings.TOOL_MAX_INPUT_BYTES, settings.TOOL_MAX_INPUT_BYTES)

    def output_bytes(self) -> int:
        """Bytes that are kept of a result; the environment's is the ceiling, whenever it was lowered."""
        return min(self.max_output_bytes or settings.TOOL_MAX_OUTPUT_BYTES, settings.TOOL_MAX_OUTPUT_BYTES)

    @property
    def rate_limited(self) -> bool:
        """Whether calls of the tool are counted before one is let in."""
        return self.calls_per_minute_conversation is not None or self.calls_per_minute_owner is not None


def sync_settings() -> None:
    """Give each registered tool its row; ``time`` alone starts enabled. What people set is left as it is.

    The change log begins with what people change: a tool with a fresh row is refused as one without a row is, and that
    ``time`` starts enabled is the same everywhere.
    """
    known = set(ToolSetting.objects.values_list("name", flat=True))
    fresh = [ToolSetting(name=name, enabled=name == "time") for name in registry.names() if name not in known]
    ToolSetting.objects.bulk_create(fresh, ignore_conflicts=True)


class SettingChange(models.Model):
    """One change of a tool's settings. The tool stands here by its name, since a log outlives what it is about."""

    tool_name = models.CharField(max_length=64)
    changed_at = models.DateTimeField(db_default=Now(), editable=False, help_text="By the database's clock.")
    changed_by = models.CharField(
        max_length=200, help_text="The name of a user of the admin; or manage.py, and the system's user who ran it."
    )
    before = models.JSONField(help_text="What was changed, as it was.")
    after = models.JSONField(help_text="What was changed, as it was from then on.")

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["tool_name", "-id"], name="changes_of_a_tool")]

    def __str__(self) -> str:
        return f"{self.tool_name} by {self.changed_by}"


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


class ToolCallQuerySet(LeaseQuerySet["ToolCall"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Calls without an outcome yet."""
        return self.filter(status__in=OPEN_CALL)

    def due(self) -> Self:
        """Calls that nobody runs."""
        return self.filter(Q(status=CallStatus.QUEUED) | ToolCall.expired())


class ToolCall(Leased):
    """One attempt of a model to use a tool: its state while it lives, its audit for good.

    What it belongs to stands here as plain ids, since an audit trail outlives what it audits.
    """

    QUEUED, LEASED = CallStatus.QUEUED, CallStatus.RUNNING

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation_id = models.UUIDField()
    turn_id = models.UUIDField()
    owner_id = models.BigIntegerField(
        null=True, blank=True, help_text="Whose conversation it is. Empty for calls of an earlier version."
    )
    agent = models.CharField(max_length=64, help_text="Name of the agent.")
    request_id = models.CharField(max_length=64, blank=True)
    call_id = models.CharField(max_length=128, help_text="The model's own id of the call.")
    position = models.PositiveIntegerField(help_text="Its place among the calls of the turn.")
    tool_name = models.CharField(max_length=128, help_text="As the model wrote it.")
    arguments = models.TextField(help_text="As the model wrote them, without secrets.")
    private_arguments = models.TextField(
        blank=True, default="", db_default="", editable=False, help_text="With their secrets, until it has ended."
    )
    arguments_hash = models.CharField(max_length=64, help_text="SHA-256 of the arguments, hexadecimal.")
    effects = models.CharField(
        max_length=5, blank=True, help_text="read, write or rows; empty for a tool nobody registered."
    )

    status = models.CharField(max_length=8, choices=CallStatus.choices, default=CallStatus.QUEUED)
    rule = models.CharField(max_length=64, blank=True, help_text="The rule that refused it, or what ended it.")
    result = models.TextField(blank=True, help_text="What the model is told.")

    attempts = models.PositiveIntegerField(default=0, help_text="How often it was started.")

    # The database's clock, which rate limits go by, however many machines ask for calls.
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    duration_ms = models.PositiveIntegerField(null=True, blank=True)

    objects = ToolCallQuerySet.as_manager()

    # Not stored. Of a call that is asked for: whether its tool had a rate limit when the gate let it in.
    rate_limited = False

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["turn_id", "call_id"], name="one_call_of_an_id_a_turn"),
            models.UniqueConstraint(fields=["turn_id", "position"], name="one_call_a_position"),
        ]
        indexes = [
            models.Index(fields=["status", "notified_at"], name="calls_by_status"),
            models.Index(fields=["-created_at"], name="calls_by_time"),
            # What auditors look for. Few calls meet a rule, and only those are in the second.
            models.Index(fields=["tool_name", "-created_at"], name="calls_by_tool"),
            models.Index(fields=["rule", "-created_at"], condition=Q(rule__gt=""), name="calls_by_rule"),
            # What rate limits count.
            models.Index(fields=["conversation_id", "-created_at"], name="calls_of_a_conversation"),
            models.Index(fields=["owner_id", "tool_name", "-created_at"], name="calls_of_an_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.status}"

    @property
    def whole_arguments(self) -> str:
        """What it is run with."""
        return self.private_arguments or self.arguments

    @property
    def ended(self) -> bool:
        """Whether it has its outcome."""
        return self.status not in OPEN_CALL
