"""Secrets of webhooks, and what is signed with them, as https://www.standardwebhooks.com says.

A secret is made of an endpoint's seed, a random number in its row, and WEBHOOK_KEY, which stands in no row: whoever
reads the database learns no secret. Web nodes show it once, workers make it again whenever they sign.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from django.conf import settings
from django.utils import timezone

# What the text of a secret begins with; base64 of its 32 bytes follows.
PREFIX = "whsec_"
# A secret that was replaced counts for so long as well.
FORMER_SECONDS = 86_400
# So many signatures of a message that comes in are looked at: one a secret.
MAX_SIGNATURES = 8


class NoWebhookKey(Exception):
    """This process has no WEBHOOK_KEY, or not the one that the secret was made with; says which."""


def new_seed() -> str:
    """What a new secret is made of."""
    return secrets.token_hex(32)


def secret_of(seed: str) -> str:
    """The secret that is made of a seed; raises :class:`NoWebhookKey`."""
    if not settings.WEBHOOK_KEY:
        raise NoWebhookKey("There is no WEBHOOK_KEY here, from which the secrets of webhooks are derived")
    made = hmac.new(settings.WEBHOOK_KEY.encode(), f"webhook {seed}".encode(), hashlib.sha256).digest()
    return PREFIX + base64.b64encode(made).decode()


class Signing(Protocol):
    """A row that has secrets."""

    seed: str
    former_seed: str
    rotated_at: datetime | None


def in_force(row: Signing) -> list[str]:
    """The secrets that count now, first the one that is current; raises :class:`NoWebhookKey`."""
    now = [secret_of(row.seed)]
    if row.former_seed and row.rotated_at and (timezone.now() - row.rotated_at).total_seconds() < FORMER_SECONDS:
        now.append(secret_of(row.former_seed))
    return now


def digest_of(secret: str) -> str:
    """By what it is known that a secret is the same."""
    return hashlib.sha256(secret.encode()).hexdigest()


def headers_of(*, message_id: str, timestamp: int, body: bytes, secrets_now: Iterable[str]) -> dict[str, str]:
    """The three headers of a signed message. ``timestamp``: seconds since 1970, of this attempt. With several secrets,
    each signs: the receiver may know any of them."""
    signatures = _signatures(message_id, timestamp, body, secrets_now)
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": " ".join(signatures)}


def is_signed(given: str, *, message_id: str, timestamp: int, body: bytes, secrets_now: Iterable[str]) -> bool:
    """Whether one of the signatures in a header's value is of one of these secrets. How long it takes tells nothing."""
    expected = [each.encode() for each in _signatures(message_id, timestamp, body, secrets_now)]
    named = [each.encode() for each in given.split()[:MAX_SIGNATURES]]
    return sum(hmac.compare_digest(each, wanted) for each in named for wanted in expected) > 0


def _signatures(message_id: str, timestamp: int, body: bytes, secrets_now: Iterable[str]) -> list[str]:
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    made = (
        hmac.new(base64.b64decode(each.removeprefix(PREFIX)), signed, hashlib.sha256).digest() for each in secrets_now
    )
    return [f"v1,{base64.b64encode(each).decode()}" for each in made]
