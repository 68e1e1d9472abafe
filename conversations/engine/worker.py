"""A worker process: its event loop of turns, its threads of tools, its heartbeat and its sweeper.

Celery's tasks hand over what workers are notified of and return at once; how much runs at a time is bounded here.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import uvloop
from django.conf import settings
from django.db import OperationalError
from django.utils.module_loading import import_string

import nanohost
from conversations import events
from conversations.engine import announcements, doorbell, sweeper
from conversations.engine.runner import Done, Runner
from conversations.kinds import TOOLS, TURNS, Kind
from conversations.models import Worker
from nanohost.accounts import audit
from nanohost.lib.clock import Now, from_now
from nanohost.lib.database import pool_use
from nanohost.lib.database_threads import DatabaseThreads

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
# How often what is new in the audit log is sealed.
AUDIT_SECONDS = 0.3


class _Room:
    """Places for so many things at a time; :attr:`free` of them can be taken now."""

    def __init__(self, places: int) -> None:
        self.free = places
        self._changed = threading.Condition()

    def enter(self, *, timeout: float) -> bool:
        """Take a place; False if none comes free within so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.free > 0, timeout):
                return False
            self.free -= 1
            return True

    def leave(self) -> None:
        with self._changed:
            self.free += 1
            self._changed.notify()


class _Lane:
    """A kind of work in this process: its runner, and its places. Any thread may hand rows to it; once the process
    stops, it takes none."""

    def __init__(
        self,
        kind: Kind,
        *,
        worker: str,
        database: DatabaseThreads,
        loop: asyncio.AbstractEventLoop,
        stopping: threading.Event,
    ) -> None:
        self.kind = kind
        self.runner: Runner = import_string(kind.runner)(worker=worker, database=database)
        self.room = _Room(kind.places())
        self._loop, self._stopping = loop, stopping

    def take(self, row_id: UUID, *, wait: bool = False) -> bool:
        """Hand a row to the runner and return at once. While the process works on as many as it may: wait, or leave it
        and return False. So it does when the process stops: it is left to others."""
        if not self._enter(wait=wait):
            return False
        self.runner.begin(row_id, loop=self._loop, then=partial(self._after, row_id))
        return True

    def hear(self, row_id: UUID) -> bool:
        """See :class:`conversations.engine.doorbell.Here`."""
        if not self._enter(wait=False):
            return False
        then = partial(self._after, row_id)
        try:
            self.runner.begin_here(row_id, loop=self._loop, then=then)
        except Exception as error:
            _drop(error, then)
        return True

    @contextmanager
    def place(self) -> Iterator[doorbell.Place | None]:
        """See :class:`conversations.engine.doorbell.Here`."""
        if not self._enter(wait=False):
            yield None
            return
        place = _Place(self.runner, loop=self._loop, then=partial(self._after, None))
        try:
            yield place
        finally:
            if not place.is_used:
                self.room.leave()

    def _enter(self, *, wait: bool) -> bool:
        while not self.room.enter(timeout=0.5 if wait else 0):
            if self._stopping.is_set() or not wait:
                return False
        if self._stopping.is_set():
            self.room.leave()
            return False
        return True

    def _after(self, row_id: UUID | None, done: Done) -> None:
        self.room.leave()
        if not done.cancelled() and (error := done.exception()):
            # Its lease runs out and it is taken again, here or elsewhere.
            logger.error("%s %s was dropped", self.kind.noun, row_id or "just stored", exc_info=error)


class _Place:
    """A place that was taken before there is a row for it."""

    def __init__(self, runner: Runner, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]) -> None:
        self.worker = runner.worker
        self.is_used = False
        self._begin = partial(runner.begin_claimed, loop=loop, then=then)
        self._then = then

    def begin(self, claimed: object) -> None:
        """See :class:`conversations.engine.doorbell.Place`."""
        self.is_used = True
        try:
            self._begin(claimed)
        except Exception as error:
            _drop(error, self._then)


def _drop(error: Exception, then: Callable[[Done], None]) -> None:
    """Tell that work on a row could not begin. It is stored, so whoever has stored it need not know."""
    failed: Future[None] = Future()
    failed.set_exception(error)
    then(failed)


class Runtime:
    """What a worker process holds: one, made for its kinds of work and started by :func:`start_runtime`. It lives on
    ``loop``, which runs in another thread; if none is given, on one of its own."""

    def __init__(
        self,
        kinds: Collection[Kind] = (TURNS, TOOLS),
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.name = f"{socket.gethostname()[:64]}:{os.getpid()}:{time.time():.0f}"
        self._loop = loop or uvloop.new_event_loop()
        self._thread = None if loop else threading.Thread(target=self._run_loop, name="turns", daemon=True)
        self._life: Future[None] | None = None
        self._database = DatabaseThreads(settings.WORKER_DB_THREADS)
        # Of its own: behind hundreds of turns that are begun at once, the leases of those that are held would run out.
        self._heart = DatabaseThreads(1)
        self._stopping = threading.Event()
        shared: dict[str, Any] = {"database": self._database, "loop": self._loop, "stopping": self._stopping}
        self._lanes = {kind: _Lane(kind, worker=self.name, **shared) for kind in kinds}
        self._runners = [lane.runner for lane in self._lanes.values()]
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start the loop; returns once the worker's row is written. Raises RuntimeError if it cannot be."""
        for runner in self._runners:
            runner.warm()
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        if self._thread:
            self._thread.start()
        if not self._started.wait(timeout=30):
            raise RuntimeError("its row could not be written within 30 s")
        if self._failure:
            raise RuntimeError("its row could not be written") from self._failure
        for kind, lane in self._lanes.items():
            doorbell.answer_here(kind, lane)

    def wind_down(self) -> None:
        """Start no more work, and tell running tools to stop."""
        doorbell.answer_no_more()
        self._stopping.set()
        for runner in self._runners:
            runner.wind_down()

    def stop(self, *, timeout: float = 6.0) -> None:
        """Release the turns, mark the worker's row as ended, and end the loop; do not wait for a database that
        hangs."""
        self.wind_down()
        if self._life and not self._life.done():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._ended.wait(timeout)
        events.transport().flush(timeout=1)
        for runner in self._runners:
            runner.close()

    def take(self, kind: Kind, row_id: UUID, *, wait: bool = True) -> bool:
        """See :meth:`_Lane.take`."""
        return self._lanes[kind].take(row_id, wait=wait)

    def free(self, kind: Kind) -> int:
        """How many more rows of a kind this process could take now."""
        return self._lanes[kind].room.free

    def held(self, kind: Kind) -> Collection[UUID]:
        """Which rows of a kind the process holds, as its runner tells."""
        return self._lanes[kind].runner.held

    def _run_loop(self) -> None:
        assert self._life
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.wrap_future(self._life, loop=self._loop))
        self._loop.close()

    async def _live(self) -> None:
        try:
            await self._serve()
        except Exception as error:
            logger.exception("the worker's loop has ended")
            self._failure = error
            self._started.set()
        # A database that hangs holds the threads; the loop may be others' too.
        threading.Thread(target=self._close, name="closing", daemon=True).start()

    def _close(self) -> None:
        self._database.close()
        self._heart.close()
        self._ended.set()

    async def _serve(self) -> None:
        await self._database(self._introduce)
        self._started.set()
        periodic = [
            asyncio.create_task(self._every(WATCH_SECONDS, self._watch)),
            asyncio.create_task(self._every(Worker.HEARTBEAT_SECONDS, self._beat)),
            asyncio.create_task(self._every(Worker.HEARTBEAT_SECONDS, _show_life)),
            asyncio.create_task(self._every(settings.SWEEP_SECONDS, self._sweep)),
            asyncio.create_task(
                self._every(AUDIT_SECONDS, partial(self._database, audit.Sealer(settings.AUDIT_HEADS).seal_and_tell))
            ),
            asyncio.create_task(
                self._every(announcements.ANCHOR_SECONDS, partial(self._database, announcements.anchor))
            ),
        ]
        await self._stop.wait()
        for task in periodic:
            task.cancel()
        await asyncio.gather(*periodic, return_exceptions=True)
        # Twice: a call that ended meanwhile may have claimed its turn.
        for _ in range(2):
            await asyncio.gather(*(runner.stop() for runner in self._runners))
        await self._database(self._say_goodbye)

    async def _every(self, seconds: float, do: Callable[[], Awaitable[object]]) -> None:
        """Call it now and every ``seconds``; failures are logged and do not end the series."""
        away = False
        while True:
            try:
                await do()
                away = False
            except OperationalError as error:
                if not away:  # what it holds, it goes on to hold
                    logger.warning("a duty of the worker must wait: the database is away (%s)", type(error).__name__)
                away = True
            except Exception:
                logger.exception("a periodic duty of the worker failed; it goes on")
            await asyncio.sleep(seconds)

    async def _watch(self) -> None:
        for runner in self._runners:
            await runner.watch()

    async def _sweep(self) -> None:
        """Take what is due and nobody was notified of, as far as there are places."""
        for kind, lane in self._lanes.items():
            await self._database(lane.runner.before_sweep)
            if room := lane.room.free:
                for row_id in await self._database(self._find, kind, room):
                    lane.take(row_id)

    def _find(self, kind: Kind, room: int) -> Sequence[UUID]:
        # What is held is asked when the statement runs: while it has waited for a thread, more may have been taken.
        return sweeper.find(kind, wanted=room, held=self.held(kind))

    async def _beat(self) -> None:
        for runner in self._runners:
            await runner.renew(self._heart)
        await self._heart(self._report)

    def _introduce(self) -> None:
        described = {name: value for runner in self._runners for name, value in runner.describe().items()}
        Worker.objects.create(
            name=self.name,
            version=nanohost.__version__,
            queues=",".join(sorted(kind.queue for kind in self._lanes)),
            heartbeat_at=Now(),
            **({"turns_most": 0} | described),
        )

    def _report(self) -> None:
        pool = pool_use()
        Worker.objects.filter(name=self.name).update(
            heartbeat_at=Now(),
            pool_used=pool.used if pool else None,
            pool_most=pool.most if pool else None,
            pool_waiting=pool.waiting if pool else None,
        )

    def _say_goodbye(self) -> None:
        Worker.objects.filter(name=self.name).update(ended_at=Now())


async def _show_life() -> None:
    """For those who watch the process from outside, where there is no port to ask: its loop goes round. A database that
    is away is no reason to end a worker, which may hold answers to be stored."""
    if settings.WORKER_ALIVE_FILE:
        await asyncio.to_thread(Path(settings.WORKER_ALIVE_FILE).touch)


_runtime: Runtime | None = None


def start_runtime(kinds: Collection[Kind], *, loop: asyncio.AbstractEventLoop | None = None) -> Runtime:
    """Make the process's runtime, for its kinds of work, and start it."""
    global _runtime
    _runtime = Runtime(kinds, loop=loop)
    _runtime.start()
    return _runtime


def runtime() -> Runtime:
    """The process's runtime; raises RuntimeError where none was started."""
    if _runtime is None:
        raise RuntimeError("this process is no worker")
    return _runtime


def forget_dead_workers() -> int:
    """Delete the rows of workers not heard of for a week; returns how many."""
    return Worker.objects.filter(heartbeat_at__lt=from_now(-7 * 86_400)).delete()[0]
