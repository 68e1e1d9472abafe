"""Searches over turns that people come back to."""

from django.conf import settings
from django.db import models


class SavedSearch(models.Model):
    """What somebody looks for among turns, by a name."""

    # Of one user.
    MAX_KEPT = 100

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,
        help_text="Who sees it.",
    )
    name = models.CharField(max_length=100)
    query = models.JSONField(help_text="The filters with their values, as GET /turns has them.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "saved searches"
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="one_saved_search_of_a_name_a_user")]

    def __str__(self) -> str:
        return self.name
