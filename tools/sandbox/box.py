"""A box: what one fork server and the tools it forks may do. The host describes it, and starts a program in it; what
the kernel takes from a process itself, the program gives up once it runs.
"""

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nanohost.lib.process import bound_capabilities, close_to_others, drop_capabilities
from tools.sandbox import bubblewrap, landlock, paths, seccomp

BUBBLEWRAP, LANDLOCK, NONE = MODES = ("bubblewrap", "landlock", "none")

# In Landlock's mode, where the host is root's: a user of the tools' own, whom no list of users has.
TOOLS_USER = 64_173

# Bytes of /tmp and /dev/shm together, in bubblewrap; and of the largest file a tool may write anywhere.
SCRATCH_BYTES = 128 << 20
MAX_FILE_BYTES = 64 << 20
MAX_OPEN_FILES = 256
MAX_STACK_BYTES = 8 << 20

# Not /dev/zero: what is mapped of it and shared is memory that no limit counts.
_DEVICES = tuple(map(Path, ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")))


@dataclass(frozen=True, kw_only=True)
class Box:
    """``code`` and ``read``: files and folders that are seen; ``write``: that may be changed. ``network``: whether the
    internet can be reached. ``user``: who it is run as, None for the host's own. ``scratch``: where temporary files go;
    "" where there is a /tmp of its own."""

    mode: str
    code: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False
    user: int | None = None
    scratch: str = ""

    def command(self, inside: Sequence[str], *, cwd: Path, bound: Sequence[tuple[str, str, str]] = ()) -> list[str]:
        """The command that starts ``inside`` in the box; ``bound``: see :func:`tools.sandbox.bubblewrap.command`."""
        if self.mode != BUBBLEWRAP:
            return list(inside)
        return bubblewrap.command(
            bubblewrap.program() or "bwrap",
            inside,
            code=map(Path, self.code),
            read=map(Path, self.read),
            write=map(Path, self.write),
            cwd=cwd,
            network=self.network,
            scratch=SCRATCH_BYTES,
            bound=bound,
        )

    def change_user(self) -> None:
        """Be the tools' own user, if the box has one; nobody else's process or file can be touched by it."""
        if self.user is not None:
            bound_capabilities()  # only root can
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)

    def enter(self) -> None:
        """Give up, for this process and all it starts, what a process can give up by itself. Raises OSError if the
        kernel does not let it: then nothing may run here."""
        close_to_others()
        if self.mode == NONE:
            return
        drop_capabilities()
        if self.mode == LANDLOCK:
            landlock.restrict(read=[*self.seen(), Path("/proc")], write=self._writable(), network=self.network)
        if self.mode == LANDLOCK or seccomp.knows_this_machine():
            seccomp.restrict(network=self.network)

    def seen(self) -> list[Path]:
        """The files and folders that can be read in it."""
        return [*paths.system(network=self.network), *map(Path, self.code), *map(Path, self.read)]

    def _writable(self) -> list[Path]:
        return [*_DEVICES, *map(Path, self.write), *([Path(self.scratch)] if self.scratch else [])]


def limit(what: int, most: int) -> None:
    """Set a resource limit for good, no higher than it may be."""
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def limit_a_tool(box: Box, *, memory: int, processes: int) -> None:
    """Bound a process that runs tools, and each that it starts. ``memory``: bytes of its own. ``processes``: of all
    that run in its box, where they can be counted apart from the host's."""
    # What is a process's own: heap, stacks of threads, private mappings. RLIMIT_AS would count all that is mapped, and
    # so forbid what costs nothing. What neither counts, shared memory that is no file, is refused by the filter.
    limit(resource.RLIMIT_DATA, memory)
    limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    if box.mode == NONE:
        return
    limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    limit(resource.RLIMIT_STACK, MAX_STACK_BYTES)
    if box.user is not None or (box.mode == BUBBLEWRAP and _counts_by_namespace()):
        limit(resource.RLIMIT_NPROC, processes)


def _counts_by_namespace() -> bool:
    """Whether the kernel counts a user's processes apart in each user namespace: Linux does since 5.14."""
    with suppress(ValueError):
        major, minor = os.uname().release.split(".")[:2]
        return sys.platform == "linux" and (int(major), int(minor)) >= (5, 14)
    return False
