"""How much a workspace holds, as the disk sees it: programs leave there what no file tool would, such as folders in
folders in folders, and further names of a file."""

import errno
import os
from dataclasses import dataclass

from django.conf import settings

from tools.workspace import beneath

_BLOCK = 512
# No more is counted than so many times what there may be.
_MOST = 4


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Bytes on the disk, how many files and folders, and what nobody could look into: too deep, or shut."""

    size: int = 0
    count: int = 0
    hidden: int = 0


class Bounds:
    """What may be in a workspace while a program runs: as much as settings say, or as there was when it began."""

    def __init__(self, folder: int) -> None:
        self._folder, self._began = folder, measure(folder)

    def excess(self) -> str:
        """What there is too much of, in words; "" if it is within the bounds."""
        now, began = measure(self._folder), self._began
        if now.size > max(settings.WORKSPACE_MAX_BYTES, began.size):
            return f"the workspace has {now.size} bytes of {settings.WORKSPACE_MAX_BYTES}"
        if now.count > max(settings.WORKSPACE_MAX_FILES, began.count):
            return f"the workspace has more than {settings.WORKSPACE_MAX_FILES} files and folders"
        if now.hidden > began.hidden:
            return f"the workspace has folders that are shut, or in more than {beneath.MAX_DEPTH} others"
        return ""


def measure(folder: int) -> Usage:
    """Count what is beneath an open folder; follows no link."""
    size = count = hidden = 0
    seen: set[tuple[int, int]] = set()
    waiting: list[tuple[str, ...]] = [()]
    while waiting and count <= _MOST * settings.WORKSPACE_MAX_FILES:
        here = waiting.pop()
        try:
            opened = beneath.open_beneath(folder, os.fsencode("/".join(here)) or b".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            # It has just gone, or something else is in its place; the next look sees that.
            hidden += error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
            continue
        try:
            with os.scandir(opened) as names:
                for name in names:
                    count += 1
                    try:
                        status = name.stat(follow_symlinks=False)
                        is_folder = name.is_dir(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if is_folder and len(here) >= beneath.MAX_DEPTH:
                        hidden += 1
                    elif is_folder:
                        waiting.append((*here, name.name))
                    elif (status.st_dev, status.st_ino) not in seen:
                        seen.add((status.st_dev, status.st_ino))
                        size += status.st_blocks * _BLOCK
        finally:
            os.close(opened)
    return Usage(size=size, count=count, hidden=hidden)
