"""Replays: stored turns that a model is asked again, without any effect."""

from typing import Any, Self

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q, Sum

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


class ReplaySet(models.Model):
    """A named set of cases: turns that are replayed together again and again, and how their answers are graded."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(
        max_length=100,
        unique=True,
        error_messages={"unique": "There is a set of that name already."},
        help_text="Its name, and that of its runs.",
    )
    graders = models.JSONField(default=list, blank=True, help_text="Graders of the answers, with a judge's prompt.")
    max_tokens = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="Tokens that a run of it may use, prompts and answers together. Empty: no limit of its own.",
    )
    min_passed = models.FloatField(
        "share that has to pass",
        default=1.0,
        db_default=1.0,
        validators=[MinValueValidator(0), MaxValueValidator(1)],
        help_text="From 0 to 1: a change of its agent that waits for it becomes live if so many cases pass.",
    )
    agent = models.ForeignKey(
        Agent,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="Whose cases are run by themselves, with what it then is. Empty: with what it was in each turn.",
    )
    on_change = models.BooleanField(
        "run when its agent is changed",
        default=False,
        db_default=False,
        help_text="Its prompt, documents, model, tools or limits; before that is live, if the agent's page says so.",
    )
    every_hours = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(24 * 366)],
        help_text="Interval of automatic runs, in hours. Empty: none.",
    )
    next_at = models.DateTimeField(null=True, blank=True, help_text="Time of the next automatic run.")
    seen_version = models.PositiveIntegerField(
        null=True, blank=True, editable=False, help_text="The version of its agent that it was run with last."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "set of cases"
        verbose_name_plural = "sets of cases"
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["next_at"], condition=~Q(next_at=None), name="replay_sets_by_time"),
            models.Index(fields=["id"], condition=Q(on_change=True), name="replay_sets_run_on_changes"),
        ]

    def __str__(self) -> str:
        return self.name


class ReplayCase(models.Model):
    """A stored turn in a set, and what its answer has to be."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    of_set = models.ForeignKey(
        ReplaySet, on_delete=models.CASCADE, related_name="cases", db_index=False, help_text="The set it is in."
    )
    turn = models.ForeignKey("conversations.Turn", on_delete=models.CASCADE, related_name="+")
    expected = models.JSONField(
        null=True, blank=True, help_text="The expected answer, and texts it has to contain. Empty: the original answer."
    )

    class Meta:
        verbose_name = "case"
        constraints = [models.UniqueConstraint(fields=["of_set", "turn"], name="a_turn_is_one_case_of_a_set")]

    def __str__(self) -> str:
        return f"case of turn {self.turn_id}"


class ReplayRun(models.Model):
    """Turns that are replayed together, graded, and compared with the run of that name before."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100, help_text="Of the set: runs of one name are compared with each other.")
    of_set = models.ForeignKey(
        ReplaySet,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="runs",
        help_text="The set whose cases it has; none, if they were found by filters or in a file.",
    )
    asked_by = models.CharField(max_length=150, blank=True, help_text="Who asked for it.")
    changes = models.JSONField(default=dict, help_text="Differences from the original turns.")
    graders = models.JSONField(default=list, help_text="Graders of the answers, with a judge's prompt.")
    max_tokens = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Tokens that it may use; what is left of it then fails. Empty: no limit."
    )
    for_version = models.PositiveIntegerField(
        null=True, blank=True, help_text="The version of the set's agent that waits for this run to become live."
    )
    report = models.JSONField(null=True, blank=True, help_text="The report, stored when the run has ended.")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When its report was stored.")

    class Meta:
        verbose_name = "replay run"
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["name", "-id"], name="replay_runs_by_name"),
            models.Index(fields=["id"], condition=Q(ended_at=None), name="replay_runs_that_are_open"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["of_set", "for_version"], condition=~Q(for_version=None), name="one_run_of_a_set_a_version"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def before(self) -> "ReplayRun | None":
        """The run of that name that has ended before."""
        earlier = ReplayRun.objects.filter(name=self.name, pk__lt=self.pk)
        return earlier.exclude(ended_at=None).order_by("-pk").first()

    def used_tokens(self) -> int:
        """Of all its model calls so far, the judges' as well."""
        sums = self.replays.aggregate(prompts=Sum("prompt_tokens"), answers=Sum("completion_tokens"))
        return (sums["prompts"] or 0) + (sums["answers"] or 0)


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
    expected = models.JSONField(null=True, blank=True, help_text="The expected answer, and texts it has to contain.")
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
    completion_tokens = models.PositiveIntegerField(default=0, help_text="Completion tokens.")
    cached_tokens = models.PositiveIntegerField(default=0, help_text="Of prompts, those that the provider had cached.")
    cost = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Cost of its model calls, in millionths of the currency. Empty: the cost of some is not known.",
    )
    model_calls = models.PositiveIntegerField(default=0, help_text="Number of model calls.")
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
