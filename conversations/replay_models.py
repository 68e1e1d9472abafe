"""Replays: stored turns that a model is asked again, without any effect."""

from typing import Any, Self

from django.conf import settings
from django.db import models

from agent.models import Agent
from nanohost.lib.ids import new_id
from nanohost.lib.lease import Rescheduled, RescheduledQuerySet


class ReplayStatus(models.TextChoices):
    """Where a replay stands; the last two are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


OPEN_REPLAY = (ReplayStatus.QUEUED, ReplayStatus.RUNNING)


class Unrecorded(models.TextChoices):
    """What a tool call is answered that the original turn did not make."""

    REFUSE = "refuse", "it is refused"
    SIMULATE = "simulate", "the gate says whether it would run; it does not"


class ReplayRun(models.Model):
    """Turns that are replayed together, graded, and compared with the run of that name before."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100, help_text="Of the set: runs of one name are compared with each other.")
    asked_by = models.CharField(max_length=150, blank=True, help_text="Who asked for it.")
    changes = models.JSONField(default=dict, help_text="What is other than in the turns.")
    graders = models.JSONField(default=list, help_text="What each answer is held against, with a judge's prompt.")
    created_at = models.DateTimeField(auto_now_add=True)

    # What a page tells of it, made once for all that it shows.
    report: dict[str, Any] | None = None

    class Meta:
        verbose_name = "replay run"
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["name", "-id"], name="replay_runs_by_name")]

    def __str__(self) -> str:
        return self.name

    def before(self) -> "ReplayRun | None":
        """The run of that name before."""
        earlier = ReplayRun.objects.filter(name=self.name, pk__lt=self.pk)
        return earlier.order_by("-pk").first()


class ReplayQuerySet(RescheduledQuerySet["Replay"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Replays that have not ended."""
        return self.filter(status__in=OPEN_REPLAY)


class Replay(Rescheduled):
    """A stored turn that is asked again: a piece of work, and what came of it.

    It has the prompt of the turn, a model, and the turn's own tool results; it writes to no conversation.
    """

    QUEUED, LEASED = ReplayStatus.QUEUED, ReplayStatus.RUNNING

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    turn = models.ForeignKey(
        "conversations.Turn",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="replays",
        help_text="The turn it repeats.",
    )
    run = models.ForeignKey(
        ReplayRun,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="replays",
        help_text="The run that it is part of, if it is of one.",
    )
    expected = models.JSONField(
        null=True, blank=True, help_text="What its case expects: words, and texts that they contain."
    )
    grades = models.JSONField(null=True, blank=True, help_text="Whether it passed each grader, and why not.")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="+",
        help_text="Whose turn it is, and whose budgets it counts in.",
    )
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="+", help_text="Who is asked.")
    asked_by = models.CharField(max_length=150, blank=True, help_text="Who asked for it.")
    changes = models.JSONField(
        default=dict,
        blank=True,
        help_text="What is other than in the turn: model, temperature, version, tools, unrecorded.",
    )
    status = models.CharField(max_length=9, choices=ReplayStatus.choices, default=ReplayStatus.QUEUED)
    failures = models.PositiveIntegerField(
        default=0, help_text="Failures of its provider, and workers that died; past three it fails."
    )
    error_code = models.CharField(max_length=64, blank=True, help_text="Why it failed.")
    error_detail = models.CharField(max_length=500, blank=True, help_text="The same in words.")
    model = models.CharField(max_length=128, blank=True, help_text="The model that it asks.")
    result = models.JSONField(
        null=True, blank=True, help_text="What came of it: words, tool calls with their answers, tokens, cost, time."
    )
    prompt_tokens = models.PositiveIntegerField(
        default=0, help_text="Of all its model calls; also of tries that failed."
    )
    completion_tokens = models.PositiveIntegerField(default=0, help_text="The same, of answers.")
    cached_tokens = models.PositiveIntegerField(default=0, help_text="Of prompts, those that the provider had cached.")
    cost = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="What its model calls have cost, in millionths of the currency. Empty: of some it is not known.",
    )
    model_calls = models.PositiveIntegerField(default=0, help_text="Answers that models gave it.")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = ReplayQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["status", "notified_at"], name="replays_by_status"),
            models.Index(fields=["-created_at"], name="replays_by_time"),
        ]

    def __str__(self) -> str:
        return f"replay of turn {self.turn_id}"

    @property
    def ended(self) -> bool:
        """Whether it has its outcome."""
        return self.status not in OPEN_REPLAY

    def words(self) -> str:
        """What it was answered."""
        given: dict[str, Any] = self.result or {}
        return str(given.get("words", ""))
