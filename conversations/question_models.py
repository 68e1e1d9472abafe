"""Questions that agents put to people, in mid-turn: the turn waits, by a row and no worker, until one is answered."""

from django.db import models
from django.db.models import Q

from conversations.channel_models import MAX_PLATFORM_ID, Chat
from nanohost.lib.clock import Now
from nanohost.lib.ids import new_id


class QuestionState(models.TextChoices):
    """Where a question stands; all but the first are final."""

    PENDING = "pending"
    ANSWERED = "answered"
    # Nobody has answered in time; the agent is told so.
    EXPIRED = "expired"
    # Its turn was ended otherwise.
    WITHDRAWN = "withdrawn"


class Question(models.Model):
    """A question with its options. It is put to one person: whose message began the turn, or the conversation's owner
    where nobody's did by a channel."""

    MAX_TEXT, MAX_ANSWER = 1000, 4000

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(
        "conversations.Conversation",
        on_delete=models.CASCADE,
        related_name="questions",
        db_index=False,
        help_text="The conversation of the question.",
    )
    turn_id = models.UUIDField(db_index=True, help_text="The turn that waits for it.")
    call_id = models.UUIDField(unique=True, help_text="The call of the tool that asked it.")
    owner_id = models.BigIntegerField(help_text="Whose conversation it is.")
    agent = models.CharField(max_length=64, help_text="Name of the agent that asks.")
    text = models.CharField("question", max_length=MAX_TEXT, help_text="What is asked.")
    options = models.JSONField(help_text="The options, in order. Without options, any text is an answer.")
    chat = models.ForeignKey(
        Chat,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        help_text="The chat that it was put in, if it was put in one.",
    )
    sender_id = models.CharField(
        max_length=MAX_PLATFORM_ID,
        blank=True,
        help_text="The only sender who may answer it there, by the platform's id.",
    )
    delivery_id = models.UUIDField(null=True, blank=True, help_text="The delivery that has put it there.")
    state = models.CharField(
        max_length=9, choices=QuestionState.choices, default=QuestionState.PENDING, help_text="Whether it is answered."
    )
    answer = models.CharField(max_length=MAX_ANSWER, blank=True, help_text="What was answered.")
    answered_by = models.CharField(max_length=150, blank=True, help_text="By whom.")
    asked_at = models.DateTimeField(db_default=Now(), editable=False, help_text="When it was asked.")
    expires_at = models.DateTimeField(help_text="Until when the turn waits.")
    answered_at = models.DateTimeField(null=True, blank=True, help_text="When it was answered or withdrawn.")

    class Meta:
        ordering = ["-asked_at"]
        indexes = [
            models.Index(fields=["-asked_at", "-id"], name="questions_by_time"),
            models.Index(fields=["owner_id", "-asked_at"], name="questions_of_an_owner"),
            models.Index(fields=["conversation"], name="questions_of_a_conversation"),
            models.Index(fields=["agent", "-asked_at"], name="questions_by_agent"),
            # Few wait.
            models.Index(fields=["expires_at"], condition=Q(state="pending"), name="questions_that_wait"),
            models.Index(fields=["chat"], name="questions_of_a_chat"),
        ]

    def __str__(self) -> str:
        return self.text[:60]
