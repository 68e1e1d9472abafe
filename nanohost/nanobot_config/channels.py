"""What an import makes of the channels of a config.json: the values of channels of this host. Pure.

A channel's settings name the files of its secrets by variables: ``CHANNEL_SECRET_NANOBOT_…`` is what the file of that
name in ``DATA_DIR/secrets/nanobot`` holds.
"""

from collections.abc import Callable, Mapping
from typing import Any

from conversations.channels.base import EVERYBODY
from conversations.channels.fields import IMPORTED
from nanohost.nanobot_config.parts import Part
from nanohost.nanobot_config.secret_files import STORED


class NoChannel(Exception):
    """No channel can be made of it here; the text says why."""


def values_of(name: str, part: Part) -> dict[str, Any]:
    """A channel's kind, settings and who may write by it; raises :class:`NoChannel`."""
    if name not in _MADE:
        raise NoChannel(_WHY_NOT[name])
    settings = {key: value for key, value in _MADE[name](_Said(part)).items() if value not in (None, "")}
    who = part.leaves.get(("allowFrom",)) or [EVERYBODY]
    return {"kind": name, "settings": settings, "allow_from": who}


class _Said:
    """What a file says of a channel."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._files = {each.place: each.file for each in part.secrets}

    def plain(self, name: str, default: Any = None) -> Any:
        """A value that is no secret. Some may be: they are for people to enter."""
        if (name,) in self._files:
            raise NoChannel(f"{name} holds a secret; enter it in the console")
        value = self._part.leaves.get((name,))
        return default if value is None else value

    def secret(self, name: str) -> str:
        """The variable that stands for a secret; empty if there is none."""
        file = self._files.get((name,), "")
        if file.startswith(f"{STORED}/"):
            return IMPORTED + file.removeprefix(f"{STORED}/").upper()
        if self._part.leaves.get((name,)):
            raise NoChannel(f"{name} refers to a variable; give its value, or name a secret in the console")
        return ""

    def groups(self) -> str:
        return "all" if self.plain("groupPolicy") == "open" else ""


def _email(said: _Said) -> Mapping[str, Any]:
    is_tls = said.plain("imapUseSsl", True)
    if bool(said.plain("smtpUseSsl", False)) != is_tls:
        raise NoChannel(
            "its servers are secured in two ways (imapUseSsl, smtpUseSsl); one is needed here: enter it in the console"
        )
    secured = "tls" if is_tls else "starttls" if said.plain("smtpUseTls", True) else "none"
    said.secret("smtpPassword")
    return {
        "address": said.plain("fromAddress") or said.plain("imapUsername"),
        "user": said.plain("imapUsername"),
        "password": said.secret("imapPassword"),
        "imap_host": said.plain("imapHost"),
        "imap_port": said.plain("imapPort"),
        "smtp_host": said.plain("smtpHost"),
        "smtp_port": said.plain("smtpPort"),
        "security": secured,
        "mailbox": said.plain("imapMailbox"),
        "every": said.plain("pollIntervalSeconds"),
    }


_MADE: Mapping[str, Callable[[_Said], Mapping[str, Any]]] = {
    "telegram": lambda said: {"token": said.secret("token")},
    "discord": lambda said: {"token": said.secret("token"), "groups": said.groups()},
    "feishu": lambda said: {
        "app_id": said.plain("appId"),
        "app_secret": said.secret("appSecret"),
        "encrypt_key": said.secret("encryptKey"),
        "verification_token": said.secret("verificationToken"),
    },
    "dingtalk": lambda said: {"client_id": said.plain("clientId"), "client_secret": said.secret("clientSecret")},
    "qq": lambda said: {"app_id": said.plain("appId"), "secret": said.secret("secret")},
    "matrix": lambda said: {
        "server": said.plain("homeserver"),
        "user": said.plain("userId"),
        "token": said.secret("accessToken"),
        "groups": said.groups(),
    },
    "email": _email,
}
_WHY_NOT = {
    "slack": "nanobot asks Slack by Socket Mode; here Slack tells of events, signed: enter its signing secret in the"
    " console",
    "whatsapp": "nanobot's bridge is no official one; here a number of the Cloud API is entered in the console",
    "mochat": "Mochat has not published its protocol, and this host has no channel of it",
}
