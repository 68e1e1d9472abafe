"""``manage.py intake``: pause the intake of new turns, see how far the host has drained, resume."""

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from conversations.engine import intake
from nanohost.lib.process import user_of_this

LOOK_EVERY_SECONDS = 0.5


class Command(BaseCommand):
    """The same as the console's page *Queue*."""

    help = "Pause the intake of new turns before a deploy, wait until what runs has ended, resume it."

    def add_arguments(self, parser: CommandParser) -> None:
        does = parser.add_subparsers(dest="does", required=True, metavar="pause|status|resume")
        pause = does.add_parser("pause", help="Answer new turns with 503; accepted turns are finished.")
        pause.add_argument("--because", required=True, help="Why; shown on every page of the console.")
        status = does.add_parser("status", help="Show whether it is paused, and what is left.")
        resume = does.add_parser("resume", help="Take new turns in again.")
        for each in (pause, resume):
            each.add_argument("--by", help="Who; by default the user of this machine.")
        for each in (pause, status):
            each.add_argument(
                "--wait",
                type=float,
                default=0,
                metavar="SECONDS",
                help="Until it has drained; 1 if it has not by then.",
            )

    def handle(self, *args: Any, does: str, **wanted: Any) -> None:
        {"pause": self._pause, "status": self._status, "resume": self._resume}[does](**wanted)

    def _pause(self, *, because: str, by: str | None, wait: float, **_: Any) -> None:
        if not because.strip():
            raise CommandError("--because is empty: say why, for those who see the banner.")
        if not intake.pause(by=by or user_of_this(), because=because.strip()):
            self.stdout.write("It is already paused; nothing was changed.")
        self._status(wait=wait)

    def _resume(self, *, by: str | None, **_: Any) -> None:
        resumed = intake.resume(by=by or user_of_this())
        self.stdout.write("New turns are accepted again." if resumed else "It was not paused.")

    def _status(self, *, wait: float, **_: Any) -> None:
        pause = intake.current_pause()
        if pause is None:
            self.stdout.write("New turns are accepted.")
        else:
            since = f"{pause.paused_at:%Y-%m-%d %H:%M:%S} UTC"
            self.stdout.write(f"The intake is paused since {since}, by {pause.paused_by}: {pause.because}")
        until = time.monotonic() + wait
        while not (left := intake.left()).drained and time.monotonic() < until:
            time.sleep(min(LOOK_EVERY_SECONDS, max(0.0, until - time.monotonic())))  # noqa: TID251 -- it looks at the rows again
        self.stdout.write(str(left))
        if pause and left.drained:
            self.stdout.write("drained")
        elif wait:
            raise CommandError(f"It has not drained within {wait:g} s.")
