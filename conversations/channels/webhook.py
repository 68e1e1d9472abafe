"""A channel to a program of one's own: signed messages in and out, as https://www.standardwebhooks.com says."""

import base64
import json
import time
from collections.abc import Sequence
from typing import Any

from conversations.attachments import parts
from conversations.attachments.parts import SentFile
from conversations.channel_models import MAX_EXTERNAL_ID, MAX_PLATFORM_ID
from conversations.channels import calls, fields
from conversations.channels.base import Capabilities, Event, NotGenuine, OutgoingMessage, Permanent, Platform, Request
from conversations.channels.fields import Setting
from conversations.deliveries import signatures
from nanohost.lib.errors import InvalidRequest
from nanohost.lib.rest import load_json

# A message may be so old, in seconds, or so much ahead of this machine's clock.
WINDOW = 300

KINDS = ("message", "edit", "reaction", "choice")

MAX_TEXT_CHARS = 100_000

# What says something in an event that is no text.
_TEXT_OF = {"reaction": "emoji", "choice": "value"}


class Webhook(Platform):
    """A program that speaks the host's own form."""

    kind, title = "webhook", "Signed webhook"
    capabilities = Capabilities(
        text_limit=16_000,
        tells_duplicates=True,
        signs=True,
        reads_answers=True,
        buttons=10,
        edits=True,
        reacts=True,
        files=True,
    )
    fields = (
        Setting(name="url", words="the address that messages are sent to", check=fields.url),
        fields.groups("groups"),
    )

    def parse(self, request: Request) -> Sequence[Event]:
        verify(request, self.account.secrets())
        said = load_json(request.body)
        return [_event(said, request.headers["webhook-id"])]

    def send(self, message: OutgoingMessage, key: str) -> str:
        return self._post(body_of(message, key), key)

    def edit(self, message: OutgoingMessage, key: str) -> None:
        self._post(body_of(message, key, kind="edit"), key)

    def react(self, message: OutgoingMessage, key: str) -> None:
        self._post(body_of(message, key, kind="reaction"), key)

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        return self._post(body_of(message, key, kind="file"), key)

    def _post(self, body: bytes, key: str) -> str:
        url = self.setting("url")
        if not url:
            raise Permanent("The channel has no address to send to: enter one in its settings")
        signed = signatures.headers_of(
            message_id=key, timestamp=int(time.time()), body=body, secrets_now=self.account.secrets()
        )
        answer = calls.send(url, body=body, headers={"Content-Type": "application/json", **signed})
        calls.judge(answer)
        return _id_in(answer.body)


def verify(request: Request, secrets: Sequence[str]) -> None:
    """Raise :class:`NotGenuine` unless one of the secrets has signed this, lately."""
    message_id = request.headers.get("webhook-id", "")
    stamp, given = request.headers.get("webhook-timestamp", ""), request.headers.get("webhook-signature", "")
    if not (message_id and len(message_id) <= MAX_EXTERNAL_ID and message_id.isprintable()):
        raise NotGenuine(f"webhook-id: an id of 1 to {MAX_EXTERNAL_ID} printable characters is needed.")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise NotGenuine("webhook-timestamp: seconds since 1970 are needed.")
    if abs(time.time() - int(stamp)) > WINDOW:
        raise NotGenuine(f"webhook-timestamp: it is more than {WINDOW} s off this host's clock.")
    if not signatures.is_signed(
        given, message_id=message_id, timestamp=int(stamp), body=request.body, secrets_now=secrets
    ):
        raise NotGenuine("webhook-signature: none of the signatures is of this channel's secret.")


def _event(said: Any, event_id: str) -> Event:
    if not isinstance(said, dict):
        raise InvalidRequest("An object is needed: type, chatId, sender, text.")
    kind = said.get("type", "message")
    if kind not in KINDS:
        raise InvalidRequest(f"type: one of {', '.join(KINDS)} is needed.")
    sender = said.get("sender")
    if not isinstance(sender, dict):
        raise InvalidRequest('sender: an object is needed, {"id": "…", "name": "…"}.')
    text = said.get(_TEXT_OF.get(kind, "text"), "")
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(f"text: a text of at most {MAX_TEXT_CHARS} characters is needed.")
    files = _files(said.get("files", []))
    if not text.strip() and not files:
        raise InvalidRequest(f"{_TEXT_OF.get(kind, 'text')}: something has to be said.")
    return Event(
        external_id=event_id,
        kind=kind,
        chat_id=_id(said, "chatId"),
        thread=_id(said, "threadId", is_needed=False),
        sender_id=_id(sender, "id", at="sender.id"),
        sender_name=str(sender.get("name", ""))[:100],
        message_id=_id(said, "messageId", is_needed=kind != "message", most=MAX_EXTERNAL_ID),
        text=text,
        files=files,
        is_called=_is_called(said),
    )


def _is_called(said: dict[str, Any]) -> bool:
    mentioned = said.get("mentioned", True)
    if not isinstance(mentioned, bool):
        raise InvalidRequest("mentioned: true or false is needed.")
    return mentioned


def _id(said: dict[str, Any], name: str, *, at: str = "", is_needed: bool = True, most: int = MAX_PLATFORM_ID) -> str:
    found = said.get(name, "")
    if not isinstance(found, str) or len(found) > most or not found.isprintable() or (is_needed and not found):
        raise InvalidRequest(f"{at or name}: a text of {int(is_needed)} to {most} printable characters is needed.")
    return found


def _files(said: Any) -> Sequence[SentFile]:
    if said == []:
        return ()
    if not isinstance(said, list):
        raise InvalidRequest('files: a list is needed, of {"name": "…", "data": base64} or {"name": "…", "url": "…"}.')
    told = [each | {"type": "file"} if isinstance(each, dict) else each for each in said]
    return parts.parse(told, most=calls.MAX_FILES, max_bytes=calls.MAX_FILE_BYTES, at="files").files


def body_of(message: OutgoingMessage, key: str, *, kind: str = "message") -> bytes:
    """What goes out, the same bytes at each attempt."""
    told: dict[str, Any] = {"type": kind, "id": key, "chatId": message.chat_id}
    optional: dict[str, Any] = {"threadId": message.thread, "inReplyTo": message.in_reply_to, "text": message.text}
    optional |= {"messageId": message.message_id, "emoji": message.emoji}
    optional["options"] = [{"label": each.label, "value": each.value} for each in message.options]
    if message.file:
        data = base64.b64encode(message.file.data).decode()
        optional["file"] = {"name": message.file.name, "type": calls.type_of(message.file), "data": data}
    told |= {name: value for name, value in optional.items() if value}
    if message.parts > 1:
        told |= {"part": message.part, "parts": message.parts}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def _id_in(body: bytes) -> str:
    """The id that an answer calls the message by, if it says one."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    found = said.get("messageId", "") if isinstance(said, dict) else ""
    return found[:MAX_EXTERNAL_ID] if isinstance(found, str) and found.isprintable() else ""
