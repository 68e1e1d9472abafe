"""Messages of a conversation, and the texts that are tainted."""

import json
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.db import models
from django.db.models import Q

from conversations.models.conversation import Conversation
from conversations.models.limits import MAX_ANSWERS
from conversations.models.turn import Turn
from nanohost.lib.ids import new_id


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
        help_text="Its place in the transcript. Empty until its turn starts.",
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
        blank=True, default="", db_default="", help_text="Of an assistant: the model's reasoning."
    )
    thoughts = models.JSONField(
        null=True,
        blank=True,
        help_text="Of an assistant that calls tools: reasoning to be sent back to the provider within the turn.",
    )
    tool_calls = models.JSONField(null=True, blank=True, help_text="Of an assistant: the calls it asks for.")
    tool_call_id = models.CharField(max_length=128, blank=True, help_text="Of a tool: the call it answers.")
    tool_name = models.CharField(max_length=128, blank=True)
    tainted_by = models.CharField(
        max_length=255,
        null=True,
        blank=True,
        help_text="The source of untrusted text in it, if any.",
    )
    metadata = models.JSONField(null=True, blank=True, help_text="Imported data that has no field of its own.")
    attachments = models.JSONField(
        null=True,
        blank=True,
        help_text="Of a user: the files that came with it, as references; see conversations/attachments.",
    )
    sent = models.JSONField(
        null=True,
        blank=True,
        help_text="Of an answer: the model request; see conversations/engine/model_request.py.",
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


class TaintedText(models.Model):
    """That something was said or called where untrusted text had entered, by a hash: clients of ``/v1`` keep their
    transcripts themselves, and send them back. It outlives the conversation."""

    id = models.BigAutoField(primary_key=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    digest = models.CharField(max_length=64, help_text="BLAKE2b of the owner's text or call, hexadecimal.")
    tainted_by = models.CharField(max_length=255, help_text="The source of the untrusted text.")
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
