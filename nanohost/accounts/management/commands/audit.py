"""``manage.py audit verify [--heads FILE] | export [--since DATE]``."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nanohost.accounts import audit
from nanohost.accounts.audit import Head


class Command(BaseCommand):
    """Proves the audit log whole, and exports it."""

    help = "Prove the audit log whole, and export it."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        verify = actions.add_parser("verify", help="Walk the chain of hashes; exit with 1 where it is not whole.")
        verify.add_argument(
            "--heads",
            type=Path,
            metavar="FILE",
            help="Also hold it against the heads in this file: a log of the host's, or DATA_DIR's audit-heads.jsonl,"
            " which is read if no file is named.",
        )
        export = actions.add_parser("export", help="Write the sealed entries as JSON lines.")
        export.add_argument("--since", type=_day, metavar="DATE", help="Only those of this day (UTC) and later.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        {"verify": self._verify, "export": self._export}[action](options)

    def _verify(self, options: dict[str, Any]) -> None:
        audit.seal()
        anchors = _heads_of(options["heads"])
        try:
            head = audit.verify(anchors)
        except audit.NotWhole as error:
            raise CommandError(f"The audit log is not whole: {error}.") from None
        against = f", and has the {len(anchors)} heads that were recorded earlier" if anchors else ""
        self.stdout.write(f"The audit log is whole: {head.number} entries{against}. Its head is {head.hash}.")

    def _export(self, options: dict[str, Any]) -> None:
        audit.record("audit.exported", kind="accounts.auditentry")
        try:
            for line in audit.lines(since=options["since"]):
                self.stdout.write(line)
        except audit.NotWhole as error:
            raise CommandError(f"The audit log is not whole: {error}.") from None


def _heads_of(file: Path | None) -> list[Head]:
    place = file or settings.AUDIT_HEADS
    if place is None or (file is None and not place.exists()):
        return []
    try:
        with place.open(errors="replace") as lines:
            heads = list(audit.anchors_in(lines))
    except OSError as error:
        raise CommandError(f"{place} cannot be read: {error.strerror}.") from None
    if file and not heads:
        raise CommandError(f"{place} has no line with a head ({audit.NUMBER}, {audit.HASH}).")
    return heads


def _day(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
