"""Figures of what happened, hour by hour, so that a month is read without its rows."""

from django.db import models


class Hour(models.Model):
    """What became of the turns and tool calls that were asked for within one hour."""

    hour = models.DateTimeField(unique=True, help_text="Start of the hour, in UTC.")
    settled = models.BooleanField(default=False, help_text="The hour is over, and so are all turns that began in it.")
    turns = models.JSONField(default=dict, help_text="By model: outcomes, tokens, and how long they took.")
    calls = models.JSONField(default=dict, help_text="Tool calls, by status.")

    class Meta:
        ordering = ["-hour"]
        indexes = [models.Index(fields=["hour"], condition=models.Q(settled=False), name="hours_unsettled")]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H} h"


class Total(models.Model):
    """The sum of all hours: one row, which whoever counts locks."""

    since = models.DateTimeField(null=True, help_text="The first hour that is counted.")
    until = models.DateTimeField(null=True, help_text="The latest hour that is counted.")
    counted_at = models.DateTimeField(null=True, help_text="When the totals were last updated.")
    turns = models.JSONField(default=dict, help_text="Totals in the form that hours have.")
    calls = models.JSONField(default=dict, help_text="Totals in the form that hours have.")

    def __str__(self) -> str:
        return f"all since {self.since}"


class Use(models.Model):
    """What was asked of models within one hour, by one owner, agent, API key and model; summaries too.

    Names and ids stand here as they are: what was used has been, also by those that are deleted since.
    """

    hour = models.DateTimeField(help_text="Start of the hour, in UTC, in which the turn was requested.")
    day = models.DateField(help_text="The day in TIME_ZONE; an hour may be part of two.")
    model = models.CharField(max_length=128, blank=True, help_text="The model that was asked.")
    agent = models.CharField(max_length=64, help_text="The agent's name.")
    owner_id = models.BigIntegerField(help_text="Whose conversations they are.")
    api_key_id = models.BigIntegerField(help_text="The API key that was used; 0: none.")
    turns = models.PositiveIntegerField(default=0, help_text="Turns that were asked for.")
    calls = models.PositiveIntegerField(default=0, help_text="Answers of models.")
    unpriced_calls = models.PositiveIntegerField(default=0, help_text="Model calls whose cost is not known.")
    prompt_tokens = models.BigIntegerField(default=0, help_text="Tokens of prompts.")
    cached_tokens = models.BigIntegerField(default=0, help_text="Prompt tokens that providers had cached.")
    completion_tokens = models.BigIntegerField(default=0, help_text="Tokens of answers.")
    cost = models.BigIntegerField(default=0, help_text="As far as it is known, in millionths of the currency.")

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["hour", "day", "model", "agent", "owner_id", "api_key_id"], name="one_use_an_hour"
            )
        ]
        indexes = [
            models.Index(fields=["day"], name="uses_by_day"),
            models.Index(fields=["owner_id", "day"], name="uses_of_an_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.agent}, {self.model}: {self.hour:%Y-%m-%d %H} h"


class Dismissal(models.Model):
    """Something that the console shows to nobody any more, since somebody has closed it."""

    name = models.CharField(max_length=32, primary_key=True, help_text="The notice that was closed.")
    at = models.DateTimeField(auto_now_add=True, help_text="When.")
    count = models.BigIntegerField(db_default=0, help_text="The counter's value when the notice was closed.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
