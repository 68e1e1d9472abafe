"""A worker that listens to platforms, until it is killed: ``python -m tests.faults.listening DATABASE NAME``."""

import asyncio
import sys

import django
from django.conf import settings

SWEEP_SECONDS = 0.2


async def listen(name: str) -> None:
    """Do what a worker process does for its listeners: find those that nobody holds, and renew what it holds."""
    from conversations.engine import sweeper
    from conversations.engine.channels.listener import ListenerRunner
    from conversations.kinds import LISTENERS
    from nanohost.lib.database_threads import DatabaseThreads

    threads, tasks = DatabaseThreads(2), set()
    runner = ListenerRunner(worker=name, database=threads)
    print("ready", flush=True)  # noqa: T201 -- its word to who started it
    while True:
        for found in await threads(sweeper.find, LISTENERS):
            task = asyncio.ensure_future(runner.advance(found))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await runner.renew(threads)
        await runner.watch()
        await asyncio.sleep(SWEEP_SECONDS)


if __name__ == "__main__":
    settings.DATABASES["default"]["NAME"] = sys.argv[1]
    django.setup()
    asyncio.run(listen(sys.argv[2]))
