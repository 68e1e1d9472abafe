"""What files were before is kept for a day, also in a workspace that nobody changes any more."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from tools.workspace.store import forget_former

logger = logging.getLogger(__name__)

# How often all workspaces are looked at, and for how long at a time, in seconds: workers have other things to do.
EVERY_SECONDS, PIECE_SECONDS = 3600.0, 0.2


class Forgetting:
    """Goes through all workspaces again and again, in pieces; those of deleted agents too."""

    def __init__(self) -> None:
        self._began_at = float("-inf")
        self._left: Iterator[Path] = iter(())

    def go_on(self, *, seconds: float = PIECE_SECONDS) -> None:
        """Look at some more, at one at least if any is left; begin anew an hour after the last beginning."""
        until = time.monotonic() + seconds
        for place in self._left:
            try:
                forget_former(place)
            except OSError as error:  # of one of them; the others are looked at all the same
                logger.warning("what files were before could not be dropped in a workspace (%s)", error.strerror)
            if time.monotonic() > until:
                return
        if time.monotonic() - self._began_at >= EVERY_SECONDS:
            self._began_at, self._left = time.monotonic(), _places()
            self.go_on(seconds=seconds)


def _places() -> Iterator[Path]:
    """WORKSPACES_DIR/<agent>/<owner>, without what links stand for."""
    for agent in _folders(Path(settings.WORKSPACES_DIR)):
        yield from _folders(agent)


def _folders(place: Path) -> list[Path]:
    try:
        return [each for each in place.iterdir() if each.is_dir() and not each.is_symlink()]
    except OSError:
        return []  # there is none yet, or it has just been erased
