"""A filter of system calls: what no tool needs, and what has let others out of better sandboxes, is refused.

Made by hand, for x86-64 and for 64-bit Arm (linux/seccomp.h, linux/filter.h), since it is short and Python has none. A
refused call is an error that the tool gets, not its end.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from nanohost.lib.process import NO_NEW_PRIVS, SECCOMP, prctl

_FILTER = 2  # the mode of seccomp
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Of a filter's instruction: load a word; compare; and; return. What is compared is where these begin in the record.
_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# linux/sched.h: a clone of these kinds makes a namespace.
_NEW_NAMESPACES = 0x7E020080
# Memory that RLIMIT_DATA does not count: what is shared without being a file, and what grows down as a stack does.
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_GROWSDOWN = 0x01, 0x20, 0x100


# linux/stat.h: S_ISUID and S_ISGID. asm-generic/socket.h: SO_SNDBUF, SO_RCVBUF, and by force.
_SET_ID = 0o6000
_SOL_SOCKET, _BUFFERS = 1, (7, 8, 32, 33)


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """Numbers of an architecture: its own, and those of its system calls."""

    audit: int
    clone: int
    socket: int
    socketpair: int
    mmap: int
    setsockopt: int
    setpriority: int
    # Whose first argument is a process, 0 for the caller's own: prlimit64, and sched_setparam, _setscheduler,
    # _setaffinity and _setattr. The kernel lets them at any process of the same user, and with the first a host can be
    # ended as if by a signal.
    of_a_process: tuple[int, ...]
    # That set a file's mode, and which of their arguments that is: chmod, fchmod, fchmodat.
    modes: tuple[tuple[int, int], ...]
    refused: tuple[int, ...]


# Numbers that are the same everywhere, as all above 424 are: io_uring (3), pidfd_getfd, process_madvise, the mounts of
# today (open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr), quotactl_fd, memfd_secret.
_EVERYWHERE = (425, 426, 427, 438, 440, 428, 429, 430, 431, 432, 433, 442, 443, 447)
_FCHMODAT2 = 452
_CLONE3 = 435  # its arguments stand in memory, where a filter cannot see them; who gets ENOSYS takes clone

# In both lists, line by line: other processes' memory (ptrace, process_vm_readv, process_vm_writev, kcmp,
# perf_event_open); the kernel's own machines (bpf, userfaultfd, keyctl, add_key, request_key, fanotify_init); names and
# mounts (mount, umount2, pivot_root, chroot, unshare, setns, name_to_handle_at, open_by_handle_at); memory that nobody
# counts (memfd_create, shmget, shmat, msgget, semget, mq_open, remap_file_pages, migrate_pages, move_pages); the
# machine itself (modules, kexec, reboot, swap, acct, quotactl, syslog, clocks, names, personality, vhangup,
# lookup_dcookie); others' turn at the disk (ioprio_set), and what others do in folders (inotify_add_watch).
_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000003E,
        clone=56,
        socket=41,
        socketpair=53,
        mmap=9,
        setsockopt=54,
        setpriority=141,
        of_a_process=(302, 142, 144, 203, 314),
        modes=((90, 1), (91, 1), (268, 2)),
        refused=(
            *(101, 310, 311, 312, 298),
            *(321, 323, 250, 248, 249, 300),
            *(165, 166, 155, 161, 272, 308, 303, 304),
            *(319, 29, 30, 68, 64, 240, 216, 256, 279),
            *(175, 313, 176, 246, 320, 169, 167, 168, 163, 179, 103, 164, 227, 159, 305, 170, 171, 135, 153, 212),
            *(251, 254),
            *(172, 173, 154, 134, 139),  # iopl, ioperm, modify_ldt, uselib, sysfs
        ),
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        clone=220,
        socket=198,
        socketpair=199,
        mmap=222,
        setsockopt=208,
        setpriority=140,
        of_a_process=(261, 118, 119, 122, 274),
        modes=((52, 1), (53, 2)),
        refused=(
            *(117, 270, 271, 272, 241),
            *(280, 282, 219, 217, 218, 262),
            *(40, 39, 41, 51, 97, 268, 264, 265),
            *(279, 194, 196, 186, 190, 180, 234, 238, 239),
            *(105, 273, 106, 104, 294, 142, 224, 225, 89, 60, 116, 170, 112, 171, 266, 161, 162, 92, 58, 18),
            *(30, 27),
        ),
    ),
}


def knows_this_machine() -> bool:
    """Whether there is a filter for its architecture."""
    return os.uname().machine in _MACHINES and struct.calcsize("P") == 8


def restrict(*, network: bool) -> None:
    """Filter the system calls of this thread and of all it starts, for good. Sockets can be made for the internet, with
    ``network``, and in connected pairs; no others. Raises OSError if the kernel says no."""
    instructions = list(program(_MACHINES[os.uname().machine], network=network))
    made = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    buffer = ctypes.create_string_buffer(made, len(made))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    wanted = Program(len(instructions), ctypes.addressof(buffer))
    prctl(NO_NEW_PRIVS, 1)
    prctl(SECCOMP, _FILTER, ctypes.addressof(wanted))


def program(machine: _Machine, *, network: bool) -> Iterator[tuple[int, int, int, int]]:
    """The filter: of each instruction its code, how many are skipped if it is true and if it is not, and its number."""
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, machine.audit
    yield _no(errno.EPERM)  # as another architecture's, a number means something else
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, 0x40000000  # x86-64's second set of numbers
    yield _no(errno.ENOSYS)
    for number in (*machine.refused, *_EVERYWHERE):
        yield _EQUAL, 0, 1, number
        yield _no(errno.EPERM)
    for number in (_CLONE3, _FCHMODAT2):
        yield _EQUAL, 0, 1, number
        yield _no(errno.ENOSYS)
    for number in machine.of_a_process:
        yield from _where(number, _argument(0), (_EQUAL, 1, 0, 0), _no(errno.EPERM))
    own = (_argument(0), (_EQUAL, 0, 2, 0), _argument(1), (_EQUAL, 1, 0, 0))  # the kind of a process, and ourselves
    yield from _where(machine.setpriority, *own, _no(errno.EPERM))
    for number, mode in machine.modes:  # a program of its user, for whoever starts it outside
        yield from _where(number, _argument(mode), (_ANY_OF, 0, 1, _SET_ID), _no(errno.EPERM))
    # Their memory is the kernel's, and in no limit. It is not said: libraries only wish for it.
    first, *others = ((_EQUAL, 3 - place, 0, name) for place, name in enumerate(_BUFFERS[:3]))
    sizes = (_argument(1), (_EQUAL, 0, 6, _SOL_SOCKET), _argument(2), first, *others, (_EQUAL, 0, 1, _BUFFERS[3]))
    yield from _where(machine.setsockopt, *sizes, _no(0))
    yield from _where(machine.clone, _argument(0), (_ANY_OF, 0, 1, _NEW_NAMESPACES), _no(errno.EPERM))
    yield from _where(machine.socket, _argument(0), *_unless_internet(network), _no(errno.EACCES))
    unix = _argument(0), (_EQUAL, 1, 0, int(socket.AF_UNIX))
    yield from _where(machine.socketpair, *unix, _no(errno.EACCES))
    # A pair of another type, datagrams for one, can be connected once more, to a socket of somebody else's.
    stream = (_AND, 0, 0, 0xF), (_EQUAL, 1, 0, int(socket.SOCK_STREAM))
    yield from _where(machine.socketpair, _argument(1), *stream, _no(errno.EACCES))
    flags = _argument(3)
    yield from _where(machine.mmap, flags, (_ANY_OF, 0, 1, _MAP_GROWSDOWN), _no(errno.EPERM))
    shared = (_ANY_OF, 0, 2, _MAP_ANONYMOUS), (_ANY_OF, 0, 1, _MAP_SHARED)
    yield from _where(machine.mmap, flags, *shared, _no(errno.ENOMEM))
    yield _RETURN, 0, 0, _ALLOW


def _where(number: int, *instructions: tuple[int, int, int, int]) -> Iterator[tuple[int, int, int, int]]:
    """These, for one system call; behind them its number is loaded again."""
    yield _EQUAL, 0, len(instructions) + 1, number
    yield from instructions
    yield _LOAD, 0, 0, _NUMBER


def _unless_internet(network: bool) -> list[tuple[int, int, int, int]]:
    if not network:
        return []
    return [(_EQUAL, 2, 0, int(socket.AF_INET)), (_EQUAL, 1, 0, int(socket.AF_INET6))]


def _argument(number: int) -> tuple[int, int, int, int]:
    return _LOAD, 0, 0, _ARGUMENTS + 8 * number  # its lower half: both architectures begin with that


def _no(error: int) -> tuple[int, int, int, int]:
    return _RETURN, 0, 0, _ERRNO | error
