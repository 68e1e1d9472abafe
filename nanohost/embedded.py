"""Web, workers and beat in one process: started and stopped by the ASGI lifespan."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from celery.beat import Service
from celery.worker import WorkController
from celery.worker import state as worker_state

from conversations.engine import doorbell
from conversations.engine.worker import Runtime, start_runtime
from conversations.kinds import KINDS
from nanohost.celery import app, make_app
from scheduler.beat import SystemScheduler

logger = logging.getLogger(__name__)

# With the 2 s that uvicorn gives open requests, and the second of the tools' processes, a stop stays within 10 s.
STOP_SECONDS = 6.0


class _WakefulScheduler(SystemScheduler):
    """Waits until its next look by itself: Celery's beat would sleep through a stop."""

    def __init__(self, *args: Any, stopping: threading.Event, **kwargs: Any) -> None:
        self._stopping = stopping
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # Celery's is untyped

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send the tasks that are due, and return when to look next."""
        self._stopping.wait(super().tick(*args, **kwargs))
        if self.should_sync():  # beat does so after its sleep, of which there is none
            self._do_sync()  # type: ignore[attr-defined]  # not in the stubs
        return 0.0


class Embedded:
    """The workers and beat of an embedded host. ``start`` returns when they are ready; ``stop`` when they are gone.

    Turns live on the web's loop: on one of their own, two threads would wait for each other's interpreter all the time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads: list[threading.Thread] = []
        self._beat: Service | None = None
        self._stopping = threading.Event()
        self._runtime: Runtime | None = None

    def start(self) -> None:
        """Start beat, the workers' runtime, and a Celery worker for each of the queues."""
        expire_leases_of_the_dead()
        self._runtime = start_runtime(KINDS, loop=self._loop)
        # Tools have one of their own: when all their places are taken, their notifications wait in it and delay no
        # turn.
        alone = [[kind.queue] for kind in KINDS if kind.is_alone]
        for queues in ([kind.queue for kind in KINDS if not kind.is_alone], *alone):
            self._run(f"worker-{queues[0]}", self._worker(queues[0], queues).start)
        scheduler: Any = partial(_WakefulScheduler, stopping=self._stopping)
        self._beat = Service(app, max_interval=1, scheduler_cls=scheduler)
        self._run("beat", self._beat.start)

    def stop(self) -> None:
        """Stop taking work, release what runs, and wait for the threads."""
        if self._beat:
            self._beat.stop(wait=False)
        self._stopping.set()
        worker_state.should_stop = 0  # type: ignore[assignment]  # an exit code; None would mean: go on
        if self._runtime:
            self._runtime.wind_down()
        # Their loops look up every 2 s only, and once more when they have seen that they are to stop: two last
        # notifications
        # each, for no row.
        for _ in range(2):
            for kind in KINDS:
                doorbell.notify(kind, UUID(int=0))
        until = time.monotonic() + STOP_SECONDS
        if self._runtime:
            self._runtime.stop(timeout=STOP_SECONDS)
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    def _run(self, name: str, target: Callable[[], object]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    @staticmethod
    def _worker(name: str, queues: list[str]) -> Any:
        return WorkController(
            app=make_app(current=False),
            hostname=f"{name}@embedded",
            queues=queues,
            pool="solo",
            loglevel=logging.WARNING,
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
        )


def expire_leases_of_the_dead() -> None:
    """Whoever held a lease on this database is dead, since the lock on DATA_DIR is ours: no need to wait.

    Every notification of theirs is lost as well, with the broker in their memory.
    """
    for kind in KINDS:
        kind.rows.expire_all()
