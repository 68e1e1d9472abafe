"""Compactions: the work of summarising a conversation."""

from typing import Self

from django.db import models
from django.db.models import Q

from conversations.models.conversation import Conversation
from conversations.models.limits import MAX_REASON
from nanohost.lib.ids import new_id
from nanohost.lib.lease import Rescheduled, RescheduledQuerySet


class CompactionStatus(models.TextChoices):
    """Where a compaction stands; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    # There was nothing left to do: somebody else had moved the conversation on.
    DROPPED = "dropped"
    # Of a day's summary, which nothing depends on; a rolling one ends in a stub instead.
    FAILED = "failed"


class CompactionKind(models.TextChoices):
    """What a summary is for."""

    ROLLING = "rolling"
    DAILY = "daily"


OPEN_COMPACTION = (CompactionStatus.QUEUED, CompactionStatus.RUNNING)


class CompactionQuerySet(RescheduledQuerySet["Compaction"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Compactions that have not ended."""
        return self.filter(status__in=OPEN_COMPACTION)


class Compaction(Rescheduled):
    """Messages that are put into a summary: a piece of work, and its record.

    A rolling one takes the place of older messages in the prompt, and goes into the long-term memory and the history
    log as well; a daily one tells people of one day. It names what the summary was made of: which messages, by which
    model, after which turn.
    """

    QUEUED, LEASED = CompactionStatus.QUEUED, CompactionStatus.RUNNING

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="compactions", db_index=False)
    kind = models.CharField(
        max_length=7,
        choices=CompactionKind.choices,
        default=CompactionKind.ROLLING,
        help_text="rolling: for prompts. daily: of one day, for people.",
    )
    day = models.DateField(null=True, blank=True, help_text="The day that a daily one is of.")
    since = models.DateTimeField(null=True, blank=True, help_text="A daily one covers what was said from then on,")
    until = models.DateTimeField(null=True, blank=True, help_text="and before then.")
    turn_id = models.UUIDField(null=True, blank=True, help_text="The turn that triggered it.")
    keep_tokens = models.PositiveIntegerField(help_text="Of the newest messages, so many tokens stay at most.")
    status = models.CharField(max_length=7, choices=CompactionStatus.choices, default=CompactionStatus.QUEUED)

    failures = models.PositiveIntegerField(
        default=0, help_text="Consecutive unusable answers and lost workers. After three, a stub is made instead."
    )
    error = models.CharField(max_length=500, blank=True, help_text="The last error.")

    first_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The first message it covers.")
    through_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The last message it covers.")
    summary_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The message that is its summary.")
    is_stub = models.BooleanField(
        default=False, help_text="No model could summarise the messages; they are complete in the history."
    )
    memory_version = models.PositiveIntegerField(
        null=True, blank=True, help_text="The version of the long-term memory that it made."
    )
    before_through = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The last message that the summary before it covered."
    )
    before_summary = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The message that was the summary before it."
    )
    undone_at = models.DateTimeField(
        null=True, blank=True, help_text="When people undid it: the summary before it counts again."
    )
    undone_by = models.CharField(max_length=150, default="", db_default="", blank=True, help_text="Who undid it.")
    undone_because = models.CharField(max_length=MAX_REASON, default="", db_default="", blank=True, help_text="Why.")
    made_so_far = models.JSONField(
        null=True, blank=True, help_text="Summary of the first chunks while others are still to be read."
    )
    model = models.CharField(max_length=128, blank=True, help_text="The model that made it.")
    fallback_model = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        help_text="The fallback model in use. Empty: none.",
    )
    fallback_reason = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Why the fallback is used."
    )
    retries = models.PositiveIntegerField(default=0, db_default=0, help_text="Consecutive failures of its provider.")
    retrying_since = models.DateTimeField(null=True, blank=True, help_text="When the first of them was.")
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Prompt tokens that the provider had cached."
    )
    cost = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Cost of its model calls, in millionths of the currency. Empty: the cost of some is not known.",
    )
    model_calls = models.PositiveIntegerField(default=0, db_default=0, help_text="Number of model calls.")

    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = CompactionQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["conversation"],
                condition=Q(status__in=OPEN_COMPACTION, kind=CompactionKind.ROLLING),
                name="one_open_compaction",
            ),
            models.UniqueConstraint(fields=["conversation", "day"], name="one_summary_a_day"),
        ]
        indexes = [
            models.Index(fields=["status", "notified_at"], name="compactions_by_status"),
            models.Index(fields=["conversation", "-summary_seq"], name="compactions_of_a_conversation"),
            models.Index(fields=["-created_at"], name="compactions_by_time"),
        ]

    def __str__(self) -> str:
        return f"messages {self.first_seq} to {self.through_seq}" if self.through_seq else f"compaction {self.status}"
