"""Deliveries: what is to go out, and the files that they send."""

from typing import Any, Self

from django.db import models
from django.db.models import Count, Exists, OuterRef, Q

from conversations.channel_models import MAX_EXTERNAL_ID, Channel, Chat
from conversations.models.limits import MAX_ADDRESS, MAX_REASON
from conversations.models.webhook import WebhookEndpoint
from nanohost.lib.clock import Now
from nanohost.lib.ids import new_id
from nanohost.lib.lease import Rescheduled, RescheduledQuerySet


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


class DeliveryQuerySet(RescheduledQuerySet["Delivery"]):
    """Look-ups that say what they mean."""

    def open(self) -> Self:
        """Deliveries that have not ended."""
        return self.filter(status__in=OPEN_DELIVERY)

    def claimable(self) -> Self:
        """Due ones, to endpoints that are not sent as many at this moment as one may be; the mail server is one, and so
        is each account of a channel. To a chat goes one after the other, and nothing to a platform that has asked for
        time."""
        has_come = Q(deliver_after=None) | Q(deliver_after__lte=Now())
        before = Delivery.objects.open().filter(has_come, chat=OuterRef("chat"), number__lt=OuterRef("number"))
        earlier = before.order_by()
        wants_time = Channel.objects.filter(pk=OuterRef("account"), held_until__gt=Now()).order_by()
        return self.due().filter(
            ~Q(endpoint__in=_full("endpoint")),
            ~Q(channel__in=_full("channel", endpoint=None, account=None)),
            ~Q(account__in=_full("account")),
            Q(account=None) | ~Exists(earlier) & ~Exists(wants_time),
        )


def _full(field: str, **of: None) -> Any:
    """A query of those to which as many are being sent as may be. Few are being sent: they are counted once for a
    query, where each row that waits would look through all that its endpoint was ever sent."""
    held = Delivery.objects.filter(status=DeliveryStatus.RUNNING, lease_until__gt=Now(), **of).exclude(**{field: None})
    counted = held.order_by().values(field).annotate(held=Count("pk"))
    return counted.filter(held__gte=Delivery.MAX_AT_ONCE).values(field)


class Delivery(Rescheduled):
    """The outbox: something that is to go out, until it is there or was tried for a day."""

    QUEUED, LEASED = DeliveryStatus.QUEUED, DeliveryStatus.RUNNING

    # To one endpoint, or to the mail server, or a few more if they are claimed at the same moment: one that hangs
    # leaves places to others.
    MAX_AT_ONCE = 4

    # Of one that is being sent: where that stands in a trace, and the platform's id of what began its turn.
    traceparent = began_by = ""

    class Channel(models.TextChoices):
        """How it goes out."""

        WEBHOOK = "webhook"
        EMAIL = "email"
        # By an account of a platform, to a chat.
        CHAT = "chat"

    id = models.UUIDField(
        primary_key=True,
        default=new_id,
        editable=False,
        help_text="The same in every attempt, so that receivers can recognise repeats.",
    )
    channel = models.CharField(
        max_length=16, choices=Channel.choices, default=Channel.WEBHOOK, help_text="How it is sent."
    )
    endpoint = models.ForeignKey(
        WebhookEndpoint,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="deliveries",
        db_index=False,
        help_text="The webhook endpoint.",
    )
    recipient = models.CharField(max_length=MAX_ADDRESS, blank=True, db_default="", help_text="The e-mail address.")
    account = models.ForeignKey(
        "Channel",  # the model, which the choices above hide
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="deliveries",
        db_index=False,
        help_text="The channel of a message to a chat.",
    )
    chat = models.ForeignKey(
        Chat,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="deliveries",
        db_index=False,
        help_text="The chat.",
    )
    number = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The order in which messages go to the chat."
    )
    conversation_id = models.UUIDField(null=True, blank=True, help_text="The conversation of a message to a chat.")
    turn_id = models.UUIDField(null=True, blank=True, help_text="The turn of a message to a chat.")
    in_reply_to = models.CharField(
        max_length=MAX_EXTERNAL_ID, blank=True, db_default="", help_text="The platform's id of what it answers."
    )
    external_id = models.CharField(
        max_length=MAX_EXTERNAL_ID,
        blank=True,
        db_default="",
        help_text="The platform's id of the message, once it was sent.",
    )
    about = models.UUIDField(
        null=True, blank=True, help_text="The delivery whose message it changes, reacts to, or takes the buttons of."
    )
    kind = models.CharField(max_length=32, help_text="The kind of event that it tells of, or of message that it is.")
    data = models.JSONField(help_text="What it tells: of an event ids and facts; of a message to a chat what it says.")
    owner_id = models.BigIntegerField(null=True, blank=True, help_text="The owner of the event, if any.")
    status = models.CharField(max_length=9, choices=DeliveryStatus.choices, default=DeliveryStatus.QUEUED)

    deliver_after = models.DateTimeField(
        null=True, blank=True, help_text="Scheduled time of sending; later messages may be sent before it."
    )
    expires_at = models.DateTimeField(help_text="It is tried until then.")
    attempts = models.PositiveIntegerField(default=0, help_text="How often workers have begun to send it.")
    begun_at = models.DateTimeField(
        null=True, blank=True, help_text="Start of the first attempt that may have succeeded."
    )
    tries = models.JSONField(default=list, blank=True, help_text="Outcomes of the latest attempts.")
    last_status = models.PositiveIntegerField(null=True, blank=True, help_text="The HTTP status of the last answer.")
    error = models.CharField(max_length=MAX_REASON, blank=True, help_text="The last error.")

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
            # By which a reaction finds what it is about.
            models.Index(
                fields=["account", "external_id"],
                condition=~models.Q(external_id=""),
                name="deliveries_by_platform_id",
            ),
            # Whether one is the first of its chat that is open; a chat may have been sent very many.
            models.Index(fields=["chat", "status", "number"], name="deliveries_of_a_chat_open"),
            models.Index(
                fields=["conversation_id"],
                condition=models.Q(conversation_id__isnull=False),
                name="deliveries_of_what_was_said",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.status}"


class OutgoingFile(models.Model):
    """What a delivery of a file sends; its bytes are here since whoever sends it has not the folder that it was in."""

    MAX_BYTES = 5 * 1024 * 1024

    delivery = models.OneToOneField(
        Delivery,
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="file",
        help_text="The delivery that sends it.",
    )
    name = models.CharField(max_length=100, help_text="Its file name there.")
    data = models.BinaryField(help_text="Its bytes.")

    def __str__(self) -> str:
        return self.name
