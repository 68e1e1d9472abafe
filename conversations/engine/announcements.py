"""Webhooks and e-mails about events: deliveries are stored in the transaction of the event, and workers are notified
after the commit.

An event that no endpoint subscribes to costs no statement.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from conversations import announced
from conversations.deliveries import endpoints, outbox, payloads
from conversations.engine import doorbell
from conversations.kinds import DELIVERIES
from conversations.models import CallerRound, Delivery, Message, StoredResponse, Turn, WebhookEndpoint
from conversations.statuses import TurnStatus
from nanohost.accounts import audit
from nanohost.lib import clock
from tools.models import Approval

# How often the head of the audit log is looked at, in seconds.
ANCHOR_SECONDS = 60.0


def announce(kind: str, data: Mapping[str, Any], *, owner_id: int | None = None) -> None:
    """Tell the endpoints that want it of an event, in the transaction that it happens in. ``kind``: of
    ``announced.KINDS``. ``data``: ids and facts, by names as the API has them; no contents, no secrets. ``owner_id``:
    whose event it is."""
    if kind in endpoints.wanted():
        _notify(outbox.put(kind, data, owner_id=owner_id))


def turn_ended(turn_id: UUID, status: str, *, error_code: str = "") -> None:
    """Tell of a turn that ends in this transaction. ``error_code``: unless its row says it."""
    part_ended(turn_id, status)
    kind = announced.TURN_ENDED[TurnStatus(status).value]
    if kind not in endpoints.wanted():
        return
    turn = Turn.objects.select_related("conversation__agent").get(pk=turn_id)
    told = payloads.of_turn(turn, TurnStatus(status).value, error_code=error_code)
    announce(kind, told, owner_id=turn.owner_id)


def part_ended(turn_id: UUID, status: str, *, number: int | None = None) -> None:
    """Tell of a response in the background that ends in this transaction. ``number``: of the part of its turn, if that
    is not the last: it asks its caller to run tools, and has so succeeded."""
    if announced.RESPONSES.isdisjoint(endpoints.wanted()):
        return
    if number is None:
        number = CallerRound.objects.filter(turn_id=turn_id).count()
    rows = StoredResponse.objects.filter(turn_id=turn_id, number=number, is_background=True)
    for row in rows.select_related("turn"):
        kind = announced.RESPONSE_ENDED[TurnStatus(status)]
        if kind == announced.RESPONSE_COMPLETED and _is_cut(turn_id):
            kind = announced.RESPONSE_INCOMPLETE
        announce(kind, {"id": row.shown_id}, owner_id=row.turn.owner_id)


def _is_cut(turn_id: UUID) -> bool:
    said = Message.objects.filter(turn_id=turn_id, role=Message.Role.ASSISTANT, seq__isnull=False).order_by("seq")
    last = said.last()
    return bool(last and not last.tool_calls and (last.usage or {}).get("cut"))


def approval(kind: str, approval: Approval) -> None:
    """Tell of a call that waits for consent, or of what was decided on it, in this transaction; of the first also those
    who asked for e-mails. Chats are told by whoever calls this."""
    addresses = settings.APPROVAL_EMAILS if kind == announced.APPROVAL_REQUESTED else []
    if kind not in endpoints.wanted() and not addresses:
        return
    told = payloads.of_approval(approval)
    announce(kind, told, owner_id=approval.owner_id)
    if addresses:
        _notify(outbox.put_emails(addresses, kind, told, owner_id=approval.owner_id))


def try_out(endpoint: WebhookEndpoint) -> Delivery:
    """Send an endpoint an event that says nothing, whatever it has chosen."""
    with transaction.atomic():
        row = outbox.put_for(endpoint, announced.TEST, {"webhook": endpoint.name})
        audit.record("webhook.tried", about=endpoint, after={"delivery": str(row.pk)})
        _notify([row])
    return row


def send_again(delivery: Delivery) -> bool:
    """Have a delivery sent now, with the id that it has; False if it is being sent."""
    with transaction.atomic():
        if not outbox.again(delivery):
            return False
        audit.record("delivery.sent_again", about=delivery, name=delivery.kind, before={"status": delivery.status})
        _notify([delivery])
    return True


# What this process knows to be anchored of the audit log.
_anchored = audit.Head(0, audit.BEGINNING)


def anchor() -> None:
    """Tell endpoints that want it how far the audit log has come, if it has come further. Of all processes that do so,
    one is heard in a minute."""
    global _anchored
    if announced.AUDIT_HEAD not in endpoints.wanted():
        return
    head = audit.head()
    if not head.number or head == _anchored:
        return
    with transaction.atomic():
        minute = f"{clock.read():%Y-%m-%dT%H:%M}"
        rows = outbox.put(announced.AUDIT_HEAD, {audit.NUMBER: head.number, audit.HASH: head.hash}, once=minute)
        _notify(rows)
    stored = Delivery.objects.filter(pk__in=[row.pk for row in rows]).values_list("data", flat=True)
    # Another process may have been faster, when the log had not come as far: then this head is for the next minute.
    if stored and all(data[audit.NUMBER] >= head.number for data in stored):
        _anchored = head


def _notify(rows: list[Delivery]) -> None:
    for row in rows:
        doorbell.notify(DELIVERIES, row.pk)
