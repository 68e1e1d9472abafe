"""The base class of runners: a runner works on the rows of one kind of work in a worker process."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any
from uuid import UUID

from nanohost.lib.database_threads import DatabaseThreads

Done = Future[None] | asyncio.Task[None]


class Runner:
    """Works on rows of one kind. Its work is a coroutine on the process's event loop, unless it begins it elsewhere.

    ``worker``: the name of the process. ``database``: the threads in which its rows are read and written.
    """

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        self.worker = worker
        self.database = database

    @property
    def held(self) -> Collection[UUID]:
        """Rows that this process's sweep skips, though their lease may have run out."""
        return ()

    def warm(self) -> None:
        """Do before the first row what takes long and must not run on the event loop."""

    def describe(self) -> dict[str, Any]:
        """What the process's :class:`conversations.models.Worker` says of it."""
        return {}

    def begin(self, row_id: UUID, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]) -> None:
        """Begin to work on a row, from any thread, and return at once; ``then`` is called when that is over."""
        loop.call_soon_threadsafe(self._create, loop, row_id, then)

    def begin_here(self, row_id: UUID, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]) -> None:
        """The same, called in a database thread: the first database work is done at once."""
        self.begin(row_id, loop=loop, then=then)

    def begin_claimed(self, claimed: Any, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]) -> None:
        """The same for a row that was claimed as it was stored. ``claimed``: what its kind's :func:`doorbell.place` is
        given."""
        raise NotImplementedError

    def _create(self, loop: asyncio.AbstractEventLoop, row_id: UUID, then: Callable[[Done], None]) -> None:
        loop.create_task(self.advance(row_id)).add_done_callback(then)

    async def advance(self, row_id: UUID) -> None:
        """Work on a row; does nothing if it cannot be claimed."""
        raise NotImplementedError

    async def watch(self) -> None:
        """Called every second: stop work that was cancelled or is out of time."""

    async def renew(self, database: DatabaseThreads) -> None:
        """Called at every heartbeat: renew the leases of what is held."""

    def before_sweep(self) -> None:
        """In a database thread, before the sweep looks for what is due: make due what becomes so by the clock alone."""

    def wind_down(self) -> None:
        """The process starts no more work: tell what runs to stop."""

    async def stop(self) -> None:
        """Release what is held, and wait until that is stored."""

    def close(self) -> None:
        """The process has stopped: clean up."""
