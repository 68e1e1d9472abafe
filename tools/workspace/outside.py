"""Folders of the machine in which agents work besides their workspace: WORKSPACE_READ_FOLDERS, and, where they may also
write, WORKSPACE_WRITE_FOLDERS.

Other people and programs write there too. So nothing in them is trusted, whoever wrote it; a file takes the place of
another only while that is what was read; and it keeps the other's mode. What files were before, and the lock, are kept
among the workspaces, where nobody else can read them.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from tools.workspace import beneath, writing
from tools.workspace.errors import PathRefused, Protected
from tools.workspace.globs import is_within
from tools.workspace.store import Parts, Workspace, opened_rooms
from tools.workspace.writing import Draft

# In the place of an agent, whose name it cannot be.
_AGENT = ".outside"


class Outside(Workspace):
    """An open folder to write to. Made by :func:`open_outside`."""

    _noun, _folder_mode, _has_documents = "folder", 0o777, False

    def _is_protected(self, parts: Parts) -> bool:
        """Also by patterns that begin at the machine's root."""
        patterns = settings.WORKSPACE_PROTECTED_PATHS
        rooted = [pattern for pattern in patterns if pattern.startswith("/")]
        wholes = [(*root.parts[1:], *parts) for root in (self.root, self.root.resolve())]
        return is_within(parts, patterns) or any(is_within(whole, rooted) for whole in wholes)

    def _seen(self, parts: Parts) -> os.stat_result | None:
        """Raises :class:`Protected` for one that nobody may write."""
        try:
            with beneath.open_folder(self.files, parts[:-1]) as parent:
                found = writing.checked(parent, parts[-1])
        except FileNotFoundError:
            return None
        if found and not found.st_mode & 0o222:
            raise Protected(f"{'/'.join(parts)} is read-only: it can be read, but not changed.")
        return found

    def _draft(self, content: bytes, parent: int, name: str, seen: os.stat_result | None) -> Draft:
        """Beside its place: a rename does not cross disks."""
        writing.forget_parts(parent)
        return Draft(content, parent, name, room=parent, mode=0o600 if seen else 0o666, guarded=True, seen=seen)

    def _trust(self, key: str, mark: str) -> None:
        """Nobody does."""


@contextmanager
def open_outside(root: str) -> Iterator[Outside]:
    """One of WORKSPACE_WRITE_FOLDERS. Raises :class:`FileNotFoundError` if it is missing, and :class:`PathRefused`."""
    key = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()
    with opened_rooms(_AGENT, key) as (folder, rooms), opened_root(root) as files:
        yield Outside(rooms | {"files": files}, folder, Path(root))


@contextmanager
def opened_root(root: str) -> Iterator[int]:
    """One of these folders, open. Raises :class:`FileNotFoundError` if it is missing, and :class:`PathRefused`."""
    with writing.told(), beneath.open_root(root) as folder:
        yield folder


def place_of(path: str) -> tuple[str, str]:
    """The innermost of these folders that an absolute path lies in, and the path there. Raises :class:`PathRefused`."""
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    roots = sorted({*settings.WORKSPACE_READ_FOLDERS, *settings.WORKSPACE_WRITE_FOLDERS}, key=len, reverse=True)
    for root in roots:
        above = tuple(name for name in root.split("/") if name)
        if names[: len(above)] == above:
            return root, "/".join(names[len(above) :])
    besides = f" Besides it there are: {', '.join(sorted(roots))}." if roots else ""
    raise PathRefused(f"The path is absolute; name it from the workspace's folder on, such as notes/today.md.{besides}")
