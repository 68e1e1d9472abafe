"""Slack's Web API on loopback, and its events."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from django.test import Client

from conversations.channel_models import Channel
from tests.support.chat_platforms.accounts import SECRETS, TOKEN, make_channel
from tests.support.http_peer import Answer, Asked, HttpPeer
from tests.support.platforms import Sent


class SlackServer(HttpPeer):
    """The Web API, and the Events API towards the host."""

    kind: ClassVar[str] = "slack"
    tells_duplicates = False
    lacks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.events: list[dict[str, Any]] = []
        self.last: Any = None

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"token": TOKEN, "signing_secret": "CHANNEL_SECRET_SIGNING", "server": f"{self.url}/api"}
        return make_channel(owner, self.kind, given, **values)

    def respond(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {SECRETS[TOKEN]}":
            return 200, {"ok": False, "error": "invalid_auth"}
        if asked.path[0] == "files":
            return self.file(asked.path[-1])
        if asked.path == ("api", "chat.postMessage"):
            return 200, {"ok": True, "channel": asked.said["channel"], "ts": f"1700000000.{len(self.sent):06}"}
        return 200, {"ok": False, "error": "unknown_method"}

    def is_sent(self, asked: Asked) -> bool:
        return asked.path == ("api", "chat.postMessage")

    def post(self, said: Mapping[str, Any], *, at: float = 0, secret: str = "") -> Any:
        """Tell the host something, signed; returns its answer."""
        body, stamp = json.dumps(said).encode(), str(int(time.time() + at))
        key = secret or SECRETS["CHANNEL_SECRET_SIGNING"]
        signed = hmac.new(key.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
        headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={signed}"}
        return Client().post("/channels/shop/webhook", body, content_type="application/json", headers=headers)

    def _tell(self, event: Mapping[str, Any], **signing: Any) -> None:
        told = {"type": "event_callback", "event_id": f"Ev{len(self.events)}", "event": event}
        self.events.append(told | {"authorizations": [{"user_id": "UBOT"}]})
        self.last = self.post(self.events[-1], **signing)

    def tells(self, text: str, *, sender: str = "anna", chat: str = "42", **more: Any) -> None:
        ts = f"1600000000.{len(self.events):06}"
        told = {"type": "message", "channel": chat, "channel_type": "im", "user": sender, "text": text, "ts": ts}
        self._tell(told | more)

    def tells_in_a_group(self, text: str, *, called: bool) -> None:
        said = f"<@UBOT> {text}" if called else text
        self.tells(said, channel_type="channel")
        if called:  # Slack tells of it twice
            self._tell(self.events[-1]["event"] | {"type": "app_mention"})

    def tells_again(self) -> None:
        self.last = self.post(self.events[-1])

    def tells_in_a_thread(self, text: str) -> str:
        self.tells(text, thread_ts="1500000000.000001")
        return "1500000000.000001"

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        self.files[name] = data
        file = {"name": name, "url_private_download": f"{self.url}/files/{name}"}
        self.tells(text, subtype="file_share", files=[file])

    def edits(self, text: str) -> str:
        now = {"user": "anna", "text": text, "ts": "1600000000.000000"}
        told = {"type": "message", "subtype": "message_changed", "channel": "42", "message": now}
        self._tell(told | {"previous_message": {"text": "before"}})
        return "1600000000.000000"

    def reacts(self, emoji: str) -> str:
        item = {"type": "message", "channel": "42", "ts": "1600000000.000000"}
        self._tell({"type": "reaction_added", "user": "anna", "reaction": emoji.strip(":"), "item": item})
        return "1600000000.000000"

    @property
    def sent(self) -> list[Sent]:
        told = [each.said for each in self.asked if self.is_sent(each)]
        return [
            Sent(kind="message", chat_id=each["channel"], text=each["text"], thread=each.get("thread_ts", ""))
            for each in told
        ]
