"""The command that starts a program in bubblewrap: with namespaces of its own, and few of the machine's files."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.sandbox import paths

# The box has one of its own.
_TMP = Path("/tmp")  # noqa: S108 -- see above
# Of what may be written in memory: /tmp and /dev/shm, together as much as this.
_SCRATCH_SHARE = 2


def program() -> str | None:
    """Where bubblewrap is; None if it is not installed."""
    return shutil.which("bwrap")


def command(
    bwrap: str,
    inside: Sequence[str],
    *,
    code: Iterable[Path],
    read: Iterable[Path],
    write: Iterable[Path],
    cwd: Path,
    network: bool,
    scratch: int,
    bound: Iterable[tuple[str, str, str]] = (),
) -> list[str]:
    """``inside``, run by ``bwrap``. It sees the system, ``code`` and ``read``, and may write to ``write`` and, in
    memory, to ``scratch`` bytes. ``bound``: what else is there, each by an option of bubblewrap's, under another name.

    Whoever starts it must live as long: the kernel ends it with the thread that did (PR_SET_PDEATHSIG).
    """
    code, read, write = list(code), list(read), list(write)
    # Where code lies in /tmp, folders on the way to it could be written to, and Python looks for modules there.
    above = sorted({_TMP / path.relative_to(_TMP).parts[0] for path in (*code, *read, *write) if _is_deep(path)})
    namespaces = ["--unshare-all", *(["--share-net"] if network else []), "--unshare-user", "--disable-userns"]
    size = ["--size", str(scratch // _SCRATCH_SHARE)]
    return [
        *(bwrap, *namespaces, "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "tools"),
        # Read-only: root may write to /proc/sys also without its powers.
        *("--proc", "/proc", "--remount-ro", "/proc"),
        # Of what is mapped of /dev/zero and shared, no limit counts the memory.
        *("--dev", "/dev", "--dev-bind", "/dev/null", "/dev/zero"),
        *(*size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108 -- the box's own
        *(*size, "--perms", "1777", "--tmpfs", str(_TMP)),
        *(argument for path in above for argument in ("--tmpfs", str(path))),
        *(argument for path in paths.system(network=network) for argument in _as_it_is(path)),
        *_bound("--ro-bind", _outer_first([*code, *read])),
        *_bound("--bind", _outer_first(write)),
        *(word for words in bound for word in words),
        *(argument for path in above for argument in ("--remount-ro", str(path))),
        *("--chdir", str(cwd), "--remount-ro", "/", "--", *inside),
    ]


def _is_deep(path: Path) -> bool:
    """Whether it lies in a folder in /tmp."""
    return path.is_relative_to(_TMP) and len(path.relative_to(_TMP).parts) > 1


def _as_it_is(path: Path) -> list[str]:
    """A link stays a link, if what it leads to is there as well; what else is a link is bound as what it leads to."""
    if path.is_symlink() and str(path.resolve()).startswith("/usr/"):
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind-try", str(path), str(path)]


def _outer_first(each: Iterable[Path]) -> list[Path]:
    """Folders before what lies in them, or they would hide it; those within another are there already."""
    found: list[Path] = []
    for path in sorted(set(each), key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(outer) for outer in found):
            found.append(path)
    return found


def _bound(how: str, each: Iterable[Path]) -> list[str]:
    return [argument for path in each for argument in (how, str(path), str(path))]
