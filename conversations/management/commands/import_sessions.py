"""``manage.py import_sessions FOLDER --owner NAME [--agent NAME] [--dry-run]``."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agent.models import DEFAULT_AGENT
from conversations.management.owned import add_arguments, agent_named, owner_named, told
from conversations.transfer import sessions


class Command(BaseCommand):
    """Takes in nanobot's conversations, memory and history."""

    help = "Import nanobot's conversations, memory and history, for a user and an agent."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="nanobot's data folder, as ~/.nanobot, or a part of it.")
        add_arguments(parser, agent_default=None)
        parser.add_argument("--dry-run", action="store_true", help="Show what would be done, and change nothing.")

    def handle(self, *args: Any, folder: Path, owner: str, agent: str | None, dry_run: bool, **options: Any) -> None:
        if not folder.is_dir():
            raise CommandError(f"There is no folder {folder}.")
        reported = []

        def report(line: str) -> None:
            reported.append(line)
            self.stderr.write(line)

        counts = sessions.import_folder(
            folder,
            owner_id=owner_named(owner).pk,
            agent=agent_named(DEFAULT_AGENT if agent is None else agent),
            dry_run=dry_run,
            report=report,
            with_documents=agent is not None,
        )
        self.stdout.write(told(counts) + ("; nothing of it was stored" if dry_run else ""))
        if reported:
            raise CommandError(f"Reported above: {len(reported)}.")
