"""Making, changing and switching off webhooks, each in the audit log; and which events anybody wants to be told of."""

import time
from typing import Any

from django.db import transaction
from django.forms.models import model_to_dict

from conversations.deliveries import signatures
from conversations.models import WebhookEndpoint
from nanohost.accounts import audit
from nanohost.lib.clock import Now
from nanohost.lib.redaction import remember

# What people set.
FIELDS = ("name", "url", "kinds", "is_active")

# Seconds for which a process takes what it has read for what there is.
READ_AGAIN_AFTER = 1.0


def make(*, made_by: str = "", **values: Any) -> tuple[WebhookEndpoint, str]:
    """An endpoint, and its secret, which is shown once. Raises ``ValidationError`` for values that make no sense, and
    :class:`signatures.NoWebhookKey`."""
    seed = signatures.new_seed()
    secret = signatures.secret_of(seed)
    made = WebhookEndpoint(made_by=made_by, seed=seed, digest=signatures.digest_of(secret), **values)
    made.clean_fields()
    with transaction.atomic():
        made.save()
        audit.record("webhook.made", about=made, after=values_of(made))
        _forget()
    _know(made, secret)
    return made, secret


def change(endpoint: WebhookEndpoint, **values: Any) -> WebhookEndpoint:
    """Set some of ``FIELDS``; raises ``ValidationError``."""
    with transaction.atomic():
        row = WebhookEndpoint.objects.select_for_update().get(pk=endpoint.pk)
        before = values_of(row)
        changed = [name for name, value in values.items() if before[name] != value]
        if not changed:
            return row
        after = before | values
        WebhookEndpoint(seed=row.seed, digest=row.digest, **after).clean_fields()
        was, became = ({name: every[name] for name in changed} for every in (before, after))
        forgiven = {"disabled_because": ""} if after["is_active"] else {}
        WebhookEndpoint.objects.filter(pk=row.pk).update(**became, **forgiven)
        row.refresh_from_db()
        audit.record("webhook.changed", about=row, before=was, after=became)
        _forget()
    return row


def rotate(endpoint: WebhookEndpoint) -> str:
    """Give an endpoint another secret, which is shown once; the one before signs as well for a day. Raises
    :class:`signatures.NoWebhookKey`."""
    seed = signatures.new_seed()
    secret = signatures.secret_of(seed)
    with transaction.atomic():
        row = WebhookEndpoint.objects.select_for_update().get(pk=endpoint.pk)
        WebhookEndpoint.objects.filter(pk=row.pk).update(
            seed=seed, former_seed=row.seed, rotated_at=Now(), digest=signatures.digest_of(secret)
        )
        audit.record("webhook.rotated", about=row)
    _know(row, secret)
    return secret


def disable(endpoint: WebhookEndpoint, *, because: str) -> None:
    """Switch an endpoint off, since it has asked for it."""
    switched = WebhookEndpoint.objects.filter(pk=endpoint.pk, is_active=True)
    if switched.update(is_active=False, disabled_because=because):
        audit.record("webhook.disabled", about=endpoint, reason=because, by=audit.HOST)
        _forget()


def values_of(endpoint: WebhookEndpoint) -> dict[str, Any]:
    """What people have set, by the names of its fields."""
    return model_to_dict(endpoint, FIELDS)


def _know(endpoint: WebhookEndpoint, secret: str) -> None:
    """From now on it is taken out of all that leaves this process, but for the page that shows it."""
    remember(f"webhook {endpoint.pk}", secret.removeprefix(signatures.PREFIX))


# --- who wants what ----------------------------------------------------------------------------------------------

# Until when it counts, and what was read.
_read: tuple[float, frozenset[str]] = (0.0, frozenset())


def wanted() -> frozenset[str]:
    """The kinds of events that active endpoints want. Read from the database once a second, since whatever ends a turn
    asks: so another process hears of a new endpoint a second late."""
    global _read
    until, kinds = _read
    if time.monotonic() < until:
        return kinds
    chosen = WebhookEndpoint.objects.filter(is_active=True).order_by().values_list("kinds", flat=True)
    found = frozenset(kind for kinds in chosen for kind in kinds)
    _read = time.monotonic() + READ_AGAIN_AFTER, found
    return found


def _forget() -> None:
    """This process has changed an endpoint: it reads again, also if others have read meanwhile."""

    def read_again() -> None:
        global _read
        _read = 0.0, frozenset()

    read_again()
    transaction.on_commit(read_again)
