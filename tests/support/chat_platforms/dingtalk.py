"""DingTalk's open platform on loopback: its REST API, and its stream, which tells again what nobody has taken in."""

import json
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from conversations.channel_models import Channel
from tests.support.chat_platforms.accounts import SECRETS, TOKEN, hear_until, make_channel
from tests.support.http_peer import Answer, Asked, HttpPeer
from tests.support.platforms import Sent

CLIENT = "ding_client"
TOPIC = "/v1.0/im/bot/messages/get"

_quiet = logging.getLogger("tests.stream")
_quiet.setLevel(logging.CRITICAL)


class Stream:
    """A websocket server. A ticket opens one connection; a frame is told until it is acknowledged."""

    def __init__(self) -> None:
        self.tickets: list[str] = []
        self.frames: dict[str, dict[str, Any]] = {}
        self.acknowledged: list[str] = []
        self.echoed: list[str] = []
        self.open: list[ServerConnection] = []
        self.connected = 0
        # Connections that end right after they are open: by a frame, or without a word.
        self.breaks: list[str] = []
        self._changed = threading.Condition(threading.RLock())
        self._server = serve(self._talk, "127.0.0.1", 0, ping_interval=None, open_timeout=60, logger=_quiet)
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()

    def ticket(self) -> str:
        self.tickets.append(f"ticket+{self.connected}/{len(self.tickets)}")
        return self.tickets[-1]

    def tell(self, data: Mapping[str, Any]) -> None:
        """Something happens: it is told to who is connected."""
        with self._changed:
            number = f"frame-{len(self.frames) + len(self.acknowledged)}"
            headers = {"messageId": number, "topic": TOPIC, "contentType": "application/json", "time": "1"}
            frame = {"specVersion": "1.0", "type": "CALLBACK", "headers": headers, "data": json.dumps(dict(data))}
            self.frames[number] = frame
            self._changed.notify_all()

    def drop(self) -> None:
        """Close all connections, without a word."""
        for each in list(self.open):
            with suppress(OSError):
                each.socket.shutdown(2)

    def _talk(self, connection: ServerConnection) -> None:
        assert connection.request
        (ticket,) = parse_qs(urlsplit(connection.request.path).query)["ticket"]
        self.tickets.remove(ticket)
        self.connected += 1
        if self.breaks and self.breaks.pop(0) == "without a word":
            connection.socket.shutdown(2)
            return
        with self._changed:
            self.open.append(connection)
        with suppress(ConnectionClosed, OSError):
            self._speak(connection)
        with self._changed:
            self.open.remove(connection)
            self._changed.notify_all()

    def _speak(self, connection: ServerConnection) -> None:
        headers = {"messageId": "ping-1", "topic": "ping", "contentType": "application/json", "time": "1"}
        ping = {"specVersion": "1.0", "type": "SYSTEM", "headers": headers, "data": json.dumps({"opaque": "o-1"})}
        connection.send(json.dumps(ping))
        gone = threading.Event()
        threading.Thread(target=self._read, args=(connection, gone), daemon=True).start()
        told: set[str] = set()
        while not gone.is_set():
            with self._changed:
                following = {name: each for name, each in self.frames.items() if name not in told}
                if not following:
                    self._changed.wait(1)
            for name, each in following.items():
                told.add(name)
                connection.send(json.dumps(each))

    def _read(self, connection: ServerConnection, gone: threading.Event) -> None:
        with suppress(ConnectionClosed, OSError):
            for each in connection:
                said = json.loads(each)
                assert said["code"] == 200
                name = said["headers"]["messageId"]
                with self._changed:
                    if name == "ping-1":
                        self.echoed.append(json.loads(said["data"])["opaque"])
                    else:
                        self.acknowledged.append(name)
                        self.frames.pop(name, None)
        gone.set()
        with self._changed:
            self._changed.notify_all()


class DingTalkServer(HttpPeer):
    """The REST API, as far as a robot's messages go, and beside it the stream."""

    kind: ClassVar[str] = "dingtalk"
    tells_duplicates = False
    lacks: ClassVar[Mapping[str, str]] = {
        "edits": "no event tells of them",
        "reactions": "no event tells of them",
        "threads": "there are none",
        "groups": "it tells of what mentions the robot alone",
        "captions": "a file's message has no text",
    }

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.stream = Stream()
        settings.HTTP_ALLOWED_PORTS = [str(self.port), str(self.stream.port)]
        self.tokens: list[str] = []
        self.uploads: dict[str, bytes] = {}
        self.told: list[dict[str, Any]] = []
        self.own: Channel | None = None

    def close(self) -> None:
        self.stream.close()
        super().close()

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"client_id": CLIENT, "client_secret": TOKEN, "server": self.url, "files_server": self.url}
        self.own = make_channel(owner, self.kind, given | values.pop("settings", {}), **values)
        return self.own

    def respond(self, asked: Asked) -> Answer:
        secret = SECRETS[TOKEN]
        match asked.path:
            case ("v1.0", "gateway", "connections", "open"):
                if (asked.said["clientId"], asked.said["clientSecret"]) != (CLIENT, secret):
                    return 401, {"code": "authFailed", "message": "鉴权失败"}
                assert asked.said["subscriptions"] == [{"type": "CALLBACK", "topic": TOPIC}]
                return 200, {"endpoint": f"ws://127.0.0.1:{self.stream.port}/connect", "ticket": self.stream.ticket()}
            case ("v1.0", "oauth2", "accessToken"):
                if asked.said != {"appKey": CLIENT, "appSecret": secret}:
                    return 400, {"code": "invalidClientIdOrSecret", "message": "无效的clientId或者clientSecret"}
                self.tokens.append(f"t-{len(self.tokens)}")
                return 200, {"accessToken": self.tokens[-1], "expireIn": 7200}
            case ("files", name):
                assert "x-acs-dingtalk-access-token" not in asked.headers
                return self.file(name)
            case ("media", "upload"):
                assert asked.query == {"access_token": self.tokens[-1]}
                self.uploads[f"@media{len(self.uploads)}"] = asked.raw
                return 200, {"errcode": 0, "errmsg": "ok", "media_id": list(self.uploads)[-1], "type": "file"}
        if not self.tokens or asked.headers.get("x-acs-dingtalk-access-token") != self.tokens[-1]:
            return 401, {"code": "InvalidAuthentication", "message": "不合法的access_token"}
        match asked.path[2:]:
            case ("messageFiles", "download"):
                assert asked.said["robotCode"] == CLIENT
                return 200, {"downloadUrl": f"{self.url}/files/{asked.said['downloadCode']}"}
            case ("oToMessages", "batchSend") if self._is_right(asked.said):
                lost = [each for each in asked.said["userIds"] if each == "nobody"]
                became = {"invalidStaffIdList": lost, "flowControlledStaffIdList": []}
                return 200, {"processQueryKey": f"pqk-{len(self.asked)}"} | became
            case ("groupMessages", "send") if self._is_right(asked.said) and asked.said["openConversationId"]:
                return 200, {"processQueryKey": f"pqk-{len(self.asked)}"}
        return 400, {"code": "invalidParameter", "message": "参数错误"}

    def _is_right(self, said: Mapping[str, Any]) -> bool:
        told = json.loads(said["msgParam"])
        match said["msgKey"]:
            case "sampleMarkdown":
                return bool(said["robotCode"] == CLIENT and told["title"] and 0 < len(told["text"]) <= 5000)
            case "sampleFile":
                return told["mediaId"] in self.uploads and bool(told["fileName"] and told["fileType"])
        return False

    def is_sent(self, asked: Asked) -> bool:
        return asked.path[-1] in ("batchSend", "send")

    def _tell(self, said: Mapping[str, Any]) -> None:
        self.told.append(dict(said))
        self._tell_frame(said)

    def _tell_frame(self, said: Mapping[str, Any]) -> None:
        assert self.own
        self.stream.tell(said)
        hear_until(self.own, lambda: not self.stream.frames)

    def message_of(self, text: str, *, sender: str = "anna", **more: Any) -> dict[str, Any]:
        told = {
            "msgId": f"msg{len(self.told)}",
            "senderStaffId": sender,
            "senderId": f"$:{sender}",
            "robotCode": CLIENT,
        }
        told |= {"senderNick": "Anna", "conversationType": "1", "conversationId": "cid1", "msgtype": "text"}
        return told | {"text": {"content": text}} | more

    def tells(self, text: str, **more: Any) -> None:
        self._tell(self.message_of(text, **more))

    def tells_again(self) -> None:
        """It does so of what was not acknowledged, in a frame of its own."""
        self._tell_frame(self.told[-1])

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        self.files["code-1"] = data
        content = {"downloadCode": "code-1", "fileName": name}
        self._tell(self.message_of("") | {"msgtype": "file", "content": content, "text": None})

    def files_sent(self) -> list[bytes]:
        return list(self.uploads.values())

    @property
    def sent(self) -> list[Sent]:
        found = []
        for each in self.asked:
            if self.is_sent(each):
                group = each.said.get("openConversationId")
                chat_id = f"group:{group}" if group else each.said["userIds"][0]
                found.append(
                    Sent(kind="message", chat_id=chat_id, text=json.loads(each.said["msgParam"]).get("text", ""))
                )
        return found
