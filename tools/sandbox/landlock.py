"""Landlock: a process gives up, for itself and all it starts, the files, connections and signals it does not need.

By system calls, since Python has no functions for them (linux/landlock.h). What a kernel can deny grew with it: Linux
5.13 (ABI 1) files, 6.7 (4) TCP, 6.12 (6) signals to processes outside and abstract Unix sockets.
"""

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR

from nanohost.lib.process import NO_NEW_PRIVS, prctl, syscall

# The same on every architecture.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
# All that a kernel of each ABI knows of files; from the last on, no more has come.
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
# What can be allowed of something that is no folder.
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR

_ABI_OF_TCP, _ABI_OF_SIGNALS = 4, 6
_TCP = (1 << 0) | (1 << 1)
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1


class _Attributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def abi() -> int:
    """The kernel's version of Landlock; 0 without it."""
    try:
        return syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError:
        return 0


def restrict(*, read: Iterable[Path], write: Iterable[Path], network: bool) -> None:
    """Allow these files and folders only, TCP only with ``network``, and signals only to whom this process starts; for
    good. What is not there is passed over. Raises OSError without Landlock."""
    version = abi()
    files = _FILES[min(version, max(_FILES))] if version else _FILES[1]
    net = 0 if network or version < _ABI_OF_TCP else _TCP
    ruleset = _ruleset(version, files=files, net=net)
    try:
        for paths, access in ((read, _READ), (write, files)):
            for path in paths:
                with suppress(FileNotFoundError, PermissionError):
                    _allow(ruleset, path, access & files)
        _enter(ruleset)
    finally:
        os.close(ruleset)


def keep_signals_in() -> None:
    """Reach no process with a signal but those that this one starts: not its own parent. Before ABI 6, nothing."""
    if (version := abi()) < _ABI_OF_SIGNALS:
        return
    ruleset = _ruleset(version)
    try:
        _enter(ruleset)
    finally:
        os.close(ruleset)


def keeps_signals_in() -> bool:
    """Whether the kernel can."""
    return abi() >= _ABI_OF_SIGNALS


def _ruleset(version: int, *, files: int = 0, net: int = 0) -> int:
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if version >= _ABI_OF_SIGNALS else 0
    attributes = _Attributes(files, net, scoped)
    # A kernel refuses fields that it does not know, unless they are left out.
    size = 24 if version >= _ABI_OF_SIGNALS else 16 if version >= _ABI_OF_TCP else 8
    return syscall(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))


def _allow(ruleset: int, path: Path, access: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not S_ISDIR(os.fstat(opened).st_mode):
            access &= _OF_A_FILE
        rule = _PathBeneath(access, opened)
        syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(opened)


def _enter(ruleset: int) -> None:
    prctl(NO_NEW_PRIVS, 1)
    syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
