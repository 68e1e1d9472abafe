"""Asking the gate for a tool and running the call, without a turn around it."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import connections

from nanohost.lib.ids import new_id
from tools import gate
from tools.gate import AgentTools
from tools.models import ToolCall

EVERY_TOOL = AgentTools(names=None)


def ask(
    tool_name: str,
    *,
    agent_tools: AgentTools = EVERY_TOOL,
    raw: str | None = None,
    conversation_id: UUID | None = None,
    owner_id: int = 1,
    **arguments: Any,
) -> ToolCall:
    """Ask for a call, as a model does; returns its stored row. ``raw``: the arguments as text."""
    call = gate.request(
        conversation_id=conversation_id or new_id(),
        turn_id=new_id(),
        owner_id=owner_id,
        agent="default",
        agent_tools=agent_tools,
        request_id="request-1",
        call_id="call_1",
        position=0,
        tool_name=tool_name,
        arguments=json.dumps(arguments) if raw is None else raw,
    )
    gate.store_within_limits([call])
    return ToolCall.objects.get(pk=call.pk)


def run(
    call: ToolCall,
    *,
    agent_tools: AgentTools = EVERY_TOOL,
    worker: str = "worker-1",
    then: Callable[[ToolCall], None] = lambda ended: None,
    context: str = "",
) -> ToolCall:
    """Run a call, as a worker does; returns the row as it then is. ``context``: where it stands in a trace."""
    gate.run(
        call.pk,
        agent_tools=lambda claimed: agent_tools,
        worker=worker,
        on_start=lambda claimed: None,
        then=then,
        context_of=lambda claimed: context,
    )
    return ToolCall.objects.get(pk=call.pk)


def run_in_thread(call: ToolCall, **options: Any) -> ToolCall:
    """:func:`run` in a thread of its own, whose connections are closed."""
    try:
        return run(call, **options)
    finally:
        connections.close_all()
