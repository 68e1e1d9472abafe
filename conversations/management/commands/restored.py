"""``manage.py restored``: after a restore, end what was open when the dump was made."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from conversations.engine import turn_control
from conversations.models import Worker


class Command(BaseCommand):
    """For who would rather ask again than have an effect happen twice."""

    help = (
        "After a restore, before anything is started: fail the turns that were open when the dump was made. Their tool"
        " calls with side effects become UNKNOWN and are not run, since they may have been after the dump; so do"
        " messages to chats and e-mails that were to be sent. Each can be asked, or sent, again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--yes", action="store_true", help="Do it; otherwise only the number of turns is shown.")

    def handle(self, *args: Any, yes: bool, **_: Any) -> None:
        if working := sorted(Worker.objects.alive().values_list("name", flat=True)):
            raise CommandError(f"Stop the workers first, or wait for those of the dump: {', '.join(working)}.")
        if not yes:
            self.stdout.write(f"{turn_control.count_open()} turns are open. Add --yes to end them as failed.")
            return
        self.stdout.write(f"{turn_control.end_restored()} turns were open, and have ended as failed.")
