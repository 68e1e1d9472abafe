"""Slack's Web API on loopback, and its events."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode

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
        if asked.path[0] == "upload":  # whose address is a secret of its own
            assert "authorization" not in asked.headers
            return 200, b"OK"
        if asked.headers.get("authorization") != f"Bearer {SECRETS[TOKEN]}":
            return 200, {"ok": False, "error": "invalid_auth"}
        if asked.path[0] == "files":
            return self.file(asked.path[-1])
        if asked.path == ("api", "chat.postMessage"):
            return 200, {"ok": True, "channel": asked.said["channel"], "ts": f"1700000000.{len(self.sent):06}"}
        match asked.path[-1]:
            case "chat.update":
                assert not any(each["type"] == "actions" for each in asked.said["blocks"])
                return 200, {"ok": True, "ts": asked.said["ts"]}
            case "reactions.add":
                return 200, {"ok": asked.said["name"] == "thumbsup", "error": "invalid_name"}
            case "files.getUploadURLExternal":
                said = parse_qs(asked.raw.decode())
                assert (said["filename"], int(said["length"][0]) > 0) == (["may.txt"], True)
                return 200, {"ok": True, "upload_url": f"{self.url}/upload/v1/F1", "file_id": "F1"}
            case "files.completeUploadExternal":
                is_whole = asked.said["files"] == [{"id": "F1", "title": "may.txt"}] and self.called("F1")
                return 200, {"ok": bool(is_whole), "error": "file_not_found"}
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

    def shown_buttons(self) -> list[str]:
        """What the buttons of the last message give back."""
        actions = self.called("chat.postMessage")[-1].said["blocks"][-1]
        assert actions["type"] == "actions"
        return [each["value"] for each in actions["elements"]]

    def presses(self, value: str, *, sender: str = "anna") -> None:
        where = {"type": "message", "channel_id": "42", "message_ts": "1700000000.000001"}
        action = {"type": "button", "action_id": "choice-0", "value": value, "action_ts": f"{len(self.events)}"}
        said = {"type": "block_actions", "user": {"id": sender}, "container": where, "actions": [action]}
        self.events.append(said)
        body, stamp = urlencode({"payload": json.dumps(said)}).encode(), str(int(time.time()))
        key = SECRETS["CHANNEL_SECRET_SIGNING"]
        signed = hmac.new(key.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
        headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={signed}"}
        form = "application/x-www-form-urlencoded"
        answer = Client().post("/channels/shop/webhook", body, content_type=form, headers=headers)
        assert answer.status_code == 200, answer.content

    def did(self) -> list[tuple[str, str, str]]:
        """What was done to messages: what, to which, and with what."""
        edits = [("edit", each.said["ts"], each.said["text"]) for each in self.called("chat.update")]
        return edits + [("react", e.said["timestamp"], e.said["name"]) for e in self.called("reactions.add")]

    def files_sent(self) -> list[bytes]:
        return [each.raw for each in self.called("F1")]

    def called(self, method: str) -> list[Asked]:
        return [each for each in self.asked if each.path[-1] == method]

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
