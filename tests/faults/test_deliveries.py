"""kill -9 in the middle of deliveries, webhooks and e-mails: each arrives, and one that arrives twice has the same id
and says the same."""

import os
import random
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
from conversations.channel_models import Chat
from conversations.deliveries import outbox
from conversations.deliveries.outbox import Said
from conversations.engine import sweeper
from conversations.engine.announcements import announce
from conversations.kinds import DELIVERIES
from conversations.models import Delivery, DeliveryStatus
from tests.faults.delivering import POINTS, SENT, TO_CHATS
from tests.support.chat_platforms import SECRETS, MatrixServer, TelegramServer
from tests.support.delivering import deliver, webhook
from tests.support.mail_server import MailServer
from tests.support.platforms import WebhookProgram
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


# --- to chats ----------------------------------------------------------------------------------------------------

SEEDS = 60


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [WebhookProgram, MatrixServer, TelegramServer], ids=lambda each: each.kind)
def test_every_delivery_to_a_chat_ends_and_none_twice_where_the_platform_can_tell(kind, settings, owner, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    peer = kind(settings)
    try:
        channel = peer.channel(owner)
        chat = Chat.objects.create(channel=channel, owner=owner, key=f"{channel.name}:42", chat_id="42")
        reaches = {"HTTP_ALLOWED_PRIVATE_CIDRS": "127.0.0.1/32"}
        reaches["HTTP_ALLOWED_PORTS"] = ",".join(settings.HTTP_ALLOWED_PORTS)
        if settings.WEBHOOK_KEY:
            reaches["WEBHOOK_KEY"] = settings.WEBHOOK_KEY
        arguments = [sys.executable, "-m", "tests.faults.delivering", str(connection.settings_dict["NAME"])]
        running = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | reaches
        )
        chance, ended = random.Random(f"chats {kind.kind}"), []
        for number in range(SEEDS):
            point = f"{chance.choice(TO_CHATS)}:{chance.choice((1, 1, 2))}"
            (row,) = outbox.put_in_chat(chat, [Said(kind="chat", data={"text": f"Message {number}."})])
            running.stdin.write(f"{row.pk} {point}\n")
            running.stdin.flush()
            died = int(running.stdout.readline())
            assert died in (0, -signal.SIGKILL)
            past = timezone.now() - timedelta(minutes=1)
            Delivery.objects.filter(status=DeliveryStatus.RUNNING).update(lease_until=past)
            Delivery.objects.update(notified_at=past)
            for found in sweeper.find(DELIVERIES):
                deliver(found)
            row.refresh_from_db()
            told = [each for each in peer.sent if each.text == f"Message {number}."]
            if peer.tells_duplicates:
                assert (row.status, len({each.key for each in told})) == (DeliveryStatus.DELIVERED, 1), point
            else:
                assert row.status in (DeliveryStatus.DELIVERED, DeliveryStatus.UNKNOWN), point
                assert len(told) == 1 or (row.status, len(told)) == (DeliveryStatus.UNKNOWN, 0), point
            ended.append((row.status, died))
        # Enough of them have died, and where nobody can tell, some are unknown.
        assert sum(died != 0 for _, died in ended) > SEEDS / 3
        assert any(status == DeliveryStatus.UNKNOWN for status, _ in ended) != peer.tells_duplicates
        running.stdin.close()
        assert running.wait(timeout=60) == 0
    finally:
        peer.close()
