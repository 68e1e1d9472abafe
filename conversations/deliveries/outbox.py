"""The outbox: what is to go out is stored with what it tells of, claimed by workers, and tried until it is there.

A delivery is a piece of work like a turn: claimed by a conditional update that raises its fence, kept by a lease, found
by a sweep. Whoever dies between sending and storing has it sent again, with the same id, by which receivers know it.
"""

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Least
from django.utils import timezone

from conversations.deliveries import endpoints
from conversations.models import MAX_REASON, Delivery, DeliveryStatus, WebhookEndpoint
from nanohost.lib import lease
from nanohost.lib.clock import Now, from_now
from nanohost.lib.lease import RELEASED

# Seconds after an attempt has failed, as the Standard Webhooks suggest; from then on the last, until the time is up.
WAITS = (5, 300, 1800, 2 * 3600, 5 * 3600, 10 * 3600)
# How much longer one may wait: what failed together does not come back together.
JITTER = 1.2
# Of what was notified of, a sweep finds what is due only so much later.
NOTIFIED_FOR = timedelta(seconds=lease.NOTIFIED_FOR)
# It is tried for so long.
TRIED_FOR = timedelta(days=1)

# Claims of one that is sent as often as it may be are far fewer: its workers died.
MAX_ATTEMPTS = 50
# Attempts that a row tells of.
MAX_TRIES = 20

# Of those that have ended.
KEPT_FOR = timedelta(days=30)
# So many rows are deleted in one go.
MANY = 500


def put(kind: str, data: Mapping[str, Any], *, owner_id: int | None = None, once: str = "") -> list[Delivery]:
    """Store a delivery for each active endpoint that wants the kind, in the caller's transaction. ``once``: of several
    events of a kind that are called so, an endpoint is sent the first."""
    active = WebhookEndpoint.objects.filter(is_active=True)
    rows = [_new(kind, data, owner_id, endpoint=each) for each in active if kind in each.kinds]
    for row in rows if once else ():
        row.pk = uuid5(NAMESPACE_URL, f"{row.endpoint_id} {kind} {once}")
    Delivery.objects.bulk_create(rows, ignore_conflicts=bool(once))
    return rows


def put_for(endpoint: WebhookEndpoint, kind: str, data: Mapping[str, Any]) -> Delivery:
    """Store a delivery for one endpoint, whatever it wants."""
    (row,) = Delivery.objects.bulk_create([_new(kind, data, None, endpoint=endpoint)])
    return row


def put_emails(addresses: Iterable[str], kind: str, data: Mapping[str, Any], *, owner_id: int | None) -> list[Delivery]:
    """Store an e-mail for each address, in the caller's transaction."""
    email = Delivery.Channel.EMAIL
    return Delivery.objects.bulk_create(
        [_new(kind, data, owner_id, channel=email, recipient=address) for address in addresses]
    )


def _new(kind: str, data: Mapping[str, Any], owner_id: int | None, **to: Any) -> Delivery:
    return Delivery(
        **to,
        kind=kind,
        data=dict(data),
        owner_id=owner_id,
        expires_at=from_now(TRIED_FOR.total_seconds()),
        notified_at=Now(),
    )


def id_of(delivery: Delivery) -> str:
    """What receivers know it by, whichever attempt it is."""
    return f"msg_{delivery.pk.hex}"


def again(delivery: Delivery) -> bool:
    """Have it sent now, with a day before it, whatever has become of it; False if it is being sent."""
    return bool(
        Delivery.objects.filter(pk=delivery.pk)
        .exclude(status=DeliveryStatus.RUNNING)
        .update(
            status=DeliveryStatus.QUEUED,
            run_after=None,
            expires_at=from_now(TRIED_FOR.total_seconds()),
            attempts=0,
            ended_at=None,
            notified_at=Now(),
        )
    )


# --- taking hold -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A held delivery."""

    delivery: Delivery
    fence: int

    @property
    def id(self) -> UUID:
        return self.delivery.pk


def claim(delivery_id: UUID, *, worker: str) -> Hold | None:
    """Take a delivery; None if it is not to be had."""
    with transaction.atomic():
        taken = Delivery.objects.claimable().filter(pk=delivery_id)
        claimed = Delivery.claimed(worker=worker, lease=settings.TURN_LEASE_SECONDS)
        if taken.update(attempts=F("attempts") + 1, run_after=None, **claimed) != 1:
            # If its endpoint is sent as many as it may be: whoever ends one of these finds this.
            Delivery.objects.due().filter(pk=delivery_id).update(notified_at=None)
            return None
        row = Delivery.objects.select_related("endpoint").get(pk=delivery_id)
    return Hold(delivery=row, fence=row.fence)


def _held(hold: Hold) -> Any:
    return Delivery.objects.held(hold.id, hold.fence)


def renew(held: Collection[UUID], *, worker: str) -> None:
    """Renew the leases of what a worker holds."""
    mine = Delivery.objects.filter(pk__in=held, status=DeliveryStatus.RUNNING, worker=worker)
    mine.update(lease_until=from_now(settings.TURN_LEASE_SECONDS))


def hand_back(hold: Hold) -> None:
    """Let go of it at a shutdown: whoever comes next takes it, at no cost."""
    _held(hold).update(status=DeliveryStatus.QUEUED, attempts=F("attempts") - 1, **RELEASED)


# --- what has become of it ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an attempt has come to.

    ``status``: of the answer, if there was one. ``error``: why it was not delivered, for people; empty if it was.
    ``retry_after``: seconds before which the receiver does not want another. ``is_final``: no other attempt would end
    otherwise. ``disable``: why the endpoint is not to be sent anything any more.
    """

    status: int | None = None
    error: str = ""
    retry_after: float = 0.0
    is_final: bool = False
    disable: str = ""
    took_ms: int = 0


def settle(hold: Hold, outcome: Outcome) -> None:
    """Store what an attempt has come to; nothing if somebody else holds the delivery by now."""
    told = {"tries": _with(hold, outcome), "last_status": outcome.status, "error": outcome.error[:MAX_REASON]}
    with transaction.atomic():
        if not outcome.error:
            _held(hold).update(status=DeliveryStatus.DELIVERED, lease_until=None, ended_at=Now(), **told)
        elif outcome.is_final or not _put_off(hold, outcome, told):
            given_up = {"status": DeliveryStatus.FAILED, "lease_until": None, "ended_at": Now()}
            if _held(hold).update(**given_up, **told) and outcome.disable and hold.delivery.endpoint:
                endpoints.disable(hold.delivery.endpoint, because=outcome.disable)


def _put_off(hold: Hold, outcome: Outcome, told: Mapping[str, Any]) -> bool:
    """Have it tried again, the last time when its time is up; False if that has been."""
    step = WAITS[min(hold.delivery.attempts, len(WAITS)) - 1]
    wait = max(outcome.retry_after, step * random.uniform(1, JITTER))  # noqa: S311 -- no secret
    then = Least(from_now(wait), F("expires_at"))
    changed = (
        _held(hold)
        .filter(expires_at__gt=Now())
        .update(
            # A sweep leaves alone for a while what somebody was notified of: this is to be found as soon as it is due.
            status=DeliveryStatus.QUEUED,
            lease_until=None,
            run_after=then,
            notified_at=then - NOTIFIED_FOR,
            **told,
        )
    )
    return bool(changed)


def _with(hold: Hold, outcome: Outcome) -> list[dict[str, Any]]:
    at = timezone.now().isoformat(timespec="milliseconds")
    entry = {"at": at, "status": outcome.status, "error": outcome.error[:MAX_REASON], "ms": outcome.took_ms}
    return [*hold.delivery.tries, entry][-MAX_TRIES:]


def forget_old() -> int:
    """Delete deliveries that ended long ago; returns how many."""
    old = Delivery.objects.filter(created_at__lt=from_now(-KEPT_FOR.total_seconds())).exclude(
        status__in=(DeliveryStatus.QUEUED, DeliveryStatus.RUNNING)
    )
    gone = 0
    while found := list(old.values_list("pk", flat=True)[:MANY]):
        gone += Delivery.objects.filter(pk__in=found).delete()[0]
    return gone
