"""The tool calls that a worker process runs, each in a thread of its own: what they run is in child processes."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Subquery

from agent.models import Agent
from conversations import events
from conversations.engine import doorbell, outgoing
from conversations.engine.runner import Done, Runner
from conversations.events.kinds import EventKind
from conversations.kinds import TOOLS, TURNS
from conversations.models import Conversation, Turn
from nanohost.lib.database import borrowed_connection
from nanohost.lib.database_threads import DatabaseThreads
from nanohost.lib.statements import Given, Rows
from tools import gate
from tools.custom.looking import Looking
from tools.gate import AgentTools
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

    def _run(self, call_id: UUID) -> None:
        with borrowed_connection():
            run_call(call_id, worker=self.worker)

    def before_sweep(self) -> None:
        # Here, since workers of tools have the workspaces' folder, and those of the host's own jobs may have not.
        self._forgetting.go_on()
        self._looking.go_on_apart()

    def wind_down(self) -> None:
        gate.stop_tools()

    async def stop(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def close(self) -> None:
        gate.close_tools()


def run_call(call_id: UUID, *, worker: str) -> None:
    """Run a tool call in this thread, and notify its turn's workers when it has ended."""
    told: dict[str, Any] = {
        "on_start": _publish,
        "then": _go_on,
        "on_output": _publish_output,
        "context_of": context_of,
    }
    gate.run(call_id, agent_tools=tools_of_agent, worker=worker, **told)


def _publish(call: ToolCall) -> None:
    """Publish how far the call is; of one that has ended, its start was published."""
    for kind, data in events.tool_events(call):
        if not (call.ended and kind == EventKind.TOOL_STARTED):
            events.publish(call.turn_id, kind, data)


def _publish_output(call: ToolCall, offset: int, text: str) -> None:
    """Publish what a program has written by now, from that character on."""
    events.publish(call.turn_id, EventKind.TOOL_OUTPUT, events.tool_output(call, offset, text))


def _go_on(call: ToolCall) -> None:
    _publish(call)
    doorbell.notify(TURNS, call.turn_id)


_agent = Rows(
    lambda: Agent.objects.filter(name=Given("name")).annotate(
        tainted_by=Subquery(Conversation.objects.filter(pk=Given("conversation_id")).values("tainted_by"))
    )
)
_traceparent = Rows[str](lambda: Turn.objects.filter(pk=Given("turn_id")).values_list("traceparent", flat=True))


def context_of(call: ToolCall) -> str:
    """The place in a trace of what is done for a call's turn; asked only while telemetry is on."""
    return next(iter(_traceparent(turn_id=call.turn_id)), "")


def tools_of_agent(call: ToolCall) -> AgentTools:
    """What the call's agent may use now, in a conversation that may be tainted by now; an agent that is gone may use
    nothing."""
    agent = next(iter(_agent(name=call.agent, conversation_id=call.conversation_id)), None)
    if agent is None:
        return AgentTools(names=frozenset())
    return agent.allowed_tools(
        tainted_by=agent.tainted_by or "", destinations=partial(outgoing.names, agent), owner_id=call.owner_id
    )
