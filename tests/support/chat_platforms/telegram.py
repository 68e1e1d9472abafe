"""Telegram's Bot API on loopback."""

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any, ClassVar

from conversations.channel_models import Channel, Listener
from tests.support.chat_platforms.accounts import SECRETS, TOKEN, hear, make_channel
from tests.support.http_peer import Answer, Asked, HttpPeer
from tests.support.platforms import Sent


class TelegramServer(HttpPeer):
    """The Bot API. ``anna`` and ``42`` are ids here as numbers are there."""

    kind: ClassVar[str] = "telegram"
    tells_duplicates = False
    lacks: ClassVar[Mapping[str, str]] = {}
    # What shows a picture that it fetches, and the field that has the address.
    STICKERS: ClassVar[Mapping[str, str]] = {
        "sendSticker": "sticker",
        "sendAnimation": "animation",
        "sendPhoto": "photo",
    }

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.updates: list[dict[str, Any]] = []
        self.own: Channel | None = None

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"token": TOKEN, "server": self.url, "username": "agent_bot"} | values.pop("settings", {})
        self.own = make_channel(owner, self.kind, given, **values)
        return self.own

    def respond(self, asked: Asked) -> Answer:
        if asked.path[0] == "file":
            assert asked.path[1] == f"bot{SECRETS[TOKEN]}"
            return self.file(asked.path[-1])
        bot, method = asked.path
        if bot != f"bot{SECRETS[TOKEN]}":
            return 401, {"ok": False, "error_code": 401, "description": "Unauthorized"}
        match method:
            case "getUpdates":
                first = asked.said.get("offset", 0)
                return 200, {"ok": True, "result": [each for each in self.updates if each["update_id"] >= first]}
            case "getFile":
                return 200, {"ok": True, "result": {"file_path": f"documents/{asked.said['file_id']}"}}
            case "sendMessage":
                if why := _why_not(asked.said["text"], asked.said.get("parse_mode", "")):
                    return 400, {"ok": False, "error_code": 400, "description": f"Bad Request: {why}"}
                return 200, {"ok": True, "result": {"message_id": len(self.sent)}}
            case "editMessageText" | "setMessageReaction":
                is_there = isinstance(asked.said["message_id"], int)
                words = "Bad Request: message to edit not found"
                return (200, {"ok": True}) if is_there else (400, {"ok": False, "description": words})
            case "sendDocument":
                assert b'name="document"; filename=' in asked.raw
                return 200, {"ok": True, "result": {"message_id": 70}}
            case "sendChatAction":
                assert asked.said["action"] == "typing"
                return 200, {"ok": True, "result": True}
            case method if method in self.STICKERS:
                assert set(asked.said) == {"chat_id", self.STICKERS[method]}
                return 200, {"ok": True, "result": {"message_id": 80}}
            case "answerCallbackQuery":
                return 200, {"ok": True, "result": asked.said["callback_query_id"] == "query-1"}
        return 404, {"ok": False, "error_code": 404, "description": "Not Found"}

    def is_sent(self, asked: Asked) -> bool:
        return asked.path[-1] == "sendMessage"

    def _tell(self, number: int | None, **update: Any) -> None:
        self.updates.append({"update_id": len(self.updates) + 1 if number is None else number, **update})
        assert self.own
        hear(self.own)

    def message_of(self, text: str, sender: str, chat: str, **more: Any) -> dict[str, Any]:
        told = {"message_id": 7, "from": {"id": sender, "is_bot": False, "first_name": "Anna"}, "text": text}
        return told | {"chat": {"id": chat, "type": "private"}} | more

    def tells(self, text: str, *, sender: str = "anna", chat: str = "42", **more: Any) -> None:
        self._tell(None, message=self.message_of(text, sender, chat, **more))

    def shown_buttons(self) -> list[str]:
        """What the buttons of the last message give back."""
        rows = self.called("sendMessage")[-1].said["reply_markup"]["inline_keyboard"]
        assert all(len(each["callback_data"].encode()) <= 64 for row in rows for each in row)
        return [each["callback_data"] for row in rows for each in row]

    def presses(self, value: str, *, sender: str = "anna") -> None:
        message = {"message_id": 1, "chat": {"id": "42", "type": "private"}}
        person = {"id": sender, "is_bot": False, "first_name": "Anna"}
        self._tell(None, callback_query={"id": "query-1", "from": person, "message": message, "data": value})

    def did(self) -> list[tuple[str, str, str]]:
        """What was done to messages: what, to which, and with what."""
        edits = [("edit", str(e.said["message_id"]), e.said["text"]) for e in self.called("editMessageText")]
        assert not any("reply_markup" in each.said for each in self.called("editMessageText"))
        reacted = self.called("setMessageReaction")
        return edits + [("react", str(e.said["message_id"]), e.said["reaction"][0]["emoji"]) for e in reacted]

    def files_sent(self) -> list[bytes]:
        return [each.raw for each in self.called("sendDocument")]

    def typed(self) -> list[str]:
        """The chats in which a mark was shown."""
        return [each.said["chat_id"] for each in self.called("sendChatAction")]

    def called(self, method: str) -> list[Asked]:
        return [each for each in self.asked if each.path[-1] == method]

    def tells_in_a_group(self, text: str, *, called: bool) -> None:
        marks = [{"type": "mention", "offset": 0, "length": 10}]
        said = {"text": f"@agent_bot {text}", "entities": marks} if called else {"text": text}
        chat = {"id": "42", "type": "supergroup", "title": "The shop"}
        self._tell(None, message=self.message_of(text, "anna", "42") | {"chat": chat} | said)

    def tells_again(self) -> None:
        assert self.own
        Listener.objects.update(cursor={})
        hear(self.own)

    def tells_in_a_thread(self, text: str) -> str:
        self.tells(text, message_thread_id=9, is_topic_message=True)
        return "9"

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        self.files["file-1"] = data
        said = {"caption": text, "document": {"file_id": "file-1", "file_name": name}}
        message = self.message_of("", "anna", "42") | said
        del message["text"]
        self._tell(None, message=message)

    def edits(self, text: str) -> str:
        self._tell(None, edited_message=self.message_of(text, "anna", "42"))
        return "7"

    def reacts(self, emoji: str) -> str:
        reacted = {"message_id": 7, "chat": {"id": "42"}, "user": {"id": "anna", "first_name": "Anna"}}
        self._tell(None, message_reaction=reacted | {"new_reaction": [{"type": "emoji", "emoji": emoji}]})
        return "7"

    @property
    def sent(self) -> list[Sent]:
        told = [each.said for each in self.asked if self.is_sent(each)]
        return [
            Sent(
                kind="message",
                chat_id=str(each["chat_id"]),
                text=each["text"],
                thread=str(each.get("message_thread_id", "")),
                in_reply_to=str(each.get("reply_parameters", {}).get("message_id", "")),
            )
            for each in told
        ]


class _Marked(HTMLParser):
    """Reads a text as Telegram does, by its few tags."""

    TAGS = ("a", "b", "blockquote", "code", "i", "pre", "s")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = self.wrong = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag not in self.TAGS:
            self.wrong = f"can't parse entities: unsupported start tag {tag}"

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong = f"can't parse entities: unexpected end tag {tag}"

    def handle_data(self, data: str) -> None:
        self.text += data


def _why_not(text: str, mode: str) -> str:
    """Why Telegram refuses a text; empty if it takes it. It counts UTF-16 units."""
    read = _Marked()
    if mode == "HTML":
        read.feed(text)
        read.close()
        text = read.text
    if read.wrong or read.open:
        return read.wrong or "can't parse entities: a tag is not closed"
    if not text.strip():
        return "message text is empty"
    return "message is too long" if len(text.encode("utf-16-le")) // 2 > 4096 else ""
