"""The MCP servers that MCP_SERVERS names: rows like others, which follow the setting at each start.

The setting has them as config.json of nanobot and most clients do: ``{"clock": {"command": "python3", "args": [...],
"env": {"KEY": "MCP_SECRET_CLOCK"}}, "far": {"url": "https://...", "headers": {...}, "type": "sse"}}``, with the names
of secrets in place of their values, and ``network`` and ``toolTimeout`` beside them. Each of their tools is denied
until somebody has seen and allowed it.
"""

import logging
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import transaction

from nanohost.accounts import audit
from tools.mcp.models import TYPES, McpServer, transport_of

logger = logging.getLogger(__name__)

BY_SETTING = "the setting MCP_SERVERS"

# What a server of the setting has, and the field that it is.
_FIELDS = {
    "command": "command",
    "args": "arguments",
    "env": "environment",
    "url": "url",
    "headers": "headers",
    "network": "network",
    "toolTimeout": "timeout_seconds",
}


def check() -> None:
    """Raise :class:`ImproperlyConfigured` for a server that cannot be one; it shows no value."""
    for name, given in settings.MCP_SERVERS.items():
        _put(McpServer(name=name), given)


def follow_setting() -> None:
    """Add the servers that the setting names, and bring those that it has added before up to date; switch off those
    that it names no longer. Whether one is enabled is the admin's to say once it is there; so is all of a server that a
    person has added.
    """
    with audit.acting(BY_SETTING), transaction.atomic():
        there = {server.name: server for server in McpServer.objects.select_for_update()}  # which nobody else changes
        for name, given in settings.MCP_SERVERS.items():
            if name not in there:
                _store(_put(McpServer(name=name, by_setting=True, enabled=True), given), None)
            elif there[name].by_setting:
                before = there[name].said()
                _store(_put(there[name], given), before)
            else:
                logger.warning("MCP_SERVERS names %s, which somebody else has added: it stays as it is", name)
        for name in there.keys() - settings.MCP_SERVERS.keys():
            server, before = there[name], there[name].said()
            if server.by_setting and server.enabled:
                logger.warning("the MCP server %s is disabled: MCP_SERVERS names it no longer", name)
                server.enabled = False
                _store(server, before)


def _store(server: McpServer, before: dict[str, Any] | None) -> None:
    if server.said() != before:
        server.save()
        action = "mcp_server.changed" if before else "mcp_server.added"
        audit.record(action, about=server, name=server.name, before=before, after=server.said(), reason=BY_SETTING)


def _put(server: McpServer, given: dict[str, Any]) -> McpServer:
    """Give a server what the setting says of it; raises :class:`ImproperlyConfigured`."""

    def refused(why: str) -> ImproperlyConfigured:
        return ImproperlyConfigured(f"MCP_SERVERS: {server.name[:40]!r}: {why}")

    if unknown := sorted(set(given) - {*_FIELDS, "type"}):
        raise refused(f"there is no {unknown[0][:40]!r}; there are {', '.join(_FIELDS)} and type.")
    if given.get("type", "stdio") not in list(TYPES):  # it may be anything
        raise refused(f"its type is one of {', '.join(TYPES)}.")
    if bool(given.get("command")) == bool(given.get("url")):
        raise refused("it needs a command, or a url instead.")
    fresh = McpServer()
    for key, field in _FIELDS.items():
        setattr(server, field, given.get(key, getattr(fresh, field)))
    server.transport = transport_of(given.get("type"), str(server.url))
    try:
        server.full_clean(validate_unique=False)
    except ValidationError as error:
        named = [(field, " ".join(messages)) for field, messages in error.message_dict.items()]
        raise refused("; ".join(f"{field}: {wrong}" for field, wrong in named)) from None
    return server
