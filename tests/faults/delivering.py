"""A worker of deliveries that kills itself at a point, as kill -9 does: see :mod:`tests.faults.kill`.

``python -m tests.faults.delivering DATABASE`` reads lines of a delivery's id and a point, works on each in a process of
its own, and prints how that ended: 0, or -9.
"""

import asyncio
import os
import sys
from typing import Any
from uuid import UUID

from tests.faults.compacting import main

PLACES = ("outbox.claim", "undelivered.settle")
POINTS = [f"{place}:{moment}:1" for place in PLACES for moment in ("before", "inside", "after")]
# What has reached the receiver by then.
SENT = [point for point in POINTS if "settle" in point]
# Of messages to chats as well: with the platform about to be asked, and with its yes not yet stored.
TO_CHATS = [f"{place}:{moment}" for place in (*PLACES, "platform.send") for moment in ("before", "inside", "after")]
TO_CHATS.remove("platform.send:inside")


def work(delivery_id: UUID, point: str) -> None:
    """Take the delivery and send it, or die on the way."""
    from conversations.engine.deliveries.deliverer import Deliverer
    from nanohost.lib.database_threads import DatabaseThreads
    from tests.faults import kill

    kill.PLACES["conversations.deliveries.outbox"] = "outbox"
    kill.PLACES["conversations.engine.deliveries.undelivered"] = "undelivered"
    fault = kill.Fault(point)
    kill.install(fault)
    _at_platforms(fault)

    async def advance() -> None:
        threads = DatabaseThreads(1)
        try:
            await Deliverer(worker=f"worker-{os.getpid()}", database=threads).advance(delivery_id)
        finally:
            threads.close()

    asyncio.run(advance())


def _at_platforms(fault: Any) -> None:
    from conversations.channels import accounts

    made = accounts.platform

    def watched(channel: Any) -> Any:
        platform = made(channel)
        send = platform.send

        def sends(message: Any, key: str) -> str:
            fault.passes("platform.send", "before")
            external_id = send(message, key)
            fault.passes("platform.send", "after")
            return external_id

        platform.send = sends  # type: ignore[method-assign]  # of this one
        return platform

    accounts.platform = watched


if __name__ == "__main__":
    main(sys.argv[1], work)
