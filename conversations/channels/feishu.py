"""Feishu, outside China Lark, by its open platform (https://open.feishu.cn/document): told of events by requests that
are encrypted and signed. The protocol of its websocket is not published."""

import base64
import binascii
import hashlib
import hmac
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from conversations.attachments.parts import SentFile
from conversations.channel_models import MAX_PLATFORM_ID
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
from nanohost.lib.errors import InvalidRequest
from nanohost.lib.rest import load_json
from tools.outbound.client import Answer

SERVER = "https://open.feishu.cn/open-apis"
# A request that nobody answers is made again after 15 s, 5 min, 1 h and 6 h; one that is older is a replay.
WINDOW = 8 * 3600
# Seconds that Feishu waits for an answer, of which a look-up may take so many.
LOOK_UP = 2.0
# Kinds of media: the name of its key, and of a file that has none.
MEDIA = {
    "image": ("image_key", "image.jpg"),
    "file": ("file_key", "file"),
    "audio": ("file_key", "audio.opus"),
    "media": ("file_key", "video.mp4"),
}
# Reactions have names there.
EMOJI = {
    "👍": "THUMBSUP",
    "❤": "HEART",
    "👌": "OK",
    "✅": "DONE",
    "👏": "APPLAUSE",
    "😄": "SMILE",
    "😂": "LOL",
    "🙏": "THANKS",
    "🤔": "THINKING",
    "😢": "CRY",
    "🎉": "PARTY",
}
_EMOJI_NAME, _MENTION = re.compile(r"[A-Za-z]{1,40}"), re.compile(r"<(?=/?at\b)", re.IGNORECASE)
# What is said of too many requests, of one token that no longer counts, and of faults that pass.
_TOO_MANY, _TOKEN, _FOR_NOW = (99991400, 230020, 11232, 11233), (99991661, 99991663, 99991668), (1663, 2200, 230049)

_tokens = Tokens()


class Feishu(Platform):
    """An app with a bot."""

    kind, title = "feishu", "Feishu (Lark)"
    # A card has 30 KB. Of a uuid Feishu knows for an hour that it has had it.
    capabilities = Capabilities(
        text_limit=6000,
        tells_duplicates=True,
        remembers_for=3000.0,
        buttons=10,
        edits=True,
        reacts=True,
        files=True,
        captions=False,
    )
    taken = 200
    fields = (
        Setting(name="app_id", words="the app's id, cli_…", check=fields.text, is_needed=True),
        Setting(name="app_secret", words="the variable that has the app's secret", check=fields.secret, is_needed=True),
        Setting(
            name="encrypt_key",
            words="the variable that has the Encrypt Key of its events",
            check=fields.secret,
            is_needed=True,
        ),
        Setting(
            name="verification_token",
            words="the variable that has the Verification Token of its events",
            check=fields.secret,
            is_needed=True,
        ),
        Setting(name="open_id", words="the bot's own open_id, used in mentions", check=fields.text),
        fields.groups("groups"),
        Setting(name="server", words="the API's address; Lark's has another", check=fields.url, default=SERVER),
    )

    # --- what comes in -----------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Mapping[str, Any] | None:
        """The question whether somebody is there is encrypted, and not signed."""
        said = self._opened(request)
        if text_at(said, "type") != "url_verification":
            return None
        self._check_token(text_at(said, "token", most=200))
        return {"challenge": text_at(said, "challenge", most=1000)}

    def parse(self, request: Request) -> Sequence[Event]:
        self._check_signature(request)
        said = self._opened(request)
        self._check_token(text_at(said, "header", "token", most=200))
        event, event_id = at(said, "event"), text_at(said, "header", "event_id", most=MAX_PLATFORM_ID)
        if not event_id:
            return ()
        match text_at(said, "header", "event_type", most=100):
            case "im.message.receive_v1":
                return self._message(event)
            case "im.message.reaction.created_v1":
                return self._reaction(event, event_id)
            case "card.action.trigger":
                return self._choice(event, event_id)
        return ()

    def _check_signature(self, request: Request) -> None:
        names = ("x-lark-request-timestamp", "x-lark-request-nonce", "x-lark-signature")
        stamp, nonce, given = (request.headers.get(name, "") for name in names)
        if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12) or abs(time.time() - int(stamp)) > WINDOW:
            raise NotGenuine(f"X-Lark-Request-Timestamp: seconds since 1970 are needed, of the last {WINDOW} s.")
        signed = f"{stamp}{nonce}{self.secret('encrypt_key')}".encode(errors="replace") + request.body
        if not hmac.compare_digest(given.encode(errors="replace"), hashlib.sha256(signed).hexdigest().encode()):
            raise NotGenuine("X-Lark-Signature: it is not of this app's Encrypt Key.")

    def _is_signed(self, request: Request) -> bool:
        try:
            self._check_signature(request)
        except NotGenuine:
            return False
        return True

    def _opened(self, request: Request) -> Any:
        """What an encrypted request says; raises :class:`NotGenuine` for another."""
        sealed = text_at(load_json(request.body), "encrypt", most=10_000_000)
        key = hashlib.sha256(self.secret("encrypt_key").encode()).digest()
        try:
            raw = base64.b64decode(sealed, validate=True)
            opener = Cipher(algorithms.AES256(key), modes.CBC(raw[:16])).decryptor()
            padded = opener.update(raw[16:]) + opener.finalize()
            unpad = PKCS7(128).unpadder()
            return load_json(unpad.update(padded) + unpad.finalize())
        except (ValueError, binascii.Error, InvalidRequest) as error:
            if isinstance(error, InvalidRequest) and self._is_signed(request):
                raise
            # One answer for both: who can tell bad padding from bad JSON opens what somebody else has sealed. Another
            # key's padding looks right once in 256 times.
            raise NotGenuine("The request is not encrypted by this app's Encrypt Key.") from None

    def _check_token(self, given: str) -> None:
        if not hmac.compare_digest(given.encode(errors="replace"), self.secret("verification_token").encode()):
            raise NotGenuine("token: it is not this app's Verification Token.")

    def _message(self, event: Any) -> Sequence[Event]:
        message, sender_id = at(event, "message"), text_at(event, "sender", "sender_id", "open_id", most=100)
        chat_id, message_id = text_at(message, "chat_id", most=100), text_at(message, "message_id", most=100)
        if not (chat_id and message_id and sender_id) or text_at(event, "sender", "sender_type") != "user":
            return ()
        content, kind = _inner(message), text_at(message, "message_type", most=50)
        text = _without(_text(content, kind), list_at(message, "mentions"))
        media = _media(content, kind)
        if not text.strip() and not media:
            return ()
        found = Event(
            external_id=message_id,
            chat_id=chat_id,
            # A thread is answered by its first message.
            thread=text_at(message, "root_id", most=100) if text_at(message, "thread_id") else "",
            sender_id=sender_id,
            message_id=message_id,
            text=text,
            is_called=text_at(message, "chat_type") == "p2p" or self._is_called(message),
            fetch=(lambda: [self._file(message_id, *each) for each in media]) if media else None,
        )
        return (found,)

    def _is_called(self, message: Any) -> bool:
        """Whether a message of a group is for the agent."""
        called = [text_at(each, "id", "open_id", most=100) for each in list_at(message, "mentions")]
        own = self.setting("open_id")
        return own in called if own else bool(called)

    def _reaction(self, event: Any, event_id: str) -> Sequence[Event]:
        sender_id, about = text_at(event, "user_id", "open_id", most=100), text_at(event, "message_id", most=100)
        emoji = text_at(event, "reaction_type", "emoji_type", most=100)
        if not (sender_id and about and emoji) or text_at(event, "operator_type") != "user":
            return ()
        # The event does not say where.
        told = self._read(f"/im/v1/messages/{quote(about, safe='')}", seconds=LOOK_UP)
        chat_id = text_at(next(iter(list_at(told, "data", "items")), None), "chat_id", most=100)
        if not chat_id:
            return ()
        named: dict[str, Any] = {
            "external_id": event_id,
            "chat_id": chat_id,
            "sender_id": sender_id,
            "message_id": about,
        }
        return (Event(kind="reaction", text=f":{emoji}:", **named),)

    def _choice(self, event: Any, event_id: str) -> Sequence[Event]:
        sender_id, value = text_at(event, "operator", "open_id", most=100), text_at(event, "action", "value", "choice")
        where = at(event, "context")
        chat_id, about = text_at(where, "open_chat_id", most=100), text_at(where, "open_message_id", most=100)
        if not (sender_id and value and chat_id and about):
            return ()
        named: dict[str, Any] = {
            "external_id": event_id,
            "chat_id": chat_id,
            "sender_id": sender_id,
            "message_id": about,
        }
        return (Event(kind="choice", text=value[:64], **named),)

    def _file(self, message_id: str, kind: str, key: str, name: str) -> SentFile:
        query = urlencode({"type": "image" if kind == "image" else "file"})
        place = f"/im/v1/messages/{quote(message_id, safe='')}/resources/{quote(key, safe='')}?{query}"
        return calls.file(f"{self._server()}{place}", name=name, headers=self._signed_in())

    # --- what goes out -----------------------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage, key: str) -> str:
        return self._send(message, key, {"msg_type": "interactive", "content": _card(message)})

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        assert message.file
        about = {"file_type": "stream", "file_name": message.file.name}
        form, headers = calls.multipart(about, "file", message.file)
        try:
            answer = calls.send(f"{self._server()}/im/v1/files", body=form, headers=self._signed_in() | headers)
            self._judge(answer)
        except InDoubt as error:  # what was uploaded is seen by nobody
            raise Retry(str(error), status=error.status) from None
        file_key = text_at(calls.said_in(answer), "data", "file_key", most=300)
        return self._send(message, key, {"msg_type": "file", "content": json.dumps({"file_key": file_key})})

    def _send(self, message: OutgoingMessage, key: str, told: dict[str, Any]) -> str:
        # A uuid has 50 characters at most.
        told |= {"uuid": hashlib.sha256(key.encode()).hexdigest()[:50]}
        if message.thread:
            place = f"/im/v1/messages/{quote(message.thread, safe='')}/reply"
            said = self._do("POST", place, told | {"reply_in_thread": True})
        else:
            said = self._do("POST", "/im/v1/messages?receive_id_type=chat_id", told | {"receive_id": message.chat_id})
        return text_at(said, "data", "message_id", most=100)

    def edit(self, message: OutgoingMessage, key: str) -> None:
        self._do("PATCH", f"/im/v1/messages/{quote(message.message_id, safe='')}", {"content": _card(message)})

    def react(self, message: OutgoingMessage, key: str) -> None:
        plain = message.emoji.replace("\ufe0f", "")
        name = EMOJI.get(plain, plain.strip(":"))
        if not _EMOJI_NAME.fullmatch(name):
            raise Permanent("Feishu knows reactions by their names: give one such as THUMBSUP")
        place = f"/im/v1/messages/{quote(message.message_id, safe='')}/reactions"
        self._do("POST", place, {"reaction_type": {"emoji_type": name}})

    def _do(self, method: str, place: str, told: Mapping[str, Any]) -> dict[str, Any]:
        answer = calls.send(f"{self._server()}{place}", body=told, headers=self._signed_in(), method=method)
        self._judge(answer)
        return calls.said_in(answer)

    def _read(self, place: str, *, seconds: float) -> dict[str, Any]:
        answer = calls.ask(f"{self._server()}{place}", headers=self._signed_in(seconds=seconds), seconds=seconds)
        try:
            self._judge(answer)
        except InDoubt as error:
            raise Retry(str(error), status=error.status) from None
        return calls.said_in(answer)

    def _judge(self, answer: Answer) -> None:
        """Raise what an answer means that is no yes; Feishu says most of its errors by a number."""
        said = calls.said_in(answer)
        number, words = at(said, "code"), text_at(said, "msg", most=300)
        if number in _TOKEN:
            _tokens.forget(*self._asked_with())
            raise Retry(f"It answered {words or number}", status=answer.status)
        if number in _TOO_MANY:
            wait = calls.wait_in(_seconds(answer.headers.get("x-ogw-ratelimit-reset", ""))) or 1.0
            raise Retry(f"It answered {words or number}", after=wait, status=answer.status, everything=True)
        calls.judge(answer, words=words)
        if number in _FOR_NOW:
            raise Retry(f"It answered {words or number}", status=answer.status)
        if not isinstance(number, int):
            raise InDoubt("It answered with no JSON", status=answer.status)
        if number != 0:
            raise Permanent(f"It answered {number}: {words}", status=answer.status)

    def _signed_in(self, *, seconds: float = calls.SECONDS) -> dict[str, str]:
        """By the tenant's token."""
        token = _tokens.of(*self._asked_with(), ask=lambda: self._new_token(seconds))
        return {"Authorization": f"Bearer {token}"}

    def _new_token(self, seconds: float) -> tuple[str, float]:
        server, app_id, secret = self._asked_with()
        asked = {"app_id": app_id, "app_secret": secret}
        answer = calls.ask(f"{server}/auth/v3/tenant_access_token/internal", body=asked, seconds=seconds)
        said = calls.said_in(answer)
        calls.judge_news(answer, words=text_at(said, "msg", most=300))
        if not (token := text_at(said, "tenant_access_token", most=1000)):
            raise Permanent(f"It gives no token: {text_at(said, 'msg', most=300) or 'app_id or app_secret is wrong'}")
        return token, calls.wait_in(at(said, "expire"))

    def _asked_with(self) -> tuple[str, str, str]:
        return self._server(), self.setting("app_id"), self.secret("app_secret")

    def _server(self) -> str:
        return str(self.setting("server")).rstrip("/")


def _card(message: OutgoingMessage) -> str:
    """A card, since a card can be changed and has buttons. It calls nobody, whatever its text says."""
    text = _MENTION.sub("&#60;", dialects.discord(message.text, most=Feishu.capabilities.text_limit))
    elements: list[dict[str, Any]] = [{"tag": "markdown", "content": text}]
    if message.options:
        buttons = [
            {
                "tag": "button",
                "text": {"tag": "plain_text", "content": each.label[:100]},
                "type": "default",
                "value": {"choice": each.value},
            }
            for each in message.options
        ]
        elements.append({"tag": "action", "actions": buttons})
    return json.dumps({"config": {"update_multi": True}, "elements": elements}, ensure_ascii=False)


def _inner(message: Any) -> Any:
    """A message's content, which is JSON in a text."""
    try:
        return json.loads(text_at(message, "content"))
    except (ValueError, RecursionError):
        return None


def _media(content: Any, kind: str) -> Sequence[tuple[str, str, str]]:
    """Its files: of which kind, by which key, and what they are called. A post has pictures between its words."""
    if kind == "post":
        keys = [
            text_at(each, "image_key", most=300)
            for line in list_at(content, "content")
            for each in (line if isinstance(line, list) else ())
        ]
        return [("image", key, "image.jpg") for key in keys if key][: calls.MAX_FILES]
    field, name = MEDIA.get(kind, ("", ""))
    key = text_at(content, field, most=300) if field else ""
    return [(kind, key, text_at(content, "file_name", most=100) or name)] if key else ()


def _text(content: Any, kind: str) -> str:
    """What a text says, or a post, line by line."""
    if kind != "post":
        return text_at(content, "text") if kind == "text" else ""
    lines = [text_at(content, "title", most=1000)]
    for line in list_at(content, "content"):
        lines.append("".join(text_at(each, "text") for each in (line if isinstance(line, list) else ())))
    return "\n".join(each for each in lines if each)[:100_000]


def _without(text: str, mentions: Sequence[Any]) -> str:
    """As it was typed: the first mention is of the bot, others are of people."""
    for each in mentions[:50]:
        if key := text_at(each, "key", most=50):
            text = text.replace(key, f"@{text_at(each, 'name', most=100)}")
    return text.strip()


def _seconds(value: str) -> int:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 8 else 0
