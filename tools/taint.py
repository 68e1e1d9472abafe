"""Taint: text from outside, such as a web page, may hold instructions that a model takes for its user's.

A tool declares whether its output is untrusted. Once some has entered a conversation, calls that could do harm with it
need consent, or are refused, as the agent says. What has entered a conversation only its app knows: the gate is told.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from tools.models import CallStatus
from tools.permissions import Permission

if TYPE_CHECKING:
    from tools.calls import Outcome
    from tools.gate import AgentTools
    from tools.registry import RegisteredTool

RULE = "tainted"

# What an agent says of such calls: they run; each needs consent; none runs.
Policy = Literal["off", "approve", "refuse"]

# As long as the columns that keep it: what has brought taint, in a few words for people.
MAX_SOURCE = 255


def reaches_out(tool: "RegisteredTool") -> bool:
    """Whether a call of it could do harm, or carry something out: it has effects, or reaches other hosts. What a tool
    writes that stays inside is marked instead."""
    has_effects = tool.effects != "read" and not tool.stays_inside
    return has_effects or Permission.NET_HTTP in tool.permissions


def decide(tool: "RegisteredTool", agent_tools: "AgentTools") -> Literal["run", "approve", "refuse"]:
    """What becomes of a call, so far as taint decides on it."""
    if not agent_tools.tainted_by or agent_tools.taint == "off" or not reaches_out(tool):
        return "run"
    return "approve" if agent_tools.taint == "approve" else "refuse"


def refusal(tool: "RegisteredTool", agent_tools: "AgentTools") -> str:
    """What a model is told of a call that does not run."""
    why = f"Untrusted text has entered this conversation, from {agent_tools.tainted_by}"
    does = "reaches other hosts" if Permission.NET_HTTP in tool.permissions else "has effects"
    held = f"so the tool {tool.name}, which {does}, may not be used here any more"
    return f"{why}; {held}. Do not try it in another way: tell the user what you wanted to do, and why."


def marked(outcome: "Outcome", tool: "RegisteredTool") -> "Outcome":
    """How a call ended, and that its result is untrusted if the tool says so. What a tool that ran into an error says
    may quote what it read; the gate's own words are trusted."""
    may_quote = outcome.status in (CallStatus.SUCCESS, CallStatus.FAILED)
    if not (tool.untrusted and may_quote) or outcome.tainted_by:
        return outcome
    return replace(outcome, tainted_by=f"the tool {tool.name}")
