"""Messages that make no turn at once."""

from django.db import models

from conversations.models.conversation import Conversation
from nanohost.lib.ids import new_id


class DeferredState(models.TextChoices):
    """Where a deferred message stands; the last three are final."""

    WAITING = "waiting"
    FIRED = "fired"
    DONE = "done"
    FAILED = "failed"
    # The column takes seven letters, and no column changes its type (docs/operations.md).
    CANCELLED = "dropped", "Cancelled"


OPEN_DEFERRED = (DeferredState.WAITING, DeferredState.FIRED)


class DeferredMessage(models.Model):
    """A message that makes no turn at once: it has its time, or wakes nobody and rides along with the next turn."""

    class Kind(models.TextChoices):
        # It makes a turn, when its time has come.
        WAKE = "wake"
        # The next turn has it before its own message.
        CONTEXT = "context"
        # The same, marked as a note of the host's client to the agent.
        NOTE = "note"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="deferred_messages", db_index=False
    )
    kind = models.CharField(max_length=7, choices=Kind.choices, help_text="How it is handled.")
    content = models.TextField(blank=True)
    attachments = models.JSONField(
        null=True, blank=True, help_text="The files that came with it, as a message has them; they stay while it does."
    )
    tainted_by = models.CharField(
        max_length=255, null=True, blank=True, help_text="The source of untrusted text in it, if any."
    )
    files_hash = models.CharField(
        max_length=64,
        blank=True,
        db_default="",
        editable=False,
        help_text="Of its files as they were sent; empty if there are none.",
    )
    model = models.CharField(max_length=128, blank=True, help_text="The model to ask; the agent's if empty.")
    idempotency_key = models.CharField(max_length=255, null=True, blank=True, help_text="Unique in the conversation.")
    request_id = models.CharField(max_length=64, help_text="Of the request it came with.")
    api_key_id = models.BigIntegerField(
        null=True, blank=True, editable=False, help_text="The API key that it was sent with, if it was with one."
    )
    state = models.CharField(
        max_length=7, choices=DeferredState.choices, default=DeferredState.WAITING, help_text="Its state."
    )
    run_after = models.DateTimeField(null=True, blank=True, help_text="Not before then.")
    tries = models.PositiveIntegerField(default=0, help_text="Turns started for it; at most five.")
    turn_id = models.UUIDField(
        null=True, blank=True, help_text="The latest turn that was started for it or includes it."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        # The table and its indexes keep the names that they were made with.
        db_table = "conversations_latermessage"
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["conversation", "idempotency_key"], name="one_later_an_idempotency_key")
        ]
        indexes = [
            models.Index(fields=["state", "run_after"], name="later_by_state"),
            models.Index(fields=["conversation", "state"], name="later_of_a_conversation"),
            models.Index(fields=["-created_at"], name="later_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.state}"
