"""Taking in the tools of workspaces as their files change: again and again, in pieces, by workers that run tools."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, connections

from tools.custom import catalogue
from tools.custom.models import CustomTool
from tools.errors import Interrupted

logger = logging.getLogger(__name__)

# How often all workspaces are looked at, and for how long at a time, in seconds.
EVERY_SECONDS, PIECE_SECONDS = 10.0, 0.2

# Of a file: its name, number, size, and when it and its entry were changed.
_Signature = tuple[tuple[str, int, int, int, int], ...]


class Looking:
    """Goes through all workspaces that have the folder, and takes in those in which something has changed."""

    def __init__(self, *, every: float = EVERY_SECONDS) -> None:
        self._every = every
        self._began_at = float("-inf")
        self._left: Iterator[str] = iter(())
        self._taken: dict[str, _Signature] = {}
        self._busy = threading.Lock()

    def go_on_apart(self) -> None:
        """The same in a thread of its own, unless one is at it: whoever calls has others waiting, and a file may take
        seconds to be read."""
        if settings.CUSTOM_TOOLS and self._busy.acquire(blocking=False):
            threading.Thread(target=self._apart, name="custom-tools", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether a thread is at it."""
        return self._busy.locked()

    def _apart(self) -> None:
        try:
            self.go_on()
        except DatabaseError as error:
            logger.warning("custom tools could not be looked for (%s)", type(error).__name__)
        finally:
            connections.close_all()
            self._busy.release()

    def go_on(self, *, seconds: float = PIECE_SECONDS) -> None:
        """Look at some more, at one at least if any is left."""
        if not settings.CUSTOM_TOOLS:
            return
        until = time.monotonic() + seconds
        if self._look_until(until) and time.monotonic() - self._began_at >= self._every:
            self._began_at, self._left = time.monotonic(), iter(workspaces())
            self._look_until(until)

    def _look_until(self, until: float) -> bool:
        """Look at what is left; True if nothing is any more."""
        for workspace in self._left:
            self._look(workspace)
            if time.monotonic() > until:
                return False
        return True

    def _look(self, workspace: str) -> None:
        now = _signature(workspace)
        if self._taken.get(workspace) == now:
            return
        try:
            catalogue.take_in(workspace)
            self._taken[workspace] = now
        except (OSError, DatabaseError, Interrupted) as error:  # the next round tries again
            logger.warning("the tools of a workspace could not be taken in (%s)", type(error).__name__)


def workspaces() -> list[str]:
    """Those that have the folder, and those that had it."""
    base = Path(settings.WORKSPACES_DIR)
    there = {str(each.parent.parent.relative_to(base)) for each in base.glob(f"*/*/files/{catalogue.FOLDER}")}
    # Those of deleted agents have a dot in their names, as no agent's has.
    there = {name for name in there if "." not in name.partition("/")[0]}
    known = CustomTool.objects.filter(gone=False).order_by().values_list("workspace", flat=True).distinct()
    return sorted(there | set(known))


def look_at_all() -> None:
    """Take in all of them now. Raises :class:`OSError` if they cannot be read just now."""
    for workspace in workspaces():
        catalogue.take_in(workspace)


def _signature(workspace: str) -> _Signature:
    found = []
    folder = Path(settings.WORKSPACES_DIR) / workspace / "files" / catalogue.FOLDER
    try:
        for each in sorted(folder.iterdir()):
            stat = each.lstat()
            found.append((each.name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    except OSError:
        return ()
    return tuple(found)
