"""Tools that a request brings: functions that its caller runs, and which of them a model has to call."""

import re
from collections.abc import Mapping
from typing import Any

from agent.llm.base import MAX_TOOL_CALLS
from agent.models import Agent
from conversations.openai_api.errors import InvalidValue, UnsupportedParameter
from conversations.openai_api.values import as_flag, as_list, as_object, as_one_of, as_text
from conversations.options import NONE, REQUIRED
from tools import gate
from tools.gate import AgentTools

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


def functions_of(tools: Any, *, is_flat: bool = False) -> list[dict[str, Any]]:
    """The functions of a request, as a model is told of them. ``is_flat``: as Responses have them."""
    if tools is None:
        return []
    found: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(as_list(tools, "tools", most=MAX_TOOL_CALLS)):
        where = f"tools[{index}]"
        if (kind := as_object(tool, where).get("type")) != "function":
            raise UnsupportedParameter(
                f"{where} is of the type {str(kind)[:64]!r}; tools that run elsewhere than at the caller's are the"
                " agent's own affair: leave it out.",
                param="tools",
            )
        function = function_of(tool, where) if is_flat else function_of(tool.get("function"), f"{where}.function")
        if function["name"] in found:
            raise InvalidValue(f"Two of the tools have the name {function['name']}.", param="tools")
        found[function["name"]] = {"type": "function", "function": function}
    return list(found.values())


def function_of(given: Any, where: str) -> dict[str, Any]:
    """One function: its name, and what else a model is told of it."""
    function = as_object(given, where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidValue(f"{where}.name has to be 1 to 64 of letters, digits, _ and -.", param=f"{where}.name")
    told: dict[str, Any] = {"name": name}
    if function.get("description") is not None:
        told["description"] = as_text(function["description"], f"{where}.description")
    told["parameters"] = _NO_ARGUMENTS
    if function.get("parameters") is not None:
        # Some servers want it said.
        told["parameters"] = {"type": "object", **as_object(function["parameters"], f"{where}.parameters")}
    if function.get("strict") is not None:
        told["strict"] = as_flag(function["strict"], f"{where}.strict")
    return told


def refuse_own_names(tools: list[dict[str, Any]], agent: Agent, *, owner_id: int) -> None:
    """Raise if a caller's tool has the name of one that the agent has from the host: a model could not tell them
    apart, and neither could we."""
    if not tools:
        return
    own = {tool.name for tool in gate.offered(agent_tools=agent.allowed_tools(owner_id=owner_id))}
    if both := sorted(own & {tool["function"]["name"] for tool in tools}):
        raise InvalidValue(
            f"{both[0]} is a tool that the agent has from this host; give yours another name, or name the model"
            f" {agent.name}:plain, which has none of the host's.",
            param="tools",
        )


def choice_of(body: Mapping[str, Any], named: Any) -> tuple[str, bool]:
    """Which tool a model has to call: NONE, REQUIRED or empty; or a tool's name, and True. ``named``: the name in a
    choice that is an object."""
    given = body.get("tool_choice")
    if given is None:
        return "", False
    if isinstance(given, str):
        chosen = as_one_of(given, "tool_choice", (NONE, "auto", REQUIRED))
        return ("" if chosen == "auto" else chosen), False
    return as_text(named, "tool_choice", least=1, most=64), True


def refuse_unknown_choice(name: str, tools: list[dict[str, Any]], allowed: AgentTools, *, is_plain: bool) -> None:
    """Raise if a model has to call a tool that it is not offered."""
    offered = {tool["function"]["name"] for tool in tools}
    if not is_plain:
        offered |= {tool.name for tool in gate.offered(agent_tools=allowed)}
    if name not in offered:
        raise InvalidValue(f"tool_choice names {name}, which is none of the tools.", param="tool_choice")
