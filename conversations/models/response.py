"""Responses of OpenAI's Responses API: each is a part of a turn."""

from uuid import UUID

from django.db import models

from conversations.models.turn import Turn


class StoredResponse(models.Model):
    """What OpenAI's Responses API calls a response: a part of a turn, with what only that API needs of it."""

    id = models.UUIDField(primary_key=True, editable=False)
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="responses", db_index=False)
    number = models.PositiveIntegerField(help_text="Which part of the turn it is, from 0.")
    previous_id = models.UUIDField(null=True, blank=True, help_text="The previous response it continues.")
    asked = models.JSONField(
        help_text="The request's parameters, which are returned with the response; see openai_api/response_view.py."
    )
    is_background = models.BooleanField(
        verbose_name="background", default=False, help_text="Whether it was requested as a background response."
    )
    last_sequence_number = models.PositiveIntegerField(
        null=True, blank=True, help_text="Of the last event that a reader of its stream was sent."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "conversations_response"
        verbose_name = "response"
        ordering = ["turn_id", "number"]
        constraints = [models.UniqueConstraint(fields=["turn", "number"], name="one_response_a_part")]

    def __str__(self) -> str:
        return f"response {self.number} of turn {self.turn_id}"

    @property
    def shown_id(self) -> str:
        """Its id as the API shows it."""
        return f"resp_{self.pk.hex}"

    @staticmethod
    def id_of(turn_id: UUID, number: int) -> UUID:
        """The id of the response that is the part of that number of a turn, kept or not."""
        return UUID(int=(turn_id.int - 1 - number) % 2**128)
