"""``manage.py keys create --owner NAME [limits] | list | change PREFIX [limits] | revoke PREFIX``."""

from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from nanohost.accounts import keys
from nanohost.accounts.models import EVERY_AGENT, MAX_DAYS, ApiKey, Scope
from nanohost.lib.text import UNSTORABLE

# What the shell calls the fields of a key.
_OPTIONS = {"agent_names": "--agents", "model_names": "--models", "requests_per_minute": "--per-minute"}
_OPTIONS |= {"allowed_origins": "--origins", "expires_at": "--expires"}


class Command(BaseCommand):
    """Makes, lists, changes and revokes API keys."""

    help = "Make, list, change and revoke API keys."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="Make a key; it is shown once.")
        create.add_argument("--owner", required=True, help="A user's name; made if there is none.")
        _add_limits(create)
        actions.add_parser("list", help="List the keys, without their secrets.")
        change = actions.add_parser("change", help="Change what a key may do, from its next use on.")
        change.add_argument("prefix", help="The part between nh_ and the secret.")
        _add_limits(change)
        revoke = actions.add_parser("revoke", help="Refuse a key from now on.")
        revoke.add_argument("prefix", help="The part between nh_ and the secret.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        getattr(self, f"_{action}")(options)

    def _create(self, options: dict[str, Any]) -> None:
        limits = _limits(options)
        owner = self._owner(options["owner"])
        try:
            _, key = keys.make(owner=owner, **limits)
        except ValidationError as error:
            raise CommandError(_said(error)) from None
        self.stdout.write(key)
        self.stderr.write(f"A key of {owner.get_username()}; it is shown this once.")

    def _owner(self, name: str) -> Any:
        users = get_user_model()
        if not UNSTORABLE.search(name) and (known := users.objects.filter(username=name).first()) is not None:
            if not known.is_active:
                raise CommandError(f"--owner {name!r} is a deactivated user: a key of theirs would open nothing.")
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
            self.stdout.write("\t".join([key.prefix, str(key.owner), state, f"last used {used}", *_may(key)]))

    def _change(self, options: dict[str, Any]) -> None:
        key, limits = _key(options["prefix"]), _limits(options)
        if not limits:
            raise CommandError("Name what is to be changed; `manage.py keys change --help` lists it.")
        try:
            changed = keys.change(key, **limits)
        except ValidationError as error:
            raise CommandError(_said(error)) from None
        self.stdout.write("\t".join([changed.prefix, *_may(changed)]))

    def _revoke(self, options: dict[str, Any]) -> None:
        key = _key(options["prefix"])
        keys.revoke(key)
        self.stdout.write(f"{key.prefix} is revoked.")


def _add_limits(parser: ArgumentParser) -> None:
    texts = {"type": lambda said: [each.strip() for each in said.split(",") if each.strip()], "metavar": "LIST"}
    add: Any = parser.add_argument
    add("--name", help="A description for people.")
    add("--scopes", **texts, help=f"What it may do: {', '.join(Scope.values)}. A new key: chat,read.")
    add(
        "--agents",
        **texts,
        help=f"The agents that it may name; {EVERY_AGENT} is every one. A new key: those marked public.",
    )
    add("--models", **texts, help="The models that it may name. A new key: those of LLM_MODELS.")
    add("--networks", **texts, help="From where it may be used, such as 203.0.113.0/24. A new key: from anywhere.")
    add("--origins", **texts, help="Web pages that may embed a chat, such as https://example.org. A new key: none.")
    add(
        "--per-minute", type=int, dest="requests_per_minute", metavar="N", help="How often, in any minute; 0: no limit."
    )
    add("--turns-at-once", type=int, metavar="N", help="How many of its turns may be open at a time; 0: no limit.")
    add(
        "--cancel-on-disconnect",
        choices=["yes", "no"],
        help="Whether a client of /v1 that goes away cancels its turn. A new key: no.",
    )
    add("--expires", type=int, metavar="DAYS", help="Refuse it after so many days.")


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line, by the names of a key's fields."""
    days = options["expires"]
    if days is not None and not 0 < days <= MAX_DAYS:
        raise CommandError(f"--expires is a number of days above 0, {MAX_DAYS} at most.")
    until: datetime | None = timezone.now() + timedelta(days=days) if days else None
    numbers = {
        name: options[name] or None for name in ("requests_per_minute", "turns_at_once") if options[name] is not None
    }
    said = {
        "name": options["name"],
        "scopes": options["scopes"],
        "agent_names": options["agents"],
        "model_names": options["models"],
        "networks": options["networks"],
        "allowed_origins": options["origins"],
        "cancel_on_disconnect": options["cancel_on_disconnect"] and options["cancel_on_disconnect"] == "yes",
        "expires_at": until,
    }
    return {name: value for name, value in said.items() if value is not None} | numbers


def _may(key: ApiKey) -> list[str]:
    """What a key may do, in words."""
    said = [",".join(key.scopes), f"agents {','.join(key.agent_names) or 'that are public'}"]
    if key.model_names:
        said.append(f"models {','.join(key.model_names)}")
    if key.networks:
        said.append(f"from {','.join(key.networks)}")
    if key.allowed_origins:
        said.append(f"embedded by {','.join(key.allowed_origins)}")
    if key.requests_per_minute:
        said.append(f"{key.requests_per_minute} a minute")
    if key.turns_at_once:
        said.append(f"{key.turns_at_once} turns at once")
    if key.cancel_on_disconnect:
        said.append("cancels when its client goes")
    return [*said, key.name] if key.name else said


def _key(prefix: str) -> ApiKey:
    wanted = prefix.removeprefix("nh_").split("_")[0]
    found = ApiKey.objects.select_related("owner").filter(prefix=wanted)
    key: ApiKey | None = None if UNSTORABLE.search(wanted) else found.first()
    if key is None:
        raise CommandError(f"There is no key with the prefix {wanted!r}; `manage.py keys list` lists them.")
    return key


def _said(error: ValidationError) -> str:
    by_field = error.message_dict.items()
    named = [(_OPTIONS.get(name, "--" + name.replace("_", "-")), said) for name, said in by_field]
    return "; ".join(f"{name}: {' '.join(said)}" for name, said in named)
