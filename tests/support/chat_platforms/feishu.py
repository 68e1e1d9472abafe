"""Feishu's open platform on loopback, and its encrypted events."""

import base64
import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7
from django.test import Client

from conversations.channel_models import Channel
from tests.support.chat_platforms.accounts import SECRETS, SIGNING, TOKEN, make_channel
from tests.support.http_peer import Answer, Asked, HttpPeer, form_of
from tests.support.platforms import Sent

BOT = "ou_bot"


def sealed(said: Mapping[str, Any] | bytes, key: str) -> bytes:
    """A request's body: AES-256-CBC by the key's SHA-256, behind its first block."""
    pad = PKCS7(128).padder()
    padded = pad.update(said if isinstance(said, bytes) else json.dumps(said).encode()) + pad.finalize()
    first = os.urandom(16)
    seal = Cipher(algorithms.AES256(hashlib.sha256(key.encode()).digest()), modes.CBC(first)).encryptor()
    whole = first + seal.update(padded) + seal.finalize()
    return json.dumps({"encrypt": base64.b64encode(whole).decode()}).encode()


class FeishuServer(HttpPeer):
    """The API, as far as messages go. A uuid that it has seen gets the same message."""

    kind: ClassVar[str] = "feishu"
    tells_duplicates = True
    lacks: ClassVar[Mapping[str, str]] = {
        "edits": "no event tells of them",
        "captions": "a file's message has no text; a post has pictures",
    }

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.events: list[dict[str, Any]] = []
        self.last: Any = None
        self.tokens: list[str] = []
        self.by_uuid: dict[str, str] = {}
        self.uploads: dict[str, bytes] = {}

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"app_id": "cli_1", "app_secret": TOKEN, "encrypt_key": SIGNING, "verification_token": SIGNING}
        given |= {"open_id": BOT, "server": f"{self.url}/open-apis"} | values.pop("settings", {})
        return make_channel(owner, self.kind, given, **values)

    def respond(self, asked: Asked) -> Answer:
        place = asked.path[1:]
        if place == ("auth", "v3", "tenant_access_token", "internal"):
            if asked.said != {"app_id": "cli_1", "app_secret": SECRETS[TOKEN]}:
                return 200, {"code": 10014, "msg": "app secret invalid"}
            self.tokens.append(f"t-{len(self.tokens)}")
            return 200, {"code": 0, "msg": "ok", "tenant_access_token": self.tokens[-1], "expire": 7200}
        if not self.tokens or asked.headers.get("authorization") != f"Bearer {self.tokens[-1]}":
            return 400, {"code": 99991663, "msg": "Invalid access token for authorization"}
        match (asked.method, *place[2:]):
            case ("POST", "files"):
                form = form_of(asked)
                assert form["file_type"] == b"stream"
                assert form["file_name"]
                self.uploads[f"file_up{len(self.uploads)}"] = form["file"]
                return 200, {"code": 0, "msg": "success", "data": {"file_key": list(self.uploads)[-1]}}
            case ("POST", "messages"):
                assert asked.query == {"receive_id_type": "chat_id"}
                return self._taken(asked.said)
            case ("POST", "messages", _, "reply"):
                return self._taken(asked.said)
            case ("PATCH", "messages", _):
                return 200, {"code": 0, "msg": "success", "data": {}} if json.loads(asked.said["content"]) else {}
            case ("POST", "messages", _, "reactions"):
                return 200, {"code": 0, "msg": "success", "data": {}}
            case ("GET", "messages", message):
                return 200, {"code": 0, "data": {"items": [{"message_id": message, "chat_id": "42"}]}}
            case ("GET", "messages", _, "resources", key):
                return self.file(key)
        return 404, {"code": 99991404, "msg": "not found"}

    def _taken(self, said: Mapping[str, Any]) -> Answer:
        card = json.loads(said["content"])
        if said["msg_type"] == "file" and card["file_key"] in self.uploads and len(said["uuid"]) <= 50:
            message = self.by_uuid.setdefault(said["uuid"], f"om_out{len(self.by_uuid)}")
            return 200, {"code": 0, "msg": "success", "data": {"message_id": message}}
        if said["msg_type"] != "interactive" or len(said["content"].encode()) > 30_000 or len(said["uuid"]) > 50:
            return 400, {"code": 230001, "msg": "invalid request"}
        assert "<at" not in card["elements"][0]["content"]
        message = self.by_uuid.setdefault(said["uuid"], f"om_out{len(self.by_uuid)}")
        return 200, {"code": 0, "msg": "success", "data": {"message_id": message}}

    def is_sent(self, asked: Asked) -> bool:
        return asked.method == "POST" and asked.path[-1] in ("messages", "reply")

    def post(self, said: Mapping[str, Any] | bytes, *, at: float = 0, secret: str = "", sign: str = "") -> Any:
        """Tell the host something, sealed and signed; returns its answer."""
        body, stamp = sealed(said, secret or SECRETS[SIGNING]), str(int(time.time() + at))
        signed = hashlib.sha256(f"{stamp}n-1{sign or SECRETS[SIGNING]}".encode() + body).hexdigest()
        headers = {"X-Lark-Request-Timestamp": stamp, "X-Lark-Request-Nonce": "n-1", "X-Lark-Signature": signed}
        return Client().post("/channels/shop/webhook", body, content_type="application/json", headers=headers)

    def _tell(self, kind: str, event: Mapping[str, Any]) -> None:
        header = {
            "event_id": f"ev-{len(self.events)}",
            "event_type": kind,
            "token": SECRETS[SIGNING],
            "app_id": "cli_1",
        }
        self.events.append({"schema": "2.0", "header": header, "event": dict(event)})
        self.last = self.post(self.events[-1])

    def tells(self, text: str, *, sender: str = "anna", kind: str = "text", content: Any = None, **more: Any) -> None:
        said = {"text": text} if content is None else content
        message = {"message_id": f"om_{len(self.events)}", "chat_id": "42", "chat_type": "p2p", "message_type": kind}
        message |= {"content": json.dumps(said)} | more
        who = {"sender_id": {"open_id": sender}, "sender_type": "user"}
        self._tell("im.message.receive_v1", {"sender": who, "message": message})

    def tells_in_a_group(self, text: str, *, called: bool) -> None:
        mentions = [{"key": "@_user_1", "id": {"open_id": BOT}, "name": "Agent"}] if called else []
        self.tells(f"@_user_1 {text}" if called else text, chat_type="group", mentions=mentions)

    def tells_again(self) -> None:
        self.last = self.post(self.events[-1])

    def tells_in_a_thread(self, text: str) -> str:
        self.tells(text, thread_id="omt_1", root_id="om_root")
        return "om_root"

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        self.files["file_1"] = data
        self.tells("", kind="file", content={"file_key": "file_1", "file_name": name})

    def reacts(self, emoji: str) -> str:
        who = {"operator_type": "user", "user_id": {"open_id": "anna"}}
        reacted = who | {"message_id": "om_0", "reaction_type": {"emoji_type": "THUMBSUP"}}
        self._tell("im.message.reaction.created_v1", reacted)
        return "om_0"

    def shown_buttons(self) -> list[str]:
        """What the buttons of the last message give back."""
        said = [each.said for each in self.asked if self.is_sent(each)][-1]
        _, actions = json.loads(said["content"])["elements"]
        return [each["value"]["choice"] for each in actions["actions"]]

    def did(self) -> list[tuple[str, str, str]]:
        """What was done to messages: what, to which, and with what."""
        found = []
        for each in self.asked:
            if each.method == "PATCH":
                found.append(("edit", each.path[4], json.loads(each.said["content"])["elements"][0]["content"]))
            elif each.path[-1] == "reactions":
                found.append(("react", each.path[4], each.said["reaction_type"]["emoji_type"]))
        return found

    def files_sent(self) -> list[bytes]:
        return list(self.uploads.values())

    def presses(self, value: str, *, sender: str = "anna") -> None:
        where = {"open_message_id": "om_out0", "open_chat_id": "42"}
        pressed = {"operator": {"open_id": sender}, "action": {"tag": "button", "value": {"choice": value}}}
        self._tell("card.action.trigger", pressed | {"context": where})

    @property
    def sent(self) -> list[Sent]:
        found = []
        for each in self.asked:
            if self.is_sent(each):
                is_reply = each.path[-1] == "reply"
                content = json.loads(each.said["content"])
                text = content["elements"][0]["content"] if "elements" in content else ""
                thread = each.path[-2] if is_reply else ""
                chat_id = "42" if is_reply else each.said["receive_id"]
                found.append(Sent(kind="message", chat_id=chat_id, text=text, thread=thread, key=each.said["uuid"]))
        return found
