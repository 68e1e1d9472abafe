"""Figures of what happened, hour by hour, so that a month is read without its rows."""

from django.db import models


class Hour(models.Model):
    """What became of the turns and tool calls that were asked for within one hour."""

    hour = models.DateTimeField(unique=True, help_text="When it begins, in UTC.")
    settled = models.BooleanField(default=False, help_text="It is over, and so is all that was asked for in it.")
    turns = models.JSONField(default=dict, help_text="By model: outcomes, tokens, and how long they took.")
    calls = models.JSONField(default=dict, help_text="Tool calls, by status.")

    class Meta:
        ordering = ["-hour"]
        indexes = [models.Index(fields=["hour"], condition=models.Q(settled=False), name="hours_unsettled")]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H} h"


class Total(models.Model):
    """The sum of all hours: one row, which whoever counts locks."""

    since = models.DateTimeField(null=True, help_text="From this hour on, everything is counted.")
    until = models.DateTimeField(null=True, help_text="The latest hour that is counted.")
    counted_at = models.DateTimeField(null=True, help_text="When somebody last looked.")
    turns = models.JSONField(default=dict, help_text="As an hour has them.")
    calls = models.JSONField(default=dict, help_text="As an hour has them.")

    def __str__(self) -> str:
        return f"all since {self.since}"
