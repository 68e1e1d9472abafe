"""kill -9 in the middle of deliveries, webhooks and e-mails: each arrives, and one that arrives twice has the same id
and says the same."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from conversations import announced
from conversations.deliveries import outbox
from conversations.engine import sweeper
from conversations.engine.announcements import announce
from conversations.kinds import DELIVERIES
from conversations.models import Delivery, DeliveryStatus
from tests.faults.delivering import POINTS, SENT
from tests.support.delivering import deliver, webhook
from tests.support.mail_server import MailServer
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def mail_server(settings: Any) -> Iterator[MailServer]:
    running = MailServer()
    running.use(settings)
    yield running
    running.close()


@pytest.fixture
def victims(receiver: Receiver, mail_server: MailServer) -> Iterator[subprocess.Popen[str]]:
    """Where workers die, on this test's database."""
    arguments = [sys.executable, "-m", "tests.faults.delivering", str(connection.settings_dict["NAME"])]
    reaches = {"HTTP_ALLOWED_PRIVATE_CIDRS": "127.0.0.1/32", "HTTP_ALLOWED_PORTS": str(receiver.port)}
    reaches |= {"EMAIL_HOST": "127.0.0.1", "EMAIL_PORT": str(mail_server.port)}
    running = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | reaches
    )
    yield running
    running.stdin.close()
    assert running.wait(timeout=20) == 0


def die_and_go_on(victims: subprocess.Popen[str], row: Delivery, point: str) -> None:
    """A worker dies there, and another finds what it has left."""
    victims.stdin.write(f"{row.pk} {point}\n")
    victims.stdin.flush()
    assert int(victims.stdout.readline()) == -signal.SIGKILL
    past = timezone.now() - timedelta(minutes=1)
    Delivery.objects.filter(status=DeliveryStatus.RUNNING).update(lease_until=past)
    Delivery.objects.update(notified_at=past)
    for found in sweeper.find(DELIVERIES):
        deliver(found)
    row.refresh_from_db()
    assert row.status == DeliveryStatus.DELIVERED, point


def times_sent(point: str) -> int:
    """Before it was stored that it has arrived, it is sent again."""
    return 2 if point in SENT and "after" not in point else 1


def test_what_a_worker_dies_of_is_delivered_by_the_next(victims, receiver, settings):
    webhook(receiver, settings)
    for point in POINTS:
        receiver.received.clear()
        announce(announced.BUDGET_WARNING, {"point": point})
        row = Delivery.objects.get(data__point=point)
        die_and_go_on(victims, row, point)
        assert len(receiver.received) == times_sent(point), point
        assert len(set(receiver.ids)) == len({each.body for each in receiver.received}) == 1


def test_an_e_mail_that_a_worker_dies_of_is_sent_by_the_next(victims, mail_server):
    told = {"agent": "default", "toolName": "echo", "approvalId": "7", "rule": "consent:always", "expiresAt": "9 May"}
    for point in POINTS:
        mail_server.received.clear()
        (row,) = outbox.put_emails(["anna@example.org"], announced.APPROVAL_REQUESTED, told, owner_id=None)
        die_and_go_on(victims, row, point)
        assert len(mail_server.received) == times_sent(point), point
        assert {recipient for recipient, _ in mail_server.received} == {"anna@example.org"}
        assert len({message["Message-ID"] for _, message in mail_server.received}) == 1
        assert len({message.get_content() for _, message in mail_server.received}) == 1
