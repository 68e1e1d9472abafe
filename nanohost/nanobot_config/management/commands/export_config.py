"""``manage.py export_config FILE [--agent NAME] [--with-keys]``."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agent.models import DEFAULT_AGENT
from conversations.management.owned import agent_named
from nanohost.accounts import audit
from nanohost.lib import env
from nanohost.nanobot_config import exporting
from nanohost.nanobot_config.errors import Refused


class Command(BaseCommand):
    """Writes nanobot's config.json."""

    help = "Write nanobot's config.json, readable only by its owner, from imported values and the agents' current ones."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="The file to write; an existing one is replaced.")
        parser.add_argument("--agent", default=DEFAULT_AGENT, help=f"Whose defaults; {DEFAULT_AGENT} if missing.")
        parser.add_argument("--with-keys", action="store_true", help="With keys and other secrets, not placeholders.")

    def handle(self, *args: Any, file: Path, agent: str, with_keys: bool, **options: Any) -> None:
        found = agent_named(agent)
        try:
            config = exporting.document(
                agent=found,
                folder=settings.DATA_DIR / "secrets",
                environment=env.of_environment(),
                with_secrets=with_keys,
            )
            audit.record("config.exported", about=found, after={"with_keys": with_keys})
            exporting.write(config, file.expanduser())
        except Refused as error:
            raise CommandError(f"Nothing was exported. {error}.") from None
        secrets = "with keys" if with_keys else "with a ${NANOBOT_…} in the place of each secret"
        self.stdout.write(f"{file} is written for its owner alone, {secrets}.")
