"""What the admin decides about tools, and the record of every call."""

from typing import Any, Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from nanohost.lib import traces
from nanohost.lib.clock import Now
from nanohost.lib.ids import new_id
from nanohost.lib.lease import Leased, LeaseQuerySet
from tools import registry
from tools.consent import Consent
from tools.permissions import Permission, grantable

# The longest timeout an admin may set, in seconds. A turn has TURN_TIMEOUT_SECONDS, 600 unless set, for all it does.
MAX_TIMEOUT_SECONDS = 600

# The highest rate limit: so many entries of an index are read to see that it is reached.
MAX_CALLS_PER_MINUTE = 10_000


def validate_grants(grants: Any) -> None:
    """Grants are a list of grantable permissions."""
    if not isinstance(grants, list) or not set(grants) <= set(grantable()):
        raise ValidationError(f"Grants are a list of {', '.join(grantable())}.")


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
        help_text="In bytes; larger arguments are refused. At most TOOL_MAX_INPUT_BYTES; empty: that.",
    )
    max_output_bytes = models.PositiveIntegerField(
        "output cap",
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="In bytes; longer results are cut. At most TOOL_MAX_OUTPUT_BYTES; empty: that.",
    )
    calls_per_minute_conversation = models.PositiveIntegerField(
        "rate limit of a conversation",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_CALLS_PER_MINUTE)],
        help_text="Calls in any 60 seconds; further calls are refused and not counted. Empty: no limit.",
    )
    calls_per_minute_owner = models.PositiveIntegerField(
        "rate limit of an owner",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_CALLS_PER_MINUTE)],
        help_text="The same limit for all conversations of an owner together. Empty: no limit.",
    )
    approval = models.CharField(
        "consent",
        max_length=7,
        choices=Consent.choices,
        default=Consent.NEVER,
        db_default=Consent.NEVER,
        help_text="When calls wait for approval. An agent can require approval more often than this, never less often.",
    )
    four_eyes = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Two people have to approve a call, and neither may own its conversation.",
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
    fresh = [
        ToolSetting(name=tool.name, enabled=tool.name == "time", approval=_consent_at_first(tool))
        for tool in registry.registered()
        if tool.name not in known
    ]
    ToolSetting.objects.bulk_create(fresh, ignore_conflicts=True)
    # Of a version in which SHELL could not be granted: nobody has said that such a tool needs no consent.
    if settings.SHELL_GRANTABLE:
        shells = {tool.name for tool in registry.registered() if _consent_at_first(tool) != Consent.NEVER}
        decided = SettingChange.objects.filter(tool_name__in=shells, after__has_key="approval").values("tool_name")
        unsaid = ToolSetting.objects.filter(name__in=shells, approval=Consent.NEVER).exclude(name__in=decided)
        unsaid.update(approval=Consent.ALWAYS)


def _consent_at_first(tool: registry.RegisteredTool) -> Consent:
    """What holds until an admin says otherwise: who runs commands is asked about each."""
    return Consent.ALWAYS if Permission.SHELL in tool.permissions else Consent.NEVER


class SettingChange(models.Model):
    """One change of a tool's settings. The tool stands here by its name, since a log outlives what it is about."""

    tool_name = models.CharField(max_length=64)
    changed_at = models.DateTimeField(db_default=Now(), editable=False, help_text="By the database's clock.")
    changed_by = models.CharField(
        max_length=200, help_text="The name of a user of the admin; or manage.py, and the system's user who ran it."
    )
    before = models.JSONField(help_text="The values before the change.")
    after = models.JSONField(help_text="The values after the change.")

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["tool_name", "-id"], name="changes_of_a_tool")]

    def __str__(self) -> str:
        return f"{self.tool_name} by {self.changed_by}"


class CallStatus(models.TextChoices):
    """Where a call stands; the last four are final."""

    # For somebody's consent; nothing runs it meanwhile.
    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    REJECTED = "REJECTED"
    FAILED = "FAILED"
    # It was started and nobody knows whether it took effect; it is never run again.
    UNKNOWN = "UNKNOWN"


OPEN_CALL = (CallStatus.WAITING, CallStatus.QUEUED, CallStatus.RUNNING)


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
    arguments = models.TextField(help_text="As the model wrote them, with secrets removed.")
    private_arguments = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="With their secrets; deleted when the call has ended.",
    )
    arguments_hash = models.CharField(max_length=64, help_text="SHA-256 of the arguments, hexadecimal.")
    effects = models.CharField(
        max_length=5, blank=True, help_text="read, write or rows; empty for a tool nobody registered."
    )

    status = models.CharField(max_length=8, choices=CallStatus.choices, default=CallStatus.QUEUED)
    rule = models.CharField(max_length=64, blank=True, help_text="The rule that refused it, or the reason it ended.")
    consent = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="The rule that requires approval, if any: the call runs exactly as approved, or not at all.",
    )
    result = models.TextField(blank=True, help_text="What the model is told.")
    tainted_by = models.CharField(
        max_length=255,
        blank=True,
        default="",
        db_default="",
        help_text="The source of untrusted text in its result. Empty: none.",
    )

    attempts = models.PositiveIntegerField(default=0, help_text="How often it was started.")

    # The database's clock, which rate limits go by, however many machines ask for calls.
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    duration_ms = models.PositiveIntegerField(null=True, blank=True)
    erased_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When its arguments and result were deleted; the rest of the row is kept.",
    )

    objects = ToolCallQuerySet.as_manager()

    # Not stored. Of a call that is asked for: whether its tool had a rate limit when the gate let it in.
    rate_limited = False
    # Of one that runs here, while telemetry is on: its span, what stands in the trace below it, and what runs it.
    span: traces.Span | None = None
    traceparent = ""
    ran_by = ""
    # Of one that waits for consent: whether two people have to give it.
    four_eyes = False

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
            # What is deleted by its age.
            models.Index(fields=["agent", "created_at"], condition=Q(erased_at=None), name="calls_to_erase"),
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


class ApprovalState(models.TextChoices):
    """Where a request for consent stands; all but the first are final."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    # Nobody has decided in time: denied.
    EXPIRED = "expired"
    # Its call was ended otherwise, such as with its turn.
    WITHDRAWN = "withdrawn"


class Approval(models.Model):
    """A call that waits for consent, and what was decided. What it belongs to stands here as plain ids, as a call's."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    call_id = models.UUIDField(unique=True, help_text="The call to be approved.")
    conversation_id = models.UUIDField(help_text="The conversation that the call belongs to.")
    turn_id = models.UUIDField(db_index=True, help_text="The turn that waits for it.")
    owner_id = models.BigIntegerField(null=True, blank=True, help_text="Whose conversation it is.")
    agent = models.CharField(max_length=64, help_text="Name of the agent that asks.")
    tool_name = models.CharField("tool", max_length=128, help_text="The tool that it wants to use.")
    rule = models.CharField(max_length=64, help_text="The rule that requires approval.")
    request_id = models.CharField(max_length=64, blank=True, help_text="Id of the request that started the turn.")
    arguments = models.TextField(help_text="As the model wrote them, with secrets removed.")
    arguments_hash = models.CharField(
        max_length=64, help_text="SHA-256 of the arguments including secrets, hexadecimal."
    )
    proposed = models.TextField(
        blank=True, default="", help_text="Arguments changed by a reviewer, with secrets removed."
    )
    private_proposed = models.TextField(
        blank=True,
        default="",
        editable=False,
        help_text="The same with their secrets; deleted when the approval is decided.",
    )
    approved_hash = models.CharField(
        max_length=64, blank=True, default="", help_text="SHA-256 of the approved arguments: only these may run."
    )
    four_eyes = models.BooleanField(default=False, help_text="Two people are needed, neither of them the owner.")
    state = models.CharField(
        max_length=9, choices=ApprovalState.choices, default=ApprovalState.PENDING, help_text="What was decided."
    )
    reason = models.CharField(
        max_length=500, blank=True, default="", help_text="The reason. For a denial, it is passed to the model."
    )
    decided_by = models.CharField(max_length=200, blank=True, default="", help_text="Who has decided.")
    requested_at = models.DateTimeField(db_default=Now(), editable=False, help_text="When the call was asked for.")
    expires_at = models.DateTimeField(help_text="If nobody has decided by then, it is denied.")
    decided_at = models.DateTimeField(null=True, blank=True, help_text="When it was decided.")

    class Meta:
        ordering = ["-requested_at"]
        indexes = [
            models.Index(fields=["-requested_at", "-id"], name="approvals_by_time"),
            models.Index(fields=["state", "expires_at"], name="approvals_by_state"),
            models.Index(fields=["owner_id", "-requested_at"], name="approvals_of_an_owner"),
            # What people filter by.
            models.Index(fields=["tool_name", "-requested_at"], name="approvals_by_tool"),
            models.Index(fields=["agent", "-requested_at"], name="approvals_by_agent"),
            models.Index(fields=["rule", "-requested_at"], name="approvals_by_rule"),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} for {self.agent}"

    @property
    def voters_needed(self) -> int:
        """How many people have to approve it."""
        return 2 if self.four_eyes else 1


class ApprovalVote(models.Model):
    """That somebody would approve a call, with these arguments; where two have to, the first waits for the second."""

    approval = models.ForeignKey(
        Approval, on_delete=models.CASCADE, related_name="votes", help_text="The approval this is a vote on."
    )
    voter_id = models.BigIntegerField(help_text="The user's id.")
    voter = models.CharField(max_length=200, help_text="The user's name.")
    arguments_hash = models.CharField(max_length=64, help_text="SHA-256 of the arguments they voted for.")
    at = models.DateTimeField(db_default=Now(), editable=False, help_text="When.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["approval", "voter_id"], name="one_vote_a_voter")]

    def __str__(self) -> str:
        return self.voter


from tools.custom.models import CustomTool  # noqa: E402, F401
from tools.mcp.models import McpServer, McpTool  # noqa: E402, F401
from tools.skills.models import SkillSetting  # noqa: E402, F401
