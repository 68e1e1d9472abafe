"""What goes out."""

from collections.abc import Callable
from datetime import timedelta

from django.utils import timezone

from conversations import announced
from conversations.deliveries import outbox
from conversations.models import Delivery, WebhookEndpoint
from nanohost.lib.ids import new_id
from tests.plans.operations.common import operation


def to_go_out() -> Delivery:
    (row,) = outbox.put(announced.AUDIT_HEAD, {}, once=str(new_id()))[:1]
    return Delivery.objects.get(pk=row.pk)


def with_delivery(act: Callable[[outbox.Hold], object]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        hold = outbox.claim(to_go_out().pk, worker="worker")
        assert hold
        return lambda: act(hold)

    return prepare


@operation("outbox.put")
def put_out() -> Callable[[], object]:
    return lambda: outbox.put(announced.AUDIT_HEAD, {})


@operation("outbox.put_for")
def put_out_for() -> Callable[[], object]:
    endpoint = WebhookEndpoint.objects.first()
    return lambda: outbox.put_for(endpoint, announced.TEST, {})


@operation("outbox.put_emails")
def put_out_emails() -> Callable[[], object]:
    return lambda: outbox.put_emails(["anna@example.org"], announced.APPROVAL_REQUESTED, {}, owner_id=1)


@operation("outbox.again")
def put_out_again() -> Callable[[], object]:
    row = to_go_out()
    return lambda: outbox.again(row)


@operation("outbox.change")
def change_delivery() -> Callable[[], object]:
    row = to_go_out()
    return lambda: outbox.change(row, "Hello")


@operation("outbox.claim")
def claim_delivery() -> Callable[[], object]:
    row = to_go_out()
    return lambda: outbox.claim(row.pk, worker="worker")


@operation("outbox.forget_old")
def forget_deliveries() -> Callable[[], object]:
    rows = Delivery.objects.filter(status="delivered").order_by("created_at").values_list("pk", flat=True)[:20]
    Delivery.objects.filter(pk__in=list(rows)).update(created_at=timezone.now() - timedelta(days=31))
    return outbox.forget_old


operation("outbox.renew")(with_delivery(lambda hold: outbox.renew([hold.id], worker="worker")))
operation("outbox.release")(with_delivery(outbox.release))
operation("outbox.settle, delivered")(with_delivery(lambda hold: outbox.settle(hold, outbox.Outcome(status=204))))
operation("outbox.settle, rescheduled")(with_delivery(lambda hold: outbox.settle(hold, outbox.Outcome(error="words"))))
operation("outbox.settle, given up")(
    with_delivery(lambda hold: outbox.settle(hold, outbox.Outcome(error="words", is_final=True, disable="words")))
)
