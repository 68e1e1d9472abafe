"""A Matrix homeserver on loopback."""

from collections.abc import Mapping
from typing import Any, ClassVar

from conversations.channel_models import Channel, Listener
from tests.support.chat_platforms.accounts import SECRETS, TOKEN, hear, make_channel
from tests.support.http_peer import Answer, Asked, HttpPeer
from tests.support.platforms import Sent


class MatrixServer(HttpPeer):
    """A homeserver's client-server API. A transaction id that it has seen gets the same event."""

    kind: ClassVar[str] = "matrix"
    tells_duplicates = True
    lacks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.invited: dict[str, str] = {}
        self.joined: list[str] = []
        self.members = 2
        self.by_transaction: dict[str, dict[str, Any]] = {}
        self.own: Channel | None = None

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"token": TOKEN, "server": self.url, "user": "@agent:example.org"}
        self.own = make_channel(owner, self.kind, given, **values)
        if self.own.is_active:
            hear(self.own)  # what was there before is old
        return self.own

    def respond(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {SECRETS[TOKEN]}":
            return 401, {"errcode": "M_UNKNOWN_TOKEN", "error": "Unrecognised access token"}
        match asked.path[3:]:
            case ("sync",):
                return 200, self._sync(int(asked.query.get("since", "s0")[1:]))
            case ("rooms", room, "join"):
                self.joined.append(room)
                return 200, {"room_id": room}
            case ("rooms", _, "joined_members"):
                return 200, {"joined": {f"@{number}:example.org": {} for number in range(self.members)}}
            case ("rooms", room, "send", "m.room.message" | "m.reaction", transaction):
                assert asked.method == "PUT"
                self.by_transaction.setdefault(transaction, {"room": room, **asked.said})
                return 200, {"event_id": f"$sent-{list(self.by_transaction).index(transaction)}"}
            case ("rooms", _, "typing", "@agent:example.org"):
                assert (asked.method, asked.said["typing"]) == ("PUT", True)
                assert asked.said["timeout"] > 4000
                return 200, {}
            case ("media", "download", "example.org", media):
                return self.file(media)
        if asked.path == ("_matrix", "media", "v3", "upload"):
            return 200, {"content_uri": f"mxc://example.org/{asked.query['filename']}"}
        return 404, {"errcode": "M_UNRECOGNIZED", "error": "Unrecognized request"}

    def _sync(self, since: int) -> dict[str, Any]:
        rooms: dict[str, Any] = {}
        for room, event in self.events[since:]:
            rooms.setdefault(room, {"timeline": {"events": []}})["timeline"]["events"].append(event)
        invited = {
            room: {
                "invite_state": {
                    "events": [
                        {
                            "type": "m.room.member",
                            "state_key": "@agent:example.org",
                            "sender": sender,
                            "content": {"membership": "invite"},
                        }
                    ]
                }
            }
            for room, sender in self.invited.items()
        }
        return {"next_batch": f"s{len(self.events)}", "rooms": {"join": rooms, "invite": invited}}

    def typed(self) -> list[str]:
        """The rooms in which a mark was shown."""
        return [each.path[-3] for each in self.asked if each.path[-2] == "typing"]

    def did(self) -> list[tuple[str, str, str]]:
        """What was done to messages: what, to which, and with what."""
        found = []
        for each in self.by_transaction.values():
            relation = each.get("m.relates_to", {})
            match relation.get("rel_type"):
                case "m.replace":
                    found.append(("edit", relation["event_id"], each["m.new_content"]["body"]))
                case "m.annotation":
                    found.append(("react", relation["event_id"], relation["key"]))
        return found

    def files_sent(self) -> list[bytes]:
        shown = [each["url"] for each in self.by_transaction.values() if each.get("msgtype") == "m.file"]
        assert shown == ["mxc://example.org/may.txt"]
        return [each.raw for each in self.asked if each.path[-1] == "upload"]

    def is_sent(self, asked: Asked) -> bool:
        return "send" in asked.path

    def _tell(self, chat: str, sender: str, content: Mapping[str, Any], kind: str = "m.room.message") -> str:
        event_id = f"$event-{len(self.events)}"
        self.events.append((chat, {"type": kind, "event_id": event_id, "sender": sender, "content": dict(content)}))
        assert self.own
        hear(self.own)
        return event_id

    def tells(self, text: str, *, sender: str = "anna", chat: str = "42", **more: Any) -> None:
        self._tell(chat, sender, {"msgtype": "m.text", "body": text} | more)

    def tells_in_a_group(self, text: str, *, called: bool) -> None:
        self.members = 3
        self.tells(text, **({"m.mentions": {"user_ids": ["@agent:example.org"]}} if called else {}))

    def tells_again(self) -> None:
        assert self.own
        Listener.objects.update(cursor={"since": "s0"})
        hear(self.own)

    def tells_in_a_thread(self, text: str) -> str:
        self.tells(text, **{"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}})
        return "$root"

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        self.files["media-1"] = data
        address = "mxc://example.org/media-1"
        self._tell("42", "anna", {"msgtype": "m.file", "body": text, "filename": name, "url": address})

    def edits(self, text: str) -> str:
        relation = {"rel_type": "m.replace", "event_id": "$event-0"}
        new = {"msgtype": "m.text", "body": text}
        self._tell(
            "42", "anna", {"msgtype": "m.text", "body": f"* {text}", "m.new_content": new, "m.relates_to": relation}
        )
        return "$event-0"

    def reacts(self, emoji: str) -> str:
        relation = {"rel_type": "m.annotation", "event_id": "$event-0", "key": emoji}
        self._tell("42", "anna", {"m.relates_to": relation}, "m.reaction")
        return "$event-0"

    @property
    def sent(self) -> list[Sent]:
        found = []
        for each in self.asked:
            if self.is_sent(each) and "body" in each.said:
                relation = each.said.get("m.relates_to", {})
                is_thread = relation.get("rel_type") == "m.thread"
                found.append(
                    Sent(
                        kind="message",
                        chat_id=each.path[4],
                        text=each.said["body"],
                        thread=relation.get("event_id", "") if is_thread else "",
                        in_reply_to=relation.get("m.in_reply_to", {}).get("event_id", ""),
                        key=each.path[-1],
                    )
                )
        return found
