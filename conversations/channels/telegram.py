"""Telegram, by its Bot API (https://core.telegram.org/bots/api): asked for updates, or told of them by its webhook."""

import hmac
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from conversations.attachments.parts import SentFile
from conversations.channels import calls, dialects, fields
from conversations.channels.base import (
    Capabilities,
    Event,
    Heard,
    NotGenuine,
    OutgoingMessage,
    Permanent,
    Platform,
    Request,
)
from conversations.channels.calls import at, list_at, text_at
from conversations.channels.fields import Setting
from nanohost.lib.rest import load_json
from tools.outbound.client import Answer

SERVER = "https://api.telegram.org"
# Seconds for which the server waits for something to happen.
WAITS = 25
UPDATES = ("message", "edited_message", "message_reaction", "callback_query")
# Of a file.
MAX_CAPTION = 1024
# What is in place already.
_DONE = "message is not modified"
# Kinds of media, each with the name of a file that has none.
MEDIA = {
    "document": "file",
    "audio": "audio.mp3",
    "voice": "voice.ogg",
    "video": "video.mp4",
    "video_note": "video.mp4",
    "animation": "animation.mp4",
}


class Telegram(Platform):
    """A bot."""

    kind, title = "telegram", "Telegram"
    # 4,096 UTF-16 units: as many characters, if each is of two of them, are half.
    capabilities = Capabilities(text_limit=2048, buttons=10, edits=True, reacts=True, files=True, typing=True)
    fields = (
        Setting(name="token", words="the variable that has the bot's token", check=fields.secret, is_needed=True),
        Setting(
            name="webhook_secret",
            words="the variable that has the secret_token of setWebhook; without it, the host asks for updates",
            check=fields.secret,
        ),
        Setting(name="username", words="the bot's user name, without @, used in mentions", check=fields.text),
        fields.groups("groups"),
        Setting(name="server", words="the Bot API's address", check=fields.url, default=SERVER),
    )

    @classmethod
    def has_to_be_asked(cls, settings: Mapping[str, Any]) -> bool:
        return not settings.get("webhook_secret")

    def parse(self, request: Request) -> Sequence[Event]:
        if not self.setting("webhook_secret"):
            raise NotGenuine("This bot is asked for updates: webhook_secret is not set.")
        given = request.headers.get("x-telegram-bot-api-secret-token", "")
        if not hmac.compare_digest(given.encode(), self.secret("webhook_secret").encode()):
            raise NotGenuine("X-Telegram-Bot-Api-Secret-Token: it is not this channel's.")
        return self._events(load_json(request.body))

    def ask(self, cursor: Mapping[str, Any]) -> Heard:
        offset = cursor.get("offset", 0)
        query = {"timeout": WAITS, "allowed_updates": list(UPDATES)} | ({"offset": offset} if offset else {})
        answer = calls.ask(self._url("getUpdates"), body=query, seconds=WAITS + 10)
        said = calls.said_in(answer)
        calls.judge_news(answer, words=text_at(said, "description", most=300), after=_wait(said))
        updates = list_at(said, "result")
        ids = [each["update_id"] for each in updates if isinstance(at(each, "update_id"), int)]
        events = [event for update in updates for event in self._events(update)]
        return Heard(events=events, cursor={"offset": max(ids) + 1} if ids else dict(cursor))

    def send(self, message: OutgoingMessage, key: str) -> str:
        told = self._to(message)
        if message.options:
            rows = [[{"text": each.label, "callback_data": each.value}] for each in message.options]
            told["reply_markup"] = {"inline_keyboard": rows}
        return text_at(self._write("sendMessage", told, message.text), "result", "message_id", most=50)

    def edit(self, message: OutgoingMessage, key: str) -> None:
        # Without reply_markup, its buttons go.
        told = {"chat_id": message.chat_id, "message_id": _number(message.message_id)}
        self._write("editMessageText", told, message.text)

    def react(self, message: OutgoingMessage, key: str) -> None:
        told = {"chat_id": message.chat_id, "message_id": _number(message.message_id)}
        answer = self._call("setMessageReaction", told | {"reaction": [{"type": "emoji", "emoji": message.emoji}]})
        _judge(answer)

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        assert message.file
        told = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in self._to(message).items()
        }
        if message.text:
            told["caption"] = message.text[:MAX_CAPTION]
        body, headers = calls.multipart(told, "document", message.file)
        answer = calls.send(self._url("sendDocument"), body=body, headers=headers)
        _judge(answer)
        return text_at(calls.said_in(answer), "result", "message_id", most=50)

    def send_sticker(self, message: OutgoingMessage, key: str) -> str:
        # Telegram fetches it, and takes no other kind of file as a sticker, or as an animation.
        kind = {".webp": "sticker", ".gif": "animation"}.get(PurePath(urlsplit(message.picture).path).suffix, "photo")
        answer = self._call(f"send{kind.title()}", self._to(message) | {kind: message.picture})
        _judge(answer)
        return text_at(calls.said_in(answer), "result", "message_id", most=50)

    def show_typing(self, message: OutgoingMessage) -> None:
        _judge(self._call("sendChatAction", self._to(message) | {"action": "typing"}))

    def _to(self, message: OutgoingMessage) -> dict[str, Any]:
        told: dict[str, Any] = {"chat_id": message.chat_id}
        if message.thread:
            told["message_thread_id"] = _number(message.thread)
        if message.in_reply_to and message.part == 1:
            told["reply_parameters"] = {
                "message_id": _number(message.in_reply_to),
                "allow_sending_without_reply": True,
            }
        return told

    def _write(self, method: str, told: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Say something in Telegram's HTML, or as it is where that cannot be read."""
        answer = self._call(method, {**told, "text": dialects.telegram(text), "parse_mode": "HTML"})
        if answer.status == 400 and "parse entities" in text_at(calls.said_in(answer), "description"):
            answer = self._call(method, {**told, "text": text})
        if not (answer.status == 400 and _DONE in text_at(calls.said_in(answer), "description")):
            _judge(answer)
        return calls.said_in(answer)

    def _call(self, method: str, said: Mapping[str, Any]) -> Answer:
        return calls.send(self._url(method), body=said)

    def _url(self, method: str) -> str:
        return f"{self.setting('server').rstrip('/')}/bot{self.secret('token')}/{method}"

    # --- what comes in -----------------------------------------------------------------------------------------------

    def _events(self, update: Any) -> Sequence[Event]:
        update_id = text_at(update, "update_id", most=50)
        if not update_id:
            return ()
        if reacted := at(update, "message_reaction"):
            return self._reaction(update_id, reacted)
        if pressed := at(update, "callback_query"):
            return self._choice(update_id, pressed)
        edited = at(update, "edited_message")
        message = edited or at(update, "message")
        chat, sender = at(message, "chat"), at(message, "from")
        chat_id, sender_id = text_at(chat, "id", most=50), text_at(sender, "id", most=50)
        if not (chat_id and sender_id) or at(sender, "is_bot"):
            return ()
        text = text_at(message, "text") or text_at(message, "caption")
        media = _media(message)
        if not text.strip() and not media:
            return ()
        event = Event(
            external_id=update_id,
            kind="edit" if edited else "message",
            chat_id=chat_id,
            thread=text_at(message, "message_thread_id", most=50) if at(message, "is_topic_message") is True else "",
            sender_id=sender_id,
            sender_name=_name(sender),
            message_id=text_at(message, "message_id", most=50),
            title=text_at(chat, "title", most=200),
            text=text,
            is_called=text_at(chat, "type") == "private" or self._is_called(message),
            fetch=(lambda: [self._file(*each) for each in media]) if media and not edited else None,
        )
        return (event,)

    def _reaction(self, update_id: str, reacted: Any) -> Sequence[Event]:
        emoji = [text_at(each, "emoji", most=20) for each in list_at(reacted, "new_reaction")]
        chat_id, sender_id = text_at(reacted, "chat", "id", most=50), text_at(reacted, "user", "id", most=50)
        if not (chat_id and sender_id and any(emoji)):
            return ()
        event = Event(
            external_id=update_id,
            kind="reaction",
            chat_id=chat_id,
            sender_id=sender_id,
            sender_name=_name(at(reacted, "user")),
            message_id=text_at(reacted, "message_id", most=50),
            text=" ".join(each for each in emoji if each),
        )
        return (event,)

    def _choice(self, update_id: str, pressed: Any) -> Sequence[Event]:
        message, query_id = at(pressed, "message"), text_at(pressed, "id", most=100)
        chat_id, sender_id = text_at(message, "chat", "id", most=50), text_at(pressed, "from", "id", most=50)
        value = text_at(pressed, "data", most=64)
        if not (chat_id and sender_id and value):
            return ()
        choice = Event(
            external_id=update_id,
            kind="choice",
            chat_id=chat_id,
            thread=text_at(message, "message_thread_id", most=50) if at(message, "is_topic_message") is True else "",
            sender_id=sender_id,
            sender_name=_name(at(pressed, "from")),
            message_id=text_at(message, "message_id", most=50),
            text=value,
            # Until then, the button shows that it is busy.
            acknowledge=lambda: _judge(self._call("answerCallbackQuery", {"callback_query_id": query_id})),
        )
        return (choice,)

    def _is_called(self, message: Any) -> bool:
        """Whether a message of a group is for the agent."""
        name = str(self.setting("username")).lower().removeprefix("@")
        if not name:
            return False
        if text_at(message, "reply_to_message", "from", "username").lower() == name:
            return True
        said = text_at(message, "text") or text_at(message, "caption")
        marks = [*list_at(message, "entities"), *list_at(message, "caption_entities")]
        mentioned = (_part(said, each) for each in marks if text_at(each, "type") in ("mention", "bot_command"))
        return any(each.lower().endswith(f"@{name}") for each in mentioned)

    def _file(self, file_id: str, name: str) -> SentFile:
        answer = calls.ask(self._url("getFile"), body={"file_id": file_id})
        said = calls.said_in(answer)
        calls.judge_news(answer, words=text_at(said, "description", most=300), after=_wait(said))
        path = text_at(said, "result", "file_path", most=1000)
        if not path or ".." in path or "?" in path or "#" in path:
            raise Permanent("Telegram names no place of a file")
        url = f"{self.setting('server').rstrip('/')}/file/bot{self.secret('token')}/{path}"
        return calls.file(url, name=name)


def _part(said: str, entity: Any) -> str:
    """The part of a text that an entity marks; its numbers count UTF-16 units."""
    first, length = at(entity, "offset"), at(entity, "length")
    if not (isinstance(first, int) and isinstance(length, int) and first >= 0 and 0 < length < 200):
        return ""
    return said.encode("utf-16-le")[2 * first : 2 * (first + length)].decode("utf-16-le", errors="replace")


def _media(message: Any) -> Sequence[tuple[str, str]]:
    """Its files: the platform's id of each, and a name."""
    found = []
    photos = [each for each in list_at(message, "photo") if isinstance(at(each, "file_id"), str)]
    if photos:
        found.append((photos[-1]["file_id"], "photo.jpg"))  # the largest is the last
    for kind, otherwise in MEDIA.items():
        if file_id := text_at(message, kind, "file_id", most=300):
            found.append((file_id, text_at(message, kind, "file_name", most=100) or otherwise))
    return found[: calls.MAX_FILES]


def _name(sender: Any) -> str:
    names = (text_at(sender, each, most=100) for each in ("first_name", "last_name"))
    return " ".join(each for each in names if each) or text_at(sender, "username", most=100)


def _number(of: str) -> int | str:
    return int(of) if of.lstrip("-").isascii() and of.lstrip("-").isdigit() else of


def _judge(answer: Answer) -> None:
    said = calls.said_in(answer)
    calls.judge(answer, words=text_at(said, "description", most=300), after=_wait(said))


def _wait(said: Any) -> float:
    return calls.wait_in(at(said, "parameters", "retry_after"))
