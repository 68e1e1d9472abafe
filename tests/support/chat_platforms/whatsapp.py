"""WhatsApp's Cloud API on loopback, and its webhook."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from django.test import Client

from conversations.channel_models import Channel
from tests.support.chat_platforms.accounts import SECRETS, SIGNING, TOKEN, make_channel
from tests.support.http_peer import Answer, Asked, HttpPeer, form_of
from tests.support.platforms import Sent
from tests.support.receiver import Says

NUMBER = "106540352242922"


class WhatsAppServer(HttpPeer):
    """The Graph API, as far as messages go."""

    kind: ClassVar[str] = "whatsapp"
    tells_duplicates = False
    lacks: ClassVar[Mapping[str, str]] = {
        "edits": "its webhook tells of none",
        "threads": "there are none",
        "groups": "a number of a business is in none",
    }

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.events: list[dict[str, Any]] = []
        self.last: Any = None
        self.uploads: dict[str, bytes] = {}

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"number": NUMBER, "token": TOKEN, "app_secret": SIGNING, "verify_token": SIGNING}
        given |= {"server": f"{self.url}/v23.0"} | values.pop("settings", {})
        return make_channel(owner, self.kind, given, **values)

    def respond(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {SECRETS[TOKEN]}":
            return 401, {"error": {"message": "Invalid OAuth access token.", "type": "OAuthException", "code": 190}}
        match asked.path:
            case ("v23.0", place, "messages") if place == NUMBER:
                if "typing_indicator" in asked.said:
                    is_right = asked.said["status"] == "read" and asked.said["typing_indicator"] == {"type": "text"}
                    return (200, {"success": True}) if is_right and asked.said["message_id"] else (400, {})
                return self._taken(asked.said)
            case ("v23.0", place, "media") if place == NUMBER:
                form = form_of(asked)
                if form["messaging_product"] != b"whatsapp" or b"/" not in form["type"]:
                    return 400, {"error": {"message": f"(#{100}) Invalid parameter", "code": 100}}
                self.uploads[f"up-{len(self.uploads)}"] = form["file"]
                return 200, {"id": list(self.uploads)[-1]}
            case ("v23.0", media):
                return 200, {"url": f"{self.url}/files/{media}", "mime_type": "text/plain", "id": media}
            case ("files", media):
                return self.file(media)
        return 404, {"error": {"message": "Unknown path components", "code": 2500}}

    def _taken(self, said: Mapping[str, Any]) -> Answer:
        assert (said["messaging_product"], said["recipient_type"]) == ("whatsapp", "individual")
        match said["type"]:
            case "text":
                is_right = 0 < len(said["text"]["body"]) <= 4096
            case "interactive":
                asked = said["interactive"]
                titles = [each["reply"]["title"] for each in asked["action"]["buttons"]]
                is_right = len(asked["body"]["text"]) <= 1024 and 0 < len(titles) <= 3 and max(map(len, titles)) <= 20
            case "document" | "image" as kind:
                is_right = said[kind]["id"] in self.uploads and len(said[kind].get("caption", "")) <= 1024
                is_right = is_right and (kind == "image" or bool(said[kind]["filename"]))
            case kind:
                is_right = kind == "reaction" and bool(said["reaction"]["emoji"])
        if not is_right:
            return 400, {"error": {"message": f"(#{100}) Invalid parameter", "code": 100}}
        return 200, {"messaging_product": "whatsapp", "messages": [{"id": f"wamid.out{len(self.sent)}"}]}

    def is_sent(self, asked: Asked) -> bool:
        return asked.path[-1] == "messages" and "typing_indicator" not in asked.said

    def refuses(self, code: int, status: int = 400) -> Says:
        """An error of the Graph API."""
        return Says(status, body=json.dumps({"error": {"message": f"(#{code}) Refused", "code": code}}).encode())

    def post(self, said: Mapping[str, Any], *, secret: str = "") -> Any:
        """Tell the host something, signed; returns its answer."""
        body = json.dumps(said).encode()
        signed = hmac.new((secret or SECRETS[SIGNING]).encode(), body, hashlib.sha256).hexdigest()
        headers = {"X-Hub-Signature-256": f"sha256={signed}"}
        return Client().post("/channels/shop/webhook", body, content_type="application/json", headers=headers)

    def _tell(self, message: Mapping[str, Any], *, number: str = NUMBER, sender: str = "anna") -> None:
        told = {"from": sender, "id": f"wamid.{len(self.events)}", "timestamp": str(int(time.time()))} | dict(message)
        value: dict[str, Any] = {"messaging_product": "whatsapp", "metadata": {"phone_number_id": number}}
        value |= {"contacts": [{"wa_id": sender, "profile": {"name": "Anna"}}], "messages": [told]}
        changes = [{"field": "messages", "value": value}]
        self.events.append({"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": changes}]})
        self.last = self.post(self.events[-1])

    def tells(self, text: str, *, sender: str = "anna", number: str = NUMBER, **more: Any) -> None:
        self._tell({"type": "text", "text": {"body": text}} | more, sender=sender, number=number)

    def tells_again(self) -> None:
        self.last = self.post(self.events[-1])

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        self.files["media-1"] = data
        document = {"id": "media-1", "filename": name, "caption": text, "mime_type": "text/plain"}
        self._tell({"type": "document", "document": document})

    def reacts(self, emoji: str) -> str:
        self._tell({"type": "reaction", "reaction": {"message_id": "wamid.0", "emoji": emoji}})
        return "wamid.0"

    def shown_buttons(self) -> list[str]:
        """What the buttons of the last message give back."""
        asked = [each for each in self.asked if self.is_sent(each)][-1].said["interactive"]
        return [each["reply"]["id"] for each in asked["action"]["buttons"]]

    def typed(self) -> list[str]:
        """The messages below which a mark was shown."""
        return [each.said["message_id"] for each in self.asked if "typing_indicator" in (each.said or ())]

    def did(self) -> list[tuple[str, str, str]]:
        """What was done to messages: what, to which, and with what."""
        told = [each.said["reaction"] for each in self.asked if self.is_sent(each) and "reaction" in each.said]
        return [("react", each["message_id"], each["emoji"]) for each in told]

    def files_sent(self) -> list[bytes]:
        sent = [each.said for each in self.asked if self.is_sent(each)]
        return [self.uploads[each["document"]["id"]] for each in sent if "document" in each]

    def presses(self, value: str, *, sender: str = "anna") -> None:
        pressed = {"type": "button_reply", "button_reply": {"id": value, "title": "Yes"}}
        self._tell({"type": "interactive", "interactive": pressed, "context": {"id": "wamid.out1"}}, sender=sender)

    @property
    def sent(self) -> list[Sent]:
        told = [each.said for each in self.asked if self.is_sent(each)]
        return [
            Sent(
                kind="message",
                chat_id=each["to"],
                text=each["text"]["body"]
                if "text" in each
                else each.get("interactive", {}).get("body", {}).get("text", ""),
                in_reply_to=each.get("context", {}).get("message_id", ""),
            )
            for each in told
        ]
