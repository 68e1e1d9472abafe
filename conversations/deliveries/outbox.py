"""The outbox: what is to go out is stored with what it tells of, claimed by workers, and tried until it is there.

A delivery is a piece of work like a turn: claimed by a conditional update that raises its fence, kept by a lease, found
by a sweep. Whoever dies between sending and storing has it sent again, with the same id, by which receivers know it.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Coalesce
from django.utils import timezone

from conversations.channel_models import Channel, ChannelEvent, Chat
from conversations.deliveries import endpoints
from conversations.held import held
from conversations.models import (
    MAX_REASON,
    OPEN_DELIVERY,
    Delivery,
    DeliveryQuerySet,
    DeliveryStatus,
    OutgoingFile,
    WebhookEndpoint,
)
from nanohost.accounts import holds
from nanohost.lib import clock, lease
from nanohost.lib.clock import Now, from_now

# Seconds after an attempt has failed, as the Standard Webhooks suggest; from then on the last, until the time is up.
WAITS = (5, 300, 1800, 2 * 3600, 5 * 3600, 10 * 3600)
# And of what is said in a chat, where somebody waits for it and more may wait behind it.
WAITS_OF_CHATS = (2, 10, 30, 120, 600, 1800)
# How much longer one may wait: what failed together does not come back together.
JITTER = 1.2
# A platform that asks for more time, in seconds, is asked again then.
MAX_HOLD_SECONDS = 3600.0
# It is tried for so long.
TRIED_FOR = timedelta(days=1)

# Claims of one that is sent as often as it may be are far fewer: its workers died.
MAX_ATTEMPTS = 50
# Attempts that a row tells of.
MAX_TRIES = 20

# A message of the host's that gets another text: nobody misses that.
REWORDED = "reworded"
FILE = "file"

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


@dataclass(frozen=True, kw_only=True)
class Said:
    """What is to go to a chat. ``data``: as :class:`conversations.channels.base.OutgoingMessage` has it. ``name``: what
    whoever says it calls the chat. ``about``: the delivery whose message it changes or reacts to. ``after``: seconds
    before which it is not sent."""

    kind: str
    data: Mapping[str, Any]
    conversation_id: UUID | None = None
    turn_id: UUID | None = None
    in_reply_to: str = ""
    name: str = ""
    about: UUID | None = None
    after: float = 0.0


def put_in_chat(chat: Chat, said: Sequence[Said]) -> list[Delivery]:
    """Store what goes to a chat, in its order behind all that was stored before, in the caller's transaction."""
    if not said:
        return []
    # Whoever stores something for the same chat waits for this: the numbers are in the order of the commits.
    Chat.objects.filter(pk=chat.pk).update(next_number=F("next_number") + len(said))
    after = Chat.objects.values_list("next_number", flat=True).get(pk=chat.pk)
    rows = [
        _new(
            each.kind,
            each.data,
            chat.owner_id,
            channel=Delivery.Channel.CHAT,
            account_id=chat.channel_id,
            chat=chat,
            number=number,
            recipient=each.name,
            conversation_id=each.conversation_id,
            turn_id=each.turn_id,
            in_reply_to=each.in_reply_to,
            about=each.about,
            **(_later(each.after) if each.after else {}),
        )
        for number, each in enumerate(said, start=after - len(said))
    ]
    return Delivery.objects.bulk_create(rows)


def _new(kind: str, data: Mapping[str, Any], owner_id: int | None, **more: Any) -> Delivery:
    times = {"expires_at": from_now(TRIED_FOR.total_seconds()), "notified_at": Now()}
    return Delivery(kind=kind, data=dict(data), owner_id=owner_id, **times | more)


def _later(seconds: float) -> dict[str, Any]:
    """When it is sent; a sweep finds it as soon as that has come."""
    then = from_now(seconds)
    until, told = from_now(seconds + TRIED_FOR.total_seconds()), from_now(seconds - lease.NOTIFIED_FOR)
    return {"deliver_after": then, "run_after": then, "expires_at": until, "notified_at": told}


def id_of(delivery: Delivery) -> str:
    """What receivers know it by, whichever attempt it is."""
    return f"msg_{delivery.pk.hex}"


def cancel(delivery: Delivery) -> bool:
    """Have it sent no more; False if it is being sent, or has ended."""
    waiting = Delivery.objects.filter(pk=delivery.pk, status=DeliveryStatus.QUEUED)
    cancelled = waiting.update(status=DeliveryStatus.CANCELLED, ended_at=Now(), fence=F("fence") + 1)
    if cancelled:
        wake_next(delivery)
    return bool(cancelled)


def doubt_open(reason: str) -> int:
    """After a restore: end messages to chats and e-mails that were open when the dump was made, and may have been sent
    since; returns how many. Webhooks are sent, since their receivers know one that comes twice by its id."""
    open_ones = Delivery.objects.filter(status__in=OPEN_DELIVERY).exclude(channel=Delivery.Channel.WEBHOOK)
    doubtful = {"status": DeliveryStatus.UNKNOWN, "ended_at": Now(), "lease_until": None, "error": reason}
    return open_ones.update(fence=F("fence") + 1, **doubtful)


def change(delivery: Delivery, text: str) -> bool:
    """Have it say something else; False once it has been begun to be sent, or has ended."""
    waiting = Delivery.objects.filter(pk=delivery.pk, status=DeliveryStatus.QUEUED, begun_at=None)
    return bool(waiting.update(data=delivery.data | {"text": text}, fence=F("fence") + 1))


def wake_next(delivery: Delivery) -> None:
    """Have the next one to the same chat found at once, if it waited for this one."""
    if delivery.chat_id:
        waiting = Delivery.objects.due().filter(chat=delivery.chat_id, status=DeliveryStatus.QUEUED)
        first = waiting.order_by("number").values_list("pk", flat=True)[:1]
        Delivery.objects.filter(pk__in=list(first)).update(notified_at=None)


def again(delivery: Delivery) -> bool:
    """Have it sent now, with a day before it, whatever has become of it; False if it is being sent."""
    return bool(
        Delivery.objects.filter(pk=delivery.pk)
        .exclude(status=DeliveryStatus.RUNNING)
        .update(
            status=DeliveryStatus.QUEUED,
            run_after=None,
            deliver_after=None,
            expires_at=from_now(TRIED_FOR.total_seconds()),
            attempts=0,
            ended_at=None,
            begun_at=None,
            notified_at=Now(),
        )
    )


# --- taking hold -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A held delivery. ``in_doubt_for``: seconds since an attempt began of which nobody knows whether it has arrived,
    since who made it has died or had no answer; None if there is none; of messages to chats. What it is about has its
    id at the platform in its ``data``, as ``messageId``."""

    delivery: Delivery
    fence: int
    in_doubt_for: float | None = None

    @property
    def id(self) -> UUID:
        return self.delivery.pk


def claim(delivery_id: UUID, *, worker: str) -> Hold | None:
    """Claim a delivery; None if it is not claimable."""
    with transaction.atomic():
        taken = Delivery.objects.claimable().filter(pk=delivery_id)
        claimed = Delivery.claimed(worker=worker, lease=settings.TURN_LEASE_SECONDS)
        before = Delivery.objects.filter(pk=delivery_id, account__isnull=False).first()
        begun_at = Coalesce("begun_at", Now())
        if taken.update(attempts=F("attempts") + 1, run_after=None, begun_at=begun_at, **claimed) != 1:
            # If its endpoint is sent as many as it may be: whoever ends one of these finds this.
            Delivery.objects.due().filter(pk=delivery_id).update(notified_at=None)
            return None
        row = Delivery.objects.select_related("endpoint", "account", "chat").get(pk=delivery_id)
        if row.kind == FILE:
            row.file = OutgoingFile.objects.get(delivery=row)
        if row.account_id and row.turn_id and not row.in_reply_to:
            begun = ChannelEvent.objects.filter(turn_id=row.turn_id, channel=row.account_id)
            row.began_by = begun.values_list("message_id", flat=True).first() or ""
        if row.about:
            row.data = row.data | {"messageId": _external_id(row.about)}
    return Hold(delivery=row, fence=row.fence, in_doubt_for=_in_doubt_for(row, before))


def _in_doubt_for(row: Delivery, before: Delivery | None) -> float | None:
    """Since when it may have arrived, by what it was before it was claimed."""
    if before is None or before.fence != row.fence - 1:
        return None
    if before.begun_at is None and before.status != DeliveryStatus.RUNNING:
        return None
    return (clock.read() - (row.begun_at or row.created_at)).total_seconds()


def _external_id(delivery_id: UUID) -> str:
    """What a platform calls a message that it has; or what receivers know it by, where it calls it nothing."""
    sent = Delivery.objects.filter(pk=delivery_id, status=DeliveryStatus.DELIVERED).first()
    return (sent.external_id or id_of(sent)) if sent else ""


def _held(hold: Hold) -> DeliveryQuerySet:
    return Delivery.objects.held(hold.id, hold.fence)


def renew(held: Collection[UUID], *, worker: str) -> None:
    """Renew the leases of what a worker holds."""
    Delivery.objects.filter(pk__in=held, worker=worker).renew()


def release(hold: Hold) -> None:
    """Let go of it at a shutdown: whoever comes next takes it, at no cost."""
    _held(hold).release(attempts=F("attempts") - 1)


# --- what has become of it ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an attempt has come to.

    ``status``: of the answer, if there was one. ``error``: why it was not delivered, for people; empty if it was.
    ``retry_after``: seconds before which the receiver does not want another. ``is_final``: no other attempt would end
    otherwise. ``disable``: why the endpoint is not to be sent anything any more. ``in_doubt``: nobody knows whether it
    was delivered, and another attempt might deliver it twice. ``may_have_arrived``: nobody knows that either, but
    another one does no harm as long as the platform knows it again. ``external_id``: what a platform calls it.
    ``hold_account``: seconds for which the platform wants nothing else either.
    """

    status: int | None = None
    error: str = ""
    retry_after: float = 0.0
    is_final: bool = False
    disable: str = ""
    in_doubt: bool = False
    may_have_arrived: bool = False
    external_id: str = ""
    hold_account: float = 0.0
    took_ms: int = 0

    def after(self, took_ms: int) -> "Outcome":
        """The same, once it has taken so long."""
        return replace(self, took_ms=took_ms)


def settle(hold: Hold, outcome: Outcome) -> bool:
    """Store what an attempt has come to; nothing if somebody else holds the delivery by now. True if that was the last
    of it, and it has not been delivered, as far as anybody knows."""
    told = {"tries": _with(hold, outcome), "last_status": outcome.status, "error": outcome.error[:MAX_REASON]}
    over = {"lease_until": None, "ended_at": Now()} | told
    with transaction.atomic():
        if not outcome.error:
            named = {"external_id": outcome.external_id} if outcome.external_id else {}
            ended = _held(hold).update(status=DeliveryStatus.DELIVERED, **named, **over)
            is_lost = False
        elif outcome.in_doubt:
            ended = is_lost = bool(_held(hold).update(status=DeliveryStatus.UNKNOWN, **over))
        elif outcome.is_final or not _reschedule(hold, outcome, told):
            ended = is_lost = bool(_held(hold).update(status=DeliveryStatus.FAILED, **over))
            if ended and outcome.disable and hold.delivery.endpoint:
                endpoints.disable(hold.delivery.endpoint, because=outcome.disable)
        else:
            ended = is_lost = False
        if hold.delivery.account_id:
            _tell_account(hold.delivery.account_id, outcome)
            if ended:
                wake_next(hold.delivery)
    return is_lost


def _tell_account(account_id: int, outcome: Outcome) -> None:
    """What the channel says of itself: that something went out, or what went wrong."""
    told: dict[str, Any] = {"error": outcome.error[:MAX_REASON]}
    if not outcome.error:
        told["last_out_at"] = Now()
    if outcome.hold_account:
        told["held_until"] = from_now(min(outcome.hold_account, MAX_HOLD_SECONDS))
    Channel.objects.filter(pk=account_id).update(**told)


def _reschedule(hold: Hold, outcome: Outcome, told: Mapping[str, Any]) -> bool:
    """Have it tried again, the last time when its time is up; False if that has been."""
    waits = WAITS_OF_CHATS if hold.delivery.chat_id else WAITS
    step = waits[min(hold.delivery.attempts, len(waits)) - 1]
    wait = max(outcome.retry_after, step * random.uniform(1, JITTER))  # noqa: S311 -- no secret
    is_in_doubt = outcome.may_have_arrived or hold.in_doubt_for is not None
    begun_at = F("begun_at") if is_in_doubt else None
    in_time = _held(hold).filter(expires_at__gt=Now())
    return bool(in_time.reschedule(wait, at_the_latest=F("expires_at"), begun_at=begun_at, **told))


def _with(hold: Hold, outcome: Outcome) -> list[dict[str, Any]]:
    at = timezone.now().isoformat(timespec="milliseconds")
    entry = {"at": at, "status": outcome.status, "error": outcome.error[:MAX_REASON], "ms": outcome.took_ms}
    return [*hold.delivery.tries, entry][-MAX_TRIES:]


def forget_old() -> int:
    """Delete deliveries that ended long ago, but for what was said in conversations that a legal hold keeps; returns
    how many."""
    gone = 0
    while deleted := _forget_some():
        gone += deleted
    return gone


def _forget_some() -> int:
    with transaction.atomic():
        kept = held(holds.placed_until_the_end()).values("pk")
        old = Delivery.objects.filter(created_at__lt=from_now(-KEPT_FOR.total_seconds())).exclude(
            status__in=(DeliveryStatus.QUEUED, DeliveryStatus.RUNNING)
        )
        found = list(old.exclude(conversation_id__in=kept).values_list("pk", flat=True)[:MANY])
        return Delivery.objects.filter(pk__in=found).delete()[0] if found else 0


def forget_said(conversation_id: UUID) -> None:
    """What has not gone out of a conversation that is deleted goes out no more, and nothing is left of what did; in the
    transaction that deletes it."""
    said = Delivery.objects.filter(conversation_id=conversation_id)
    said.exclude(status=DeliveryStatus.RUNNING).delete()
    # What is being sent just now is out of our hands; its row says no more than that.
    said.update(data={}, conversation_id=None)
