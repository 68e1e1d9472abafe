"""Discord, by its gateway and its REST API (https://docs.discord.com/developers): told of events by a websocket.

Where a session goes on is kept in the cursor, so that whoever connects next resumes it, and is told again of what was
told and not taken in.
"""

import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from conversations.attachments.parts import SentFile
from conversations.channels import calls, dialects, fields
from conversations.channels.base import Capabilities, Event, Heard, OutgoingMessage, Permanent, Platform, Retry
from conversations.channels.calls import at, list_at, text_at
from conversations.channels.fields import Setting
from conversations.channels.sockets import Lost, Socket

SERVER = "https://discord.com/api/v10"
# Seconds for which it is waited for something to happen; for a first word; that pass after a session that was refused.
WAITS, HELLO_WITHIN, ANEW_AFTER = 25.0, 20.0, (1.0, 5.0)
# A session ends with 1000 or 1001, and stays resumable with others.
STAYS = 4000
# So often at once it is connected anew before somebody is told.
MANY_LOSSES = 3

DISPATCH, BEAT, IDENTIFY, RESUME, RECONNECT, INVALID, HELLO, ACK = 0, 1, 2, 6, 7, 9, 10, 11
# Messages and reactions of servers and of direct messages, and what is in messages.
INTENTS = 1 << 9 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 15
# Closed for good, with what people can do; and closed for this session.
FATAL = {
    4004: "Discord does not know the bot's token",
    4010: "Discord refuses the connection (4010)",
    4011: "The bot is in too many servers for one connection (4011)",
    4012: "Discord no longer speaks this version of its gateway (4012)",
    4013: "Discord refuses the connection (4013)",
    4014: "The bot may not read messages: switch on the intent Message Content in Discord's developer portal",
}
ENDED = (1000, 1001, 4003, 4007, 4009)
THREADS = (10, 11, 12)
# Ids are of digits alone, so that none says more than it should in an address.
_MAX_ID, _MAX_PLACES = 25, 1000


class Discord(Platform):
    """A bot."""

    kind, title = "discord", "Discord"
    # Of a nonce Discord knows for "the past few minutes" that it has had it.
    capabilities = Capabilities(
        text_limit=2000,
        tells_duplicates=True,
        remembers_for=120.0,
        buttons=25,
        edits=True,
        reacts=True,
        files=True,
        typing=True,
    )
    fields = (
        Setting(name="token", words="the variable that has the bot's token", check=fields.secret, is_needed=True),
        fields.groups("servers"),
        Setting(name="server", words="the API's address", check=fields.url, default=SERVER),
    )
    _gateway: "_Gateway | None" = None

    @classmethod
    def has_to_be_asked(cls, settings: Mapping[str, Any]) -> bool:
        return True

    # --- what comes in -----------------------------------------------------------------------------------------------

    def ask(self, cursor: Mapping[str, Any]) -> Heard:
        """What the gateway tells. A connection that is lost is opened anew by the next call, to resume the session."""
        if self._gateway is None:
            self._gateway = _Gateway(self.secret("token"), self._places())
        return self._gateway.hear(cursor, self)

    def close(self) -> None:
        if self._gateway:
            self._gateway.leave()

    def _places(self) -> "_Places":
        return _Places(self._read)

    def gateway_url(self) -> str:
        """Where the gateway is for a new session."""
        return text_at(self._read("/gateway/bot"), "url", most=500)

    def events(self, name: str, told: Any, places: "_Places") -> Sequence[Event]:
        """What something that happened is for an agent."""
        match name:
            case "MESSAGE_CREATE":
                return self._message(told, places)
            case "MESSAGE_UPDATE":
                return self._edit(told, places)
            case "MESSAGE_REACTION_ADD":
                return self._reaction(told, places)
            case "INTERACTION_CREATE":
                return self._choice(told, places)
        return ()

    def _message(self, told: Any, places: "_Places") -> Sequence[Event]:
        # 0 is what somebody writes, and 19 an answer; others are of the house.
        if at(told, "author", "bot") or at(told, "webhook_id") or at(told, "type") not in (0, 19):
            return ()
        if not (said := self._said(told, places)):
            return ()
        files = _files(told)
        text = _without(text_at(told, "content"), places.own)
        if not text.strip() and not files:
            return ()
        message_id = said["message_id"]
        fetch = (lambda: [calls.file(url, name=name) for url, name in files]) if files else None
        is_called = self._is_called(told, places)
        return (Event(external_id=message_id, text=text, fetch=fetch, is_called=is_called, **said),)

    def _edit(self, told: Any, places: "_Places") -> Sequence[Event]:
        edited_at, text = text_at(told, "edited_timestamp", most=50), text_at(told, "content")
        # Discord tells of a preview of a link in the same way.
        if at(told, "author", "bot") or not (edited_at and text.strip()) or not (said := self._said(told, places)):
            return ()
        return (Event(external_id=f"{said['message_id']} {edited_at}", kind="edit", text=text, **said),)

    def _reaction(self, told: Any, places: "_Places") -> Sequence[Event]:
        sender_id, message_id = _id_at(told, "user_id"), _id_at(told, "message_id")
        emoji, channel_id = text_at(told, "emoji", "name", most=100), _id_at(told, "channel_id")
        if not (sender_id and message_id and emoji and channel_id) or sender_id == places.own:
            return ()
        user = at(told, "member", "user")
        if at(user, "bot"):
            return ()
        reaction = Event(
            external_id=f"{message_id} {sender_id} {emoji}",
            kind="reaction",
            sender_id=sender_id,
            sender_name=_name(user, at(told, "member")),
            message_id=message_id,
            text=emoji,
            **places.of(channel_id, is_direct=not at(told, "guild_id")),
        )
        return (reaction,)

    def _choice(self, told: Any, places: "_Places") -> Sequence[Event]:
        """A button that was pressed. Discord shows a failure to who pressed it unless it is told within 3 seconds that
        it was taken in."""
        identity, token = _id_at(told, "id"), text_at(told, "token", most=500)
        member, channel_id = at(told, "member"), _id_at(told, "channel_id")
        user = at(member, "user") or at(told, "user")
        value, sender_id = text_at(told, "data", "custom_id", most=100), _id_at(user, "id")
        if at(told, "type") != 3 or not (identity and token and value and sender_id and channel_id):
            return ()
        place = f"/interactions/{identity}/{quote(token, safe='')}/callback"
        choice = Event(
            external_id=f"choice {identity}",
            kind="choice",
            sender_id=sender_id,
            sender_name=_name(user, member),
            message_id=_id_at(told, "message", "id"),
            text=value,
            acknowledge=lambda: calls.judge_news(calls.ask(f"{self._server()}{place}", body={"type": 6}, seconds=3.0)),
            **places.of(channel_id, is_direct=member is None),
        )
        return (choice,)

    def _said(self, told: Any, places: "_Places") -> dict[str, Any] | None:
        """Who has said something where; None if it does not say so."""
        sender_id, message_id, channel_id = _id_at(told, "author", "id"), _id_at(told, "id"), _id_at(told, "channel_id")
        if not (sender_id and message_id and channel_id):
            return None
        named = {"sender_id": sender_id, "sender_name": _name(at(told, "author"), at(told, "member"))}
        return named | {"message_id": message_id} | places.of(channel_id, is_direct=not at(told, "guild_id"))

    def _is_called(self, told: Any, places: "_Places") -> bool:
        """Whether a message is for the agent."""
        if not at(told, "guild_id"):
            return True
        called = [text_at(each, "id", most=_MAX_ID) for each in list_at(told, "mentions")]
        return bool(places.own) and places.own in (*called, text_at(told, "referenced_message", "author", "id"))

    # --- what goes out -----------------------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage, key: str) -> str:
        # A nonce has 25 characters at most.
        told: dict[str, Any] = {"nonce": hashlib.sha256(key.encode()).hexdigest()[:25], "enforce_nonce": True}
        if message.in_reply_to and message.part == 1:
            told["message_reference"] = {"message_id": message.in_reply_to, "fail_if_not_exists": False}
        if message.options:
            told["components"] = _buttons(message)
        said = self._do("POST", f"{_place(message)}/messages", told | _content(message), message.file)
        return text_at(said, "id", most=_MAX_ID)

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        return self.send(message, key)

    def edit(self, message: OutgoingMessage, key: str) -> None:
        told = _content(message) | {"components": []}
        self._do("PATCH", f"{_place(message)}/messages/{_number(message.message_id)}", told)

    def react(self, message: OutgoingMessage, key: str) -> None:
        emoji = quote(message.emoji, safe="")
        self._do("PUT", f"{_place(message)}/messages/{_number(message.message_id)}/reactions/{emoji}/@me", {})

    def show_typing(self, message: OutgoingMessage) -> None:
        self._do("POST", f"{_place(message)}/typing", {})

    def _do(self, method: str, place: str, told: Mapping[str, Any], file: SentFile | None = None) -> dict[str, Any]:
        url, headers = f"{self._server()}{place}", self._signed_in()
        if file:
            form, about = calls.multipart({"payload_json": json.dumps(dict(told))}, "files[0]", file)
            answer = calls.send(url, body=form, headers=headers | about, method=method)
        else:
            answer = calls.send(url, body=told, headers=headers, method=method)
        said = calls.said_in(answer)
        calls.judge(answer, words=text_at(said, "message", most=300), after=calls.wait_in(at(said, "retry_after")))
        return said

    def _read(self, place: str) -> dict[str, Any]:
        answer = calls.ask(f"{self._server()}{place}", headers=self._signed_in())
        said = calls.said_in(answer)
        after = calls.wait_in(at(said, "retry_after"))
        calls.judge_news(answer, words=text_at(said, "message", most=300), after=after)
        return said

    def _server(self) -> str:
        return str(self.setting("server")).rstrip("/")

    def _signed_in(self) -> dict[str, str]:
        return {"Authorization": f"Bot {self.secret('token')}"}


class _Places:
    """Which chat a channel is, asked once and remembered: a thread is a channel whose parent is one."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self._known: dict[str, dict[str, Any]] = {}
        self.own = ""

    def of(self, channel_id: str, *, is_direct: bool) -> dict[str, Any]:
        """Chat, thread and title; raises :class:`Retry`."""
        if is_direct:
            return {"chat_id": channel_id}
        if channel_id not in self._known:
            if len(self._known) >= _MAX_PLACES:
                self._known.clear()
            self._known[channel_id] = self._asked(channel_id)
        return self._known[channel_id]

    def _asked(self, channel_id: str) -> dict[str, Any]:
        try:
            told = self._read(f"/channels/{channel_id}")
        except Permanent:  # it may be written to, and not be looked at
            return {"chat_id": channel_id}
        parent, title = _id_at(told, "parent_id"), text_at(told, "name", most=100)
        if at(told, "type") in THREADS and parent:
            return {"chat_id": parent, "thread": channel_id, "title": title}
        return {"chat_id": channel_id, "title": title}


class _Gateway:
    """A connection to the gateway, and the session that it is of. Used by one thread; :meth:`leave` by any."""

    def __init__(self, token: str, places: _Places) -> None:
        self._token, self._places = token, places
        self._socket: Socket | None = None
        self._losses, self._is_over = 0, False
        self._beat_every = self._beat_at = 0.0
        self._is_answered = True

    def leave(self) -> None:
        """Close it for good; its session can be resumed."""
        self._is_over = True
        if socket := self._socket:
            socket.close(STAYS)

    def hear(self, cursor: Mapping[str, Any], bot: Discord) -> Heard:
        """Events, as soon as there are some, and where the session goes on behind them."""
        now = dict(cursor)
        self._places.own = text_at(now, "own", most=_MAX_ID)
        try:
            if self._socket is None:
                self._open(now, bot)
            return self._hear(now, bot)
        except Lost as error:
            return self._lost(error, now)
        except Exception:
            self._drop()  # what was told, and not taken in, is told again
            raise

    def _open(self, now: Mapping[str, Any], bot: Discord) -> None:
        url = text_at(now, "resume", most=500) if _session(now) else ""
        url = (url or bot.gateway_url()).rstrip("/")
        self._socket = socket = Socket(f"{url}/?v=10&encoding=json")
        if self._is_over:
            socket.close(STAYS)
        hello = socket.receive(HELLO_WITHIN)
        every = at(hello, "d", "heartbeat_interval")
        if at(hello, "op") != HELLO or not isinstance(every, int) or every <= 0:
            raise Retry("Discord's gateway does not say hello")
        self._beat_every, self._is_answered = max(every / 1000, 1.0), True
        # The first one comes at a random time, so that not all of a gateway's come at once.
        self._beat_at = time.monotonic() + self._beat_every * random.random()  # noqa: S311 -- no secret
        if session := _session(now):
            told = {"token": self._token, "session_id": session, "seq": now["seq"]}
            socket.send({"op": RESUME, "d": told})
        else:
            about = {"os": "linux", "browser": "nanohost", "device": "nanohost"}
            told = {"token": self._token, "intents": INTENTS, "properties": about}
            socket.send({"op": IDENTIFY, "d": told})

    def _hear(self, now: dict[str, Any], bot: Discord) -> Heard:
        assert self._socket
        until = time.monotonic() + WAITS
        while (left := until - time.monotonic()) > 0:
            self._keep_alive(now)
            told = self._socket.receive(min(left, max(self._beat_at - time.monotonic(), 0.0)))
            match at(told, "op"):
                case 0:
                    events = self._dispatched(told, now, bot)
                    if events or text_at(told, "t") in ("READY", "RESUMED"):
                        return Heard(events=events, cursor=now)
                case 1:
                    self._beat(now)
                case 7:
                    raise Lost(STAYS)
                case 9:
                    return self._refused(told, now)
                case 11:
                    self._is_answered = True
        return Heard(events=(), cursor=now)

    def _dispatched(self, told: Any, now: dict[str, Any], bot: Discord) -> Sequence[Event]:
        name, data = text_at(told, "t", most=100), at(told, "d")
        if name == "READY":
            now |= {"session": text_at(data, "session_id", most=200), "own": _id_at(data, "user", "id")}
            now["resume"] = _at_home(text_at(data, "resume_gateway_url", most=500))
            self._places.own = now["own"]
        self._losses = 0
        events = bot.events(name, data, self._places)
        if isinstance(at(told, "s"), int):
            now["seq"] = told["s"]
        return events

    def _keep_alive(self, now: Mapping[str, Any]) -> None:
        if time.monotonic() < self._beat_at:
            return
        if not self._is_answered:
            raise Lost(STAYS)  # whoever does not answer is not there
        self._beat(now)
        self._is_answered = False
        self._beat_at = time.monotonic() + self._beat_every

    def _beat(self, now: Mapping[str, Any]) -> None:
        assert self._socket
        self._socket.send({"op": BEAT, "d": now.get("seq")})

    def _refused(self, told: Any, now: dict[str, Any]) -> Heard:
        """The session is not resumed, or not begun."""
        self._drop()
        cursor = now if at(told, "d") is True else _without_session(now)
        return Heard(events=(), cursor=cursor, pause=self._pause(random.uniform(*ANEW_AFTER)))  # noqa: S311 -- no secret

    def _lost(self, error: Lost, now: dict[str, Any]) -> Heard:
        self._drop()
        if error.code in FATAL:
            raise Permanent(FATAL[error.code])
        cursor = _without_session(now) if error.code in ENDED else now
        return Heard(events=(), cursor=cursor, pause=self._pause(0.0 if not self._losses else 1.0))

    def _pause(self, seconds: float) -> float:
        """Seconds before the next connection; raises :class:`Retry` if one after the other is lost."""
        self._losses += 1
        if self._losses > MANY_LOSSES and not self._is_over:
            raise Retry("Discord's gateway closes one connection after the other")
        return seconds

    def _drop(self) -> None:
        if socket := self._socket:
            self._socket = None
            socket.close(STAYS)


def _session(now: Mapping[str, Any]) -> str:
    return text_at(now, "session", most=200) if isinstance(now.get("seq"), int) else ""


def _without_session(now: Mapping[str, Any]) -> dict[str, Any]:
    return {"own": now.get("own", "")}


def _at_home(url: str) -> str:
    """Where a session is resumed, if that is an address; the token goes there."""
    return url if urlsplit(url).scheme in ("ws", "wss") else ""


def _id_at(told: Any, *names: str) -> str:
    found = text_at(told, *names, most=_MAX_ID)
    return found if found.isascii() and found.isdigit() else ""


def _number(identity: str) -> str:
    if not (identity.isascii() and identity.isdigit() and len(identity) <= _MAX_ID):
        raise Permanent("Discord's ids are numbers")
    return identity


def _place(message: OutgoingMessage) -> str:
    return f"/channels/{_number(message.thread or message.chat_id)}"


def _content(message: OutgoingMessage) -> dict[str, Any]:
    """Its text, which calls nobody, whatever it says."""
    text = dialects.discord(message.text, most=Discord.capabilities.text_limit)
    return {"content": text, "allowed_mentions": {"parse": []}}


def _buttons(message: OutgoingMessage) -> list[dict[str, Any]]:
    """Rows of five."""
    each = [
        {"type": 2, "style": 1, "label": option.label[:80], "custom_id": option.value} for option in message.options
    ]
    return [{"type": 1, "components": each[first : first + 5]} for first in range(0, len(each), 5)]


def _files(told: Any) -> Sequence[tuple[str, str]]:
    """Where its files are, which anybody may get, and what they are called."""
    found = []
    for each in list_at(told, "attachments"):
        if url := text_at(each, "url", most=2000):
            found.append((url, text_at(each, "filename", most=100) or "file"))
    return found[: calls.MAX_FILES]


def _name(user: Any, member: Any) -> str:
    for said in (at(member, "nick"), at(user, "global_name"), at(user, "username")):
        if isinstance(said, str) and said:
            return said[:100]
    return ""


def _without(text: str, own: str) -> str:
    """As it was typed, but for the marks by which it calls the bot."""
    return text.replace(f"<@{own}>", "").replace(f"<@!{own}>", "").strip() if own else text
