"""What a process asks the kernel for itself. Linux only; elsewhere nothing is done."""

import ctypes
import os
import pwd
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

# linux/prctl.h
PDEATHSIG, CHILD_SUBREAPER, NO_NEW_PRIVS, SECCOMP = 1, 36, 38, 22
_DUMPABLE, _CAPBSET_DROP = 4, 24
# linux/capability.h: the version whose sets have two words of 32 bits.
_CAPABILITIES = 0x20080522


def user_of_this() -> str:
    """The system's user whose process this is: the environment's names are whatever it says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have a number and no name
        return str(os.getuid())


@cache
def libc() -> ctypes.CDLL:
    """The C library, loaded once: a process that forks has its children find it loaded."""
    return ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int, more: int = 0) -> None:
    """Linux's prctl(2); raises OSError if the kernel says no."""
    if sys.platform == "linux" and libc().prctl(option, *(ctypes.c_ulong(each) for each in (value, more, 0, 0))):
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def syscall(number: int, *arguments: object) -> int:
    """A system call that Python has no function for; raises OSError if the kernel says no."""
    result = int(libc().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def close_to_others() -> None:
    """Keep everybody else of the same user, its own children too, out of this process's memory, environment and open
    files: /proc/PID/mem, environ and fd are root's from here on. Forks inherit it; programs that are started do not."""
    prctl(_DUMPABLE, 0)


def bound_capabilities() -> None:
    """Have no program that this process starts, whatever its file says, get what root may do."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    for capability in range(64):
        try:
            prctl(_CAPBSET_DROP, capability)
        except OSError:  # the last there is, or none of ours
            break


def drop_capabilities() -> None:
    """Give up what root may do besides what its files' modes let it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    bound_capabilities()
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    if libc().capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# Of glibc's malloc.h.
_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Have all threads allocate from one heap; where the C library is another than glibc, nothing changes. By itself
    each of the first threads gets one of its own, which keeps what that thread has freed. While one thread at a time
    runs Python, they hardly ever wait for one another."""
    with suppress(AttributeError):
        libc().mallopt(_M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """Return to the system what was freed; where the C library is another than glibc, nothing changes."""
    with suppress(AttributeError):
        libc().malloc_trim(0)


# A large page of x86-64 and of most of ARM, and the kernel's advice to make one, which Linux knows since 6.1 (mman.h).
_LARGE, _COLLAPSE = 1 << 21, 25
# How much of what it is made of must be in use: the rest of it begins to take memory too.
_IN_USE = 0.8


def use_large_pages() -> int:
    """Have what this process holds stand in pages of 2 MiB instead of 4 KiB, where most of such a page is in use;
    returns how many were made. Where the kernel cannot make any, or is told to have none, nothing changes.

    A turn goes all over a host's code and objects: with small pages, the processor looks up where they are all the
    time.
    """
    try:
        if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
            return 0
        mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    except OSError:
        return 0
    made = 0
    for span, mode, _, _, file, *name in mappings:
        if mode == "rw-p" and file == "0" and name[:1] != ["[stack]"]:
            start, end = (int(each, 16) for each in span.split("-"))
            made += sum(map(_make_large, range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE)))
    return made


def _make_large(address: int) -> bool:
    where, size = ctypes.c_void_p(address), ctypes.c_size_t(_LARGE)
    in_use = (ctypes.c_ubyte * (_LARGE // os.sysconf("SC_PAGE_SIZE")))()
    if libc().mincore(where, size, in_use) or sum(each & 1 for each in in_use) < _IN_USE * len(in_use):
        return False
    return int(libc().madvise(where, size, _COLLAPSE)) == 0
