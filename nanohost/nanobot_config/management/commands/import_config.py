"""``manage.py import_config FILE [--agent NAME] [--owner USER] [--dry-run]``."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agent.models import DEFAULT_AGENT
from conversations.management.owned import agent_named, owner_named
from nanohost.lib import env
from nanohost.lib.redaction import redact_known
from nanohost.nanobot_config.errors import Refused
from nanohost.nanobot_config.importing import import_config


class Command(BaseCommand):
    """Takes in nanobot's config.json."""

    help = "Import nanobot's config.json, and report the outcome for each key."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="As ~/.nanobot/config.json; or an mcp.json of another client.")
        parser.add_argument("--agent", default=DEFAULT_AGENT, help=f"Whom it is for; {DEFAULT_AGENT} if missing.")
        parser.add_argument(
            "--owner", help="The owner of its channels' conversations; without one, no channel is made."
        )
        parser.add_argument("--dry-run", action="store_true", help="Show what would be done, and change nothing.")

    def handle(self, *args: Any, file: Path, agent: str, owner: str | None, dry_run: bool, **options: Any) -> None:
        try:
            report = import_config(
                file.expanduser(),
                agent=agent_named(agent),
                owner=owner_named(owner) if owner else None,
                folder=settings.DATA_DIR / "secrets",
                environment=env.of_environment(),
                dry_run=dry_run,
            )
        except Refused as error:
            raise CommandError(redact_known(f"Nothing was imported. {error}.")) from None
        for line in report.lines:
            self.stdout.write(redact_known(str(line)))
        self.stdout.flush()
        for warning in report.warnings:
            self.stderr.write(redact_known(warning))
        self.stderr.flush()
        for hint in report.hints:
            self.stdout.write(redact_known(hint))
        told = report.counted() if report.changed else f"Nothing has changed ({report.counted()})"
        self.stdout.write(f"{told}{'; nothing of it was stored' if dry_run else ''}")
