"""``manage.py keys create --owner NAME [--expires DAYS] | list | revoke PREFIX``."""

from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from nanohost.accounts.models import MAX_DAYS, ApiKey
from nanohost.lib.text import UNSTORABLE


class Command(BaseCommand):
    """Makes, lists and revokes API keys."""

    help = "Make, list and revoke API keys."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="Make a key; it is shown once.")
        create.add_argument("--owner", required=True, help="A user's name; made if there is none.")
        create.add_argument("--expires", type=int, metavar="DAYS", help="Refuse it after so many days.")
        actions.add_parser("list", help="List the keys, without their secrets.")
        revoke = actions.add_parser("revoke", help="Refuse a key from now on.")
        revoke.add_argument("prefix", help="The part between nh_ and the secret.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        getattr(self, f"_{action}")(options)

    def _create(self, options: dict[str, Any]) -> None:
        days = options["expires"]
        if days is not None and not 0 < days <= MAX_DAYS:
            raise CommandError(f"--expires is a number of days above 0, {MAX_DAYS} at most.")
        owner = self._owner(options["owner"])
        expires_at = timezone.now() + timedelta(days=days) if days else None
        _, key = ApiKey.objects.issue(owner=owner, expires_at=expires_at)
        self.stdout.write(key)
        self.stderr.write(f"A key of {owner.get_username()}; it is shown this once.")

    def _owner(self, name: str) -> Any:
        users = get_user_model()
        if not UNSTORABLE.search(name) and (known := users.objects.filter(username=name).first()) is not None:
            return known
        owner = users(username=name)
        owner.set_unusable_password()
        try:
            owner.full_clean()
        except ValidationError as error:
            raise CommandError(f"--owner {name!r} cannot be a user's name: {' '.join(error.messages)}") from None
        owner.save()
        return owner

    def _list(self, options: dict[str, Any]) -> None:
        for key in ApiKey.objects.select_related("owner"):
            state = key.state
            if key.expires_at and state != "revoked":
                state = f"{'expired' if state == 'expired' else 'expires'} {key.expires_at:%Y-%m-%d}"
            used = f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never"
            self.stdout.write(f"{key.prefix}\t{key.owner}\t{state}\tlast used {used}")

    def _revoke(self, options: dict[str, Any]) -> None:
        prefix = options["prefix"].removeprefix("nh_").split("_")[0]
        key = ApiKey.objects.filter(prefix=prefix).first()
        if key is None:
            raise CommandError(f"There is no key with the prefix {prefix!r}; `manage.py keys list` lists them.")
        key.revoke()
        self.stdout.write(f"{key.prefix} is revoked.")
