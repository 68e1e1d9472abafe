"""The host kills itself, as kill -9 does, at a point that is named in ``FAULT_AT``.

A point is ``place:moment:nth``, such as ``steps.finish:after:2``: the second time the process comes by there.

- A place that writes is named by the function that decides what is written. *before*: all is prepared, nothing is
  durable; *inside*: the transaction's first write is done, and not committed; *after*: it is durable, and nobody was
  told.
- ``notification``: *before* or *after* this process hears of a row that is notified.
- ``model``: *before* the model is asked, *during* its call, *after* its answer.

Nothing of the product knows of this: it hooks Django's backend, the doorbell and the scripted model.
"""

import asyncio
import os
import signal
import sys
import threading
from typing import Any

PLACES = {
    "conversations.engine.inbox": "inbox",
    "conversations.engine.lease": "lease",
    "conversations.engine.onward": "onward",
    "conversations.engine.steps": "steps",
    "conversations.engine.turn_control": "turn_control",
    "tools.calls": "calls",
}


class Fault:
    """Counts how often the host comes by its point, and ends it there."""

    def __init__(self, point: str) -> None:
        place, moment, nth = point.rsplit(":", 2)
        self._at = (place, moment)
        self._left = int(nth)
        self._lock = threading.Lock()

    def passes(self, place: str | None, moment: str) -> None:
        if (place, moment) != self._at:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def install(fault: Fault) -> None:
    """Make the fault look at every event there is."""
    _at_writes(fault)
    _at_notifications(fault)
    _at_models(fault)


def writer() -> str | None:
    """Who decides what is written: the outermost function of the places, found on the stack."""
    frame, found = sys._getframe(1), None
    while frame is not None:
        if place := PLACES.get(frame.f_globals.get("__name__", "")):
            found = f"{place}.{frame.f_code.co_name}"
        frame = frame.f_back
    return found


def _at_writes(fault: Fault) -> None:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.signals import connection_created

    commit = BaseDatabaseWrapper.commit

    def watched_commit(self: Any) -> None:
        place = writer()
        fault.passes(place, "before")
        commit(self)
        fault.passes(place, "after")

    def watched_statement(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if not sql.startswith(("INSERT", "UPDATE", "DELETE")):
            return execute(sql, params, many, context)
        place = writer()
        if context["connection"].in_atomic_block:
            result = execute(sql, params, many, context)
            fault.passes(place, "inside")
            return result
        fault.passes(place, "before")
        result = execute(sql, params, many, context)
        fault.passes(place, "after")
        return result

    def watch(connection: Any, **_: Any) -> None:
        if watched_statement not in connection.execute_wrappers:  # one that was closed and connects again has it
            connection.execute_wrappers.append(watched_statement)

    BaseDatabaseWrapper.commit = watched_commit
    connection_created.connect(watch, weak=False)


def _at_notifications(fault: Fault) -> None:
    from conversations.engine import doorbell

    class Watched:
        """What an embedded host does with rows that are notified: it hears of them itself."""

        def __init__(self, here: doorbell.Here) -> None:
            self.here = here

        def hear(self, row_id: Any) -> bool:
            fault.passes("notification", "before")
            heard = self.here.hear(row_id)
            fault.passes("notification", "after")
            return heard

        def place(self) -> Any:
            return self.here.place()

    offer = doorbell.answer_here
    doorbell.answer_here = lambda kind, here: offer(kind, Watched(here))


def _at_models(fault: Fault) -> None:
    from agent.llm.scripted import ScriptedClient

    complete = ScriptedClient.complete

    async def watched_complete(self: Any, request: Any, on_delta: Any = None) -> Any:
        fault.passes("model", "before")
        asyncio.get_running_loop().call_later(0.05, fault.passes, "model", "during")
        completion = await complete(self, request, on_delta)
        fault.passes("model", "after")
        return completion

    ScriptedClient.complete = watched_complete
