"""``manage.py export_sessions FOLDER --owner NAME [--agent NAME] [--force]``."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from conversations.errors import FolderInUse
from conversations.management.owned import add_arguments, agent_named, owner_named, told
from conversations.transfer import sessions
from nanohost.accounts import audit


class Command(BaseCommand):
    """Writes conversations, memory and history as nanobot has them."""

    help = "Write the conversations, the memory and the history of a user and an agent, as nanobot has them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="Made if there is none.")
        add_arguments(parser)
        parser.add_argument("--force", action="store_true", help="Also into a folder with something in it.")

    def handle(self, *args: Any, folder: Path, owner: str, agent: str, force: bool, **options: Any) -> None:
        try:
            whose = owner_named(owner)
            counts = sessions.export_folder(folder, owner_id=whose.pk, agent=agent_named(agent), force=force)
            audit.record("conversation.exported", about=whose, after=dict(counts), reason=f"Agent {agent}.")
        except FolderInUse:
            raise CommandError(f"There is something in {folder}; --force writes into it anyway.") from None
        except OSError as error:
            raise CommandError(f"{error.filename or folder}: {error.strerror or error}") from None
        self.stdout.write(told(counts))
