"""QQ's open platform on loopback, and its signed events."""

import json
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import Client

from conversations.channel_models import Channel
from tests.support.chat_platforms.accounts import SECRETS, TOKEN, make_channel
from tests.support.http_peer import Answer, Asked, HttpPeer
from tests.support.platforms import Sent

APP = "102000001"
# It takes so many answers to a message.
MAX_ANSWERS = 5


def key_of(secret: str) -> Ed25519PrivateKey:
    """The bot's, which is made of its secret as the platform's documentation has it."""
    seed = secret.encode()
    while len(seed) < 32:
        seed *= 2
    return Ed25519PrivateKey.from_private_bytes(seed[:32])


class QQServer(HttpPeer):
    """The API, as far as messages go. It takes answers to what it has told of, each number of one once."""

    kind: ClassVar[str] = "qq"
    tells_duplicates = True
    lacks: ClassVar[Mapping[str, str]] = {
        "edits": "no event tells of them",
        "reactions": "only of channels of guilds",
        "threads": "there are none",
        "groups": "it tells of what mentions the bot alone",
    }

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.events: list[dict[str, Any]] = []
        self.last: Any = None
        self.tokens: list[str] = []
        self.taken: dict[tuple[str, int], str] = {}

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"app_id": APP, "secret": TOKEN, "server": self.url, "token_server": f"{self.url}/tokens"}
        return make_channel(owner, self.kind, given | values.pop("settings", {}), **values)

    def respond(self, asked: Asked) -> Answer:
        if asked.path == ("tokens", "app", "getAppAccessToken"):
            if asked.said != {"appId": APP, "clientSecret": SECRETS[TOKEN]}:
                return 200, {"code": 100016, "message": "invalid appid or secret"}
            self.tokens.append(f"t-{len(self.tokens)}")
            return 200, {"access_token": self.tokens[-1], "expires_in": "7200"}
        if asked.path[0] == "files":
            return self.file(asked.path[-1])
        if not self.tokens or asked.headers.get("authorization") != f"QQBot {self.tokens[-1]}":
            return 401, {"message": "token not exist or expire", "code": 11244}
        match (asked.method, *asked.path):
            case ("POST", "v2", "users" | "groups", _, "messages"):
                return self.takes(asked.said)
        return 404, {"message": "接口不存在", "code": 10003}

    def takes(self, said: Mapping[str, Any]) -> Answer:
        assert set(said) == {"msg_type", "content", "msg_id", "msg_seq"}
        assert (said["msg_type"], type(said["msg_seq"])) == (0, int)
        if not said["content"] or said["msg_id"] not in [each["d"]["id"] for each in self.events]:
            return 400, {"message": "msg_id is invalid or has expired", "code": 40034024}
        which = said["msg_id"], said["msg_seq"]
        if which in self.taken:
            return 400, {"message": "the message was de-duplicated, check msg_seq", "code": 40054005}
        if len([each for each in self.taken if each[0] == which[0]]) >= MAX_ANSWERS:
            return 400, {"message": "reply limit exceeded", "code": 22009}
        self.taken[which] = f"ROBOT1.0_out{len(self.taken)}"
        return 200, {"id": self.taken[which], "timestamp": "2026-01-01T00:00:00+08:00"}

    def is_sent(self, asked: Asked) -> bool:
        return asked.path[0] == "v2" and asked.path[-1] == "messages"

    def post(self, said: Mapping[str, Any], *, at: float = 0, secret: str = "") -> Any:
        """Tell the host something, signed; returns its answer."""
        body, stamp = json.dumps(said).encode(), str(int(time.time() + at))
        signed = key_of(secret or SECRETS[TOKEN]).sign(stamp.encode() + body).hex()
        headers = {"X-Signature-Ed25519": signed, "X-Signature-Timestamp": stamp, "X-Bot-Appid": APP}
        return Client().post("/channels/shop/webhook", body, content_type="application/json", headers=headers)

    def _tell(self, kind: str, told: Mapping[str, Any]) -> None:
        number = len(self.events)
        message = {"id": f"ROBOT1.0_in{number}", "timestamp": "2026-01-01T00:00:00+08:00"} | dict(told)
        self.events.append({"op": 0, "id": f"{kind}:{number}", "t": kind, "d": message})
        self.last = self.post(self.events[-1])

    def tells(self, text: str, *, sender: str = "anna", **more: Any) -> None:
        self._tell("C2C_MESSAGE_CREATE", {"author": {"user_openid": sender}, "content": text} | more)

    def tells_in_a_group_of(self, group: str, text: str) -> None:
        told = {"author": {"member_openid": "anna"}, "group_openid": group, "content": f" {text} "}
        self._tell("GROUP_AT_MESSAGE_CREATE", told)

    def tells_again(self) -> None:
        self.last = self.post(self.events[-1])

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        self.files[name] = data
        file = {"content_type": "file", "filename": name, "url": f"{self.url}/files/{name}", "size": len(data)}
        self.tells(text, attachments=[file])

    @property
    def sent(self) -> list[Sent]:
        found = []
        for each in self.asked:
            if self.is_sent(each):
                chat_id = f"group:{each.path[2]}" if each.path[1] == "groups" else each.path[2]
                key = f"{each.said['msg_id']} {each.said['msg_seq']}"
                found.append(Sent(kind="message", chat_id=chat_id, text=each.said["content"], key=key))
        return found
