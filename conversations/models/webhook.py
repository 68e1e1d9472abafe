"""Webhooks: addresses that are sent events."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from conversations import announced
from tools.outbound import urls

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

    name = models.CharField(max_length=100, help_text="What it is for.")
    url = models.CharField(
        max_length=MAX_URL,
        validators=[validate_url],
        help_text="Where events are sent to, by POST; redirects are not followed.",
    )
    kinds = models.JSONField(default=list, validators=[validate_kinds], help_text="The kinds of events sent to it.")
    is_active = models.BooleanField(default=True, help_text="Whether events are sent to it.")
    disabled_because = models.CharField(max_length=200, blank=True, help_text="Why the host disabled it, if it did.")
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
