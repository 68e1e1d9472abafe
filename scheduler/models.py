"""When agents are spoken to by the clock: schedules, and the ledger of what became of each of their times."""

from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.db import models

from agent.models import Agent
from nanohost.lib.ids import new_id
from nanohost.lib.redaction import redact_known
from scheduler.times import At, Cron, Every, Timing, zone_of


class Kind(models.TextChoices):
    """How a schedule's times are told."""

    AT = "at"
    EVERY = "every"
    CRON = "cron"


class Missed(models.TextChoices):
    """What becomes of times at which nobody looked, for longer than SCHEDULE_GRACE_SECONDS."""

    SKIP = "skip", "skip: none is made up for"
    ONCE = "once", "once: one run makes up for all"
    ALL = "all", "all: each is made up for, the last missed_most of them"


# Ticks come every few seconds. What is due for longer than this waits for one that does not.
LATE = timedelta(seconds=30)


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    """Look-ups that say what they mean."""

    def kept(self) -> Self:
        """Those that were not cancelled."""
        return self.filter(cancelled_at=None)

    def late(self, *, now: datetime) -> Self:
        """Those that should have run by now: no tick came for their time."""
        return self.filter(active=True, next_at__lt=now - LATE)

    def paused_by_failures(self) -> Self:
        """Those that failed so often in a row that they were paused, and that nobody has resumed or cancelled."""
        most = settings.SCHEDULE_MAX_FAILURES
        return self.filter(active=False, cancelled_at=None, failures__gte=most).exclude(paused_because="")


class Schedule(models.Model):
    """A prompt that is said to an agent at certain times, on behalf of its owner."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # Without an index of its own: it comes first in another one.
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="schedules", db_index=False
    )
    agent = models.ForeignKey(Agent, on_delete=models.PROTECT, related_name="+")
    # A plain id: whoever deletes a conversation waits for no schedule, which outlives it to tell that it is gone.
    conversation_id = models.UUIDField(
        null=True, blank=True, help_text="The conversation it runs in. Empty: a new one for each run."
    )
    api_key_id = models.BigIntegerField(
        null=True, blank=True, editable=False, help_text="The API key that it was made with, if it was with one."
    )
    description = models.CharField(max_length=200, blank=True, help_text="What it is for.")
    prompt = models.TextField(help_text="The message to the agent.")
    tainted_by = models.CharField(
        max_length=255,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="The source of untrusted text in the conversation in which an agent wrote the prompt, if any.",
    )
    deliver_to = models.JSONField(
        default=dict,
        blank=True,
        help_text="A destination of the agent, by name, that also receives its answers. Empty: none.",
    )

    kind = models.CharField(max_length=5, choices=Kind.choices, help_text="Which of the next three fields applies.")
    at = models.DateTimeField(null=True, blank=True, help_text="Once, at this time.")
    every_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="Repeatedly, at this interval in seconds."
    )
    expression = models.CharField(
        max_length=200, blank=True, help_text="Cron: minute, hour, day of the month, month, day of the week."
    )
    zone = models.CharField(max_length=64, help_text="Time zone of the expression, such as Europe/Berlin.")
    phase = models.DateTimeField(help_text="The time that intervals are counted from.")
    missed = models.CharField(
        max_length=4,
        choices=Missed.choices,
        default=Missed.ONCE,
        help_text="What to do about runs that were missed, such as while the host was down.",
    )
    missed_most = models.PositiveIntegerField(default=10, help_text="The most missed runs to catch up on.")
    ends_at = models.DateTimeField(null=True, blank=True, help_text="It does not run after that.")
    max_runs = models.PositiveIntegerField(null=True, blank=True, help_text="It ends after this many runs.")

    active = models.BooleanField(default=True, help_text="Whether it is active.")
    paused_because = models.CharField(max_length=500, blank=True, help_text="Why it is paused.")
    next_at = models.DateTimeField(null=True, blank=True, help_text="When it runs next. Empty: it has ended.")
    runs = models.PositiveIntegerField(default=0, help_text="Number of runs, not counting manual ones.")
    failures = models.PositiveIntegerField(
        default=0, help_text="Consecutive failed runs; at SCHEDULE_MAX_FAILURES it is paused."
    )
    revision = models.PositiveIntegerField(
        default=0, help_text="Increased by each change; a tick that has read an earlier revision does nothing."
    )
    cancelled_at = models.DateTimeField(null=True, blank=True, help_text="When it was cancelled.")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["active", "next_at"], name="schedules_due"),
            models.Index(fields=["owner", "-created_at"], name="schedules_of_an_owner"),
            # Few of those that rest have failed.
            models.Index(
                fields=["failures"],
                condition=models.Q(active=False, failures__gt=0, cancelled_at=None),
                name="schedules_paused",
            ),
        ]

    def __str__(self) -> str:
        return self.description or " ".join(redact_known(self.prompt)[:60].split())

    @property
    def timing(self) -> Timing:
        """Its times; raises :class:`scheduler.times.BadTiming` if its zone is gone."""
        zone = zone_of(self.zone)
        if self.kind == Kind.AT:
            assert self.at
            return At(self.at, zone)
        if self.kind == Kind.EVERY:
            assert self.every_seconds
            return Every(timedelta(seconds=self.every_seconds), self.phase, zone)
        return Cron(self.expression, zone)

    @property
    def told_times(self) -> str:
        """Its times, in the fewest words."""
        if self.kind == Kind.AT:
            return f"at {self.at:%Y-%m-%d %H:%M:%S}Z"
        return f"every {self.every_seconds} s" if self.kind == Kind.EVERY else f"{self.expression} ({self.zone})"

    @property
    def destination(self) -> str:
        """Where its answers go as well, by the name that its agent knows it by; empty: nowhere."""
        return str(self.deliver_to.get("destination", ""))

    @property
    def state(self) -> str:
        """``active``, ``paused``, ``ended``, or ``cancelled``."""
        if self.cancelled_at:
            return "cancelled"
        if self.active:
            return "active"
        return "paused" if self.next_at else "ended"

    @property
    def comes_at(self) -> datetime | None:
        """When it runs next; None while it does not."""
        return self.next_at if self.active else None

    @property
    def used_up(self) -> bool:
        """Whether it has run as often as it may."""
        return self.max_runs is not None and self.runs >= self.max_runs


class RunState(models.TextChoices):
    """What became of one of a schedule's times."""

    DUE = "due", "due: it failed, and is tried again"
    FIRED = "fired", "fired: its turn was made"
    SKIPPED = "skipped", "skipped: there was a reason not to run"
    MISSED = "missed", "missed: nobody looked in time"
    FAILED = "failed", "failed: its turn did, as often as it was tried, or its answer could not be sent on"


class ScheduleRun(models.Model):
    """The ledger: one row a time that has come, whatever became of it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # Without an index of its own: the constraint's begins with it.
    schedule = models.ForeignKey(
        Schedule, on_delete=models.CASCADE, related_name="ledger", db_index=False, help_text="The schedule."
    )
    slot = models.DateTimeField(help_text="The time at which it was due.")
    state = models.CharField(max_length=7, choices=RunState.choices, help_text="Its state.")
    by_hand = models.BooleanField(default=False, help_text="Whether it was started manually.")
    # Plain ids: the ledger outlives what it tells of.
    conversation_id = models.UUIDField(null=True, help_text="The conversation it ran in.")
    turn_id = models.UUIDField(null=True, help_text="Its turn; the latest one if it was retried.")
    lag_ms = models.BigIntegerField(null=True, help_text="From its time until its turn was stored, in milliseconds.")
    attempts = models.PositiveIntegerField(default=0, help_text="Turns started for it.")
    retry_at = models.DateTimeField(null=True, help_text="When it is retried.")
    error = models.CharField(max_length=500, blank=True, help_text="Why it did not run, or failed.")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, help_text="When its outcome was recorded.")

    class Meta:
        ordering = ["-slot"]
        constraints = [models.UniqueConstraint(fields=["schedule", "slot"], name="one_run_a_slot")]
        indexes = [
            # What is open, of all or of one schedule; and what is old.
            models.Index(fields=["ended_at", "schedule"], name="runs_by_end"),
            models.Index(fields=["state", "-id"], name="runs_by_state"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.slot:%Y-%m-%d %H:%M:%S}Z"


class CheckInState(models.TextChoices):
    """What came of looking after an agent."""

    OPEN = "open", "open: it was asked, and has not answered yet"
    OK = "ok", "ok: it had nothing to tell"
    TOLD = "told", "told: what it said was delivered"
    FAILED = "failed", "failed: its turn did"
    NOTHING = "nothing", "nothing: there was nothing to do, and no model was asked"
    SKIPPED = "skipped", "skipped: there was a reason not to ask"
    CAPPED = "capped", "capped: the tokens of the day were used up"


class CheckIn(models.Model):
    """One time at which an agent's document HEARTBEAT was looked at, and what came of it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # Without an index of its own: the constraint's begins with it.
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="check_ins", db_index=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        null=True,
        related_name="+",
        help_text="The owner it was done for.",
    )
    slot = models.DateTimeField(help_text="Start of its interval.")
    day = models.DateField(help_text="The day, in TIME_ZONE, that its tokens are counted in.")
    state = models.CharField(max_length=7, choices=CheckInState.choices, help_text="Its outcome.")
    error = models.CharField(max_length=500, blank=True, help_text="Why it was not asked, or failed.")
    tokens = models.PositiveIntegerField(default=0, help_text="What its turn has used, prompts and answers together.")
    # Plain ids: it outlives what it tells of.
    conversation_id = models.UUIDField(null=True, help_text="The conversation of the question.")
    turn_id = models.UUIDField(null=True, help_text="The turn in which it was asked.")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, help_text="When its outcome was recorded.")

    class Meta:
        # The table and its indexes keep the names that they were made with.
        db_table = "scheduler_heartbeat"
        verbose_name = "check-in"
        ordering = ["-slot"]
        constraints = [
            models.UniqueConstraint(fields=["agent", "slot"], name="one_heartbeat_a_slot"),
            models.UniqueConstraint(
                fields=["agent"], condition=models.Q(ended_at=None), name="one_open_heartbeat_an_agent"
            ),
        ]
        indexes = [
            models.Index(fields=["agent", "day"], name="heartbeats_of_a_day"),
            models.Index(fields=["ended_at"], name="heartbeats_by_end"),
            models.Index(fields=["state", "-id"], name="heartbeats_by_state"),
        ]

    def __str__(self) -> str:
        return f"{self.agent_id} at {self.slot:%Y-%m-%d %H:%M:%S}Z"


class JobState(models.TextChoices):
    """How a run of a system job stands."""

    RUNNING = "running"
    OK = "ok"
    FAILED = "failed", "failed: the log has the reason"
    DIED = "died", "died: its worker ended before it did"


class JobRun(models.Model):
    """A run of a system job, and what it did. Runs in a row that found nothing to do share one row, the last one's."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    job = models.CharField(max_length=200, help_text="Its name.")
    state = models.CharField(max_length=7, choices=JobState.choices, default=JobState.RUNNING, help_text="Its state.")
    did = models.CharField(max_length=200, blank=True, help_text="What it did. Empty: nothing to do.")
    error = models.CharField(max_length=200, blank=True, help_text="What it failed with.")
    times = models.PositiveIntegerField(default=1, help_text="Number of consecutive identical runs in this row.")
    duration_ms = models.PositiveIntegerField(null=True, help_text="How long it took, in milliseconds.")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["job", "-id"], name="job_runs_by_job"),
            models.Index(fields=["state", "-id"], name="job_runs_by_state"),
            models.Index(fields=["started_at"], name="job_runs_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.job} at {self.started_at:%Y-%m-%d %H:%M:%S}Z"


class RetentionRun(models.Model):
    """The one row that says how far the day's run has come in deleting what is older than its agent keeps it."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    began_at = models.DateTimeField(null=True, help_text="Start of the latest run.")
    position = models.JSONField(null=True, help_text="Position to continue from. Empty: the run has ended.")
    lease_until = models.DateTimeField(null=True, help_text="No other process continues it before then.")
    fence = models.PositiveIntegerField(default=0, help_text="Raised by each who does.")

    class Meta:
        # There is no page of it.
        default_permissions = ()

    def __str__(self) -> str:
        return "retention"
