"""Conversations: transcripts with one owner and one agent."""

from datetime import datetime
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import OuterRef, Q, Subquery, Value
from django.db.models.functions import Coalesce, Left, NullIf

from agent.models import Agent
from nanohost.lib.ids import new_id


class ConversationQuerySet(models.QuerySet["Conversation"]):
    """Look-ups that say what they mean."""

    def with_title(self) -> Self:
        """Each with ``title``: its name, or else the beginning of what was said first and is kept; None if there is
        neither."""
        from conversations.models.message import Message  # which has a conversation

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
        default=1, db_default=1, help_text="Earlier messages are kept, but are no longer part of the prompt."
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
        default=0, db_default=0, help_text="Messages up to this one were deleted because of their age."
    )
    sent_erased_through = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        help_text="Records of prompts up to this message were deleted because of their age.",
    )
    results_erased_through = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        help_text="Arguments and results of tool calls up to this message were deleted because of their age.",
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
        max_length=255, blank=True, default="", db_default="", help_text="The source of that text."
    )
    deletions = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How often clients have deleted messages."
    )
    set_aside = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Messages that will be added to the next turn."
    )
    metadata = models.JSONField(
        default=dict, blank=True, help_text="Data of the client's own; stored and returned unchanged."
    )
    name = models.CharField(
        max_length=TITLE_CHARS,
        blank=True,
        default="",
        db_default="",
        help_text="Its title. Empty: the beginning of its first message is shown.",
    )
    is_pinned = models.BooleanField(
        verbose_name="pinned", default=False, db_default=False, help_text="Shown above other conversations."
    )
    is_archived = models.BooleanField(
        verbose_name="archived", default=False, db_default=False, help_text="Hidden from the list of conversations."
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
        help_text="Its client asked not to store it: it is deleted when its turn has ended.",
    )
    cost = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Cost of its model calls, in millionths of the currency. Empty: the cost of some is not known.",
    )
    imported = models.JSONField(
        null=True, blank=True, help_text="Data of the imported file that has no field of its own."
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
