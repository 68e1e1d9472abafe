"""Working in the command's own process: on rows that nobody else has taken, until all of them have ended."""

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from uuid import UUID

from django.conf import settings

from agent import llm
from conversations.engine.runner import Runner
from nanohost.lib.database_threads import DatabaseThreads

# Seconds between two looks at what others work on.
LOOK_AGAIN = 0.5


def see_through(
    ids: Collection[UUID],
    *,
    runner: type[Runner],
    at_once: int,
    find_open: Callable[[], list[UUID]],
    seconds: float,
) -> bool:
    """Work on these rows, so many ``at_once``, as a worker does, and wait for those that other workers have taken.
    ``find_open``: those that have not ended. False if some have not within ``seconds``."""
    with _telemetry():
        return asyncio.run(_see_through(list(ids), runner, at_once, find_open, seconds))


@contextmanager
def _telemetry() -> Iterator[None]:
    if not settings.TELEMETRY:
        yield
        return
    from nanohost.lib import telemetry

    telemetry.start()
    try:
        yield
    finally:
        telemetry.stop()


async def _see_through(
    ids: list[UUID],
    runner_class: type[Runner],
    at_once: int,
    find_open: Callable[[], list[UUID]],
    seconds: float,
) -> bool:
    database = DatabaseThreads(min(at_once, 4))
    llm.forget_clients()  # they belong to one loop
    runner = runner_class(worker=f"manage.py {socket.gethostname()} {os.getpid()}"[:128], database=database)
    places = asyncio.Semaphore(at_once)

    async def work_on(row_id: UUID) -> None:
        async with places:
            await runner.advance(row_id)

    try:
        async with asyncio.timeout(seconds):
            while ids:
                await asyncio.gather(*map(work_on, ids))
                ids = await database(find_open)
                if ids:
                    await asyncio.sleep(LOOK_AGAIN)
        return True
    except TimeoutError:
        return False
    finally:
        await runner.stop()
        database.close()
        await llm.close_clients()
