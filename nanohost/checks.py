"""System checks: what a deployment lacks, each with a number (docs/operations.md)."""

import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from nanohost.lib import env
from tools.sandbox import paths
from tools.sandbox.modes import SandboxMissing, in_force

# What a web node needs and others do not: it refuses to start without.
WEB = "web"
SANDBOX_MISSING = "nanohost.W002"


@register
def agents_write_no_code(**_: Any) -> list[CheckMessage]:
    """File tools run in the host's own processes, whatever the sandbox."""
    for folder in settings.WORKSPACE_WRITE_FOLDERS:
        place = Path(folder).resolve()
        # Python may look for modules where there are none yet.
        code = [*paths.code(settings.BASE_DIR, settings.NANOHOST_EXTRA_APPS), *map(Path, filter(None, sys.path))]
        programs = map(Path, (*settings.EXEC_PATH_APPEND, *settings.MCP_FOLDERS))
        for each in (settings.BASE_DIR, *code, *programs):
            if each.resolve().is_relative_to(place) or place.is_relative_to(each.resolve()):
                said = f"WORKSPACE_WRITE_FOLDERS: with {folder}, agents could change {each}, which this host runs."
                return [Error(said, hint="Choose another folder.", id="nanohost.E002")]
    return []


@register(WEB, deploy=True)
def secret_key_is_given(**_: Any) -> list[CheckMessage]:
    """All web nodes sign sessions with one key, so none may make its own. Workers and toolboxes sign nothing."""
    if not settings.PRODUCTION or env.secret("SECRET_KEY"):
        return []
    return [
        Error(
            "A web node needs SECRET_KEY, or SECRET_KEY_FILE, the same for all: sessions are signed with it.",
            hint="`make secrets` makes one, for docker-compose.yml.",
            id="nanohost.E001",
        )
    ]


@register
def sandbox_is_told(**_: Any) -> list[CheckMessage]:
    """Whether the tools of a process that is started here would have the sandbox that is demanded, and which it is.

    A warning though it is missing: only what runs tools refuses to start, and a key is revoked on any machine.
    """
    try:
        sandbox = in_force()
    except SandboxMissing as missing:
        return [Warning(f"No process that runs tools starts here: {missing}", id=SANDBOX_MISSING)]
    if sandbox.is_whole:
        return []
    return [Warning(f"The sandbox of tools is {sandbox.sentence}", id="nanohost.W001")]
