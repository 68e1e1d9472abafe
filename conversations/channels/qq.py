"""QQ, by its open platform's bots (https://bot.q.qq.com/wiki): told of messages by a webhook, signed by the bot's
secret. It takes answers alone, each to a message that somebody has written a few minutes ago."""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from conversations.channel_models import MAX_EXTERNAL_ID
from conversations.channels import calls, dialects, fields
from conversations.channels.base import (
    Capabilities,
    Event,
    InDoubt,
    NotGenuine,
    OutgoingMessage,
    Permanent,
    Platform,
    Request,
    Retry,
)
from conversations.channels.calls import at, list_at, text_at
from conversations.channels.fields import Setting
from conversations.channels.tokens import Tokens
from nanohost.lib.rest import load_json
from tools.outbound.client import Answer

SERVER = "https://api.sgroup.qq.com"
TOKEN_SERVER = "https://bots.qq.com"  # noqa: S105 -- an address
# Seconds that a request may be old. An event's id is remembered for longer.
WINDOW = 3600
# What a group's chat begins with, as nanobot has it; others are people.
GROUP = "group:"

DISPATCH, VERIFY = 0, 13
# It has had a message with this msg_id and msg_seq.
HAD = 40054005
_FOR_NOW = (22009, 20028, 304023)
# Only such texts are signed for whoever asks: nobody can have an event signed, which begins with a brace.
_ASKED = re.compile("[A-Za-z0-9_-]{1,128}")
_tokens = Tokens()


class QQ(Platform):
    """A bot."""

    kind, title = "qq", "QQ"
    # Of an answer it knows by its number that it has had it, as long as it takes answers to that message.
    capabilities = Capabilities(text_limit=2000, tells_duplicates=True)
    taken, taken_body = 200, {"op": 12}
    fields = (
        Setting(name="app_id", words="the bot's AppID", check=fields.digits, is_needed=True),
        Setting(name="secret", words="the variable that has the bot's AppSecret", check=fields.secret, is_needed=True),
        Setting(name="server", words="the API's address", check=fields.url, default=SERVER),
        Setting(name="token_server", words="the address that issues tokens", check=fields.url, default=TOKEN_SERVER),
    )

    # --- what comes in -----------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Mapping[str, Any] | None:
        """QQ makes sure of the address by having a text signed."""
        said = load_json(request.body)
        if at(said, "op") != VERIFY:
            return None
        text, stamp = text_at(said, "d", "plain_token"), text_at(said, "d", "event_ts", most=20)
        if not _ASKED.fullmatch(text) or not (stamp.isascii() and stamp.isdigit()):
            raise NotGenuine("plain_token: letters and digits are needed.")
        return {"plain_token": text, "signature": self._key().sign(f"{stamp}{text}".encode()).hex()}

    def parse(self, request: Request) -> Sequence[Event]:
        self._check_signature(request)
        said = load_json(request.body)
        if at(said, "op") != DISPATCH:
            return ()
        told = at(said, "d")
        match text_at(said, "t", most=100):
            case "C2C_MESSAGE_CREATE":
                sender_id = text_at(told, "author", "user_openid", most=100)
                return self._message(told, sender_id, sender_id)
            case "GROUP_AT_MESSAGE_CREATE":
                group = text_at(told, "group_openid", most=100)
                return self._message(told, text_at(told, "author", "member_openid", most=100), group and GROUP + group)
        return ()

    def _check_signature(self, request: Request) -> None:
        stamp, given = (request.headers.get(f"x-signature-{name}", "") for name in ("timestamp", "ed25519"))
        if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12) or abs(time.time() - int(stamp)) > WINDOW:
            raise NotGenuine(f"X-Signature-Timestamp: seconds since 1970 are needed, of the last {WINDOW} s.")
        try:
            self._key().public_key().verify(bytes.fromhex(given), stamp.encode() + request.body)
        except (ValueError, InvalidSignature):
            raise NotGenuine("X-Signature-Ed25519: it is not of this bot's secret.") from None

    def _key(self) -> Ed25519PrivateKey:
        """Made of the secret, again and again until there are 32 bytes."""
        secret = self.secret("secret").encode()
        return Ed25519PrivateKey.from_private_bytes((secret * (32 // len(secret) + 1))[:32])

    def _message(self, told: Any, sender_id: str, chat_id: str) -> Sequence[Event]:
        message_id, text = text_at(told, "id", most=MAX_EXTERNAL_ID), text_at(told, "content").strip()
        files = [
            (text_at(each, "url", most=2000), text_at(each, "filename", most=100) or "file")
            for each in list_at(told, "attachments")[: calls.MAX_FILES]
        ]
        files = [(url, name) for url, name in files if url]
        if not (sender_id and chat_id and message_id) or not (text or files):
            return ()
        found = Event(
            external_id=message_id,
            chat_id=chat_id,
            sender_id=sender_id,
            message_id=message_id,
            text=text,
            fetch=(lambda: [calls.file(url, name=name) for url, name in files]) if files else None,
        )
        return (found,)

    # --- what goes out -----------------------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage, key: str) -> str:
        answered = message.in_reply_to or message.began_by
        if not answered:
            raise Permanent("QQ accepts only replies to recent messages")
        told = {"msg_type": 0, "content": dialects.plain(message.text), "msg_id": answered, "msg_seq": _number(key)}
        answer = calls.send(f"{self._server()}{_place(message.chat_id)}", body=told, headers=self._signed_in())
        said = calls.said_in(answer)
        if at(said, "code") == HAD:
            return ""
        self._judge(answer, said)
        return text_at(said, "id", most=MAX_EXTERNAL_ID)

    def _judge(self, answer: Answer, said: Mapping[str, Any]) -> None:
        words = text_at(said, "message", most=300)
        if answer.status == 401:
            _tokens.forget(*self._asked_with())
            raise Retry(f"It answered {answer.status}: {words}", status=answer.status)
        if answer.status >= 400 and at(said, "code") in _FOR_NOW:
            raise Retry(f"It answered {answer.status}: {words}", after=60.0, status=answer.status, everything=True)
        calls.judge(answer, words=words)
        if not said:
            raise InDoubt("It answered with no JSON", status=answer.status)

    def _signed_in(self) -> dict[str, str]:
        return {"Authorization": f"QQBot {_tokens.of(*self._asked_with(), ask=self._new_token)}"}

    def _new_token(self) -> tuple[str, float]:
        url, app_id, secret = self._asked_with()
        answer = calls.ask(f"{url}/app/getAppAccessToken", body={"appId": app_id, "clientSecret": secret})
        said = calls.said_in(answer)
        calls.judge_news(answer, words=text_at(said, "message", most=300))
        token, lasts = text_at(said, "access_token", most=1000), text_at(said, "expires_in", most=8)
        if not token:
            raise Permanent(f"It gives no token: {text_at(said, 'message', most=300) or 'app_id or secret is wrong'}")
        return token, float(lasts) if lasts.isascii() and lasts.isdigit() else 0.0

    def _asked_with(self) -> tuple[str, str, str]:
        return str(self.setting("token_server")).rstrip("/"), self.setting("app_id"), self.secret("secret")

    def _server(self) -> str:
        return str(self.setting("server")).rstrip("/")


def _place(chat_id: str) -> str:
    whose = "groups" if chat_id.startswith(GROUP) else "users"
    return f"/v2/{whose}/{quote(chat_id.removeprefix(GROUP), safe='')}/messages"


def _number(key: str) -> int:
    """The same for each attempt of a message, and another for another one: a few answer one message."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % (2**31 - 1) + 1
