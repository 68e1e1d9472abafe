"""What an import makes of the MCP servers of a config.json: servers of this host, off. Pure, but for the rows' class.

A server's row names the files of its secrets by variables: ``MCP_SECRET_NANOBOT_…`` is what the file of that name in
``DATA_DIR/secrets/nanobot`` holds.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError

from nanohost.nanobot_config.parts import Part, Secret
from nanohost.nanobot_config.secret_files import STORED
from tools.mcp.models import IMPORTED, McpServer, Transport, transport_of

_MAX_NAME = 20


class NoServer(Exception):
    """No server can be made of it here; the text says why."""


def name_of(name: str) -> str:
    """What a server is called here. One whose name had to be changed ends with a part of its hash."""
    if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,19}", name):
        return name
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: _MAX_NAME - 5] or "server"
    return f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:4]}"


def put(server: McpServer, part: Part, read: Callable[[Secret], Any]) -> None:
    """Give a server what a part says, and switch it off; raises :class:`NoServer`. ``read``: a secret's value."""
    secrets = {each.place: each for each in part.secrets}

    def named(place: tuple[str, ...]) -> str:
        if (secret := secrets.get(place)) and secret.file.startswith(f"{STORED}/"):
            return IMPORTED + secret.file.removeprefix(f"{STORED}/").upper()
        raise NoServer(f"{'.'.join(place)} refers to a variable; give its value, or name a secret in the console")

    def all_named(begin: str) -> dict[str, str]:
        places = [place for place in part.leaves if len(place) == 2 and place[0] == begin]
        return {place[1]: named(place) for place in places if part.leaves[place] != ""}

    def plain(name: str) -> Any:
        if (name,) in secrets:
            raise NoServer(f"{name} holds a secret; add it in the console")
        return part.leaves.get((name,))

    server.enabled = False
    server.command, server.arguments, server.url = plain("command") or "", [], ""
    server.environment, server.headers = all_named("env"), all_named("headers")
    if (("args",)) in secrets:
        server.arguments = [named(("args",))]
    if server.command:
        server.transport, server.headers = Transport.STDIO, {}
    elif part.leaves.get(("url",), "") != "":
        server.url, server.environment, server.arguments = named(("url",)), {}, []
        server.transport = transport_of(plain("type"), str(read(secrets[("url",)])))
    else:
        raise NoServer("it has neither a command nor a url")
    seconds = plain("toolTimeout")
    server.timeout_seconds = seconds if isinstance(seconds, int) and 0 < seconds <= 600 else 30
    try:
        server.full_clean()
    except ValidationError as error:
        raise NoServer(" ".join(error.messages).rstrip(".")) from None
