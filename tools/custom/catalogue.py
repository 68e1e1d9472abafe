"""The custom tools as registry and gate know them: made of rows, and taken in from the files of workspaces."""

import hashlib
import json
import logging
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from nanohost.accounts import audit
from nanohost.lib import clock
from nanohost.lib.text import clip, storable
from tools.changes import changing
from tools.consent import Consent
from tools.custom.models import CustomTool
from tools.custom.reading import what_it_says
from tools.mcp.definitions import MAX_NAME, usable
from tools.models import ToolSetting
from tools.registry import RegisteredTool
from tools.runners import InWorkspace
from tools.workspace import beneath
from tools.workspace.store import SHARED, entries_of, open_workspace, read_file

logger = logging.getLogger(__name__)

PREFIX = "custom_"
# Where they stand in a workspace, as nanobot has them.
FOLDER = "tools"

MAX_FILES, MAX_BYTES = 50, 64 * 1024

# What is known of a file, and not of who has seen it.
_OF_FILE = ("source", "description", "schema", "flagged", "unfit", "hash", "changed_at", "gone")


def find(names: Collection[str] | None) -> list[RegisteredTool]:
    """Those of these names, or all, as the registry wants them. Without a name of ours, no row is read."""
    ours = None if names is None else [name for name in names if name.startswith(PREFIX)]
    if not settings.CUSTOM_TOOLS or (ours is not None and not ours):
        return []
    rows = CustomTool.objects.filter(gone=False, unfit="").defer("source", "seen_source")
    return [_registered(row) for row in (rows if ours is None else rows.filter(full_name__in=ours))]


def _registered(row: CustomTool) -> RegisteredTool:
    withheld = (
        ""
        if row.is_seen
        else (f"The tool {row.full_name} is new, or its file was changed. An administrator has to see it first.")
    )
    return _made(
        row.full_name, row.description, row.hash, row.pk, row.file, row.workspace, withheld, json.dumps(row.schema)
    )


@lru_cache(maxsize=1024)
def _made(
    name: str, description: str, pin: str, row_id: int, file: str, workspace: str, withheld: str, schema: str
) -> RegisteredTool:
    """The same object as long as nothing changes, so that what is made of it is made once."""
    return RegisteredTool(
        name=name,
        module="tools.custom",
        description=description,
        permissions=(),
        # It has neither files nor network, so that it leaves nothing behind.
        effects="read",
        timeout=None,
        secrets=(),
        runner=InWorkspace(row_id=row_id, file=file, hash=pin),
        untrusted=True,
        withheld=withheld,
        workspace=workspace,
        given_schema=usable(json.loads(schema)),
    )


def take_in(workspace: str) -> None:
    """Store which files of a workspace are tools. One that is new or was changed is off until somebody has seen it.

    Raises :class:`OSError` if they cannot be read just now.
    """
    agent, _, owner = workspace.partition("/")
    is_shared = owner == SHARED
    found = _files(agent, owner) if is_shared is settings.WORKSPACE_SHARED else {}
    known = {row.file: row for row in CustomTool.objects.filter(workspace=workspace)}
    if found and not is_shared and not get_user_model().objects.filter(pk=int(owner)).exists():
        return
    for file, content in found.items():
        row = known.get(file) or CustomTool(workspace=workspace, file=file, owner_id=None if is_shared else int(owner))
        if not row.pk or row.gone or row.hash != _hash_of(content):
            _store(row, content)
    CustomTool.objects.filter(workspace=workspace, gone=False).exclude(file__in=found).update(gone=True)


def _files(agent: str, owner: str) -> dict[str, bytes | None]:
    """The files there, by name, each with its content; None for one that is too large."""
    found: dict[str, bytes | None] = {}
    if not (Path(settings.WORKSPACES_DIR) / agent / owner / "files" / FOLDER).is_dir():
        return found  # that somebody looks makes no workspace
    try:
        # With workspaces that are shared, any owner's number leads to the one that there is.
        owner_id = 0 if owner == SHARED else int(owner)
        with (
            open_workspace(agent=agent, owner_id=owner_id) as workspace,
            beneath.open_folder(workspace.files, (FOLDER,)) as folder,
        ):
            for entry in entries_of(folder, ()):
                if entry.kind == "file" and _is_named_as_one(entry.path) and len(found) < MAX_FILES:
                    is_large = entry.size > MAX_BYTES
                    found[entry.path] = None if is_large else read_file(folder, (entry.path,))
    except (FileNotFoundError, ValueError):  # it is being changed, or is no workspace
        return {}
    return found


def _is_named_as_one(file: str) -> bool:
    return file.endswith(".py") and not file.startswith("_") and file.isprintable()


def _store(row: CustomTool, content: bytes | None) -> None:
    made, source = None, ""
    if content is None:
        unfit = f"it has more than {MAX_BYTES} bytes"
    else:
        try:
            source = content.decode()
        except UnicodeDecodeError:
            unfit = "it is not UTF-8"
        else:
            made = what_it_says(source)
            unfit = made.unfit
    was = row.hash
    row.hash, row.source, row.gone = _hash_of(content), storable(source), False
    row.unfit = storable(unfit)
    row.description = storable(made.description) if made else ""
    row.schema = made.schema if made else {}
    row.flagged = [storable(each) for each in made.flagged] if made else []
    row.changed_at = clock.read()
    with transaction.atomic():
        if not row.pk:
            row.full_name = _name_for(row)
            # Whatever was decided of another one of that name was not decided of this.
            _, is_new = ToolSetting.objects.get_or_create(name=row.full_name, defaults={"approval": Consent.ALWAYS})
            if not is_new:
                with changing(row.full_name, by=f"the workspace {row.workspace}") as setting:
                    setting.enabled, setting.grants, setting.approval = False, [], Consent.ALWAYS
        # What somebody notes meanwhile of having seen it is left as it is.
        row.save(update_fields=_OF_FILE if row.pk else None)
        action = "custom_tool.changed" if was else "custom_tool.found"
        audit.record(action, about=row, name=row.full_name, after={"workspace": row.workspace, "hash": row.hash})


def _name_for(row: CustomTool) -> str:
    """What models know it by. A name that had to be changed for it, or that a tool of another workspace has, ends with
    a part of a hash."""
    stem = row.file.removesuffix(".py")
    fit = re.sub(r"[^A-Za-z0-9_-]", "_", stem)
    whole = f"{PREFIX}{fit}"
    if fit == stem and len(whole) <= MAX_NAME and not CustomTool.objects.filter(full_name=whole).exists():
        return whole
    return f"{whole[: MAX_NAME - 9]}_{_hash(f'{row.workspace}/{row.file}'.encode())[:8]}"


def forget(agent: str) -> None:
    """What an agent had goes with it: another of its name begins without."""
    CustomTool.objects.filter(workspace__startswith=f"{agent}/").delete()


def what_is_told(tool: CustomTool) -> tuple[str, str]:
    """What somebody has seen of a tool, and what it is now; the first is empty if nobody has seen it yet."""
    return tool.seen_source, tool.source


def see(tool: CustomTool, *, expected: str, by: str, allow: bool = False) -> bool:
    """Note that somebody has seen a tool as it is; False if it has changed since they looked, or cannot be one.
    ``expected``: the hash that they have seen. ``allow``: enable it as well."""
    with transaction.atomic():
        row = CustomTool.objects.select_for_update().get(pk=tool.pk)
        if row.hash != expected or row.unfit or row.gone:
            return False
        before = row.seen_hash
        row.seen_hash, row.seen_source, row.seen_by, row.seen_at = row.hash, row.source, clip(by, 200), clock.read()
        row.save(update_fields=["seen_hash", "seen_source", "seen_by", "seen_at"])
        audit.record(
            "custom_tool.seen", about=row, name=row.full_name, before={"hash": before}, after={"hash": row.hash}
        )
        if allow:
            with changing(row.full_name, by=by) as setting:
                setting.enabled = True
    return True


def _hash_of(content: bytes | None) -> str:
    return "" if content is None else _hash(content)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
