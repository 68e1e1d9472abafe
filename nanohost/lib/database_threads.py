"""Where an event loop's database work is done."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.db import OperationalError, connections

from nanohost.lib.database import Tries, borrowed_connection

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def handed_over(executor: ThreadPoolExecutor, call: Callable[[], T]) -> "asyncio.Future[T]":
    """What a function returns that a thread calls. The loop's own ``run_in_executor`` keeps two futures in step, which
    costs as much again as the handing over."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            settle = partial(_settle, outcome, call(), None)
        except BaseException as error:
            settle = partial(_settle, outcome, None, error)
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle)

    executor.submit(work)
    return outcome


def _settle(outcome: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if outcome.done():  # whoever waited was cancelled
        return
    if error is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(error)


class DatabaseThreads:
    """A few threads with kept connections, which the event loop hands its database work to."""

    def __init__(self, size: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix="database")

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread, with the caller's context. A cancelled caller still waits for its end: what was
        written must be known before anything else is."""
        context = contextvars.copy_context()

        def call() -> T:
            with borrowed_connection():
                return context.run(function, *args, **kwargs)

        future = handed_over(self._executor, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            if error := future.exception():
                logger.info("a database job of a stopped task failed: %s", type(error).__name__)
            raise

    def submit(self, function: Callable[[], object]) -> "Future[None]":
        """Run a function in a thread, from any thread, and return at once."""

        def call() -> None:
            with borrowed_connection():
                function()

        return self._executor.submit(call)

    async def store(self, tries: Tries, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, again and again while the database is away. No thread waits meanwhile."""
        while True:
            try:
                return await self(function, *args, **kwargs)
            except OperationalError as error:
                wait = tries.wait_after(error)
            await asyncio.sleep(wait)

    def close(self) -> None:
        """Close the connections and end the threads."""
        if started := len(self._executor._threads):
            each_its_own = threading.Barrier(started)

            def close_own() -> None:
                each_its_own.wait(timeout=5)
                connections.close_all()

            for _ in range(started):
                self._executor.submit(close_own)
        self._executor.shutdown(wait=True)
