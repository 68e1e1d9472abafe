"""Platforms of chats on loopback, each as strict as its published protocol: what it does not know, it refuses."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any, ClassVar

from django.test import Client

from agent.models import DEFAULT_AGENT, Agent
from conversations.channel_models import Channel, Listener
from conversations.channels import accounts
from conversations.engine import listener
from tests.support.http_peer import Answer, Asked, HttpPeer
from tests.support.imap_server import ImapServer
from tests.support.mail_server import MailServer
from tests.support.platforms import Sent
from tests.support.receiver import Says

TOKEN = "CHANNEL_SECRET_TOKEN"
SECRETS = {TOKEN: "tok-4711-of-the-bot-anna-runs", "CHANNEL_SECRET_SIGNING": "signing-secret-0815-of-the-app"}


def hear(channel: Channel) -> None:
    """Ask a channel's platform once, as a worker does."""
    row = Listener.objects.get(channel=channel)
    Listener.objects.filter(pk=row.pk).update(run_after=None)
    hold = listener.claim(row.pk, worker="worker-1")
    assert hold
    try:
        assert hold.platform
        heard = hold.platform.ask(hold.cursor)
        assert listener.take(hold, heard)
    finally:
        listener.hand_back(hold)


def make_channel(owner: Any, kind: str, settings: Mapping[str, Any], **values: Any) -> Channel:
    """An account of a platform, by which anna may write."""
    agent = Agent.objects.get(name=DEFAULT_AGENT)
    given: dict[str, Any] = {"name": "shop", "kind": kind, "agent": agent, "owner": owner, "allow_from": ["anna"]}
    made, _ = accounts.make(**given | {"settings": dict(settings)} | values)
    return made


class TelegramServer(HttpPeer):
    """The Bot API. ``anna`` and ``42`` are ids here as numbers are there."""

    kind: ClassVar[str] = "telegram"
    tells_duplicates = False

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


class SlackServer(HttpPeer):
    """The Web API, and the Events API towards the host."""

    kind: ClassVar[str] = "slack"
    tells_duplicates = False

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


class MatrixServer(HttpPeer):
    """A homeserver's client-server API. A transaction id that it has seen gets the same event."""

    kind: ClassVar[str] = "matrix"
    tells_duplicates = True

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
            case ("rooms", room, "send", "m.room.message", transaction):
                assert asked.method == "PUT"
                self.by_transaction.setdefault(transaction, {"room": room, **asked.said})
                return 200, {"event_id": f"$sent-{list(self.by_transaction).index(transaction)}"}
            case ("media", "download", "example.org", media):
                return self.file(media)
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
            if self.is_sent(each):
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


class MailHouse:
    """Two mail servers: one that keeps a mailbox, and one that takes what goes out."""

    kind: ClassVar[str] = "email"
    tells_duplicates = True

    def __init__(self, settings: Any) -> None:
        self.box, self.post = ImapServer("agent@example.org", SECRETS[TOKEN]), MailServer()
        self.post.password = SECRETS[TOKEN].encode()
        settings.HTTP_ALLOWED_PRIVATE_CIDRS = ["127.0.0.0/8"]
        settings.HTTP_ALLOWED_PORTS = [str(self.box.port), str(self.post.port)]
        self.own: Channel | None = None

    def close(self) -> None:
        self.box.close()
        self.post.close()

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"address": "agent@example.org", "password": TOKEN, "security": "none", "authserv_id": "mx.example.org"}
        given |= {"imap_host": "127.0.0.1", "imap_port": self.box.port}
        given |= {"smtp_host": "127.0.0.1", "smtp_port": self.post.port}
        if "allow_from" in values:
            values["allow_from"] = [f"{each}@example.com" if each == "anna" else each for each in values["allow_from"]]
        self.own = make_channel(owner, self.kind, given, **{"allow_from": ["anna@example.com"]} | values)
        if self.own.is_active:
            hear(self.own)  # what was there before is old
        return self.own

    def mail(self, body: str, **headers: str) -> None:
        """Put a message into the mailbox."""
        given = {
            "From": "Anna <anna@example.com>",
            "To": "agent@example.org",
            "Subject": "The shop",
            "Message-ID": f"<mail-{len(self.box.messages)}@example.com>",
            "Authentication-Results": "mx.example.org; dmarc=pass header.from=example.com",
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
        self.box.messages.append(f"{head}\r\n{body}\r\n".encode())
        assert self.own
        hear(self.own)

    def tells(self, text: str, *, sender: str = "anna", chat: str = "42", **headers: str) -> None:
        self.mail(text, **{"From": f"Anna <{sender}@example.com>"} | headers)

    def tells_again(self) -> None:
        assert self.own
        Listener.objects.update(cursor={"validity": "1", "next": 1})
        hear(self.own)

    def tells_in_a_thread(self, text: str) -> str:
        self.mail(text, References="<root@example.com> <between@example.com>", In_Reply_To="<between@example.com>")
        return "<root@example.com>"

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        parts = f"--b\r\nContent-Type: text/plain\r\n\r\n{text}\r\n"
        parts += f'--b\r\nContent-Type: text/plain\r\nContent-Disposition: attachment; filename="{name}"\r\n\r\n'
        self.mail(
            f"{parts}{data.decode()}\r\n--b--", **{"MIME-Version": "1.0", "Content-Type": "multipart/mixed; boundary=b"}
        )

    def answer(self, *faults: Says) -> None:
        self.post.answers = [_AS_SMTP[each.status] if not each.resets else "reset" for each in faults]

    @property
    def sent(self) -> list[Sent]:
        return [
            Sent(
                kind="message",
                chat_id=recipient,
                text=message.get_content().strip(),
                thread=str(message["References"] or "").split(" ")[0],
                in_reply_to=str(message["In-Reply-To"] or ""),
                key=message["Message-ID"],
            )
            for recipient, message in self.post.received
        ]


_AS_SMTP = {429: "451 Too many messages", 500: "451 A fault of ours", 204: "250 Taken", 400: "550 No such person"}

PEERS: Sequence[Any] = (TelegramServer, SlackServer, MatrixServer, MailHouse)
