"""WhatsApp, by its Cloud API (https://developers.facebook.com/docs/whatsapp/cloud-api): told of messages by a webhook,
signed with the app's secret."""

import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

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
from nanohost.lib.rest import load_json
from tools.outbound.client import Answer

SERVER = "https://graph.facebook.com/v23.0"
# A message is told of for a week; one that is older is a replay. Its id is remembered for longer than that.
OLDEST = 8 * 24 * 3600.0
# Kinds of media, each with the name of a file that has none.
MEDIA = {
    "document": "file",
    "image": "image.jpg",
    "audio": "audio.ogg",
    "video": "video.mp4",
    "sticker": "sticker.webp",
}
# What is shown as a picture; all else is a document.
PICTURES = ("image/jpeg", "image/png")
# Where media lies, beside the API itself; the token goes nowhere else.
_MEDIA_HOSTS = (".fbsbx.com", ".facebook.com", ".whatsapp.net")
# Of a message with buttons, and of a button.
_MAX_BODY, _MAX_LABEL = 1024, 20

# By the error's number: what people can do, and what passes by itself.
WORDS = {
    131047: "More than 24 hours have passed since this person last wrote: no text is taken until they write again",
    131026: "WhatsApp cannot deliver to this person: they have no WhatsApp, or have not accepted its terms",
    131030: "This person is not on the list of recipients of the app's test number",
    190: "The access token is wrong or has expired",
}
_FOR_NOW = (4, 80007, 130429, 131048, 131056, 131016)


class WhatsApp(Platform):
    """A telephone number of a business."""

    kind, title = "whatsapp", "WhatsApp"
    # 4,096 characters; marks add to a text.
    capabilities = Capabilities(text_limit=3500, buttons=3, reacts=True, files=True, typing=True)
    taken = 200  # others are told again
    fields = (
        Setting(
            name="number", words="the id of the telephone number (Phone number ID)", check=fields.digits, is_needed=True
        ),
        Setting(name="token", words="the variable that has the access token", check=fields.secret, is_needed=True),
        Setting(name="app_secret", words="the variable that has the app's secret", check=fields.secret, is_needed=True),
        Setting(
            name="verify_token",
            words="the variable with the token that verifies the address; any text that you choose",
            check=fields.secret,
            is_needed=True,
        ),
        Setting(name="server", words="the Graph API's address", check=fields.url, default=SERVER),
    )

    # --- what comes in -----------------------------------------------------------------------------------------------

    def confirm(self, query: Mapping[str, str]) -> str | None:
        given = query.get("hub.verify_token", "")
        if query.get("hub.mode") != "subscribe" or not hmac.compare_digest(
            given.encode(errors="replace"), self.secret("verify_token").encode()
        ):
            raise NotGenuine("hub.verify_token: it is not this channel's.")
        return query.get("hub.challenge", "")[:500]

    def parse(self, request: Request) -> Sequence[Event]:
        made = hmac.new(self.secret("app_secret").encode(), request.body, hashlib.sha256).hexdigest()
        given = request.headers.get("x-hub-signature-256", "")
        if not hmac.compare_digest(given.encode(errors="replace"), f"sha256={made}".encode()):
            raise NotGenuine("X-Hub-Signature-256: it is not of this app's secret.")
        said = load_json(request.body)
        changes = [change for entry in list_at(said, "entry") for change in list_at(entry, "changes")]
        return [event for change in changes for event in self._changed(change)]

    def _changed(self, change: Any) -> Sequence[Event]:
        value = at(change, "value")
        if text_at(change, "field") != "messages":
            return ()
        if text_at(value, "metadata", "phone_number_id", most=50) != self.setting("number"):
            return ()  # of another number of the same app
        names = {
            text_at(each, "wa_id", most=50): text_at(each, "profile", "name", most=100)
            for each in list_at(value, "contacts")
        }
        return [event for message in list_at(value, "messages") for event in self._message(message, names)]

    def _message(self, message: Any, names: Mapping[str, str]) -> Sequence[Event]:
        sender_id, identity = text_at(message, "from", most=50), text_at(message, "id", most=300)
        stamp = text_at(message, "timestamp", most=12)
        if not (sender_id and identity and stamp.isascii() and stamp.isdigit()) or len(identity) > MAX_PLATFORM_ID:
            return ()
        if time.time() - int(stamp) > OLDEST:
            return ()
        told: dict[str, Any] = {"external_id": identity, "chat_id": sender_id, "sender_id": sender_id}
        told |= {"sender_name": names.get(sender_id, ""), "message_id": identity}
        kind = text_at(message, "type")
        if kind == "reaction":
            about, emoji = text_at(message, "reaction", "message_id", most=300), text_at(message, "reaction", "emoji")
            told |= {"message_id": about, "text": emoji[:100]}
            return (Event(**told, kind="reaction"),) if about and emoji else ()
        if kind == "interactive":
            return self._choice(message, told)
        media = at(message, kind) if kind in MEDIA else None
        text = text_at(message, "text", "body") or text_at(media, "caption") or text_at(message, "button", "text")
        media_id, name = text_at(media, "id", most=100), text_at(media, "filename", most=100) or MEDIA.get(kind, "")
        if not text.strip() and not media_id:
            return ()
        fetch = (lambda: [self._file(media_id, name)]) if media_id else None
        return (Event(**told, text=text, fetch=fetch),)

    def _choice(self, message: Any, told: dict[str, Any]) -> Sequence[Event]:
        value = text_at(message, "interactive", "button_reply", "id", most=256)
        about = text_at(message, "context", "id", most=300)
        return (Event(**told | {"message_id": about, "text": value}, kind="choice"),) if value else ()

    def _file(self, media_id: str, name: str) -> SentFile:
        """Its address, which lasts for minutes, and then what lies there."""
        answer = calls.ask(f"{self._server()}/{quote(media_id, safe='')}", headers=self._signed_in())
        _judge_news(answer)
        url = text_at(calls.said_in(answer), "url", most=2000)
        host, own = urlsplit(url).hostname or "", urlsplit(self._server())
        is_theirs = host.endswith(_MEDIA_HOSTS) and url.startswith("https://")
        if not is_theirs and not url.startswith(f"{own.scheme}://{own.netloc}/"):
            raise Permanent("A file lies at an address that is not WhatsApp's")
        return calls.file(url, name=name, headers=self._signed_in())

    # --- what goes out -----------------------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage, key: str) -> str:
        text = dialects.whatsapp(message.text)
        told: dict[str, Any] = {"type": "text", "text": {"body": text, "preview_url": False}}
        if message.options:
            told = {"type": "interactive", "interactive": _question(text, message)}
        if message.in_reply_to and message.part == 1:
            told["context"] = {"message_id": message.in_reply_to}
        return self._send(message, told)

    def react(self, message: OutgoingMessage, key: str) -> None:
        reaction = {"message_id": message.message_id, "emoji": message.emoji}
        self._send(message, {"type": "reaction", "reaction": reaction})

    def show_typing(self, message: OutgoingMessage) -> None:
        if message.began_by:  # it stands below a message, which it marks as read
            told = {"messaging_product": "whatsapp", "status": "read", "message_id": message.began_by}
            url = f"{self._server()}/{self.setting('number')}/messages"
            body = told | {"typing_indicator": {"type": "text"}}
            _judge(calls.send(url, body=body, headers=self._signed_in()))

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        assert message.file
        kind, body = calls.type_of(message.file), {"messaging_product": "whatsapp"}
        form, about = calls.multipart(body | {"type": kind}, "file", message.file)
        url = f"{self._server()}/{self.setting('number')}/media"
        try:
            answer = calls.send(url, body=form, headers=self._signed_in() | about)
            _judge(answer)
        except InDoubt as error:  # what was uploaded is seen by nobody
            raise Retry(str(error), status=error.status) from None
        media = {"id": text_at(calls.said_in(answer), "id", most=100)}
        if message.text:
            media["caption"] = dialects.whatsapp(message.text)[:_MAX_BODY]
        if kind in PICTURES:
            return self._send(message, {"type": "image", "image": media})
        return self._send(message, {"type": "document", "document": media | {"filename": message.file.name}})

    def _send(self, message: OutgoingMessage, told: Mapping[str, Any]) -> str:
        to = {"messaging_product": "whatsapp", "recipient_type": "individual", "to": message.chat_id}
        url = f"{self._server()}/{self.setting('number')}/messages"
        answer = calls.send(url, body=to | dict(told), headers=self._signed_in())
        _judge(answer)
        sent = next(iter(list_at(calls.said_in(answer), "messages")), None)
        return text_at(sent, "id", most=300)

    def _server(self) -> str:
        return str(self.setting("server")).rstrip("/")

    def _signed_in(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret('token')}"}


def _question(text: str, message: OutgoingMessage) -> dict[str, Any]:
    body = text if len(text) <= _MAX_BODY else f"{text[: _MAX_BODY - 1]}…"
    buttons = [
        {"type": "reply", "reply": {"id": each.value, "title": each.label[:_MAX_LABEL]}} for each in message.options
    ]
    return {"type": "button", "body": {"text": body}, "action": {"buttons": buttons}}


def _judge(answer: Answer) -> None:
    """Raise what an answer means that is no yes, by the number that the Graph API gives it."""
    error = at(calls.said_in(answer), "error")
    number = at(error, "code")
    details = text_at(error, "error_data", "details", most=200) or text_at(error, "message", most=200)
    if answer.status >= 400 and number in _FOR_NOW:
        raise Retry(f"It answered {answer.status}: {details}", after=60.0, status=answer.status, everything=True)
    words = WORDS.get(number, details) if isinstance(number, int) else details
    calls.judge(answer, words=words)


def _judge_news(answer: Answer) -> None:
    try:
        _judge(answer)
    except InDoubt as error:
        raise Retry(str(error), status=error.status) from None
