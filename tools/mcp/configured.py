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
from tools.mcp.models import McpServer, Transport

logger = logging.getLogger(__name__)

BY_SETTING = "the setting MCP_SERVERS"

_TYPES = {"stdio": Transport.STDIO, "sse": Transport.SSE, "streamableHttp": Transport.HTTP}
_FIELDS = {
    "command": ("command", ""),
    "args": ("arguments", []),
    "env": ("environment", {}),
    "url": ("url", ""),
    "headers": ("headers", {}),
    "network": ("network", False),
    "toolTimeout": ("timeout_seconds", 30.0),
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
    with audit.acting(BY_SETTING):
        for name, given in settings.MCP_SERVERS.items():
            _follow(name, given)
        for server in McpServer.objects.filter(by_setting=True, enabled=True).exclude(name__in=settings.MCP_SERVERS):
            logger.warning("the MCP server %s is disabled: MCP_SERVERS names it no longer", server.name)
            before = server.said()
            server.enabled = False
            _store(server, before)


def _follow(name: str, given: dict[str, Any]) -> None:
    server = McpServer.objects.filter(name=name).first()
    if server and not server.by_setting:
        logger.warning("MCP_SERVERS names %s, but somebody has added a server of that name: it stays as it is", name)
        return
    before = server.said() if server else None
    server = server or McpServer(name=name, by_setting=True, enabled=True)
    _put(server, given)
    if server.said() != before:
        _store(server, before)


def _store(server: McpServer, before: dict[str, Any] | None) -> None:
    with transaction.atomic():
        server.save()
        action = "mcp_server.changed" if before else "mcp_server.added"
        audit.record(action, about=server, name=server.name, before=before, after=server.said(), reason=BY_SETTING)


def _put(server: McpServer, given: dict[str, Any]) -> None:
    if unknown := sorted(set(given) - {*_FIELDS, "type"}):
        raise ImproperlyConfigured(f"MCP_SERVERS: {server.name[:40]!r} has no {unknown[0][:40]!r}.")
    for key, (field, default) in _FIELDS.items():
        setattr(server, field, given.get(key, default))
    by_place = Transport.HTTP if server.url else Transport.STDIO
    server.transport = _TYPES.get(str(given.get("type")), by_place)
    try:
        server.full_clean(validate_unique=False)
    except ValidationError as error:
        wrong = "; ".join(
            f"{field}: {' '.join(messages)}" if field != "__all__" else " ".join(messages)
            for field, messages in error.message_dict.items()
        )
        raise ImproperlyConfigured(f"MCP_SERVERS: {server.name[:40]!r}: {wrong}") from None
