"""Blocking calls from an event loop: each runs in a thread of its own, which nobody has to wait for."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(call: Callable[[], T]) -> T:
    """What a function returns that runs in a thread of its own, which nobody waits for when the process ends: a
    receiver that hangs keeps no host from stopping."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if outcome.done():  # whoever waited was cancelled
            return
        if error is None:
            outcome.set_result(result)  # type: ignore[arg-type]  # what the call has returned
        else:
            outcome.set_exception(error)

    def work() -> None:
        result, failed = None, None
        try:
            result = context.run(call)
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=work, name="outside", daemon=True).start()
    return await outcome
