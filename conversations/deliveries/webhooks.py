"""How a delivery to a webhook is sent: one POST by the guarded client, signed, under a deadline."""

import email.utils
import json
import re
import time
from datetime import UTC
from http import HTTPStatus
from typing import Any

from django.utils import timezone

from conversations.announced import RESPONSES
from conversations.deliveries import outbox, signatures
from conversations.deliveries.outbox import Outcome
from conversations.models import Delivery, WebhookEndpoint
from nanohost.lib.redaction import redact_head, remember
from nanohost.lib.text import storable
from tools.outbound.client import Answer, NotFetched, allowed, fetch

# For a whole request, as the Standard Webhooks suggest.
SECONDS = 15.0
# Bytes of an answer that are read, and characters of it that are kept if it says no.
MAX_READ, MAX_KEPT = 2048, 200

# Receivers that want to be left alone say for how long.
_ASK_FOR_TIME = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def send(delivery: Delivery) -> Outcome:
    """Send it once, without the database; never raises for what comes from outside."""
    endpoint = delivery.endpoint
    if endpoint is None or not endpoint.is_active:
        return Outcome(error="The webhook is switched off.", is_final=True)
    began = time.monotonic()
    try:
        body = body_of(delivery)
        headers = signatures.headers_of(
            message_id=outbox.id_of(delivery), timestamp=int(time.time()), body=body, secrets_now=_secrets(endpoint)
        )
        if delivery.traceparent:
            headers["traceparent"] = delivery.traceparent
        answer = fetch(
            endpoint.url,
            policy=allowed(),
            method="POST",
            headers={"Content-Type": "application/json", **headers},
            body=body,
            seconds=SECONDS,
            most=MAX_READ,
            cut=True,
        )
    except signatures.NoWebhookKey as error:
        return Outcome(error=f"{error}.")
    except NotFetched as error:
        return Outcome(error=storable(redact_head(str(error), MAX_KEPT)), took_ms=_since(began))
    return _judged(answer, took_ms=_since(began))


def body_of(delivery: Delivery) -> bytes:
    """The payload, the same bytes at each attempt."""
    if delivery.kind in RESPONSES:  # whose receivers expect OpenAI's own form
        at_second = int(delivery.created_at.timestamp())
        named = {"id": f"evt_{delivery.pk.hex}", "object": "event", "created_at": at_second, "type": delivery.kind}
        return json.dumps({**named, "data": delivery.data}, ensure_ascii=False, separators=(",", ":")).encode()
    at = delivery.created_at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said: dict[str, Any] = {"type": delivery.kind, "timestamp": at, "data": delivery.data}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def _secrets(endpoint: WebhookEndpoint) -> list[str]:
    """Those that it is signed with; the process takes them out of all that it says, from then on."""
    now = signatures.in_force(endpoint)
    if signatures.digest_of(now[0]) != endpoint.digest:
        raise signatures.NoWebhookKey("WEBHOOK_KEY is not the one that the secret was made with: make another secret")
    for each in now:
        remember(f"webhook {endpoint.pk}", each.removeprefix(signatures.PREFIX))
    return now


def _judged(answer: Answer, *, took_ms: int) -> Outcome:
    if 200 <= answer.status < 300:
        return Outcome(status=answer.status, took_ms=took_ms)
    said = " ".join(storable(redact_head(answer.body.decode(errors="replace"), MAX_KEPT)).split())
    error = f"It answered {answer.status}{f': {said}' if said else '.'}"
    if 300 <= answer.status < 400:
        error = f"It answered {answer.status}; redirects are not followed: enter the address that it leads to."
    is_gone = answer.status == HTTPStatus.GONE
    return Outcome(
        status=answer.status,
        error=error,
        retry_after=retry_after(answer.headers.get("retry-after", "")) if answer.status in _ASK_FOR_TIME else 0.0,
        is_final=is_gone,
        disable="It answered 410: it wants no more events." if is_gone else "",
        took_ms=took_ms,
    )


def retry_after(said: str) -> float:
    """Seconds, of the number or the date that the header is; 0 for what is neither."""
    if re.fullmatch("[0-9]{1,6}", said.strip()):
        return float(said)
    try:
        then = email.utils.parsedate_to_datetime(said[:64])
        return max(0.0, (then - timezone.now()).total_seconds())
    except (ValueError, TypeError, OverflowError):  # TypeError: a date without its zone
        return 0.0


def _since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
