"""Turns, the unit of work, and what they have asked their callers to do."""

import re
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.expressions import Combinable
from django.db.models.functions import Least

from conversations.models.conversation import Conversation
from conversations.models.intake import IntakePause
from conversations.models.limits import MAX_REASON
from conversations.statuses import ACTIVE, FINAL, OPEN, TurnStatus, WaitingFor
from nanohost.lib.clock import from_now
from nanohost.lib.ids import new_id
from nanohost.lib.lease import Rescheduled, RescheduledQuerySet
from tools.models import ToolCall


class TurnQuerySet(RescheduledQuerySet["Turn"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Turns without an outcome yet."""
        return self.filter(status__in=OPEN)

    def due(self) -> Self:
        """Turns that nobody works on and whose time has come."""
        on_time = Turn.on_time()
        # Looked at each time, not written into the turns when the intake is resumed: one that is stored at that
        # moment would wait for ever.
        is_let_in = ~Q(waiting_for=WaitingFor.INTAKE) | ~Exists(IntakePause.objects.current())
        return self.filter(
            Q(status=TurnStatus.QUEUED) & on_time & is_let_in
            | Q(status=TurnStatus.WAITING, waiting_for__in=(WaitingFor.TOOLS, WaitingFor.APPROVAL, WaitingFor.ANSWER))
            | Q(status=TurnStatus.WAITING, waiting_for=WaitingFor.RETRY) & on_time
            | Turn.expired()
        )

    def claimable(self) -> Self:
        """Due turns with no earlier turn of their conversation open, and no call of theirs open."""
        earlier = Turn.objects.open().filter(conversation=OuterRef("conversation"), number__lt=OuterRef("number"))
        return self.due().filter(~Exists(earlier), ~Exists(ToolCall.objects.open().filter(turn_id=OuterRef("pk"))))

    def of_worker(self, worker: str) -> Self:
        """Turns a worker holds: those that run, and that it has claimed."""
        return self.filter(status=TurnStatus.RUNNING, worker=worker)


class Turn(Rescheduled):
    """The unit of work and of the queue: from what a user said to its answer, or to a failure people can see."""

    QUEUED, LEASED = TurnStatus.QUEUED, TurnStatus.RUNNING

    @classmethod
    def renewed(cls, *, lease: "float | Combinable") -> dict[str, Any]:
        """What a renewal changes: up to the turn's deadline, and never past it."""
        return {"lease_until": Least(from_now(lease), F("deadline"))}

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="turns", db_index=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    number = models.PositiveBigIntegerField(help_text="Its place in the conversation; turns run in this order.")
    status = models.CharField(max_length=9, choices=TurnStatus.choices, default=TurnStatus.QUEUED)
    waiting_for = models.CharField(max_length=8, choices=WaitingFor.choices, blank=True)

    model = models.CharField(max_length=128, help_text="The model it asks.")
    fallback_model = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        help_text="The fallback model in use. Empty: none.",
    )
    fallback_reason = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Why the fallback is used."
    )
    # As text: a database's own JSON keeps no order of keys, in which a model writes its answer.
    response_format = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="The form of its answer, as it was asked for: OpenAI's response_format. Empty: as its agent says.",
    )
    invalid_answers = models.JSONField(
        null=True,
        blank=True,
        help_text="Answers in another form, each with what was wrong, what the model was sent, and what it has cost.",
    )
    agent_version = models.PositiveIntegerField(
        null=True, blank=True, help_text="The version of its agent that it ran with, since it was last taken up."
    )
    request_id = models.CharField(max_length=64, help_text="Of the request it came with; every log line carries it.")
    api_key_id = models.BigIntegerField(
        null=True, blank=True, editable=False, help_text="The API key that it was asked with, if it was with one."
    )
    traceparent = models.CharField(
        max_length=55,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Its trace context (W3C traceparent); empty while telemetry is off.",
    )
    idempotency_key = models.CharField(max_length=255, null=True, blank=True, help_text="Unique for the owner.")
    body_hash = models.CharField(max_length=64, blank=True, help_text="SHA-256 of what was asked, hexadecimal.")

    deadline = models.DateTimeField(null=True, blank=True, help_text="The turn fails at this time at the latest.")
    attempts = models.PositiveIntegerField(
        default=0,
        help_text="Claims after an expired lease since the last stored step; above TURN_MAX_ATTEMPTS it fails.",
    )
    retries = models.PositiveIntegerField(
        default=0, help_text="Consecutive failures of its provider since the last stored step."
    )
    retry_code = models.CharField(
        max_length=64, blank=True, default="", db_default="", help_text="The code of the last of them."
    )
    retry_detail = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="HTTP status, error codes and wait; never the provider's raw text.",
    )
    retrying_since = models.DateTimeField(
        null=True, blank=True, help_text="When the first of them was; LLM_RETRY_SECONDS after that it fails."
    )
    stepped_at = models.DateTimeField(
        null=True, blank=True, help_text="Start of the current step; while the turn runs, start of its model call."
    )
    cancel_requested = models.BooleanField(default=False)
    cancelled_by = models.UUIDField(
        null=True, blank=True, help_text="The turn that cancelled it: a /stop, or an interrupting message."
    )
    options = models.JSONField(
        null=True,
        blank=True,
        help_text="What it was asked with besides words: instructions, tools and parameters of the caller; see"
        " conversations/options.py.",
    )
    sent = models.JSONField(
        null=True,
        blank=True,
        help_text="The last model request without an answer; see conversations/engine/model_request.py.",
    )

    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Prompt tokens that the provider had cached."
    )
    cost = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Cost of its model calls, in millionths of the currency. Empty: the cost of some is not known.",
    )
    model_calls = models.PositiveIntegerField(default=0, db_default=0, help_text="Number of model calls.")
    model_ms = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Total time of its model calls, in milliseconds."
    )
    error_code = models.CharField(max_length=64, blank=True)
    error_detail = models.CharField(
        max_length=MAX_REASON, blank=True, help_text="Error message; never the provider's raw text."
    )

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = TurnQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["conversation", "number"], name="one_turn_a_number"),
            models.UniqueConstraint(
                fields=["conversation"], condition=Q(status__in=ACTIVE), name="one_active_turn_a_conversation"
            ),
            models.UniqueConstraint(fields=["owner", "idempotency_key"], name="one_turn_an_idempotency_key_and_owner"),
        ]
        indexes = [
            models.Index(fields=["status", "notified_at"], name="turns_by_status"),
            # PostgreSQL finds the earlier open turns of a long conversation by the second one; without it, it reads all
            # the earlier ones. SQLite needs the first: it matches no partial index against bound parameters.
            models.Index(fields=["conversation", "status", "number"], name="turns_in_order"),
            models.Index(fields=["conversation", "number"], condition=Q(status__in=OPEN), name="open_turns_in_order"),
            models.Index(fields=["-created_at"], name="turns_by_time"),
            models.Index(fields=["owner", "-id"], name="turns_of_an_owner"),
            # What people look for, with an error's report in hand.
            models.Index(fields=["request_id"], name="turns_by_request"),
            models.Index(fields=["error_code", "-created_at"], condition=Q(error_code__gt=""), name="turns_by_error"),
            # By which a client's retry finds the turn that it has made before.
            models.Index(fields=["body_hash"], condition=Q(options__isnull=False), name="turns_by_body"),
        ]

    def __str__(self) -> str:
        return f"turn {self.number} of {self.conversation_id}"

    @property
    def ended(self) -> bool:
        """Whether it has its outcome."""
        return self.status in FINAL

    @property
    def run_seconds(self) -> float | None:
        """From when a worker first took it until it ended; None if it has not begun, or not ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()


class CallerRound(models.Model):
    """What a turn has asked its caller to do: calls of tools that are the caller's own. The turn waits for what they
    give; each round ends a part of it, which a request was answered with."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="caller_rounds", db_index=False)
    number = models.PositiveIntegerField(help_text="Its place in the turn, from 0.")
    calls = models.JSONField(help_text="The calls, in the chat format.")
    messages = models.PositiveIntegerField(help_text="Number of assistant messages in the turn at that time.")
    prompt_tokens = models.PositiveIntegerField(help_text="Prompt tokens of the turn at that time.")
    completion_tokens = models.PositiveIntegerField(help_text="Completion tokens.")
    cached_tokens = models.PositiveIntegerField(help_text="Cached prompt tokens.")
    outputs_hash = models.CharField(max_length=64, blank=True, help_text="SHA-256 of the outputs of the calls.")
    created_at = models.DateTimeField(auto_now_add=True)
    answered_at = models.DateTimeField(null=True, blank=True, help_text="When the caller sent the outputs.")

    class Meta:
        ordering = ["turn_id", "number"]
        constraints = [models.UniqueConstraint(fields=["turn", "number"], name="one_caller_round_a_number")]

    def __str__(self) -> str:
        return f"round {self.number} of turn {self.turn_id}"

    @staticmethod
    def call_id(round_id: UUID, index: int) -> str:
        """The id of a call: 39 characters, of which providers take 40, and from which its round is told."""
        return f"call_{round_id.hex}{index:02x}"

    @staticmethod
    def id_of(call_id: str) -> UUID | None:
        """The round whose call an id is, if it is one of ours."""
        found = re.fullmatch("call_([0-9a-f]{32})[0-9a-f]{2}", call_id)
        return UUID(found[1]) if found else None
