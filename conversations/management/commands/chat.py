"""``manage.py chat [--agent A] [--url URL] [--conversation KEY] [-m TEXT]``: talk to an agent in the terminal."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from conversations.management import terminal
from nanohost.lib import env


class Command(BaseCommand):
    """A client of the API of a host that runs, here or elsewhere; it opens no database."""

    help = "Talk to an agent in the terminal: exit or Ctrl-D ends it, Ctrl-C cancels an answer."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--agent", help="Who answers; the default agent, or the one the conversation has.")
        parser.add_argument("--url", default="http://127.0.0.1:8080", help="Where the host is; %(default)s.")
        parser.add_argument(
            "--conversation", default="cli:terminal", metavar="KEY", help="Which conversation; %(default)s."
        )
        parser.add_argument("-m", "--message", help="Say this one thing, print the answer, and end.")

    def handle(self, *args: Any, agent: str | None, url: str, conversation: str, message: str | None, **_: Any) -> None:
        key = env.raw_secret("NANOHOST_API_KEY")
        if not key:
            raise CommandError("NANOHOST_API_KEY is not set: the chat needs an API key, of `manage.py keys`.")
        try:
            api = terminal.Api(url, key)
            conversation_id = api.conversation(conversation, agent)
        except terminal.NoAnswer as error:
            raise CommandError(str(error)) from None
        if message is not None:
            if not terminal.answer(api, conversation_id, message, on=terminal.screen()):
                raise CommandError("There is no answer.")
            return
        state = Path.home() / ".local" / "state"
        ask = terminal.reader(state / "nanohost" / "chat_history")
        terminal.talk(api, conversation_id, ask=ask, on=terminal.screen())
