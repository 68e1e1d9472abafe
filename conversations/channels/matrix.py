"""Matrix, by its client-server API (https://spec.matrix.org/latest/client-server-api/): asked for what is new.

Rooms with end-to-end encryption are not read: their messages are passed over.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from conversations.attachments.parts import SentFile
from conversations.channel_models import MAX_PLATFORM_ID
from conversations.channels import calls, dialects, fields
from conversations.channels.base import (
    EVERYBODY,
    Capabilities,
    Event,
    Heard,
    InDoubt,
    OutgoingMessage,
    Permanent,
    Platform,
    Retry,
)
from conversations.channels.calls import at, list_at, text_at
from conversations.channels.fields import Setting
from tools.outbound.client import Answer

# Seconds for which the server waits for something to happen.
WAITS = 25
# For which a typing mark is shown; it is renewed before.
TYPING_MS = 6000
MEDIA = ("m.image", "m.file", "m.audio", "m.video")

# What a sync is to tell: messages and reactions, and of rooms no more than their invitations.
_FILTER = (
    '{"presence":{"types":[]},"account_data":{"types":[]},"room":{"account_data":{"types":[]},"ephemeral":{"types":[]},'
    '"state":{"types":[]},"timeline":{"types":["m.room.message","m.reaction"],"limit":100}}}'
)


class Matrix(Platform):
    """A user of a homeserver."""

    kind, title = "matrix", "Matrix"
    # An event has 64 KiB; the text stands in it twice.
    capabilities = Capabilities(
        text_limit=6000, tells_duplicates=True, edits=True, reacts=True, files=True, typing=True
    )
    fields = (
        Setting(name="server", words="the homeserver's address", check=fields.url, is_needed=True),
        Setting(name="user", words="the agent's user, such as @agent:example.org", check=fields.text, is_needed=True),
        Setting(name="token", words="the variable that has its access token", check=fields.secret, is_needed=True),
        fields.groups("rooms with more than two people"),
    )

    @classmethod
    def has_to_be_asked(cls, settings: Mapping[str, Any]) -> bool:
        return True

    def ask(self, cursor: Mapping[str, Any]) -> Heard:
        since = text_at(cursor, "since", most=1000)
        query = {"filter": _FILTER, "set_presence": "offline", "timeout": WAITS * 1000 if since else 0}
        said = self._read("/_matrix/client/v3/sync", query | ({"since": since} if since else {}), seconds=WAITS + 10)
        self._follow_invitations(at(said, "rooms", "invite"))
        events: list[Event] = []
        joined = at(said, "rooms", "join")
        if since and isinstance(joined, dict):  # what was there before the first sync is old
            for room, told in joined.items():
                for each in list_at(told, "timeline", "events"):
                    events += self._events(room, each)
        return Heard(events=events, cursor={"since": text_at(said, "next_batch", most=1000) or since})

    def send(self, message: OutgoingMessage, key: str) -> str:
        return self._put("m.room.message", message, _text(message.text) | _related(message), key)

    def edit(self, message: OutgoingMessage, key: str) -> None:
        new = _text(message.text)
        relation = {"rel_type": "m.replace", "event_id": message.message_id}
        told = new | {"body": f"* {message.text}", "m.new_content": new, "m.relates_to": relation}
        self._put("m.room.message", message, told, key)

    def show_typing(self, message: OutgoingMessage) -> None:
        place = f"/_matrix/client/v3/rooms/{_quoted(message.chat_id)}/typing/{_quoted(self.setting('user'))}"
        told = {"typing": True, "timeout": TYPING_MS}
        answer = calls.send(f"{self._server()}{place}", body=told, headers=self._signed_in(), method="PUT")
        calls.judge(answer, words=_words(calls.said_in(answer)))

    def react(self, message: OutgoingMessage, key: str) -> None:
        relation = {"rel_type": "m.annotation", "event_id": message.message_id, "key": message.emoji}
        try:
            self._put("m.reaction", message, {"m.relates_to": relation}, key)
        except Permanent as error:
            if "M_DUPLICATE_ANNOTATION" not in str(error):
                raise

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        assert message.file
        kind = calls.type_of(message.file)
        url = f"{self._server()}/_matrix/media/v3/upload?{urlencode({'filename': message.file.name})}"
        try:
            answer = calls.send(url, body=message.file.data, headers={"Content-Type": kind} | self._signed_in())
            said = calls.said_in(answer)
            calls.judge(answer, words=_words(said), after=_wait(said))
        except InDoubt as error:  # nothing is shown yet
            raise Retry(str(error), status=error.status) from None
        info = {"mimetype": kind, "size": len(message.file.data)}
        told: dict[str, Any] = {
            "msgtype": "m.image" if kind.startswith("image/") else "m.file",
            "filename": message.file.name,
        }
        told |= {"body": message.text or message.file.name, "url": text_at(said, "content_uri", most=500), "info": info}
        return self._put("m.room.message", message, told | _related(message), key)

    def _put(self, kind: str, message: OutgoingMessage, content: Mapping[str, Any], key: str) -> str:
        place = f"/_matrix/client/v3/rooms/{_quoted(message.chat_id)}/send/{kind}/{_quoted(key)}"
        answer = calls.send(f"{self._server()}{place}", body=content, headers=self._signed_in(), method="PUT")
        said = calls.said_in(answer)
        calls.judge(answer, words=_words(said), after=_wait(said))
        return text_at(said, "event_id", most=200)

    # --- what comes in -----------------------------------------------------------------------------------------------

    def _events(self, room: str, event: Any) -> Sequence[Event]:
        event_id, sender_id = text_at(event, "event_id", most=300), text_at(event, "sender", most=300)
        named = (event_id, sender_id, room)
        # What has a longer id than those that are kept is not of a homeserver that keeps to the specification.
        if not all(named) or max(map(len, named)) > MAX_PLATFORM_ID or sender_id == self.setting("user"):
            return ()
        content = at(event, "content")
        relation = at(content, "m.relates_to")
        about = text_at(relation, "event_id", most=MAX_PLATFORM_ID)
        told: dict[str, Any] = {"external_id": event_id, "chat_id": room, "sender_id": sender_id}
        if text_at(event, "type") == "m.reaction":
            emoji = text_at(relation, "key", most=100)
            return (Event(**told, kind="reaction", message_id=about, text=emoji),) if about and emoji else ()
        if text_at(relation, "rel_type") == "m.replace":
            text = text_at(content, "m.new_content", "body")
            return (Event(**told, kind="edit", message_id=about, text=text),) if about and text.strip() else ()
        return self._message(told, content, thread=about if text_at(relation, "rel_type") == "m.thread" else "")

    def _message(self, told: dict[str, Any], content: Any, *, thread: str) -> Sequence[Event]:
        kind, text = text_at(content, "msgtype"), text_at(content, "body")
        # A notice is a program's, and nobody answers those: two agents would go on for ever.
        if kind not in ("m.text", "m.emote", *MEDIA) or not text.strip():
            return ()
        fetch = None
        if kind in MEDIA:
            address, name = text_at(content, "url", most=500), text_at(content, "filename", most=100) or text[:100]
            text = text if text_at(content, "filename") and text_at(content, "filename") != text else ""
            if not address:  # an encrypted one
                return ()
            fetch = lambda: [self._file(address, name)]  # noqa: E731 -- with what was just read
        is_called = self._is_called(told["chat_id"], content)
        message_id = told["external_id"]
        return (Event(**told, thread=thread, message_id=message_id, text=text, fetch=fetch, is_called=is_called),)

    def _is_called(self, room: str, content: Any) -> bool:
        """Whether a message is for the agent."""
        if self.setting("groups") == "all":  # it need not be known
            return True
        user = self.setting("user")
        if user in list_at(content, "m.mentions", "user_ids") or user in text_at(content, "body"):
            return True
        members = at(self._read(f"/_matrix/client/v3/rooms/{_quoted(room)}/joined_members", {}), "joined")
        return isinstance(members, dict) and len(members) <= 2

    def _follow_invitations(self, invited: Any) -> None:
        """Into rooms that somebody invites to who may write."""
        for room, told in (invited if isinstance(invited, dict) else {}).items():
            senders = [
                text_at(each, "sender", most=300)
                for each in list_at(told, "invite_state", "events")
                if text_at(each, "type") == "m.room.member" and text_at(each, "state_key") == self.setting("user")
            ]
            if EVERYBODY in self.account.allow_from or any(each in self.account.allow_from for each in senders):
                answer = calls.ask(
                    f"{self._server()}/_matrix/client/v3/rooms/{_quoted(room)}/join", body={}, headers=self._signed_in()
                )
                if answer.status not in (403, 404):  # the room is gone, or the invitation
                    calls.judge_news(answer, words=_words(calls.said_in(answer)), after=_wait(calls.said_in(answer)))

    def _file(self, address: str, name: str) -> SentFile:
        server, _, media = address.removeprefix("mxc://").partition("/")
        if not address.startswith("mxc://") or not server or not media:
            raise Permanent("A file has no address of Matrix'")
        url = f"{self._server()}/_matrix/client/v1/media/download/{_quoted(server)}/{_quoted(media)}"
        return calls.file(url, name=name, headers=self._signed_in())

    def _read(self, place: str, query: Mapping[str, Any], *, seconds: float = calls.SECONDS) -> dict[str, Any]:
        answer: Answer = calls.ask(f"{self._server()}{place}", query=query, headers=self._signed_in(), seconds=seconds)
        said = calls.said_in(answer)
        calls.judge_news(answer, words=_words(said), after=_wait(said))
        return said

    def _server(self) -> str:
        return str(self.setting("server")).rstrip("/")

    def _signed_in(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret('token')}"}


def _text(text: str) -> dict[str, Any]:
    html = dialects.matrix(text)
    return {"msgtype": "m.text", "body": text, "format": "org.matrix.custom.html", "formatted_body": html}


def _related(message: OutgoingMessage) -> dict[str, Any]:
    """What a message answers, and the thread it belongs to."""
    answered: dict[str, Any] = {}
    if message.in_reply_to and message.part == 1:
        answered = {"m.in_reply_to": {"event_id": message.in_reply_to}}
    if message.thread:
        answered = {
            "rel_type": "m.thread",
            "event_id": message.thread,
            "is_falling_back": True,
            "m.in_reply_to": {"event_id": message.in_reply_to or message.thread},
        }
    return {"m.relates_to": answered} if answered else {}


def _quoted(part: str) -> str:
    return quote(part, safe="")


def _words(said: Any) -> str:
    return " ".join(each for each in (text_at(said, "errcode", most=50), text_at(said, "error", most=200)) if each)


def _wait(said: Any) -> float:
    return calls.wait_in(at(said, "retry_after_ms"), unit=0.001)
