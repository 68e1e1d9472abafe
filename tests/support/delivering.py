"""Doing a worker's deliveries in the test's own thread, and a webhook to deliver to."""

import asyncio
from typing import Any
from uuid import UUID

from conversations import announced
from conversations.deliveries import endpoints
from conversations.engine.deliveries.deliverer import Deliverer
from conversations.models import Delivery, WebhookEndpoint
from nanohost.lib.database_threads import DatabaseThreads
from tests.support.receiver import Receiver


def webhook(receiver: Receiver, settings: Any, **values: Any) -> tuple[WebhookEndpoint, str]:
    """A webhook that a receiver on loopback stands behind, and which may be reached; with its secret."""
    settings.HTTP_ALLOWED_PRIVATE_CIDRS = ["127.0.0.0/8"]
    settings.HTTP_ALLOWED_PORTS = [str(receiver.port)]
    given = {"name": "the shop", "url": receiver.url, "kinds": list(announced.KINDS)} | values
    return endpoints.make(**given)


def deliver(*rows: Delivery | UUID, worker: str = "worker-1") -> list[Delivery]:
    """Look at deliveries once, side by side, as a worker does when it is notified; returns them as they then are."""
    ids = [row.pk if isinstance(row, Delivery) else row for row in rows]

    async def look() -> None:
        threads = DatabaseThreads(2)
        try:
            deliverer = Deliverer(worker=worker, database=threads)
            await asyncio.gather(*(deliverer.advance(each) for each in ids))
        finally:
            threads.close()

    asyncio.run(look())
    found = Delivery.objects.in_bulk(ids)
    return [found[each] for each in ids]
