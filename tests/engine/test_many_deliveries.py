"""Looking for what is to be sent takes time in proportion to what waits, however much an account was ever sent."""

from collections.abc import Callable

import pytest
from django.db import connection

from conversations.channel_models import Chat
from conversations.channels import accounts
from conversations.deliveries import outbox
from conversations.deliveries.outbox import Said
from conversations.models import Delivery
from conversations.models.delivery import DeliveryStatus

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.embedded(reason="it counts SQLite's own steps; tests/plans looks at PostgreSQL's plans"),
]


def steps(do: Callable[[], object]) -> int:
    """Hundreds of steps of SQLite's machine."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection.ensure_connection()
    connection.connection.set_progress_handler(count, 100)
    try:
        do()
    finally:
        connection.connection.set_progress_handler(None, 0)
    return counted


def test_four_times_as_many_that_wait_take_about_four_times_the_steps(owner, agent):
    channel, _ = accounts.make(
        name="slow", kind="webhook", agent=agent, owner=owner, settings={"url": "https://example.org/hook"}
    )
    found = []

    def look() -> None:
        found[:] = Delivery.objects.claimable().order_by("pk")[:1]

    taken = []
    for chats in (10, 30):
        for _ in range(chats):
            number = Chat.objects.count()
            chat = Chat.objects.create(channel=channel, owner=owner, key=f"slow:{number}", chat_id=str(number))
            outbox.put_in_chat(chat, [Said(kind="chat", data={"text": "Hello"}) for _ in range(20)])
        taken.append(steps(look))
        assert outbox.claim(found[0].pk, worker="worker")
    assert taken[1] < 8 * taken[0], taken


def test_a_chat_that_was_sent_much_is_claimed_as_fast_as_a_new_one(owner, agent):
    channel, _ = accounts.make(
        name="busy", kind="webhook", agent=agent, owner=owner, settings={"url": "https://example.org/hook"}
    )
    chat = Chat.objects.create(channel=channel, owner=owner, key="busy:1", chat_id="1")
    taken = []
    for sent in (10, 2_000):
        outbox.put_in_chat(chat, [Said(kind="chat", data={"text": "Hello"}) for _ in range(sent)])
        Delivery.objects.update(status=DeliveryStatus.DELIVERED)
        outbox.put_in_chat(chat, [Said(kind="chat", data={"text": "Last"})])
        row = Delivery.objects.get(status=DeliveryStatus.QUEUED)
        taken.append(steps(lambda row=row: outbox.claim(row.pk, worker="worker")))
        assert Delivery.objects.get(pk=row.pk).status == DeliveryStatus.RUNNING
    assert taken[1] < 2 * taken[0], taken
