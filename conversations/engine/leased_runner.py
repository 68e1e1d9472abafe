"""A runner whose rows are tasks of their own: it claims one, keeps its lease renewed while models take their time, and
releases it when the process stops."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar, Concatenate, Generic, ParamSpec, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import OperationalError

from conversations.engine.runner import Runner
from nanohost.lib.database import STORE_AT_A_STOP, Tries
from nanohost.lib.database_threads import DatabaseThreads

logger = logging.getLogger(__name__)

Hold = TypeVar("Hold")
P = ParamSpec("P")
T = TypeVar("T")


class LeasedRunner(Runner, Generic[Hold]):
    """Works on rows, each a task of its own. Lives on one event loop. ``Hold``: what a claim gives."""

    # What its rows are called in logs, with an article.
    noun: ClassVar[str]

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        super().__init__(worker=worker, database=database)
        self._working: set[asyncio.Task[None]] = set()
        self._stopping = False

    def claim_row(self, row_id: UUID) -> Hold | None:
        """In a database thread: claim a row; None if it is not claimable."""
        raise NotImplementedError

    def renew_row(self, hold: Hold) -> bool:
        """In a database thread: renew the lease of a row; False if it is no longer ours."""
        raise NotImplementedError

    def release_row(self, hold: Hold) -> None:
        """In a database thread: release a row, at no cost."""
        raise NotImplementedError

    def about(self, hold: Hold) -> AbstractContextManager[None]:
        """What the logs say of the work on a row."""
        raise NotImplementedError

    async def work(self, hold: Hold) -> None:
        """See a held row through, and store what became of it, failures included."""
        raise NotImplementedError

    async def advance(self, row_id: UUID) -> None:
        """Claim a row and see it through; does nothing if it is not claimable."""
        task = asyncio.current_task()
        assert task is not None
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        try:
            hold = await self.database(self.claim_row, row_id)
        except OperationalError as error:
            logger.warning("%s could not be claimed (%s); a sweep finds it", self.noun, type(error).__name__)
            return
        if hold is None:
            return
        keeper = asyncio.create_task(self._keep_renewed(hold, task))
        with self.about(hold):
            try:
                await self.work(hold)
            except asyncio.CancelledError:
                if keeper.done():
                    logger.info("%s is stopped: somebody else has taken or ended it, or it has just ended", self.noun)
                else:
                    await self.stored(self.release_row, hold)
            finally:
                keeper.cancel()

    async def _keep_renewed(self, hold: Hold, task: "asyncio.Task[None]") -> None:
        """Renew the lease. Once somebody else has it, our work is void: it is stopped, and its model is paid no more.
        (While the database is away nobody can take it.)"""
        while True:
            await asyncio.sleep(settings.TURN_LEASE_SECONDS / 6)
            try:
                if not await self.database(self.renew_row, hold):
                    task.cancel()
                    return
            except Exception as error:
                logger.warning("the lease of %s could not be renewed (%s)", self.noun, type(error).__name__)

    async def stored(
        self, store: Callable[Concatenate[Hold, P], T], hold: Hold, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Store what became of a row, though the database may be away: what a model made was paid for."""
        seconds = STORE_AT_A_STOP if self._stopping else settings.TURN_TIMEOUT_SECONDS
        return await self.database.store(Tries(self.noun, seconds=seconds), store, hold, *args, **kwargs)

    async def stop(self) -> None:
        self._stopping = True
        for task in self._working:
            task.cancel()
        while self._working:
            await asyncio.wait(set(self._working))
