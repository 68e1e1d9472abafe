"""Discord on loopback: its REST API, and its gateway, which tells again what a resumed session has missed."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from conversations.channel_models import Channel, Listener
from tests.support.chat_platforms.accounts import SECRETS, TOKEN, hear_until, make_channel
from tests.support.http_peer import Answer, Asked, HttpPeer, form_of
from tests.support.platforms import Sent

BOT = "900"

_quiet = logging.getLogger("tests.gateway")
_quiet.setLevel(logging.CRITICAL)


class Gateway:
    """A websocket server; each connection has a thread. ``beat_every``: milliseconds between two heartbeats."""

    def __init__(self) -> None:
        self.dispatched: list[dict[str, Any]] = []
        self.said: list[dict[str, Any]] = []
        self.open: list[ServerConnection] = []
        self.identified = self.resumed = 0
        self.beat_every = 41_250
        # Connections that are closed right after they are open, each with a code; None: without a word.
        self.breaks: list[int | None] = []
        # Sessions that were begun anew know nothing of what was told before.
        self._session, self._begins_at = "", 0
        self._changed = threading.Condition(threading.RLock())
        self._server = serve(
            self._talk, "127.0.0.1", 0, ping_interval=None, close_timeout=5, open_timeout=60, logger=_quiet
        )
        self.port = self._server.socket.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()

    def dispatch(self, name: str, data: Mapping[str, Any]) -> None:
        """Something happens: it is told to who is connected, and to a session that is resumed."""
        with self._changed:
            self.dispatched.append({"op": 0, "t": name, "s": 0, "d": dict(data)})
            self._changed.notify_all()

    def drop(self, code: int | None = None) -> None:
        """Close all connections: with a code, or without a word."""
        for each in list(self.open):
            if code is None:
                with suppress(OSError):
                    each.socket.shutdown(2)
            else:
                each.close(code)

    def _talk(self, connection: ServerConnection) -> None:
        with self._changed:
            self.open.append(connection)
        try:
            self._speak(connection)
        except (ConnectionClosed, OSError):
            pass
        finally:
            with self._changed:
                self.open.remove(connection)
                self._changed.notify_all()

    def _speak(self, connection: ServerConnection) -> None:
        assert connection.request
        assert connection.request.path == "/?v=10&encoding=json"
        tell = lambda said: connection.send(json.dumps(said))  # noqa: E731 -- shorter than a function
        tell({"op": 10, "d": {"heartbeat_interval": self.beat_every}, "s": None, "t": None})
        first = json.loads(connection.recv(timeout=60))
        while first["op"] == 1:
            tell({"op": 11})
            first = json.loads(connection.recv(timeout=60))
        self.said.append(first)
        if first["d"]["token"] != SECRETS[TOKEN]:
            connection.close(4004, "Authentication failed.")
            return
        if self.breaks:
            code = self.breaks.pop(0)
            connection.socket.shutdown(2) if code is None else connection.close(code)
            return
        at = self._begin(first, tell)
        if at is None:
            return
        gone = threading.Event()
        reader = threading.Thread(target=self._read, args=(connection, tell, gone), daemon=True)
        reader.start()
        while not gone.is_set():
            with self._changed:
                if len(self.dispatched) <= at:
                    self._changed.wait(1)
                following = self.dispatched[at:]
            for each in following:
                at += 1
                tell(each | {"s": at + 1})

    def _begin(self, first: Mapping[str, Any], tell: Callable[[Any], None]) -> int | None:
        """Where a session goes on; None if there is none."""
        about = first["d"]
        if first["op"] == 2:
            assert about["intents"] & 1 << 15, "without it, messages come without their text"
            with self._changed:
                self.identified += 1
                self._session, at = f"session-{self.identified}", self._begins_at
            ready = {"session_id": self._session, "resume_gateway_url": self.url, "user": {"id": BOT, "bot": True}}
            tell({"op": 0, "t": "READY", "s": at + 1, "d": ready | {"v": 10, "guilds": []}})
            return at
        assert first["op"] == 6
        if about["session_id"] != self._session or not 0 < about["seq"] <= len(self.dispatched) + 1:
            tell({"op": 9, "d": False})
            return None
        self.resumed += 1
        at = int(about["seq"]) - 1
        for each in self.dispatched[at:]:
            at += 1
            tell(each | {"s": at + 1})
        tell({"op": 0, "t": "RESUMED", "s": at + 1, "d": {}})
        return at

    def _read(self, connection: ServerConnection, tell: Callable[[Any], None], gone: threading.Event) -> None:
        with suppress(ConnectionClosed, OSError):
            for each in connection:
                if json.loads(each)["op"] == 1:
                    tell({"op": 11})
        gone.set()
        with self._changed:
            self._changed.notify_all()

    def forget_session(self) -> None:
        """As if it had been away for too long."""
        self._session, self._begins_at = "", len(self.dispatched)


class DiscordServer(HttpPeer):
    """The REST API, and beside it the gateway. ``anna`` and ``42`` are numbers there."""

    kind: ClassVar[str] = "discord"
    tells_duplicates = True
    lacks: ClassVar[Mapping[str, str]] = {}
    anna, chat = "1001", "42"

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.gateway = Gateway()
        settings.HTTP_ALLOWED_PORTS = [str(self.port), str(self.gateway.port)]
        self.channels: dict[str, dict[str, Any]] = {}
        self.by_nonce: dict[str, str] = {}
        self.events = self.pressed = 0
        self.own: Channel | None = None

    def close(self) -> None:
        self.gateway.close()
        super().close()

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"token": TOKEN, "server": f"{self.url}/api/v10"} | values.pop("settings", {})
        if "allow_from" in values:
            values["allow_from"] = [self.anna if each == "anna" else each for each in values["allow_from"]]
        self.own = make_channel(owner, self.kind, given, **{"allow_from": [self.anna]} | values)
        return self.own

    def respond(self, asked: Asked) -> Answer:
        if asked.path[2:3] == ("files",):
            assert "authorization" not in asked.headers
            return self.file(asked.path[-1])
        if asked.path[2:3] == ("interactions",):
            return (200, {}) if asked.said == {"type": 6} else (400, {"code": 50035})
        if asked.headers.get("authorization") != f"Bot {SECRETS[TOKEN]}":
            return 401, {"message": "401: Unauthorized", "code": 0}
        match (asked.method, *asked.path[2:]):
            case ("GET", "gateway", "bot"):
                return 200, {"url": self.gateway.url, "shards": 1, "session_start_limit": {"remaining": 999}}
            case ("GET", "channels", channel):
                return 200, {"id": channel, "type": 0, "name": "shop"} | self.channels.get(channel, {})
            case ("POST", "channels", channel, "messages"):
                return self._taken(channel, self.message_in(asked), has_file=asked.said is None)
            case ("POST", "channels", _, "typing"):
                return 204, b""
            case ("PATCH", "channels", _, "messages", message):
                return 200, {"id": message, "content": asked.said["content"]}
            case ("PUT", "channels", _, "messages", _, "reactions", _, "@me"):
                return 204, b""
        return 404, {"message": "404: Not Found", "code": 0}

    def message_in(self, asked: Asked) -> Any:
        """What is sent: JSON, or a form with a file in it."""
        if asked.said is not None:
            return asked.said
        form = form_of(asked)
        assert set(form) == {"payload_json", "files[0]"}
        return json.loads(form["payload_json"])

    def _taken(self, channel: str, said: Mapping[str, Any], *, has_file: bool) -> Answer:
        if not (said["content"] or has_file) or len(said["content"]) > 2000:
            return 400, {"message": "Invalid Form Body", "code": 50035}
        assert said["allowed_mentions"] == {"parse": []}, "an agent calls nobody"
        assert len(said["nonce"]) <= 25
        identity = str(len(self.by_nonce) + 5000)
        if said.get("enforce_nonce"):
            identity = self.by_nonce.setdefault(said["nonce"], identity)
        return 200, {"id": identity, "channel_id": channel, "content": said["content"]}

    def is_sent(self, asked: Asked) -> bool:
        return asked.method == "POST" and asked.path[-1] == "messages"

    def _tell(self, name: str, data: Mapping[str, Any]) -> None:
        self.gateway.dispatch(name, data)
        self._hear()

    def _hear(self) -> None:
        assert self.own
        hear_until(self.own, lambda: seq(self.own) > len(self.gateway.dispatched))

    def _person(self, sender: str) -> dict[str, Any]:
        return {"id": self.anna if sender == "anna" else sender, "username": "anna", "global_name": "Anna"}

    def message_of(self, text: str, *, sender: str = "anna", chat: str = "42", **more: Any) -> dict[str, Any]:
        self.events += 1
        told = {"id": str(7000 + self.events), "channel_id": chat, "author": self._person(sender), "content": text}
        return told | {"type": 0, "mentions": [], "attachments": [], "edited_timestamp": None} | more

    def tells(self, text: str, **more: Any) -> None:
        self._tell("MESSAGE_CREATE", self.message_of(text, **more))

    def tells_in_a_group(self, text: str, *, called: bool) -> None:
        if called:
            self.tells(f"<@{BOT}> {text}", guild_id="1", mentions=[{"id": BOT}])
        else:
            self.tells(text, guild_id="1")

    def tells_again(self) -> None:
        """The gateway does so to a session that is resumed from an earlier place."""
        listening = Listener.objects.get()
        Listener.objects.update(cursor=listening.cursor | {"seq": 1})
        self._hear()

    def tells_in_a_thread(self, text: str) -> str:
        self.channels["77"] = {"type": 11, "parent_id": "42", "name": "thread"}
        self.tells(f"<@{BOT}> {text}", chat="77", guild_id="1", mentions=[{"id": BOT}])
        return "77"

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        self.files[name] = data
        file = {"id": "1", "filename": name, "url": f"{self.url}/api/v10/files/{name}", "size": len(data)}
        self.tells(text, attachments=[file])

    def edits(self, text: str) -> str:
        told = self.message_of(text) | {"id": "7001", "edited_timestamp": "2026-01-01T00:00:00+00:00"}
        self._tell("MESSAGE_UPDATE", told)
        return "7001"

    def reacts(self, emoji: str) -> str:
        told = {"user_id": self.anna, "channel_id": "42", "message_id": "7001", "emoji": {"id": None, "name": emoji}}
        self._tell("MESSAGE_REACTION_ADD", told)
        return "7001"

    def shown_buttons(self) -> list[str]:
        """What the buttons of the last message give back."""
        rows = [each for each in self.asked if self.is_sent(each)][-1].said["components"]
        assert all(len(row["components"]) <= 5 for row in rows)
        return [each["custom_id"] for row in rows for each in row["components"]]

    def typed(self) -> list[str]:
        """The channels in which a mark was shown."""
        return [each.path[-2] for each in self.asked if each.path[-1] == "typing"]

    def did(self) -> list[tuple[str, str, str]]:
        """What was done to messages: what, to which, and with what."""
        edits = [("edit", each.path[5], each.said["content"]) for each in self.asked if each.method == "PATCH"]
        return edits + [("react", each.path[5], each.path[7]) for each in self.asked if each.method == "PUT"]

    def files_sent(self) -> list[bytes]:
        return [form_of(each)["files[0]"] for each in self.asked if self.is_sent(each) and each.said is None]

    def presses(self, value: str, *, sender: str = "anna") -> None:
        self.pressed += 1
        told = {"id": str(8000 + self.pressed), "token": "t-1", "type": 3, "channel_id": "42"}
        told["user"] = self._person(sender)
        self._tell("INTERACTION_CREATE", told | {"data": {"custom_id": value}, "message": {"id": "5000"}})

    @property
    def sent(self) -> list[Sent]:
        found = []
        for each in self.asked:
            if self.is_sent(each):
                said, place = self.message_in(each), each.path[3]
                parent = self.channels.get(place, {}).get("parent_id", "")
                found.append(
                    Sent(
                        kind="message",
                        chat_id=parent or place,
                        thread=place if parent else "",
                        text=said["content"],
                        in_reply_to=said.get("message_reference", {}).get("message_id", ""),
                        key=said["nonce"],
                    )
                )
        return found


def seq(channel: Channel | None) -> int:
    """Up to where a channel has heard."""
    return int(Listener.objects.get(channel=channel).cursor.get("seq") or 0)
