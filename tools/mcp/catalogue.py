"""The tools of MCP servers as registry and gate know them: made of rows, and taken in from what servers tell."""

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from nanohost.accounts import audit
from nanohost.lib import clock
from nanohost.lib.clock import Now
from nanohost.lib.statements import Given, Rows
from nanohost.lib.text import clip, storable
from tools.changes import changing
from tools.mcp import keeping
from tools.mcp.definitions import Definition, Unfit, checked, full_name, usable
from tools.mcp.errors import NotStarted
from tools.mcp.models import McpServer, McpTool
from tools.models import ToolSetting
from tools.permissions import Permission
from tools.registry import RegisteredTool
from tools.runners import OnMcpServer

PREFIX = "mcp_"


def find(names: Collection[str] | None) -> list[RegisteredTool]:
    """Those of these names, or all, as the registry wants them. Without a name of ours, no row is read."""
    ours = None if names is None else [name for name in names if name.startswith(PREFIX)]
    if ours is not None and not ours:
        return []
    if ours is None:
        return list(map(_registered, _there()))
    rows = _by_name(name=ours[0]) if len(ours) == 1 else _there().filter(full_name__in=ours)
    return list(map(_registered, rows))


def _there() -> QuerySet[McpTool]:
    """Those that could be used, with as much of each and its server as a registered tool is made of."""
    of_server = ("server__name", "server__enabled", "server__timeout_seconds")
    own = ("full_name", "description", "schema", "hash", "seen_hash", "server", "name", "reads", "hints_read")
    return McpTool.objects.there().select_related("server").only(*own, *of_server)


# Looked for three times a call.
_by_name = Rows(lambda: _there().filter(full_name=Given("name")).order_by())
_server = Rows(lambda: McpServer.objects.filter(pk=Given("server_id")).order_by())


def server_of(server_id: int) -> McpServer | None:
    """The server as it is now; None if it is gone."""
    return next(iter(_server(server_id=server_id)), None)


def _registered(row: McpTool) -> RegisteredTool:
    withheld = ""
    if not row.server.enabled:
        withheld = f"The MCP server {row.server.name} is not enabled. An administrator can enable it."
    elif not row.is_seen:
        withheld = (
            f"The tool {row.full_name} is new, or was changed by its server. An administrator has to see it first."
        )
    return _made(
        row.full_name,
        row.description,
        row.hash,
        row.server_id,
        row.name,
        row.server.timeout_seconds,
        row.reads and row.hints_read,
        withheld,
        json.dumps(row.schema),
    )


@lru_cache(maxsize=1024)
def _made(
    name: str,
    description: str,
    pin: str,
    server_id: int,
    of_server: str,
    timeout: float,
    reads: bool,
    withheld: str,
    schema: str,
) -> RegisteredTool:
    """The same object as long as nothing changes, so that what is made of it is made once."""
    return RegisteredTool(
        name=name,
        module="tools.mcp",
        description=description,
        permissions=(Permission.NET_HTTP,),
        effects="read" if reads else "write",
        timeout=timeout,
        secrets=(),
        runner=OnMcpServer(server_id=server_id, name=of_server, hash=pin),
        untrusted=True,
        withheld=withheld,
        given_schema=usable(json.loads(schema)),
    )


def refresh(server: McpServer) -> dict[str, str]:
    """Ask a server for its tools and take them in. Returns why some of them are none, by name; raises
    :class:`tools.mcp.errors.NotStarted` if it does not answer."""
    try:
        request = {"ask": "list", "server": keeping.spec_of(server)}
        answer = keeping.keeper().ask(request, seconds=30, still_wanted=lambda: True, repeatable=True)
    except NotStarted as why:
        server.note_error(str(why))
        raise
    if not answer or not answer["ok"]:
        text = answer["text"] if answer else "it was not asked"
        server.note_error(storable(text))
        raise NotStarted(text)
    take_in(server, answer)
    unfit: dict[str, str] = answer["unfit"]
    return unfit


def switch(server: McpServer, *, on: bool) -> None:
    """Let the tools of a server be used that were seen and allowed, or none of them."""
    with transaction.atomic():
        row = McpServer.objects.select_for_update().get(pk=server.pk)
        before = row.said()
        row.enabled = on
        row.save(update_fields=["enabled", "updated_at"])
        audit.record("mcp_server.changed", about=row, name=row.name, before=before, after=row.said())


def take_in(server: McpServer, told: dict[str, Any]) -> None:
    """Store what a server tells of its tools. One that is new or was changed is off until somebody has seen it."""
    found: dict[str, Definition] = {}
    for each in told.get("tools", ()):
        try:
            made = checked(Definition(**each))
        except (Unfit, TypeError):  # the keeper has left these out
            continue
        found[made.name] = made
    with transaction.atomic():
        McpServer.objects.select_for_update().get(pk=server.pk)  # one at a time
        known = {row.name: row for row in server.tools.all()}
        for name, made in found.items():
            _store(server, known.get(name) or McpTool(server=server, name=name), made)
        for name in known.keys() - found.keys():
            McpTool.objects.filter(pk=known[name].pk).update(gone=True)
        unfit = {storable(clip(str(name), 200)): storable(clip(str(why), 500)) for name, why in told["unfit"].items()}
        McpServer.objects.filter(pk=server.pk).update(
            listed_at=Now(), last_error="", last_error_at=None, failures=0, unfit=unfit
        )


def _store(server: McpServer, row: McpTool, made: Definition) -> None:
    same = row.pk and (row.hash, row.hints_read, row.gone) == (made.hash, made.reads, False)
    if same:
        return
    was = row.hash
    row.full_name = full_name(server.name, made.name)
    row.description, row.schema, row.hash = made.description, made.schema, made.hash
    row.hints_read, row.gone = made.reads, False
    if was != made.hash:
        row.changed_at = clock.read()
    row.save()
    ToolSetting.objects.get_or_create(name=row.full_name)
    if was != made.hash:
        audit.record(
            "mcp_tool.changed" if was else "mcp_tool.found", about=row, name=row.full_name, after={"hash": made.hash}
        )


def what_is_told(tool: McpTool) -> tuple[str, str]:
    """What somebody has seen of a tool, and what it is now, each as a text: description and schema. The first is empty
    if nobody has seen it yet."""
    seen = _told(tool.seen_description, tool.seen_schema) if tool.seen_hash else ""
    return seen, _told(tool.description, tool.schema)


def _told(description: str, schema: dict[str, Any]) -> str:
    return f"{description}\n{json.dumps(schema, indent=2, sort_keys=True)}"


def see(tool: McpTool, *, expected: str, by: str, reads: bool | None = None, allow: bool = False) -> bool:
    """Note that somebody has seen a tool as it is; False if it has changed since they looked. ``expected``: the hash
    that they have seen. ``reads``: whether they agree that it changes nothing. ``allow``: enable it as well, with the
    permission that it needs, if that may be granted."""
    with transaction.atomic():
        row = McpTool.objects.select_for_update().get(pk=tool.pk)
        if row.hash != expected:
            return False
        before = row.seen_hash
        row.seen_hash, row.seen_description, row.seen_schema = row.hash, row.description, row.schema
        row.seen_by, row.seen_at = clip(by, 200), clock.read()
        if reads is not None:
            row.reads = reads and row.hints_read
        row.save()
        audit.record(
            "mcp_tool.seen",
            about=row,
            name=row.full_name,
            before={"hash": before},
            after={"hash": row.hash, "reads": row.reads},
        )
        if allow:
            with changing(row.full_name, by=by) as setting:
                setting.enabled = True
                if Permission.NET_HTTP in settings.PERMISSIONS_GRANTED:
                    setting.grants = sorted({*setting.grants, Permission.NET_HTTP.value})
    return True
