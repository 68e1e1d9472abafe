"""What people do with the files of a workspace: the same store that the tools use, and an entry in the audit log of
each change. What they put there is untrusted, as all that the agent has not written itself.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.db import transaction

from nanohost.accounts import audit, holds
from nanohost.accounts.models import LegalHold
from nanohost.lib.errors import InvalidRequest, NotFound
from tools.errors import FileProtected, WorkspaceFull
from tools.workspace.beneath import parts_of
from tools.workspace.errors import Full, PathRefused, Protected
from tools.workspace.store import Entry, Workspace, open_workspace

KIND = "workspace"


def list_folder(*, agent: str, owner_id: int, path: str = "") -> list[Entry]:
    """What a folder holds, by name; "" is the workspace's own. Raises problems that tell a person what is wrong, as all
    of these do."""
    with _opened(agent, owner_id, path) as workspace:
        return workspace.entries(path)


def read(*, agent: str, owner_id: int, path: str) -> bytes:
    """A file's content, with as many bytes as a file may have at most."""
    with _opened(agent, owner_id, path) as workspace:
        return workspace.read(path)


def take(*, agent: str, owner_id: int, path: str) -> bytes:
    """The same for somebody else than the owner: that they have it is in the log."""
    content = read(agent=agent, owner_id=owner_id, path=path)
    _record("file.taken", agent, owner_id, path, bytes=len(content), sha256=_hash(content))
    return content


def owners(agent: str) -> list[int]:
    """Those that the agent has a workspace for, by id; nobody where all share one."""
    folder = Path(settings.WORKSPACES_DIR) / agent
    names = os.listdir(folder) if folder.is_dir() else ()
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 19)


def is_shared() -> bool:
    """Whether all owners have one workspace of an agent."""
    return bool(settings.WORKSPACE_SHARED)


def max_file_bytes() -> int:
    """How many bytes a file may have."""
    return int(settings.WORKSPACE_FILE_MAX_BYTES)


def put(*, agent: str, owner_id: int, path: str, content: bytes) -> bool:
    """Make this a file's content; returns whether there was one before, which is kept for a day. Raises
    :class:`nanohost.accounts.errors.UnderLegalHold` for one that a hold keeps."""
    with transaction.atomic():
        held = _held(agent, owner_id)
        with _opened(agent, owner_id, path) as workspace:
            try:
                was_there = workspace.write(path, content, trusted=False, replaces=not held)
            except FileExistsError:
                holds.refuse(held)
                raise
        _record("file.put", agent, owner_id, path, bytes=len(content), sha256=_hash(content), replaced=was_there)
    return was_there


def delete(*, agent: str, owner_id: int, path: str) -> None:
    """Delete a file, which is kept for a day. Raises :class:`nanohost.accounts.errors.UnderLegalHold`."""
    with transaction.atomic():
        holds.refuse(_held(agent, owner_id))
        with _opened(agent, owner_id, path) as workspace:
            workspace.delete(path)
        _record("file.deleted", agent, owner_id, path)


def undo(*, agent: str, owner_id: int, path: str) -> bool:
    """Undo a file's last change of the last day; returns whether there is a file now. Undone again, it is back. Raises
    :class:`nanohost.accounts.errors.UnderLegalHold`, since it takes away what the file has now."""
    with transaction.atomic():
        holds.refuse(_held(agent, owner_id))
        with _opened(agent, owner_id, path) as workspace:
            # A person has asked for it, and has read nothing: what was trusted before is trusted again.
            is_there = workspace.undo(path, tainted=False)
        _record("file.undone", agent, owner_id, path, exists=is_there)
    return is_there


def _held(agent: str, owner_id: int) -> list[LegalHold]:
    """The legal holds that keep the files of a workspace, until the caller's transaction ends."""
    return holds.placed_until_the_end().on(owner_id=owner_id, agent=agent)


@contextmanager
def _opened(agent: str, owner_id: int, path: str) -> Iterator[Workspace]:
    try:
        with open_workspace(agent=agent, owner_id=owner_id) as workspace:
            yield workspace
    except FileNotFoundError:
        raise NotFound(f"There is no {path[:200]!r} in this workspace.") from None
    except Full as error:
        raise WorkspaceFull(str(error)) from None
    except Protected as error:
        raise FileProtected(str(error)) from None
    except PathRefused as error:
        raise InvalidRequest(str(error)) from None


def _record(action: str, agent: str, owner_id: int, path: str, **more: object) -> None:
    """The log outlives what an owner has: it says no names of files, only hashes to hold them against."""
    after = {"agent": agent, "owner": owner_id, "pathSha256": _hash("/".join(parts_of(path)).encode()), **more}
    audit.record(action, kind=KIND, key=owner_id, name=f"{agent}, of owner {owner_id}", after=after)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
