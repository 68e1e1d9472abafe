"""Pictures in results of MCP servers: kept as files of the workspace, since a result is text. No one trusts them."""

import base64
import binascii
import hashlib
from collections.abc import Iterable

from tools.models import ToolCall
from tools.workspace import beneath
from tools.workspace.errors import Full, PathRefused, Protected
from tools.workspace.store import Workspace, open_workspace

# What kinds are kept, by what they begin with; what the server says of a kind is not asked.
_KINDS = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpg"), (b"GIF8", "gif"))
FOLDER = "mcp"


def keep(given: Iterable[str], *, server: str, call: ToolCall) -> str:
    """Keep these, in base64; returns what is added to the result: a line for each, or "". Each has its hash for a name,
    so that the same picture is one file however often it comes. One that has no room is not kept, and the line says so.
    """
    return "".join(f"\n[picture: {_kept(each, server=server, call=call)}]" for each in given)


def _kept(given: str, *, server: str, call: ToolCall) -> str:
    try:
        content = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return "not kept, it is not base64"
    ending = next((ending for begins, ending in _KINDS if content.startswith(begins)), "")
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        ending = "webp"
    if not ending:
        return "not kept, it is no PNG, JPEG, GIF or WebP"
    if call.owner_id is None or beneath.why_missing():
        return "not kept, there is no workspace for it"
    path = f"{FOLDER}/{server}/{hashlib.sha256(content).hexdigest()[:32]}.{ending}"
    try:
        with open_workspace(agent=call.agent, owner_id=call.owner_id) as workspace:
            if not _is_there(workspace, path, content):
                workspace.write(path, content, trusted=False)
    except (PathRefused, Full, Protected) as why:
        return f"not kept: {why}"
    return f"kept in the workspace as {path}"


def _is_there(workspace: Workspace, path: str, content: bytes) -> bool:
    try:
        return workspace.read(path) == content
    except FileNotFoundError:
        return False
