"""Whether new turns are taken in."""

from typing import Self

from django.db import models

from conversations.models.limits import MAX_REASON


class IntakePauseQuerySet(models.QuerySet["IntakePause"]):
    """Look-ups that say what they mean."""

    def current(self) -> Self:
        """The pause there is, if there is one."""
        return self.filter(pk=IntakePause.ONLY)


class IntakePause(models.Model):
    """The one row that is there while no new turns are taken in, as for a deploy."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    paused_at = models.DateTimeField(help_text="Since when.")
    paused_by = models.CharField(max_length=150, help_text="Who paused it.")
    because = models.CharField(max_length=MAX_REASON, help_text="Why.")

    objects = IntakePauseQuerySet.as_manager()

    class Meta:
        # There is no page of it; the console's page of the queue asks for this one.
        default_permissions = ()
        permissions = [("pause_intakepause", "Can pause the intake")]

    def __str__(self) -> str:
        return "intake"
