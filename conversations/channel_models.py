"""Channels: the accounts by which people elsewhere talk to agents, who they are, and where they are spoken to."""

import re
from typing import Any, Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q, functions

from agent.models import Agent
from nanohost.lib.ids import new_id
from nanohost.lib.lease import Rescheduled, RescheduledQuerySet

# Conversations of these are made by other doors.
RESERVED = frozenset({"api", "openai", "heartbeat", "cli", "cron", "schedule", "origin", "self"})

_NAME = re.compile("[a-z][a-z0-9-]{0,31}")

# Characters of what platforms call a chat, a thread or a sender, and of what they call a message.
MAX_PLATFORM_ID, MAX_EXTERNAL_ID = 128, 200


def validate_name(name: str) -> None:
    """What a conversation's key can begin with, and no other door uses."""
    if not _NAME.fullmatch(name):
        raise ValidationError("A name has a-z, 0-9 and -, begins with a letter, and has 32 characters at most.")
    if name in RESERVED:
        raise ValidationError(f"{name} is used by the host itself; choose another name.")


class Unknown(models.TextChoices):
    """What becomes of those who write and are not known."""

    STRICT = "strict", "refuse them"
    PAIRING = "pairing", "refuse them, unless they send a pairing code"
    REQUEST = "request", "refuse them, and ask in the console: who is allowed then is answered"
    PUBLIC = "public", "take what they say as untrusted text"


class WhenInDoubt(models.TextChoices):
    """What becomes of a message of which nobody knows whether the platform has it."""

    LEAVE = "leave", "leave it, as unknown"
    AGAIN = "again", "send it again, though it may then be there twice"


class Channel(models.Model):
    """An account at a platform, by which people talk to an agent.

    No secret stands in it: ``settings`` name the variables that have them, and what the host signs with is made of
    ``seed`` and WEBHOOK_KEY (:mod:`conversations.deliveries.signatures`). A channel is switched off, and not deleted.
    """

    name = models.CharField(
        max_length=32,
        unique=True,
        validators=[validate_name],
        help_text="Prefix of its conversations' keys, and part of its address: a-z, 0-9 and -.",
    )
    kind = models.CharField(max_length=32, help_text="The platform.")
    agent = models.ForeignKey(
        Agent, on_delete=models.PROTECT, related_name="channels", help_text="The agent that answers."
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="channels",
        help_text="Owner of conversations whose senders have no owner of their own.",
    )
    settings = models.JSONField(
        default=dict, blank=True, help_text="Settings of the platform. Secrets are given as names of variables."
    )
    is_active = models.BooleanField(default=True, help_text="Whether it receives and sends messages.")
    allow_from = models.JSONField(
        default=list, blank=True, help_text='Who may write, by the platform\'s ids of senders; ["*"]: everybody.'
    )
    unknown = models.CharField(
        max_length=8,
        choices=Unknown.choices,
        default=Unknown.STRICT,
        help_text="What happens to messages from other senders.",
    )
    in_doubt = models.CharField(
        max_length=8,
        choices=WhenInDoubt.choices,
        default=WhenInDoubt.LEAVE,
        help_text="What becomes of a message of which nobody knows whether it has arrived. A platform that knows a"
        " message again is always sent it again.",
    )
    approvals = models.BooleanField(
        "approvals in its chats",
        default=False,
        db_default=False,
        help_text="Calls that wait for consent are told of in the chat of their conversation, and decided there by"
        " senders who belong to a user who may.",
    )
    progress = models.BooleanField(
        default=False,
        db_default=False,
        help_text="What an agent says before it uses tools goes to its chats as well (nanobot's sendProgress).",
    )
    tool_hints = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Its chats are told which tools an agent uses (nanobot's sendToolHints).",
    )
    typing = models.BooleanField(
        "typing marks",
        default=True,
        db_default=True,
        help_text="Shows in the chat that the agent is writing while a turn runs, if the platform supports it.",
    )
    seed = models.CharField(max_length=64, editable=False, help_text="What its secret is made of, with WEBHOOK_KEY.")
    former_seed = models.CharField(
        max_length=64, blank=True, editable=False, help_text="The one before, which counts for a day as well."
    )
    rotated_at = models.DateTimeField(null=True, blank=True, help_text="When its secret was last made anew.")
    pairing_digest = models.CharField(
        max_length=64, blank=True, editable=False, help_text="SHA-256 of the pairing code, hexadecimal."
    )
    pairing_until = models.DateTimeField(null=True, blank=True, help_text="Until when the pairing code opens.")
    held_until = models.DateTimeField(
        null=True, blank=True, help_text="Rate limited by the platform: nothing is sent before then."
    )
    last_in_at = models.DateTimeField(null=True, blank=True, help_text="When something last came in.")
    last_out_at = models.DateTimeField(null=True, blank=True, help_text="When something last went out.")
    error = models.CharField(
        max_length=500, blank=True, help_text="The last error, if there has been no success since."
    )
    made_by = models.CharField(max_length=150, blank=True, editable=False, help_text="Who made it.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Who may write is a list of texts."""
        who: Any = self.allow_from
        if not isinstance(who, list) or not all(isinstance(each, str) and each.strip() for each in who):
            raise ValidationError({"allow_from": 'A list of ids, such as ["12345"]; nobody: [].'})


class SenderState(models.TextChoices):
    """What a sender may do."""

    ALLOWED = "allowed"
    # Nobody has allowed them.
    REFUSED = "refused"
    # Somebody has said no, whatever the channel says of others.
    BLOCKED = "blocked"


class Sender(models.Model):
    """Somebody who has written by a channel. Those who were refused stand here too, with how often."""

    channel = models.ForeignKey(
        Channel,
        on_delete=models.CASCADE,
        related_name="senders",
        db_index=False,
        help_text="The channel they wrote in.",
    )
    sender_id = models.CharField(max_length=MAX_PLATFORM_ID, help_text="The platform's id of the sender.")
    name = models.CharField(max_length=100, blank=True, help_text="The name they chose; it proves nothing.")
    state = models.CharField(
        max_length=8, choices=SenderState.choices, default=SenderState.REFUSED, help_text="Whether they may write."
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="Owner of their conversations. Empty: the channel's owner.",
    )
    refusals = models.PositiveIntegerField(default=0, help_text="Refused messages.")
    held = models.JSONField(
        null=True, blank=True, editable=False, help_text="The first message of somebody who asks to be let in."
    )
    first_at = models.DateTimeField(auto_now_add=True, help_text="When they first wrote.")
    last_at = models.DateTimeField(null=True, blank=True, help_text="When they last wrote.")

    class Meta:
        ordering = ["-last_at"]
        constraints = [models.UniqueConstraint(fields=["channel", "sender_id"], name="one_sender_a_channel")]

    def __str__(self) -> str:
        return f"{self.sender_id} of {self.channel_id}"


class Chat(models.Model):
    """Where a conversation is held at a platform: what is said in it goes there."""

    channel = models.ForeignKey(
        Channel, on_delete=models.PROTECT, related_name="chats", help_text="The channel of the chat."
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,
        help_text="Owner of its conversation.",
    )
    key = models.CharField(max_length=255, help_text="Of its conversation, channel:chat_id[:thread].")
    chat_id = models.CharField(max_length=MAX_PLATFORM_ID, help_text="The platform's id of the chat.")
    thread = models.CharField(max_length=MAX_PLATFORM_ID, blank=True, help_text="The thread in the chat, if any.")
    title = models.CharField(
        max_length=200, blank=True, db_default="", help_text="Its title, such as an e-mail's subject."
    )
    next_number = models.PositiveBigIntegerField(default=1, help_text="Order number of the next message sent there.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["key"]
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="one_chat_a_conversation")]

    def __str__(self) -> str:
        return self.key


class Destination(models.Model):
    """A chat, or another agent, that an agent may write to, by the name that the agent knows it by."""

    agent = models.ForeignKey(
        Agent,
        on_delete=models.CASCADE,
        related_name="destinations",
        db_index=False,
        help_text="The agent that may write there.",
    )
    name = models.CharField(
        max_length=32, validators=[validate_name], help_text="The name the agent uses: a-z, 0-9 and -."
    )
    chat = models.ForeignKey(
        Chat,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="destinations",
        help_text="The chat, if it is one.",
    )
    to_agent = models.ForeignKey(
        Agent,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="The agent that is written to, if it is one; its answer is returned.",
    )
    tokens_a_day = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Of an agent that is written to: once its answers have taken so many tokens of an owner within 24"
        " hours, the other writes to it no more. Empty: as many as its budgets allow.",
    )
    made_by = models.CharField(max_length=150, blank=True, editable=False, help_text="Who made it.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["agent", "name"]
        constraints = [
            models.UniqueConstraint(fields=["agent", "name"], name="one_destination_a_name"),
            models.CheckConstraint(
                condition=Q(chat__isnull=False, to_agent=None) | Q(chat=None, to_agent__isnull=False),
                name="a_chat_or_an_agent",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """It is one of the two."""
        if bool(self.chat_id) == bool(self.to_agent_id):
            raise ValidationError("Name a chat or an agent, and not both.")
        if self.tokens_a_day is not None and not self.to_agent_id:
            raise ValidationError({"tokens_a_day": "It is of agents: what goes to a chat takes no tokens."})

    @property
    def place(self) -> str:
        """Where that is, in words."""
        return self.chat.key if self.chat else f"the agent {self.to_agent}"


class ChannelEvent(models.Model):
    """Something that a platform has told of: it is taken in once, however often it is told. No contents stand here."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    channel = models.ForeignKey(
        Channel, on_delete=models.CASCADE, related_name="events", db_index=False, help_text="The channel it came by."
    )
    external_id = models.CharField(max_length=MAX_EXTERNAL_ID, help_text="The platform's id of the event.")
    message_id = models.CharField(max_length=MAX_EXTERNAL_ID, blank=True, help_text="The message it contained.")
    turn_id = models.UUIDField(null=True, blank=True, help_text="The turn that answers it.")
    sender_id = models.CharField(
        max_length=MAX_PLATFORM_ID, blank=True, db_default="", help_text="Who has sent it, if it began the turn."
    )
    created_at = models.DateTimeField(db_default=functions.Now())

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["channel", "external_id"], name="one_event_of_an_id")]
        indexes = [
            models.Index(fields=["turn_id"], condition=models.Q(turn_id__isnull=False), name="events_of_a_turn"),
            models.Index(fields=["created_at"], name="events_by_time"),
        ]

    def __str__(self) -> str:
        return self.external_id


class ApprovalNotice(models.Model):
    """That a chat was told of a call that waits for consent: with which arguments, and by which message."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    approval_id = models.UUIDField(db_index=True, help_text="The approval.")
    chat = models.ForeignKey(Chat, on_delete=models.CASCADE, related_name="+", help_text="The chat that was notified.")
    delivery_id = models.UUIDField(help_text="The delivery of the notification.")
    arguments_hash = models.CharField(max_length=64, help_text="SHA-256 of the arguments that were shown.")
    created_at = models.DateTimeField(db_default=functions.Now(), db_index=True)

    def __str__(self) -> str:
        return self.code

    @property
    def code(self) -> str:
        """What stands for it where there are no buttons."""
        return self.pk.hex[-8:]


class ListenerStatus(models.TextChoices):
    """Whether a worker asks a platform for what is new."""

    WAITING = "waiting"
    LISTENING = "listening"


class ListenerQuerySet(RescheduledQuerySet["Listener"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """All of them: there is one as long as its channel is to be listened to."""
        return self.all()


class Listener(Rescheduled):
    """The one who asks a platform what is new, for a channel that is not told: a worker at a time, by its lease."""

    QUEUED, LEASED = ListenerStatus.WAITING, ListenerStatus.LISTENING

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    channel = models.OneToOneField(
        Channel, on_delete=models.CASCADE, related_name="listener", help_text="The channel it listens to."
    )
    status = models.CharField(
        max_length=9, choices=ListenerStatus.choices, default=ListenerStatus.WAITING, help_text="Whether it listens."
    )
    cursor = models.JSONField(default=dict, blank=True, help_text="The position from which the platform is asked next.")
    failures = models.PositiveIntegerField(default=0, help_text="Consecutive failures.")
    error = models.CharField(
        max_length=500, blank=True, help_text="The last error, if there has been no success since."
    )
    heard_at = models.DateTimeField(null=True, blank=True, help_text="When the platform last answered.")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ListenerQuerySet.as_manager()

    class Meta:
        ordering = ["channel"]

    def __str__(self) -> str:
        return f"listener of {self.channel_id}"
