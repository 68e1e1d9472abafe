"""The platforms there are: the host's own, and those that packages bring by the entry point group
``nanohost.channels``."""

from functools import cache
from importlib.metadata import entry_points

from conversations.channels.base import Platform
from conversations.channels.discord import Discord
from conversations.channels.feishu import Feishu
from conversations.channels.mail import Mail
from conversations.channels.matrix import Matrix
from conversations.channels.slack import Slack
from conversations.channels.telegram import Telegram
from conversations.channels.webhook import Webhook
from conversations.channels.whatsapp import WhatsApp

GROUP = "nanohost.channels"

OWN: tuple[type[Platform], ...] = (Webhook, Telegram, Slack, Matrix, Mail, Discord, WhatsApp, Feishu)


class NoSuchPlatform(Exception):
    """A channel is of a kind that this process has no class for."""


@cache
def platforms() -> dict[str, type[Platform]]:
    """By their kind; what a package calls like one of the host's own does not take its place."""
    found: dict[str, type[Platform]] = {}
    for entry in entry_points(group=GROUP):
        brought = entry.load()
        found[brought.kind] = brought
    return found | {each.kind: each for each in OWN}


def platform_of(kind: str) -> type[Platform]:
    """The class of a kind; raises :class:`NoSuchPlatform`."""
    try:
        return platforms()[kind]
    except KeyError:
        known = ", ".join(sorted(platforms()))
        raise NoSuchPlatform(f"There is no channel of the kind {kind}; there are: {known}") from None
