"""Webhooks: what is announced is stored with what it tells of, signed, and sent until it is there or a day is over."""

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import format_datetime

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from openai import InvalidWebhookSignatureError, OpenAI

from conversations import announced
from conversations.deliveries import endpoints, outbox, webhooks
from conversations.engine import announcements, sweeper, turn_control
from conversations.engine.announcements import announce
from conversations.kinds import DELIVERIES
from conversations.models import Delivery, DeliveryStatus, Turn, WebhookEndpoint
from nanohost.accounts import audit
from nanohost.accounts.models import AuditEntry
from scheduler.tasks import retention
from tests.support.delivering import deliver, webhook
from tests.support.receiver import Receiver, Says
from tests.support.tables import readable_tables
from tests.support.threads import in_threads
from tests.support.wait import wait_until
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

KIND = announced.BUDGET_WARNING


@pytest.fixture
def receiver():
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def hook(receiver, settings):
    return webhook(receiver, settings)[0]


def one(kind: str = KIND) -> Delivery:
    announce(kind, {"budgetId": "7"})
    return Delivery.objects.get(kind=kind)


def unwrapped(received, secret):
    client = OpenAI(api_key="none", webhook_secret=secret)
    return client.webhooks.unwrap(received.body, received.headers)


def rewind(row: Delivery, **by: float) -> None:
    """As if so much time had gone by since the row was written."""
    past = timedelta(**by)
    Delivery.objects.filter(pk=row.pk).update(expires_at=F("expires_at") - past, run_after=F("run_after") - past)


# --- what is signed ----------------------------------------------------------------------------------------------


def test_openai_s_own_client_verifies_what_is_sent(receiver, settings):
    _, secret = webhook(receiver, settings)
    (row,) = deliver(one())
    assert (row.status, row.last_status, row.error) == (DeliveryStatus.DELIVERED, 204, "")
    event = unwrapped(receiver.received[0], secret)
    assert event.type == KIND
    said = json.loads(receiver.received[0].body)
    assert said == {"type": KIND, "timestamp": said["timestamp"], "data": {"budgetId": "7"}}
    assert said["timestamp"].endswith("Z")
    assert receiver.received[0].headers["content-type"] == "application/json"


def test_what_was_changed_on_the_way_or_signed_by_others_is_not_verified(receiver, settings):
    _, secret = webhook(receiver, settings)
    _, of_others = webhook(receiver, settings, kinds=[announced.AUDIT_HEAD])
    deliver(one())
    (received,) = receiver.received
    changed = type(received)(received.path, received.headers, received.body.replace(b"7", b"8"))
    for forged, key in ((changed, secret), (received, of_others)):
        with pytest.raises(InvalidWebhookSignatureError):
            unwrapped(forged, key)


def test_for_a_day_a_new_secret_signs_beside_the_former_one(receiver, settings, hook):
    former, (hook, secret) = None, webhook(receiver, settings, name="rotated", kinds=[announced.AUDIT_HEAD])
    former, secret = secret, endpoints.rotate(hook)
    announce(announced.AUDIT_HEAD, {})
    deliver(Delivery.objects.get(endpoint=hook))
    assert [unwrapped(receiver.received[0], each).type for each in (former, secret)] == [announced.AUDIT_HEAD] * 2
    WebhookEndpoint.objects.filter(pk=hook.pk).update(rotated_at=timezone.now() - timedelta(days=1, seconds=1))
    announcements.send_again(Delivery.objects.get(endpoint=hook))
    deliver(Delivery.objects.get(endpoint=hook))
    assert unwrapped(receiver.received[1], secret)
    with pytest.raises(InvalidWebhookSignatureError):
        unwrapped(receiver.received[1], former)


def test_with_another_webhook_key_nothing_is_sent_that_nobody_could_verify(receiver, settings, hook):
    for key, says in (("another", "not the one"), ("", "no WEBHOOK_KEY")):
        settings.WEBHOOK_KEY = key
        (row,) = deliver(one()) if not Delivery.objects.exists() else deliver(sooner())
        assert row.status == DeliveryStatus.QUEUED
        assert says in row.error
    assert receiver.received == []


def sooner() -> Delivery:
    """What waits to be tried again is due."""
    Delivery.objects.update(run_after=None)
    return Delivery.objects.get()


def test_a_secret_stands_in_no_row_and_no_log(receiver, settings, caplog):
    receiver.answer(Says(500, body=b"I know your secret"))
    hook, secret = webhook(receiver, settings)
    with caplog.at_level(logging.DEBUG):
        endpoints.change(hook, name="the other shop")
        other = endpoints.rotate(hook)
        receiver.answer(Says(500, body=f"you have signed with {secret} and {other[6:]}".encode()))
        (row,) = deliver(one())
    assert row.error == "It answered 500: you have signed with whsec_[redacted] and [redacted]"
    with connection.cursor() as cursor:
        for table in readable_tables():
            cursor.execute(f'SELECT * FROM "{table}"')
            rows = repr(cursor.fetchall())
            assert secret[6:] not in rows, table
            assert other[6:] not in rows, table
    assert secret[6:] not in caplog.text
    assert other[6:] not in caplog.text


# --- what is announced -------------------------------------------------------------------------------------------


def test_without_an_endpoint_nothing_is_asked_of_the_database(hook):
    endpoints.change(hook, is_active=False)
    announce(KIND, {})
    with CaptureQueriesContext(connection) as asked:
        announce(KIND, {})
    assert len(asked) == 0


def test_with_what_is_rolled_back_goes_what_was_to_be_told(hook):
    with transaction.atomic():
        announce(KIND, {})
        assert Delivery.objects.count() == 1
        transaction.set_rollback(True)
    assert not Delivery.objects.exists()


def test_each_active_endpoint_is_told_of_what_it_has_chosen(receiver, settings):
    chosen, _ = webhook(receiver, settings, kinds=[KIND])
    webhook(receiver, settings, kinds=[announced.AUDIT_HEAD])
    webhook(receiver, settings, kinds=[KIND], is_active=False)
    announce(KIND, {})
    assert [row.endpoint for row in Delivery.objects.all()] == [chosen]


def test_an_endpoint_that_another_process_has_switched_off_is_stored_nothing_for(hook):
    announce(KIND, {})
    WebhookEndpoint.objects.update(is_active=False)  # which this process is not told of
    announce(KIND, {})
    assert Delivery.objects.count() == 1


def test_a_turn_s_end_is_told_without_what_was_said(hook, say):
    (turn,) = settle([say("Tell nobody")])
    row = Delivery.objects.get()
    assert row.kind == "turn.succeeded"
    assert row.owner_id == turn.owner_id
    told = row.data
    assert (told["turnId"], told["conversationId"]) == (str(turn.pk), str(turn.conversation_id))
    assert (told["agent"], told["status"], told["errorCode"]) == ("default", "succeeded", None)
    assert told["promptTokens"] == turn.prompt_tokens > 0
    assert "Tell nobody" not in json.dumps(told)


def test_each_way_a_turn_ends_is_told(hook, say):
    failed, cancelled, deleted = say("one"), say("two"), say("three")
    turn_control.fail_turn(failed, reason="A reason for people")
    turn_control.cancel_turn(cancelled)
    turn_control.delete_conversation(deleted.conversation_id)
    told = {row.data["turnId"]: (row.kind, row.data["errorCode"]) for row in Delivery.objects.all()}
    assert told == {
        str(failed.pk): ("turn.failed", "turn_failed_by_operator"),
        str(cancelled.pk): ("turn.cancelled", "turn_cancelled"),
        str(deleted.pk): ("turn.cancelled", "conversation_deleted"),
    }
    assert not Turn.objects.exists()


def test_a_turn_that_its_worker_fails_is_told(hook, say, model):
    model.answer(*[Says] * 0)
    Turn.objects.filter(pk=say("Hello").pk).update(deadline=timezone.now() - timedelta(seconds=1))
    settle(Turn.objects.all())
    assert [row.data["errorCode"] for row in Delivery.objects.filter(kind="turn.failed")] == ["turn_timeout"]


# --- the head of the audit log -----------------------------------------------------------------------------------


@pytest.fixture
def anchored(receiver, settings):
    hook, _ = webhook(receiver, settings, kinds=[announced.AUDIT_HEAD])
    audit.seal()
    return hook


def test_the_audit_log_s_head_is_anchored_once_a_minute(anchored, receiver):
    announcements.anchor()
    announcements.anchor()
    (row,) = Delivery.objects.all()
    head = audit.head()
    assert row.data == {"auditNumber": head.number, "auditHash": head.hash}
    for _ in range(5):
        endpoints.rotate(anchored)  # another entry
        audit.seal()
        announcements.anchor()
    assert Delivery.objects.count() <= 2  # a minute may just have begun
    deliver(row)
    (found,) = audit.anchors_in([json.dumps(json.loads(receiver.received[0].body)["data"])])
    assert audit.verify([found])


def test_a_head_that_another_process_was_faster_with_is_told_in_the_next_minute(anchored):
    announcements.anchor()
    (row,) = Delivery.objects.all()
    # Another process was, when the chain had not come as far.
    Delivery.objects.update(data=row.data | {"auditNumber": 0})
    endpoints.rotate(anchored)
    audit.seal()
    announcements.anchor()
    if not Delivery.objects.filter(data__auditNumber=audit.head().number).exists():  # the next minute has not come yet
        Delivery.objects.all().delete()  # as if it had: its place is free
        announcements.anchor()
    assert Delivery.objects.filter(data__auditNumber=audit.head().number).exists()


def test_a_cut_off_tail_is_found_by_what_a_receiver_has_kept(anchored, receiver):
    announcements.anchor()
    deliver(Delivery.objects.get())
    kept = json.dumps(json.loads(receiver.received[0].body)["data"])
    beyond = json.dumps({"auditNumber": audit.head().number + 1, "auditHash": "0" * 64})
    assert audit.verify(audit.anchors_in([kept]))
    with pytest.raises(audit.NotWhole):
        audit.verify(audit.anchors_in([kept, beyond]))


# --- what receivers answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (Says(500, body=b"out of\norder"), "It answered 500: out of order"),
        (Says(404), "It answered 404."),
        (Says(resets=True), "http:protocol"),
        (Says(400, body=b"x" * 2**22), f"It answered 400: {'x' * 150}"),
        (Says(401, body=b"password=hunter2hunter2"), "It answered 401: password=[redacted]"),
    ],
    ids=["500", "404", "reset", "4 MB", "a secret"],
)
def test_what_is_not_taken_is_tried_again_and_told(hook, receiver, says, words):
    receiver.answer(says)
    (row,) = deliver(one())
    assert row.status == DeliveryStatus.QUEUED
    assert row.error.startswith(words) or words in row.error
    assert len(row.error) < 300
    assert row.tries[-1]["error"] == row.error
    wait = (row.run_after - timezone.now()).total_seconds()
    assert 2 < wait <= 6


def test_four_megabytes_that_say_yes_are_a_yes(hook, receiver):
    receiver.answer(Says(200, body=b"x" * 2**22))
    (row,) = deliver(one())
    assert (row.status, row.error) == (DeliveryStatus.DELIVERED, "")
    assert "xxx" not in json.dumps(row.tries)


@pytest.mark.parametrize("says", [Says(hangs=True), Says(200, body=b"x" * 1000, drips=True)], ids=["hangs", "drips"])
def test_who_does_not_answer_in_time_is_given_up_for_now(hook, receiver, monkeypatch, says):
    monkeypatch.setattr(webhooks, "SECONDS", 0.5)
    receiver.answer(says)
    began = time.monotonic()
    (row,) = deliver(one())
    assert time.monotonic() - began < 10
    assert row.status == DeliveryStatus.QUEUED
    assert "http:time" in row.error


def test_a_redirect_is_not_followed(hook, receiver):
    receiver.answer(Says(302, headers=(("Location", f"{receiver.url}/elsewhere"),)))
    (row,) = deliver(one())
    assert "redirects are not followed" in row.error
    assert [each.path for each in receiver.received] == ["/hook"]


def test_a_private_address_is_not_reached_unless_the_settings_open_it(hook, receiver, settings):
    settings.HTTP_ALLOWED_PRIVATE_CIDRS = []
    (row,) = deliver(one())
    assert row.status == DeliveryStatus.QUEUED
    assert "http:address" in row.error
    assert receiver.received == []


def test_who_is_gone_is_told_nothing_more(hook, receiver):
    receiver.answer(Says(410))
    waiting, row = one(), one(announced.SCHEDULE_FAILED)
    (row,) = deliver(row)
    hook.refresh_from_db()
    assert (row.status, hook.is_active) == (DeliveryStatus.FAILED, False)
    assert AuditEntry.objects.get(action="webhook.disabled").actor == audit.HOST
    announce(KIND, {})
    assert Delivery.objects.count() == 2
    (waiting,) = deliver(waiting)
    assert (waiting.status, waiting.error) == (DeliveryStatus.FAILED, "The webhook is switched off.")
    assert len(receiver.received) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_who_asks_for_time_is_given_it(hook, receiver, status):
    receiver.answer(Says(status, headers=(("Retry-After", "120"),)))
    (row,) = deliver(one())
    assert 115 < (row.run_after - timezone.now()).total_seconds() <= 121


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        (None, 3500, 3600),
        ("999999", 86_000, 86_401),  # no later than its time is up
        ("soon", 2, 6),
        ("Mon, 99 Foo 2026", 2, 6),
        ("-5", 2, 6),
        ("9" * 4000, 2, 6),
    ],
    ids=["a date", "longer than a day", "no number", "no date", "negative", "endless"],
)
def test_a_retry_after_is_read_whatever_it_is(hook, receiver, said, least, most):
    in_an_hour = format_datetime(timezone.now() + timedelta(hours=1))
    receiver.answer(Says(429, headers=(("Retry-After", said or in_an_hour),)))
    (row,) = deliver(one())
    assert least < (row.run_after - timezone.now()).total_seconds() <= most


def test_an_endpoint_that_is_switched_off_meanwhile_is_sent_nothing(hook, receiver):
    row = one()
    endpoints.change(hook, is_active=False)
    (row,) = deliver(row)
    assert (row.status, row.error) == (DeliveryStatus.FAILED, "The webhook is switched off.")
    assert receiver.received == []
    endpoints.change(hook, is_active=True)
    announcements.send_again(row)
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED


# --- for a day ---------------------------------------------------------------------------------------------------


def test_the_waits_grow_until_a_day_is_over_and_then_it_has_failed_for_all_to_see(hook, receiver):
    receiver.answer(Says(500))
    row, waits = one(), []
    while row.status == DeliveryStatus.QUEUED:
        (row,) = deliver(row)
        if row.run_after:
            waits.append((row.run_after - timezone.now()).total_seconds())
            rewind(row, seconds=waits[-1] + 1)
    expected = [5, 300, 1800, 7200, 18_000, 36_000]
    assert len(waits) in (7, 8)  # the last is what is left of the day
    assert all(wait - 3 < each <= wait * 1.2 for wait, each in zip(expected, waits, strict=False))
    assert 86_000 < sum(waits) < 87_000
    assert (row.status, row.error, row.attempts) == (DeliveryStatus.FAILED, "It answered 500.", len(waits) + 1)
    assert row.ended_at
    assert len(set(receiver.ids)) == 1
    assert len({each.body for each in receiver.received}) == 1


def test_what_waited_for_longer_than_a_day_is_tried_once_all_the_same(hook, receiver):
    row = one()
    rewind(row, days=3)
    assert deliver(row)[0].status == DeliveryStatus.DELIVERED
    receiver.answer(Says(500))
    announcements.send_again(row)
    rewind(row, days=3)
    assert deliver(row)[0].status == DeliveryStatus.FAILED


def test_what_is_not_due_is_left_alone(hook, receiver):
    receiver.answer(Says(500))
    (row,) = deliver(one())
    deliver(row)
    assert len(receiver.received) == 1
    assert sweeper.find(DELIVERIES) == []
    rewind(row, seconds=10)
    Delivery.objects.update(notified_at=F("notified_at") - timedelta(seconds=10))
    assert sweeper.find(DELIVERIES) == [row.pk]


def test_what_is_sent_again_has_the_same_id_and_a_day_before_it(hook, receiver):
    row = one()
    rewind(row, days=2)
    deliver(row)
    announcements.send_again(row)
    row.refresh_from_db()
    assert row.status == DeliveryStatus.QUEUED
    assert row.expires_at > timezone.now() + timedelta(hours=23)
    (row,) = deliver(row)
    assert (row.status, len(row.tries)) == (DeliveryStatus.DELIVERED, 2)
    assert receiver.ids == [outbox.id_of(row)] * 2
    assert AuditEntry.objects.filter(action="delivery.sent_again").count() == 1


def test_what_ended_long_ago_is_forgotten_and_what_is_open_is_not(hook):
    old, waiting, young = one(KIND), one(announced.SCHEDULE_FAILED), one(announced.APPROVAL_DECIDED)
    deliver(old, young)
    long_ago = timezone.now() - timedelta(days=31)
    Delivery.objects.filter(pk__in=[old.pk, waiting.pk]).update(created_at=long_ago)
    retention()
    assert set(Delivery.objects.values_list("pk", flat=True)) == {waiting.pk, young.pk}


# --- by several workers ------------------------------------------------------------------------------------------


def test_two_workers_deliver_each_once(hook, receiver):
    for _ in range(12):
        announce(KIND, {})
    rows = list(Delivery.objects.all())
    in_threads([lambda name=name: deliver(*rows, worker=name) for name in ("one", "two")])
    deliver(*rows)  # what neither has found, since four at once are the most
    assert len(receiver.ids) == len(set(receiver.ids)) == 12
    assert set(Delivery.objects.values_list("status", "attempts")) == {("delivered", 1)}


def test_an_endpoint_that_hangs_has_a_few_places_and_others_go_on(hook, receiver, settings):
    receiver.answer(Says(hangs=True))
    other = Receiver()
    quick, _ = webhook(other, settings, kinds=[announced.AUDIT_HEAD])
    settings.HTTP_ALLOWED_PORTS = [str(receiver.port), str(other.port)]
    for _ in range(10):
        announce(KIND, {})
    announce(announced.AUDIT_HEAD, {})
    Delivery.objects.filter(endpoint=hook, kind=announced.AUDIT_HEAD).delete()
    rows = Delivery.objects.filter(endpoint=hook)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(deliver, *rows, Delivery.objects.get(endpoint=quick))
        wait_until(lambda: Delivery.objects.filter(endpoint=quick, status=DeliveryStatus.DELIVERED).exists())
        assert [row.tries for row in rows.all()] == [[]] * 10
        receiver.answer(Says(503))
        receiver.let_go()
        ended.result()
    other.close()
    assert len(receiver.received) == 10
    assert receiver.most_at_once <= 6  # those who claim at the same moment do not see one another
    assert Delivery.objects.get(status=DeliveryStatus.DELIVERED).endpoint == quick


def test_a_worker_goes_on_with_what_nobody_had_room_for(hook, receiver):
    for _ in range(5):
        announce(KIND, {})
    Delivery.objects.update(notified_at=None)
    deliver(Delivery.objects.first())
    assert len(set(receiver.ids)) == 5


def test_whose_lease_ran_out_stores_nothing(hook, receiver):
    row = one()
    former = outbox.claim(row.pk, worker="one")
    Delivery.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    outbox.renew([row.pk], worker="another")
    held = outbox.claim(row.pk, worker="two")
    outbox.renew([row.pk], worker="one")
    outbox.settle(former, outbox.Outcome(status=204))
    outbox.release(former)
    row.refresh_from_db()
    assert (row.status, row.worker, row.fence) == (DeliveryStatus.RUNNING, "two", held.fence)


def test_what_kills_its_workers_again_and_again_is_given_up(hook, receiver):
    row = one()
    Delivery.objects.update(attempts=outbox.MAX_ATTEMPTS)
    (row,) = deliver(row)
    assert (row.status, row.error) == (DeliveryStatus.FAILED, "Its workers died, again and again.")
    assert receiver.received == []


# --- what is no webhook ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://example.org/"},
        {"url": "https://user:password@example.org/"},
        {"url": "https://example.org\\@other.org/"},
        {"url": ""},
        {"kinds": []},
        {"kinds": ["turn.imagined"]},
        {"kinds": [["turn"]]},
        {"name": ""},
    ],
)
def test_what_makes_no_sense_makes_no_webhook(receiver, settings, hook, wrong):
    with pytest.raises(ValidationError):
        webhook(receiver, settings, **wrong)
    with pytest.raises(ValidationError):
        endpoints.change(hook, **wrong)
    assert WebhookEndpoint.objects.count() == 1
