"""Feedback: what people think of answers."""

from django.db import models

from nanohost.lib.ids import new_id


class Rating(models.TextChoices):
    """A thumb."""

    UP = "up", "good"
    DOWN = "down", "bad"


class Feedback(models.Model):
    """What somebody thinks of a turn's answer; they may change it."""

    MAX_COMMENT = 2_000

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    turn = models.ForeignKey(
        "conversations.Turn",
        on_delete=models.CASCADE,
        related_name="feedback",
        db_index=False,
        help_text="The turn whose answer is rated.",
    )
    by = models.CharField(max_length=300, help_text="Who gave it: a user, or channel:sender where it was a reaction.")
    rating = models.CharField(max_length=4, choices=Rating.choices, help_text="Whether the answer is good.")
    comment = models.TextField(blank=True, help_text="Why.")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "feedback"
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["turn", "by"], name="one_feedback_of_a_turn_a_person")]
        indexes = [models.Index(fields=["-created_at"], name="feedback_by_time")]

    def __str__(self) -> str:
        return f"{self.rating} on turn {self.turn_id}"
