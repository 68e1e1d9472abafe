"""What happened: conversations, their messages, their turns, what goes out of them, and the workers that run them."""

import json
import re
from datetime import datetime
from typing import Any, Literal, Self
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Exists, ExpressionWrapper, OuterRef, Q, Subquery, Value
from django.db.models.functions import Coalesce, Left, NullIf
from django.utils import timezone

from agent.models import Agent
from conversations import announced
from conversations.channel_models import MAX_EXTERNAL_ID, Channel, Chat
from conversations.kinds import TOOLS, TURNS, Kind
from conversations.statuses import ACTIVE, FINAL, OPEN, TurnStatus, WaitingFor
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from nanohost.lib.lease import Leased, LeaseQuerySet
from tools.models import ToolCall
from tools.outbound import urls

# As large a number of a message as every database has room for.
MAX_SEQ = 2**63 - 1

# Answers of a turn: more than any limit lets it have.
MAX_ANSWERS = 2**32

# Characters of a reason, given by people or told to them.
MAX_REASON = 500
# Characters of an e-mail address, as RFC 5321 has it.
MAX_ADDRESS = 254


class ConversationQuerySet(models.QuerySet["Conversation"]):
    """Look-ups that say what they mean."""

    def with_title(self) -> Self:
        """Each with ``title``: its name, or else the beginning of what was said first and is kept; None if there is
        neither."""
        said = Message.objects.filter(
            conversation=OuterRef("pk"), role=Message.Role.USER, kind=Message.Kind.SAID, seq__isnull=False
        )
        first = said.order_by("seq").annotate(head=Left("content", Conversation.TITLE_CHARS)).values("head")[:1]
        return self.annotate(title=Coalesce(NullIf("name", Value("")), Subquery(first)))

    def titled(self, words: str) -> Self:
        """Those whose title holds the words, of the newest MAX_SEARCHED: of each, the title is looked up."""
        newest = self.order_by("-created_at", "-id").values("pk")[: Conversation.MAX_SEARCHED]
        rows: Self = self.model.objects.filter(pk__in=newest)  # type: ignore[assignment]
        return rows.with_title().filter(title__icontains=words)


class Conversation(models.Model):
    """A transcript with one owner and one agent."""

    TITLE_CHARS = 120
    MAX_SEARCHED = 1_000

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    key = models.CharField(max_length=255, help_text="channel:chat_id[:thread], unique for its owner.")
    # Without an index of its own, as other foreign keys below: it comes first in another one.
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="conversations", db_index=False
    )
    agent = models.ForeignKey(Agent, on_delete=models.PROTECT, related_name="conversations", db_index=False)
    next_seq = models.PositiveBigIntegerField(default=1, help_text="The number the next message gets.")
    next_turn = models.PositiveBigIntegerField(default=1, help_text="The number the next turn gets.")
    starts_at_seq = models.PositiveBigIntegerField(
        default=1, db_default=1, help_text="Messages before it are kept, but are no longer part of the prompt."
    )
    consolidated_through = models.PositiveBigIntegerField(
        default=0, db_default=0, help_text="The last message that the summary covers."
    )
    summary_seq = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The message that is the latest rolling summary."
    )
    summarise_from_seq = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        help_text="Set when a summary is undone: its length alone has it summarised no earlier than at this message.",
    )
    erased_through = models.PositiveBigIntegerField(
        default=0, db_default=0, help_text="Messages up to this one were deleted, by their age."
    )
    sent_erased_through = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        help_text="Up to this message, the records of what the model was sent were deleted, by their age.",
    )
    results_erased_through = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        help_text="Up to this message, what tools were called with and what they answered was deleted, by its age.",
    )
    pins = models.JSONField(
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        help_text="Messages that every prompt has word by word: the number of each, who pinned it, and when.",
    )
    state = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        help_text="What the agent keeps for this conversation, by key.",
    )
    state_times = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        help_text="When each key of the state was kept; of one that an earlier version kept, nothing is known.",
    )
    state_tainted = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        help_text="Which keys of the state were kept when the conversation was tainted, and by what it was.",
    )
    tainted_at_seq = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="The message with which untrusted text first entered, since it last began anew. Empty: none has.",
    )
    tainted_by = models.CharField(
        max_length=255, blank=True, default="", db_default="", help_text="From where that text came."
    )
    deletions = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How often clients have deleted of what was said."
    )
    set_aside = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Messages that wait for the next turn, to ride along with it."
    )
    metadata = models.JSONField(default=dict, blank=True, help_text="The client's own; kept, not read.")
    name = models.CharField(
        max_length=TITLE_CHARS,
        blank=True,
        default="",
        db_default="",
        help_text="What its owner calls it. Empty: by the beginning of what was said first.",
    )
    is_pinned = models.BooleanField(
        verbose_name="pinned", default=False, db_default=False, help_text="Its owner has it above others."
    )
    is_archived = models.BooleanField(
        verbose_name="archived", default=False, db_default=False, help_text="Its owner has it out of the way."
    )
    # A plain id: the other one may be deleted.
    branch_of = models.UUIDField(
        null=True, blank=True, editable=False, help_text="The conversation that it is a branch of."
    )
    # A plain id, as an audit row outlives what it audits.
    spawned_by = models.UUIDField(
        null=True, blank=True, editable=False, help_text="The call of the tool spawn that it was made by, for a task."
    )
    spawned_in = models.UUIDField(
        null=True, blank=True, editable=False, help_text="The conversation that this call was made in."
    )
    is_transient = models.BooleanField(
        verbose_name="transient",
        default=False,
        db_default=False,
        help_text="Made for one request that brought its whole history; deleted after TRANSIENT_DAYS.",
    )
    is_dropped = models.BooleanField(
        verbose_name="dropped",
        default=False,
        db_default=False,
        help_text="Its client wants nothing of it kept: it is deleted once its turn has ended.",
    )
    cost = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="What its model calls have cost, in millionths of the currency. Empty: of some it is not known.",
    )
    imported = models.JSONField(
        null=True, blank=True, help_text="Of the file it was taken in from, what its other fields do not tell."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = ConversationQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="one_conversation_a_key_and_owner")]
        indexes = [
            models.Index(fields=["owner", "-created_at"], name="conversations_of_an_owner"),
            models.Index(fields=["-created_at"], name="conversations_by_time"),
            models.Index(fields=["key"], name="conversations_by_key"),
            models.Index(
                fields=["-created_at"], condition=Q(tainted_at_seq__isnull=False), name="tainted_conversations"
            ),
            models.Index(fields=["agent", "id"], name="conversations_of_an_agent"),
            models.Index(fields=["created_at"], condition=Q(is_transient=True), name="transient_conversations"),
            models.Index(fields=["created_at"], condition=Q(is_dropped=True), name="dropped_conversations"),
            # Few are, of each owner's.
            models.Index(fields=["owner", "-created_at"], condition=Q(is_pinned=True), name="pinned_conversations"),
            models.Index(fields=["owner", "-created_at"], condition=Q(is_archived=True), name="archived_conversations"),
            models.Index(
                fields=["owner", "spawned_by"], condition=Q(spawned_by__isnull=False), name="spawned_conversations"
            ),
            models.Index(
                fields=["spawned_in"], condition=Q(spawned_in__isnull=False), name="spawned_in_a_conversation"
            ),
        ]

    def __str__(self) -> str:
        return self.key

    def arrange(self, **changes: Any) -> None:
        """Set its ``name``, ``is_pinned`` and ``is_archived``, of which no turn has to know."""
        type(self).objects.filter(pk=self.pk).update(**changes)
        for field, value in changes.items():
            setattr(self, field, value)

    def kept(self) -> dict[str, tuple[Any, datetime | None]]:
        """The state: by key, what is kept and since when, if that is known."""
        times = {key: datetime.fromisoformat(at) for key, at in self.state_times.items()}
        return {key: (value, times.get(key)) for key, value in self.state.items()}


class TurnQuerySet(LeaseQuerySet["Turn"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Turns without an outcome yet."""
        return self.filter(status__in=OPEN)

    def due(self) -> Self:
        """Turns that nobody works on and whose time has come."""
        on_time = Q(run_after=None) | Q(run_after__lte=Now())
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


class Turn(Leased):
    """The unit of work and of the queue: from what a user said to its answer, or to a failure people can see."""

    QUEUED, LEASED = TurnStatus.QUEUED, TurnStatus.RUNNING

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
        help_text="The model that is asked in its place, one of its agent's further ones. Empty: none.",
    )
    fallback_reason = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Why that one is asked."
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
        help_text="Where it stands in a trace, as W3C's Trace Context writes it; empty while telemetry is off.",
    )
    idempotency_key = models.CharField(max_length=255, null=True, blank=True, help_text="Unique for the owner.")
    body_hash = models.CharField(max_length=64, blank=True, help_text="SHA-256 of what was asked, hexadecimal.")

    deadline = models.DateTimeField(null=True, blank=True, help_text="When it fails, wherever it is.")
    attempts = models.PositiveIntegerField(
        default=0,
        help_text="Claims after an expired lease since the last stored step; past TURN_MAX_ATTEMPTS it fails.",
    )
    retries = models.PositiveIntegerField(
        default=0, help_text="Failures of its provider since the last stored step, one after the other."
    )
    retry_code = models.CharField(
        max_length=64, blank=True, default="", db_default="", help_text="The code of the last of them."
    )
    retry_detail = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="Its status, and the codes and the wait that it told; never a provider's raw words.",
    )
    retrying_since = models.DateTimeField(
        null=True, blank=True, help_text="When the first of them was; past LLM_RETRY_SECONDS from then on it fails."
    )
    stepped_at = models.DateTimeField(
        null=True, blank=True, help_text="When its present step began; while it runs, its model is asked since then."
    )
    run_after = models.DateTimeField(null=True, blank=True, help_text="Not before then.")
    cancel_requested = models.BooleanField(default=False)
    cancelled_by = models.UUIDField(
        null=True, blank=True, help_text="The turn that it was cancelled for: a /stop, or one that interrupts."
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
        help_text="What the model was asked last without an answer; see conversations/engine/model_request.py.",
    )

    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Of the prompts' tokens, those that the provider had cached."
    )
    cost = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="What its model calls have cost, in millionths of the currency. Empty: of some it is not known.",
    )
    model_calls = models.PositiveIntegerField(default=0, db_default=0, help_text="Answers that models gave it.")
    model_ms = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How long those answers took together, in milliseconds."
    )
    error_code = models.CharField(max_length=64, blank=True)
    error_detail = models.CharField(
        max_length=MAX_REASON, blank=True, help_text="For people; never a provider's raw words."
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
    messages = models.PositiveIntegerField(help_text="How many messages of the assistant the turn had by then.")
    prompt_tokens = models.PositiveIntegerField(help_text="What the turn had used by then.")
    completion_tokens = models.PositiveIntegerField(help_text="The same, of answers.")
    cached_tokens = models.PositiveIntegerField(help_text="The same, of prompts that the provider had cached.")
    outputs_hash = models.CharField(max_length=64, blank=True, help_text="SHA-256 of what the calls gave.")
    created_at = models.DateTimeField(auto_now_add=True)
    answered_at = models.DateTimeField(null=True, blank=True, help_text="When the caller came back with that.")

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


class StoredResponse(models.Model):
    """What OpenAI's Responses API calls a response: a part of a turn, with what only that API needs of it."""

    id = models.UUIDField(primary_key=True, editable=False)
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="responses", db_index=False)
    number = models.PositiveIntegerField(help_text="Which part of the turn it is, from 0.")
    previous_id = models.UUIDField(null=True, blank=True, help_text="The response that it goes on from.")
    asked = models.JSONField(help_text="What it was asked with, as it is told again; see openai_api/response_view.py.")
    is_background = models.BooleanField(
        verbose_name="background", default=False, help_text="Whether its client waits elsewhere."
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


class MessageQuerySet(models.QuerySet["Message"]):
    """Look-ups that say what they mean."""

    def transcript(self) -> Self:
        """Messages that have their number, in order; those in the inbox have none yet."""
        return self.filter(seq__isnull=False).order_by("seq")


class Message(models.Model):
    """One message of a transcript. Append-only: never changed once it has its ``seq``."""

    class Role(models.TextChoices):
        SYSTEM = "system"
        USER = "user"
        ASSISTANT = "assistant"
        TOOL = "tool"

    class Type(models.TextChoices):
        NORMAL = "NORMAL"
        SUMMARY = "SUMMARY"

    class Kind(models.TextChoices):
        """What sets a message apart from what is said: it is in no prompt as a part of the history."""

        SAID = ""
        # A command to the host, its answer, and what the host says of its own accord.
        COMMAND = "command"
        # What came before, for the prompts from then on; the latest counts.
        ROLLING = "rolling"
        # What was said on one day, for people.
        DAILY = "daily"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages", db_index=False)
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, null=True, related_name="messages")
    seq = models.PositiveBigIntegerField(
        null=True,
        help_text="Its place in the transcript. Empty while it waits in the inbox: given when its turn starts.",
    )
    role = models.CharField(max_length=9, choices=Role.choices)
    type = models.CharField(max_length=7, choices=Type.choices, default=Type.NORMAL)
    kind = models.CharField(
        max_length=8,
        choices=Kind.choices,
        default=Kind.SAID,
        db_default="",
        blank=True,
        help_text="Empty: said. Otherwise a command or its answer, a rolling summary, or a day's.",
    )
    content = models.TextField(blank=True)
    reasoning = models.TextField(
        blank=True, default="", db_default="", help_text="Of an assistant: what its model thought before."
    )
    thoughts = models.JSONField(
        null=True,
        blank=True,
        help_text="Of an assistant that calls tools: what its provider is sent back of that, within the turn.",
    )
    tool_calls = models.JSONField(null=True, blank=True, help_text="Of an assistant: the calls it asks for.")
    tool_call_id = models.CharField(max_length=128, blank=True, help_text="Of a tool: the call it answers.")
    tool_name = models.CharField(max_length=128, blank=True)
    tainted_by = models.CharField(
        max_length=255,
        null=True,
        blank=True,
        help_text="From where untrusted text came that entered with it, if any did.",
    )
    metadata = models.JSONField(null=True, blank=True, help_text="What an import found with it that has no column.")
    attachments = models.JSONField(
        null=True,
        blank=True,
        help_text="Of a user: the files that came with it, as references; see conversations/attachments.",
    )
    sent = models.JSONField(
        null=True,
        blank=True,
        help_text="Of an answer: what the model was sent for it; see conversations/engine/model_request.py.",
    )
    usage = models.JSONField(
        null=True,
        blank=True,
        help_text="Of an answer: its model, its tokens, and what it has cost in millionths of the currency.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = MessageQuerySet.as_manager()

    class Meta:
        # By the column: by the relation would be by its own order, which needs all conversations.
        ordering = ["conversation_id", "seq"]
        constraints = [models.UniqueConstraint(fields=["conversation", "seq"], name="one_message_a_seq")]
        indexes = [
            # Few are marked, and only those are in it.
            models.Index(
                fields=["conversation", "-seq"], condition=Q(tainted_by__isnull=False), name="marked_messages"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.seq if self.seq is not None else 'in the inbox'}"

    @staticmethod
    def id_in(turn_id: UUID, number: int) -> UUID:
        """The id of the answer of that number, from 0, in a turn: it is told of while it is still being said."""
        return UUID(int=(turn_id.int + 1 + number) % 2**128)

    def number_in(self, turn_id: UUID) -> int | None:
        """Which answer of the turn it is; None if it came with the request, or was stored by an earlier version."""
        number = self.pk.int - turn_id.int - 1
        return number if 0 <= number < MAX_ANSWERS else None

    def as_chat(self) -> dict[str, object]:
        """The message in the OpenAI chat format."""
        return as_chat(self.role, self.content, self.tool_calls, self.tool_call_id, self.thoughts, self.attachments)


class Attachment(models.Model):
    """A file that came with messages. Its bytes are in the storage, once for each owner; here is what is known of it.

    The owner is a plain number: a row outlives its user until its file is deleted, which no database does by itself.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner_id = models.BigIntegerField(help_text="Whose it is; to others, it is not there.")
    sha256 = models.CharField(max_length=64, help_text="Of its bytes, hexadecimal.")
    path = models.CharField(max_length=200, unique=True, help_text="Where it is in the storage.")
    is_stored = models.BooleanField(
        default=False,
        help_text="Whether the file is there. It is not yet while it is written, and no more once it goes.",
    )
    media_type = models.CharField(max_length=100, help_text="By its content.")
    size = models.PositiveBigIntegerField(help_text="Bytes.")
    width = models.PositiveIntegerField(null=True, blank=True, help_text="Of a picture, pixels.")
    height = models.PositiveIntegerField(null=True, blank=True, help_text="The same.")
    has_thumbnail = models.BooleanField(default=False, help_text="Whether there is a small picture of it.")
    text = models.TextField(blank=True, help_text="What it says, as prompts have it.")
    problem = models.CharField(max_length=200, blank=True, help_text="Why that is not all, or nothing.")
    used_at = models.DateTimeField(help_text="When it was last sent; it stays for a while from then on.")

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["owner_id", "sha256"], condition=Q(is_stored=True), name="one_attachment_a_content_and_owner"
            )
        ]
        indexes = [
            # SQLite matches no partial index, such as the constraint's, against bound parameters.
            models.Index(fields=["owner_id", "sha256"], name="attachments_by_content"),
            models.Index(fields=["used_at"], name="attachments_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.media_type} {self.sha256[:12]}"


class AttachmentUse(models.Model):
    """That a message refers to a file. The file stays while one does."""

    attachment = models.ForeignKey(Attachment, on_delete=models.PROTECT, related_name="uses", help_text="The file.")
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="+")
    # Plain: where messages are in parts, a key of theirs alone is none.
    message_id = models.UUIDField(db_index=True, help_text="The message.")
    name = models.CharField(max_length=100, help_text="What it is called there.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.attachment_id} in {self.message_id}"


class Share(models.Model):
    """A link by which whoever has it reads a conversation, up to where it was when the link was made. Rows stay when
    it ends, so that its owner sees what was shared."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="shares", help_text="What is shared."
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False, help_text="Who shares it."
    )
    digest = models.CharField(
        max_length=64, unique=True, editable=False, help_text="SHA-256 of the link's token, hexadecimal."
    )
    through_seq = models.PositiveBigIntegerField(help_text="The last message that it shows.")
    with_tools = models.BooleanField(default=False, help_text="Whether calls of tools are shown, with their results.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(help_text="It opens nothing from then on.")
    revoked_at = models.DateTimeField(null=True, blank=True, help_text="It opens nothing since then.")

    class Meta:
        # There is no page of it in the console: whose it is lists and revokes it.
        default_permissions = ()
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["owner", "-created_at"], name="shares_of_an_owner")]

    def __str__(self) -> str:
        return f"share {self.pk}"

    @property
    def state(self) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at <= timezone.now() else "active"


class TaintedText(models.Model):
    """That something was said or called where untrusted text had entered, by a hash: clients of ``/v1`` keep their
    transcripts themselves, and send them back. It outlives the conversation."""

    id = models.BigAutoField(primary_key=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    digest = models.CharField(max_length=64, help_text="Of an owner's text or call: BLAKE2b, hexadecimal.")
    tainted_by = models.CharField(max_length=255, help_text="From where the untrusted text came.")
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["owner", "digest"], name="one_tainted_text_a_digest")]

    def __str__(self) -> str:
        return f"tainted text {self.pk}"


def calls_in(tool_calls: Any) -> list[tuple[str, str, str]]:
    """The id, the name and the arguments of each call that an assistant's message asks for, as texts."""
    found = []
    for call in tool_calls or ():
        function = call.get("function", {})
        texts = (call.get("id"), function.get("name"), function.get("arguments"))
        found.append(tuple(each if isinstance(each, str) else json.dumps(each) for each in texts))
    return found  # type: ignore[return-value]  # three of them


def as_chat(
    role: str,
    content: str,
    tool_calls: object,
    tool_call_id: str,
    thoughts: object = None,
    attachments: object = None,
) -> dict[str, object]:
    """What a message's fields are in the OpenAI chat format."""
    if role == Message.Role.TOOL:
        return {"role": "tool", "tool_call_id": tool_call_id, "content": content}
    chat: dict[str, object] = {"role": role, "content": content}
    if tool_calls:
        chat["tool_calls"] = tool_calls
    if thoughts:
        chat["thoughts"] = thoughts
    if attachments:
        chat["attachments"] = attachments
    return chat


class DeferredState(models.TextChoices):
    """Where a deferred message stands; the last three are final."""

    WAITING = "waiting"
    FIRED = "fired"
    DONE = "done"
    FAILED = "failed"
    # The column takes seven letters, and no column changes its type (docs/operations.md).
    CANCELLED = "dropped", "Cancelled"


OPEN_DEFERRED = (DeferredState.WAITING, DeferredState.FIRED)


class DeferredMessage(models.Model):
    """A message that makes no turn at once: it has its time, or wakes nobody and rides along with the next turn."""

    class Kind(models.TextChoices):
        # It makes a turn, when its time has come.
        WAKE = "wake"
        # The next turn has it before its own message.
        CONTEXT = "context"
        # The same, marked as a note of the host's client to the agent.
        NOTE = "note"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="deferred_messages", db_index=False
    )
    kind = models.CharField(max_length=7, choices=Kind.choices, help_text="What becomes of it.")
    content = models.TextField(blank=True)
    attachments = models.JSONField(
        null=True, blank=True, help_text="The files that came with it, as a message has them; they stay while it does."
    )
    tainted_by = models.CharField(
        max_length=255, null=True, blank=True, help_text="From where untrusted text in it came, if there is any."
    )
    files_hash = models.CharField(
        max_length=64,
        blank=True,
        db_default="",
        editable=False,
        help_text="Of its files as they were sent; empty if there are none.",
    )
    model = models.CharField(max_length=128, blank=True, help_text="The model to ask; the agent's if empty.")
    idempotency_key = models.CharField(max_length=255, null=True, blank=True, help_text="Unique in the conversation.")
    request_id = models.CharField(max_length=64, help_text="Of the request it came with.")
    api_key_id = models.BigIntegerField(
        null=True, blank=True, editable=False, help_text="The API key that it was sent with, if it was with one."
    )
    state = models.CharField(
        max_length=7, choices=DeferredState.choices, default=DeferredState.WAITING, help_text="What has become of it."
    )
    run_after = models.DateTimeField(null=True, blank=True, help_text="Not before then.")
    tries = models.PositiveIntegerField(default=0, help_text="Turns that were made of it; five at most.")
    turn_id = models.UUIDField(null=True, blank=True, help_text="The turn that was made of it last, or took it along.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        # The table and its indexes keep the names that they were made with.
        db_table = "conversations_latermessage"
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["conversation", "idempotency_key"], name="one_later_an_idempotency_key")
        ]
        indexes = [
            models.Index(fields=["state", "run_after"], name="later_by_state"),
            models.Index(fields=["conversation", "state"], name="later_of_a_conversation"),
            models.Index(fields=["-created_at"], name="later_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.state}"


class CompactionStatus(models.TextChoices):
    """Where a compaction stands; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    # There was nothing left to do: somebody else had moved the conversation on.
    DROPPED = "dropped"
    # Of a day's summary, which nothing depends on; a rolling one ends in a stub instead.
    FAILED = "failed"


class CompactionKind(models.TextChoices):
    """What a summary is for."""

    ROLLING = "rolling"
    DAILY = "daily"


OPEN_COMPACTION = (CompactionStatus.QUEUED, CompactionStatus.RUNNING)


class CompactionQuerySet(LeaseQuerySet["Compaction"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Compactions that have not ended."""
        return self.filter(status__in=OPEN_COMPACTION)

    def due(self) -> Self:
        """Compactions that nobody works on and whose time has come."""
        return self.filter(
            Q(status=CompactionStatus.QUEUED) & (Q(run_after=None) | Q(run_after__lte=Now())) | Compaction.expired()
        )


class Compaction(Leased):
    """Messages that are put into a summary: a piece of work, and its record.

    A rolling one takes the place of older messages in the prompt, and goes into the long-term memory and the history
    log as well; a daily one tells people of one day. It names what the summary was made of: which messages, by which
    model, after which turn.
    """

    QUEUED, LEASED = CompactionStatus.QUEUED, CompactionStatus.RUNNING

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="compactions", db_index=False)
    kind = models.CharField(
        max_length=7,
        choices=CompactionKind.choices,
        default=CompactionKind.ROLLING,
        help_text="rolling: for prompts. daily: of one day, for people.",
    )
    day = models.DateField(null=True, blank=True, help_text="The day that a daily one is of.")
    since = models.DateTimeField(null=True, blank=True, help_text="A daily one covers what was said from then on,")
    until = models.DateTimeField(null=True, blank=True, help_text="and before then.")
    turn_id = models.UUIDField(null=True, blank=True, help_text="The turn that made it necessary.")
    keep_tokens = models.PositiveIntegerField(help_text="Of the newest messages, so many tokens stay at most.")
    status = models.CharField(max_length=7, choices=CompactionStatus.choices, default=CompactionStatus.QUEUED)

    run_after = models.DateTimeField(null=True, blank=True, help_text="Not before then.")
    failures = models.PositiveIntegerField(
        default=0, help_text="Answers that were of no use, in a row, and workers that died. At three, a stub is made."
    )
    error = models.CharField(max_length=500, blank=True, help_text="What went wrong last.")

    first_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The first message it covers.")
    through_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The last message it covers.")
    summary_seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The message that is its summary.")
    is_stub = models.BooleanField(default=False, help_text="No model could summarise them; the log has them whole.")
    memory_version = models.PositiveIntegerField(
        null=True, blank=True, help_text="The version of the long-term memory that it made."
    )
    before_through = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The last message that the summary before it covered."
    )
    before_summary = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The message that was the summary before it."
    )
    undone_at = models.DateTimeField(
        null=True, blank=True, help_text="When people undid it: the summary before it counts again."
    )
    undone_by = models.CharField(max_length=150, default="", db_default="", blank=True, help_text="Who undid it.")
    undone_because = models.CharField(max_length=MAX_REASON, default="", db_default="", blank=True, help_text="Why.")
    made_so_far = models.JSONField(
        null=True, blank=True, help_text="What was made of its first chunks, while others are still to come."
    )
    model = models.CharField(max_length=128, blank=True, help_text="The model that made it.")
    fallback_model = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        help_text="The model that is asked in place of its agent's own, one of its further ones. Empty: none.",
    )
    fallback_reason = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Why that one is asked."
    )
    retries = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Failures of its provider since an answer came, one after the other."
    )
    retrying_since = models.DateTimeField(null=True, blank=True, help_text="When the first of them was.")
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Of the prompts' tokens, those that the provider had cached."
    )
    cost = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="What its model calls have cost, in millionths of the currency. Empty: of some it is not known.",
    )
    model_calls = models.PositiveIntegerField(default=0, db_default=0, help_text="Answers that models gave it.")

    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = CompactionQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["conversation"],
                condition=Q(status__in=OPEN_COMPACTION, kind=CompactionKind.ROLLING),
                name="one_open_compaction",
            ),
            models.UniqueConstraint(fields=["conversation", "day"], name="one_summary_a_day"),
        ]
        indexes = [
            models.Index(fields=["status", "notified_at"], name="compactions_by_status"),
            models.Index(fields=["conversation", "-summary_seq"], name="compactions_of_a_conversation"),
            models.Index(fields=["-created_at"], name="compactions_by_time"),
        ]

    def __str__(self) -> str:
        return f"messages {self.first_seq} to {self.through_seq}" if self.through_seq else f"compaction {self.status}"


# In characters; a URL may be as long as an outbound request takes it, which nobody's is.
MAX_URL = 2000


def validate_url(url: str) -> None:
    """An address as outbound requests take it. Whether it may be reached is decided at each request."""
    try:
        urls.parse(url)
    except urls.Refusal as refusal:
        raise ValidationError(f"{str(refusal)[:1].upper()}{str(refusal)[1:]}.") from None


def validate_kinds(kinds: Any) -> None:
    """A list of kinds of events that there are."""
    if not isinstance(kinds, list) or not kinds or not all(kind in [*announced.KINDS] for kind in kinds):
        raise ValidationError(f"Some of these are needed: {', '.join(announced.KINDS)}.")


class WebhookEndpoint(models.Model):
    """An address elsewhere that is told of events, signed with a secret of its own.

    The secret is stored nowhere: it is made of ``seed`` and the host's WEBHOOK_KEY, whenever it is needed
    (:mod:`conversations.deliveries.signatures`). Rows stay when an endpoint is switched off, so that what it was sent
    can still be traced.
    """

    name = models.CharField(max_length=100, help_text="What it is for, for people.")
    url = models.CharField(
        max_length=MAX_URL,
        validators=[validate_url],
        help_text="Where events are sent to, by POST; redirects are not followed.",
    )
    kinds = models.JSONField(
        default=list, validators=[validate_kinds], help_text="The kinds of events that it is sent."
    )
    is_active = models.BooleanField(default=True, help_text="Whether it is sent any.")
    disabled_because = models.CharField(
        max_length=200, blank=True, help_text="Why the host has switched it off, if the host has."
    )
    seed = models.CharField(max_length=64, editable=False, help_text="What its secret is made of, with WEBHOOK_KEY.")
    former_seed = models.CharField(
        max_length=64,
        blank=True,
        editable=False,
        help_text="The one before: what is sent is signed with both for a day.",
    )
    rotated_at = models.DateTimeField(null=True, blank=True, help_text="When its secret was last made anew.")
    digest = models.CharField(
        max_length=64,
        editable=False,
        help_text="SHA-256 of its secret, hexadecimal: whether another WEBHOOK_KEY would make another secret.",
    )
    made_by = models.CharField(max_length=150, blank=True, editable=False, help_text="Who made it.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "webhook"
        ordering = ["name", "id"]

    def __str__(self) -> str:
        return self.name


class DeliveryStatus(models.TextChoices):
    """Where a delivery stands; the last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DELIVERED = "delivered"
    FAILED = "failed"
    # It was begun to be sent, and nobody knows whether it is there.
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"


OPEN_DELIVERY = (DeliveryStatus.QUEUED, DeliveryStatus.RUNNING)


class DeliveryQuerySet(LeaseQuerySet["Delivery"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Deliveries that have not ended."""
        return self.filter(status__in=OPEN_DELIVERY)

    def due(self) -> Self:
        """Deliveries that nobody works on and whose time has come."""
        on_time = Q(run_after=None) | Q(run_after__lte=Now())
        return self.filter(Q(status=DeliveryStatus.QUEUED) & on_time | Delivery.expired())

    def claimable(self) -> Self:
        """Due ones, to endpoints that are not sent as many at this moment as one may be; the mail server is one, and so
        is each account of a channel. To a chat goes one after the other, and nothing to a platform that has asked for
        time."""
        held = Delivery.objects.filter(status=DeliveryStatus.RUNNING, lease_until__gt=Now()).order_by("pk")
        full = slice(Delivery.MAX_AT_ONCE - 1, Delivery.MAX_AT_ONCE)
        to_endpoint = held.filter(endpoint=OuterRef("endpoint"))
        to_mail_server = held.filter(endpoint=None, account=None, channel=OuterRef("channel"))
        to_account = held.filter(account=OuterRef("account"))
        earlier = Delivery.objects.open().filter(chat=OuterRef("chat"), number__lt=OuterRef("number")).order_by()
        wants_time = Channel.objects.filter(pk=OuterRef("account"), held_until__gt=Now()).order_by()
        return self.due().filter(
            ~Exists(to_endpoint[full]),
            ~Exists(to_mail_server[full]),
            Q(account=None) | ~Exists(to_account[full]) & ~Exists(earlier) & ~Exists(wants_time),
        )


class Delivery(Leased):
    """The outbox: something that is to go out, until it is there or was tried for a day."""

    QUEUED, LEASED = DeliveryStatus.QUEUED, DeliveryStatus.RUNNING

    # To one endpoint, or to the mail server, or a few more if they are claimed at the same moment: one that hangs
    # leaves places to others.
    MAX_AT_ONCE = 4

    # Of one that is being sent: where that stands in a trace.
    traceparent = ""

    class Channel(models.TextChoices):
        """How it goes out."""

        WEBHOOK = "webhook"
        EMAIL = "email"
        # By an account of a platform, to a chat.
        CHAT = "chat"

    id = models.UUIDField(
        primary_key=True, default=new_id, editable=False, help_text="Receivers know it by this, however often it comes."
    )
    channel = models.CharField(
        max_length=16, choices=Channel.choices, default=Channel.WEBHOOK, help_text="How it goes out."
    )
    endpoint = models.ForeignKey(
        WebhookEndpoint,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="deliveries",
        db_index=False,
        help_text="Where a webhook's goes.",
    )
    recipient = models.CharField(
        max_length=MAX_ADDRESS, blank=True, db_default="", help_text="The address that an e-mail goes to."
    )
    account = models.ForeignKey(
        "Channel",  # the model, which the choices above hide
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="deliveries",
        db_index=False,
        help_text="The channel that a message to a chat goes by.",
    )
    chat = models.ForeignKey(
        Chat,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="deliveries",
        db_index=False,
        help_text="The chat that it goes to.",
    )
    number = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The order in which messages go to the chat."
    )
    conversation_id = models.UUIDField(null=True, blank=True, help_text="Where a message to a chat was said.")
    turn_id = models.UUIDField(null=True, blank=True, help_text="And in which turn.")
    in_reply_to = models.CharField(
        max_length=MAX_EXTERNAL_ID, blank=True, db_default="", help_text="The platform's id of what it answers."
    )
    external_id = models.CharField(
        max_length=MAX_EXTERNAL_ID,
        blank=True,
        db_default="",
        help_text="The platform's own id of it, once it is there.",
    )
    about = models.UUIDField(
        null=True, blank=True, help_text="The delivery whose message it changes, reacts to, or takes the buttons of."
    )
    kind = models.CharField(max_length=32, help_text="The kind of event that it tells of, or of message that it is.")
    data = models.JSONField(help_text="What it tells: of an event ids and facts; of a message to a chat what it says.")
    owner_id = models.BigIntegerField(null=True, blank=True, help_text="Whose event it is, if it is somebody's.")
    status = models.CharField(max_length=9, choices=DeliveryStatus.choices, default=DeliveryStatus.QUEUED)

    run_after = models.DateTimeField(null=True, blank=True, help_text="Not before then.")
    expires_at = models.DateTimeField(help_text="It is tried until then.")
    attempts = models.PositiveIntegerField(default=0, help_text="How often workers have begun to send it.")
    tries = models.JSONField(default=list, blank=True, help_text="What became of the latest attempts.")
    last_status = models.PositiveIntegerField(null=True, blank=True, help_text="The HTTP status of the last answer.")
    error = models.CharField(max_length=MAX_REASON, blank=True, help_text="What went wrong last.")

    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When it was delivered, or given up.")

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "deliveries"
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["status", "notified_at"], name="deliveries_by_status"),
            models.Index(fields=["endpoint", "-created_at"], name="deliveries_of_a_webhook"),
            models.Index(fields=["-created_at"], name="deliveries_by_time"),
            # Few have failed; the overview counts the latest.
            models.Index(
                fields=["-created_at"], condition=models.Q(status=DeliveryStatus.FAILED), name="deliveries_failed"
            ),
            models.Index(fields=["account", "-created_at"], name="deliveries_of_a_channel"),
            models.Index(fields=["chat", "number"], name="deliveries_of_a_chat"),
            models.Index(
                fields=["conversation_id"],
                condition=models.Q(conversation_id__isnull=False),
                name="deliveries_of_what_was_said",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.status}"


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


# LLM_PROVIDER's word for the model that nanohost brings along.
SCRIPTED = "mock"


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Look-ups that say what they mean."""

    def alive(self) -> Self:
        """Workers that have not ended and were heard of within three heartbeats."""
        return self.filter(Worker.is_heard())

    def with_life(self) -> Self:
        """Each with ``is_alive``, by the database's clock, which also stamps the heartbeats."""
        return self.annotate(is_alive=ExpressionWrapper(Worker.is_heard(), output_field=models.BooleanField()))

    def working_on(self, kind: Kind) -> Self:
        """Workers that listen to its queue."""
        return self.filter(queues__regex=rf"(^|,){kind.queue}(,|$)")

    def sandboxes(self) -> list[str]:
        """What keeps tools where they are, of those that run tools and are alive: each that there is, once."""
        return sorted(set(self.alive().working_on(TOOLS).exclude(sandbox="").values_list("sandbox", flat=True)))

    def scripted(self) -> Literal["", "some", "all"]:
        """Of the workers that run turns and are alive, who answers them by the scripted model. Only workers know; web
        nodes are given neither a key nor an address."""
        providers = set(self.alive().working_on(TURNS).values_list("provider", flat=True))
        if SCRIPTED not in providers:
            return ""
        return "some" if len(providers) > 1 else "all"


class Worker(models.Model):
    """One row a worker process: readiness, and who is dead, are read from it."""

    # Three of them fit in a lease, so that one that is late loses no turn.
    HEARTBEAT_SECONDS = min(5.0, settings.TURN_LEASE_SECONDS / 3)
    SILENT_SECONDS = 3 * HEARTBEAT_SECONDS

    name = models.CharField(max_length=128, unique=True, help_text="host:pid:start")
    version = models.CharField(max_length=32)
    queues = models.CharField(
        max_length=200, db_default="turns,tools", help_text="What it works on, separated by commas."
    )
    started_at = models.DateTimeField(auto_now_add=True)
    heartbeat_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When it stopped cleanly.")
    turns_most = models.PositiveIntegerField(help_text="How many turns it holds at most.")
    pool_used = models.PositiveIntegerField(
        null=True, help_text="Connections of its database pool that were in use. Empty: it has no pool, as on SQLite."
    )
    pool_most = models.PositiveIntegerField(null=True, help_text="How many connections its pool may open.")
    pool_waiting = models.PositiveIntegerField(null=True, help_text="Threads that waited for one.")
    provider = models.CharField(
        max_length=32, blank=True, db_default="", default="", help_text="Who its models are asked of: LLM_PROVIDER."
    )
    providers = models.CharField(
        max_length=255,
        blank=True,
        db_default="",
        default="",
        help_text="The providers that it has a key or an address of, separated by commas.",
    )
    sandbox = models.CharField(
        max_length=100, blank=True, db_default="", default="", help_text="What keeps its tools where they are."
    )

    objects = WorkerQuerySet.as_manager()

    class Meta:
        ordering = ["-heartbeat_at"]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def is_heard(cls) -> Q:
        """Whether a worker has not ended, and was heard of lately."""
        return Q(ended_at=None, heartbeat_at__gt=from_now(-cls.SILENT_SECONDS))

    @property
    def told_pool(self) -> str:
        """The use of its database pool at its last heartbeat, in a few words."""
        if self.pool_most is None:
            return "none"
        waiting = f", {self.pool_waiting} waiting" if self.pool_waiting else ""
        return f"{self.pool_used} of {self.pool_most}{waiting}"


class OutgoingFile(models.Model):
    """What a delivery of a file sends; its bytes are here since whoever sends it has not the folder that it was in."""

    MAX_BYTES = 5 * 1024 * 1024

    delivery = models.OneToOneField(
        Delivery, on_delete=models.CASCADE, primary_key=True, related_name="file", help_text="Which sends it."
    )
    name = models.CharField(max_length=100, help_text="What it is called there.")
    data = models.BinaryField(help_text="Its bytes.")

    def __str__(self) -> str:
        return self.name


# Rows of their own modules.
from conversations import question_models  # noqa: E402, F401
from conversations.replay_models import Replay as Replay  # noqa: E402
from conversations.replay_models import ReplayRun as ReplayRun  # noqa: E402
