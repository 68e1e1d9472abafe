"""Files are put in their places at once or not at all: each is written beside its place, waited for, and renamed."""

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tools.workspace import beneath
from tools.workspace.errors import Full, PathRefused

# What a writer that died has left is nobody's after that.
PART_SECONDS = 3600

_PART = re.compile(r"\.nanohost-[0-9a-f]{32}")


@dataclass(frozen=True, eq=False)
class Draft:
    """What is to stand in an open folder, by which name. ``room``: the open folder that it is written in, on the same
    disk. ``synced``: it stays after a crash of the machine, which costs a wait for the disk. ``mode``: of a new file.

    ``guarded``: others may write there; it takes the place only of what was ``seen`` (None: of nothing), whose owner,
    group and mode it gets.
    """

    content: bytes
    folder: int
    name: str
    room: int
    synced: bool = True
    mode: int = 0o600
    guarded: bool = False
    seen: os.stat_result | None = None


def put(*drafts: Draft) -> None:
    """Write files and put them in their places, in this order, once all are on the disk: nobody ever sees half of
    one."""
    left: dict[Draft, str] = {}
    try:
        with ExitStack() as opened:
            waited_for = []
            for draft in drafts:
                left[draft] = f".nanohost-{secrets.token_hex(16)}"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                part = os.open(left[draft], flags, draft.mode, dir_fd=draft.room)
                file = opened.enter_context(open(part, "wb"))
                if draft.seen is not None:
                    _make_like(part, draft.seen)
                file.write(draft.content)
                file.flush()
                if draft.synced:
                    # The kernel begins to write it, so that all are on the disk with the first that is waited for.
                    os.posix_fadvise(part, 0, 0, os.POSIX_FADV_DONTNEED)
                    waited_for.append(part)
            for part in waited_for:
                os.fsync(part)
            for draft in drafts:
                if draft.guarded:
                    _check_same(draft)
            for draft in drafts:
                # It takes a link's own place, and follows none.
                os.rename(left[draft], draft.name, src_dir_fd=draft.room, dst_dir_fd=draft.folder)
                del left[draft]
    except IsADirectoryError:
        raise PathRefused("It is a folder.") from None
    finally:
        for draft, name in left.items():
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=draft.room)


def checked(folder: int, name: str) -> os.stat_result | None:
    """The file of that name, if there is one. Raises :class:`PathRefused` for what no tool may replace."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    beneath.check(found)
    return found


def forget_parts(folder: int) -> None:
    """Drop what writers that died have left in the folder itself."""
    with os.scandir(folder) as names:
        parts = [name for name in names if _PART.fullmatch(name.name)]
    for part in parts:
        with suppress(OSError):  # it has gone, or is somebody else's
            status = part.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > PART_SECONDS:
                os.unlink(part.name, dir_fd=folder)


@contextmanager
def told() -> Iterator[None]:
    """What a disk refuses, in words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Full("There is no room left on the disk.") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise PathRefused("The user that nanohost runs as may not do that there.") from None
        if error.errno == errno.ENOTDIR:
            raise PathRefused("It is no folder.") from None
        raise


def _make_like(file: int, other: os.stat_result) -> None:
    """Give a file the mode of another, and its owner and group if that is allowed."""
    with suppress(OSError):  # not allowed, or a group that is none in this container
        os.fchown(file, -1, other.st_gid)
    with suppress(OSError):
        os.fchown(file, other.st_uid, -1)
    os.fchmod(file, stat.S_IMODE(other.st_mode) & 0o777)


def _check_same(draft: Draft) -> None:
    """Raise :class:`PathRefused` if somebody has changed the file whose place it takes."""
    now = checked(draft.folder, draft.name)
    states = [each and (each.st_ino, each.st_size, each.st_mtime_ns) for each in (now, draft.seen)]
    if states[0] != states[1]:
        raise PathRefused("The file was changed in the meantime. Read it again.")
