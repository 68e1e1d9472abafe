"""Paths that mean to lead out of a folder, and a folder whose contents change places while it is read."""

import ctypes
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SECRET = "the secret outside"

_UP = ["..", "../..", "../../..", "./..", "..//", "inner/..", "inner/../..", "a/b/../../../..", ".\\..", "..\\.."]
_LINKS = [
    "out",
    "up",
    "self/root",
    "link_to_file",
    "inner/out",
    "chain",
    "magic/cwd",
    "magic/root",
    "magic/fd/0",
    "hard",
]
_TARGETS = ["secret", "outside/secret", "", ".", "etc/passwd", "secret\0.txt", "secret/", "fifo", "SECRET"]
_ODD = [
    "\0",
    "%2e%2e",
    "%2e%2e%2f",
    "\u2025",
    "\uff0e\uff0e",
    "..\u2215",
    "\udc2e\udc2e",
    "~",
    "~root",
    "$HOME",
    "..;",
    "...",
    " ",
]


def hostile_paths(folder: Path, count: int, *, seed: int = 23) -> Iterator[str]:
    """So many paths, made of what leads upwards, out, around, and to odd names."""
    absolute = ["/", str(folder.parent), f"{folder.parent}/outside", "/proc/self/root", "/proc/self/cwd", "//", "/dev"]
    pieces = [*_UP, *_LINKS, *_ODD, *absolute, "inner", "a", "." * 200, "x" * 300]
    choose = random.Random(seed)
    for _ in range(count):
        middle = choose.choices(pieces, k=choose.randint(1, 6))
        yield choose.choice(["/", "", "//", "/./"]).join([*middle, choose.choice(_TARGETS)])


def furnish(folder: Path) -> None:
    """Put links, further names and a FIFO into a folder, and a secret beside it."""
    outside = folder.parent / "outside"
    outside.mkdir()
    for secret in (folder.parent / "secret", outside / "secret"):
        secret.write_text(SECRET)
    (folder / "inner").mkdir()
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "self").mkdir()
    links: dict[str, str | Path] = {
        "out": outside,
        "up": "..",
        "self/root": "/proc/self/root",
        "link_to_file": folder.parent / "secret",
        "inner/out": "../../outside",
        "chain": "up",
        "magic": "/proc/self",
    }
    for link, target in links.items():
        (folder / link).symlink_to(target)
    os.link(folder.parent / "secret", folder / "hard")
    os.mkfifo(folder / "fifo")


@contextmanager
def changing_places(folder: Path) -> Iterator[str]:
    """While the block runs, ``swing`` in the folder is in turn a folder and a link that leads out. Yields a path in it
    that names a file inside and one outside."""
    outside = folder.parent / "beyond"
    outside.mkdir()
    (outside / "file").write_text(SECRET)
    (folder / "swing").mkdir()
    (folder / "swing" / "file").write_text("inside")
    (folder / "other").symlink_to(outside)
    exchange = _exchanging(folder / "swing", folder / "other")
    done = threading.Event()

    def swing() -> None:
        while not done.is_set():
            exchange()

    thread = threading.Thread(target=swing, daemon=True)
    thread.start()
    try:
        yield "swing/file"
    finally:
        done.set()
        thread.join()


def _exchanging(one: Path, other: Path) -> Callable[[], None]:
    """renameat2 with RENAME_EXCHANGE: there is no moment at which one of them is missing."""
    call = ctypes.CDLL(None, use_errno=True).renameat2
    arguments = (-100, os.fsencode(one), -100, os.fsencode(other), 2)

    def exchange() -> None:
        if call(*arguments):
            raise OSError(ctypes.get_errno(), "renameat2")

    return exchange
