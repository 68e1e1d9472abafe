"""``manage.py erase OWNER [--dry-run | --yes]``."""

import json
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from conversations.management.owned import owner_named
from nanohost.accounts import holds
from nanohost.accounts.errors import UnderLegalHold
from nanohost.console import people

# So often it is begun again where something of theirs was stored meanwhile.
_TRIES = 20


class Command(BaseCommand):
    """Erases a person's data, and prints a receipt."""

    help = "Erase all that belongs to a user, and the user; a receipt is printed, as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("owner", help="A user's name.")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--dry-run", action="store_true", help="Count what would go, and erase nothing.")
        how.add_argument("--yes", action="store_true", help="Do it: it cannot be undone.")

    def handle(self, *args: Any, owner: str, dry_run: bool, yes: bool, **options: Any) -> None:
        user: User = owner_named(owner)
        held = people.held(user)
        if not yes:
            told = {"owner": user.pk, "belongings": people.belongings(user), "kept": people.KEPT}
            told["heldBy"] = [holds.told(hold) for hold in held]
            self.stdout.write(json.dumps(told, indent=2))
            if not dry_run:
                raise CommandError("Nothing was erased. To erase all of this for good, say --yes.")
            return
        try:
            receipt = next(filter(None, (people.erase(user) for _ in range(_TRIES))), None)
        except UnderLegalHold as refused:
            raise CommandError(refused.detail) from None
        if receipt is None:
            raise CommandError("Something of theirs is stored again and again; erase once more when it has ended.")
        self.stdout.write(json.dumps(receipt.as_json(), indent=2))
