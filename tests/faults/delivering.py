"""A worker of deliveries that kills itself at a point, as kill -9 does: see :mod:`tests.faults.kill`.

``python -m tests.faults.delivering DATABASE`` reads lines of a delivery's id and a point, works on each in a process of
its own, and prints how that ended: 0, or -9.
"""

import asyncio
import os
import sys
from uuid import UUID

from tests.faults.compacting import main

PLACES = ("outbox.claim", "undelivered.settle")
POINTS = [f"{place}:{moment}:1" for place in PLACES for moment in ("before", "inside", "after")]
# What has reached the receiver by then.
SENT = [point for point in POINTS if "settle" in point]


def work(delivery_id: UUID, point: str) -> None:
    """Take the delivery and send it, or die on the way."""
    from conversations.engine.deliverer import Deliverer
    from nanohost.lib.database_threads import DatabaseThreads
    from tests.faults import kill

    kill.PLACES["conversations.deliveries.outbox"] = "outbox"
    kill.PLACES["conversations.engine.undelivered"] = "undelivered"
    kill.install(kill.Fault(point))

    async def advance() -> None:
        threads = DatabaseThreads(1)
        try:
            await Deliverer(worker=f"worker-{os.getpid()}", database=threads).advance(delivery_id)
        finally:
            threads.close()

    asyncio.run(advance())


if __name__ == "__main__":
    main(sys.argv[1], work)
