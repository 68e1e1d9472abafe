"""A worker of compactions that kills itself at a point, as kill -9 does: see :mod:`tests.faults.kill`.

``python -m tests.faults.compacting DATABASE`` reads lines of a compaction's id and a point, works on each in a process
of its own, and prints how that ended: 0, or -9.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from uuid import UUID

import django
from django.conf import settings

PLACES = ("compaction.claim", "compaction.store")

# How many statements write in the transaction that stores a compaction: each is a point of its own.
STATEMENTS_OF_STORE = 7

POINTS = [
    *(f"compaction.claim:{moment}:1" for moment in ("before", "inside", "after")),
    *(f"model:{moment}:1" for moment in ("before", "during", "after")),
    *(f"compaction.store:{moment}:1" for moment in ("before", "after")),
    *(f"compaction.store:inside:{nth}" for nth in range(1, STATEMENTS_OF_STORE + 1)),
]


def work(compaction_id: UUID, point: str) -> None:
    """Take the compaction and see it through, or die on the way."""
    from conversations.engine.compacting.compactor import Compactor
    from nanohost.lib.database_threads import DatabaseThreads
    from tests.faults import kill

    kill.PLACES["conversations.engine.compacting.compaction"] = "compaction"
    kill.install(kill.Fault(point))

    async def advance() -> None:
        threads = DatabaseThreads(1)
        try:
            await Compactor(worker=f"worker-{os.getpid()}", database=threads).advance(compaction_id)
        finally:
            threads.close()

    asyncio.run(advance())


def main(database: str, work: Callable[[UUID, str], None]) -> None:
    """Have ``work`` done on each line's row, in a child that may die of it."""
    settings.DATABASES["default"]["NAME"] = database
    django.setup()
    # What a worker imports once, a child need not import again.
    from agent import llm
    from conversations.engine import worker  # noqa: F401 -- see above

    llm.warm()
    for line in sys.stdin:
        row_id, point = line.split()
        child = os.fork()
        if not child:
            work(UUID(row_id), point)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(-signal.SIGKILL if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)  # noqa: T201 -- its answer to who started it


if __name__ == "__main__":
    main(sys.argv[1], work)
