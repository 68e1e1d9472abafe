"""For the tests of tools: a call through the gate, without a turn around it. docs/tools.md has an example.

Not within a transaction of the test's: no connection is held while a tool runs.
"""

import json
from collections.abc import Sequence
from typing import Any

from nanohost.lib.ids import new_id
from tools import gate
from tools.changes import changing
from tools.models import ToolCall, sync_settings

_EVERY_TOOL = gate.AgentTools(names=None)


def allow(tool_name: str, *, grants: Sequence[str] = ()) -> None:
    """Enable a tool and grant it permissions, as an admin does."""
    sync_settings()
    with changing(tool_name, by="a test") as setting:
        setting.enabled, setting.grants = True, list(grants)


def call(tool_name: str, **arguments: Any) -> ToolCall:
    """Ask for a call as a model does, and run it as a worker does; its row has ``status``, ``rule`` and ``result``."""
    asked = gate.request(
        conversation_id=new_id(),
        turn_id=new_id(),
        owner_id=0,
        agent="test",
        agent_tools=_EVERY_TOOL,
        request_id="test",
        call_id="call_1",
        position=0,
        tool_name=tool_name,
        arguments=json.dumps(arguments),
    )
    gate.store_within_limits([asked])
    gate.run(
        asked.pk,
        agent_tools=lambda claimed: _EVERY_TOOL,
        worker="test",
        on_start=lambda claimed: None,
        then=lambda ended: None,
    )
    return ToolCall.objects.get(pk=asked.pk)
