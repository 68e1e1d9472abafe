"""The tool calls that a worker process runs, each in a thread of its own: what they run is in child processes."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

from conversations import events
from conversations.engine.allowed_tools import tools_of_agent
from conversations.engine.onward import Onward, publish
from conversations.engine.runner import Done, Runner
from conversations.events.kinds import EventKind
from conversations.kinds import TOOLS
from conversations.models import Turn
from nanohost.lib.database import borrowed_connection
from nanohost.lib.database_threads import DatabaseThreads
from nanohost.lib.statements import Given, Rows
from tools import gate
from tools.custom.looking import Looking
from tools.models import ToolCall
from tools.sandbox.modes import in_force
from tools.workspace.retention import Forgetting

logger = logging.getLogger(__name__)


class CallRunner(Runner):
    """The tool calls of a process."""

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        super().__init__(worker=worker, database=database)
        self._threads = ThreadPoolExecutor(TOOLS.places(), thread_name_prefix="tools")
        self._forgetting, self._looking = Forgetting(), Looking()

    def warm(self) -> None:
        gate.warm_tools()
        sandbox = in_force()
        level = logging.INFO if sandbox.is_whole else logging.WARNING
        logger.log(level, "the sandbox of tools is %s", sandbox.sentence)

    def describe(self) -> dict[str, Any]:
        return {"sandbox": in_force().words}

    def begin(self, row_id: UUID, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]) -> None:
        self._threads.submit(self._run, row_id).add_done_callback(then)

    def begin_claimed(
        self, claimed: ToolCall, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]
    ) -> None:
        try:
            running = self._threads.submit(self._run, claimed.pk, claimed)
        except RuntimeError:  # the process has stopped since it had room
            gate.give_back(claimed)
            running = Future()
            running.set_result(None)
        running.add_done_callback(then)

    def _run(self, call_id: UUID, claimed: ToolCall | None = None) -> None:
        with borrowed_connection():
            run_call(call_id, worker=self.worker, claimed=claimed)

    def before_sweep(self) -> None:
        # Here, since workers of tools have the workspaces' folder, and those of the host's own jobs may have not.
        self._forgetting.go_on()
        self._looking.go_on_apart()

    def wind_down(self) -> None:
        gate.stop_tools()

    async def stop(self) -> None:
        # Not cancelled: a call that was claimed as it was stored goes back in the thread that was to run it.
        await asyncio.to_thread(self._threads.shutdown)

    def close(self) -> None:
        gate.close_tools()


def run_call(call_id: UUID, *, worker: str, claimed: ToolCall | None = None) -> None:
    """Run a tool call in this thread, and have its turn go on when it has ended. ``claimed``: the call, if it was
    claimed as it was stored."""
    onward = Onward()
    told: dict[str, Any] = {
        "on_start": publish,
        "then": onward.then,
        "storing": onward.storing,
        "on_output": _publish_output,
        "context_of": context_of,
    }
    gate.run(call_id, agent_tools=tools_of_agent, worker=worker, claimed=claimed, **told)


def _publish_output(call: ToolCall, offset: int, text: str) -> None:
    """Publish what a program has written by now, from that character on."""
    events.publish(call.turn_id, EventKind.TOOL_OUTPUT, events.tool_output(call, offset, text))


_traceparent = Rows[str](lambda: Turn.objects.filter(pk=Given("turn_id")).values_list("traceparent", flat=True))


def context_of(call: ToolCall) -> str:
    """The place in a trace of what is done for a call's turn; asked only while telemetry is on."""
    return next(iter(_traceparent(turn_id=call.turn_id)), "")
