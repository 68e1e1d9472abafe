"""The platforms there are: the host's own, and those that packages bring by the entry point group
``nanohost.channels``."""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from conversations.channels.base import Platform

GROUP = "nanohost.channels"

# By kind: module and class. Each is loaded by the first channel of its kind: what they need takes a process 12 MB.
OWN = {
    "webhook": ("webhook", "Webhook"),
    "telegram": ("telegram", "Telegram"),
    "slack": ("slack", "Slack"),
    "matrix": ("matrix", "Matrix"),
    "email": ("mail", "Mail"),
    "discord": ("discord", "Discord"),
    "whatsapp": ("whatsapp", "WhatsApp"),
    "feishu": ("feishu", "Feishu"),
    "dingtalk": ("dingtalk", "DingTalk"),
    "qq": ("qq", "QQ"),
}


class NoSuchPlatform(Exception):
    """A channel is of a kind that this process has no class for."""


@cache
def platforms() -> dict[str, type[Platform]]:
    """All of them, by their kind."""
    return {kind: platform_of(kind) for kind in (*_brought(), *OWN)}


@cache
def platform_of(kind: str) -> type[Platform]:
    """The class of a kind, loaded if it was not; raises :class:`NoSuchPlatform`. What a package calls like one of the
    host's own does not take its place."""
    if kind in OWN:
        module, name = OWN[kind]
        own: type[Platform] = getattr(import_module(f"conversations.channels.{module}"), name)
        return own
    try:
        return _brought()[kind]
    except KeyError:
        known = ", ".join(sorted({*_brought(), *OWN}))
        raise NoSuchPlatform(f"There is no channel of the kind {kind}; there are: {known}") from None


@cache
def _brought() -> dict[str, type[Platform]]:
    loaded = [entry.load() for entry in entry_points(group=GROUP)]
    return {each.kind: each for each in loaded}
