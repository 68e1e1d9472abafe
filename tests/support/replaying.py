"""Replaying as a worker does."""

import asyncio
from uuid import UUID

from django.db import transaction

from agent import llm
from conversations.engine.replaying import replays
from conversations.engine.replaying.frozen import Changes
from conversations.engine.replaying.replayer import Replayer
from conversations.models import Replay, Turn
from nanohost.lib.database_threads import DatabaseThreads


def replay(turn: Turn, **changes: object) -> Replay:
    """Have a turn asked again, and see it through; returns the row as it then is."""
    with transaction.atomic():
        row = replays.request(turn, Changes(**changes), by="anna")
    run(row.pk)
    row.refresh_from_db()
    return row


def run(*ids: UUID) -> None:
    """Work on these, one after the other, as a worker does that is notified."""

    async def work() -> None:
        threads = DatabaseThreads(1)
        llm.forget_clients()  # they belong to one loop
        runner = Replayer(worker="worker-1", database=threads)
        try:
            for each in ids:
                await runner.advance(each)
        finally:
            threads.close()
            await llm.close_clients()

    asyncio.run(work())
