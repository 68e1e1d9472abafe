"""``manage.py holds place --owner NAME | --agent NAME | --conversation ID --reason TEXT``, ``release NUMBER --reason
TEXT`` and ``list``."""

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nanohost.accounts import audit, holds
from nanohost.accounts.models import LegalHold
from nanohost.console.holding import subject_named
from nanohost.lib.text import storable


class Command(BaseCommand):
    """Places, releases and lists legal holds."""

    help = "Place, release and list legal holds."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        place = actions.add_parser("place", help="From now on, nothing of it is deleted.")
        subject = place.add_mutually_exclusive_group(required=True)
        subject.add_argument("--owner", metavar="NAME", help="A user's name.")
        subject.add_argument("--agent", metavar="NAME", help="An agent's name.")
        subject.add_argument("--conversation", metavar="ID", help="A conversation's id.")
        place.add_argument("--reason", required=True, help="Why; the audit log keeps it.")
        release = actions.add_parser("release", help="Data that it kept is deleted like everything else again.")
        release.add_argument("number", type=int, help="As `holds list` shows it.")
        release.add_argument("--reason", required=True, help="Why; the audit log keeps it.")
        actions.add_parser("list", help="List the holds that count.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        {"place": self._place, "release": self._release, "list": self._list}[action](options)

    def _place(self, options: dict[str, Any]) -> None:
        kind = next(each for each in LegalHold.Kind.values if options[each])
        try:
            subject = subject_named(kind, options[kind])
        except ValidationError as error:
            raise CommandError(error.message) from None
        hold = holds.place(kind=kind, reason=_reason(options), by=audit.who_acts(), **subject)
        self.stdout.write(f"{hold.pk}")

    def _release(self, options: dict[str, Any]) -> None:
        hold = LegalHold.objects.filter(pk=options["number"]).first()
        if hold is None:
            raise CommandError(f"There is no legal hold {options['number']}; `manage.py holds list` lists them.")
        if not holds.release(hold, reason=_reason(options), by=audit.who_acts()):
            raise CommandError(f"Legal hold {hold.pk} was released before.")
        self.stdout.write(f"{hold.pk} is released.")

    def _list(self, options: dict[str, Any]) -> None:
        for hold in holds.placed().holds:
            said = [str(hold.pk), hold.what, f"{hold.placed_at:%Y-%m-%d %H:%M}", hold.placed_by, hold.reason]
            self.stdout.write("\t".join(said))


def _reason(options: dict[str, Any]) -> str:
    reason = storable(options["reason"]).strip()
    if not reason or len(reason) > 2000:
        raise CommandError("--reason has 1 to 2000 characters.")
    return reason
