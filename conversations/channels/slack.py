"""Slack, by its Events API and its Web API (https://docs.slack.dev/apis): told of events, signed with its secret."""

import hashlib
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from conversations.attachments.parts import SentFile
from conversations.channels import calls, dialects, fields
from conversations.channels.base import (
    Capabilities,
    Event,
    InDoubt,
    NotGenuine,
    Option,
    OutgoingMessage,
    Permanent,
    Platform,
    Request,
    Retry,
)
from conversations.channels.calls import at, list_at, text_at
from conversations.channels.fields import Setting
from nanohost.lib.rest import load_json
from tools.outbound.client import Answer

SERVER = "https://slack.com/api"
# A request may be so old, in seconds, or so much ahead of this machine's clock.
WINDOW = 300
# Errors of a channel that may pass by themselves, and those after which nobody knows what was done.
_FOR_NOW = ("ratelimited", "rate_limited", "service_unavailable", "team_added_to_org")
_UNCLEAR = ("fatal_error", "internal_error", "request_timeout")
# Slack knows reactions by names; of the usual ones, theirs.
EMOJI = {
    "👍": "thumbsup",
    "👎": "thumbsdown",
    "❤": "heart",
    "😂": "joy",
    "😄": "smile",
    "🎉": "tada",
    "👀": "eyes",
    "✅": "white_check_mark",
    "❌": "x",
    "🙏": "pray",
    "🔥": "fire",
    "👏": "clap",
    "🤔": "thinking_face",
    "🚀": "rocket",
    "💯": "100",
    "😢": "cry",
    "👌": "ok_hand",
    "⏳": "hourglass_flowing_sand",
    "⚠": "warning",
}
_NAME = re.compile(r"[a-z0-9_+'-]{1,100}")


class Slack(Platform):
    """An app in a workspace."""

    kind, title = "slack", "Slack"
    # Slack advises 4,000; marks and the escapes of <, > and & add to a text.
    capabilities = Capabilities(text_limit=3000, buttons=10, edits=True, reacts=True, files=True)
    fields = (
        Setting(name="token", words="the variable that has the bot's token", check=fields.secret, is_needed=True),
        Setting(
            name="signing_secret",
            words="the variable that has the app's signing secret",
            check=fields.secret,
            is_needed=True,
        ),
        fields.groups("channels"),
        Setting(name="server", words="the Web API's address", check=fields.url, default=SERVER),
    )

    def parse(self, request: Request) -> Sequence[Event]:
        return self._events(self._verified(request))

    def answer(self, request: Request) -> Mapping[str, Any] | None:
        said = self._verified(request)
        if text_at(said, "type") != "url_verification":
            return None
        return {"challenge": text_at(said, "challenge", most=1000)}

    def send(self, message: OutgoingMessage, key: str) -> str:
        text = dialects.slack(message.text)
        told = self._to(message) | {"text": text, "unfurl_links": False}
        if message.options:
            buttons = [_button(number, each) for number, each in enumerate(message.options)]
            told["blocks"] = [_section(text), {"type": "actions", "elements": buttons}]
        answer = self._call("chat.postMessage", told)
        _judge(answer)
        return text_at(calls.said_in(answer), "ts", most=50)

    def edit(self, message: OutgoingMessage, key: str) -> None:
        text = dialects.slack(message.text)
        # Blocks stay, with their buttons, unless others take their place.
        told = {"channel": message.chat_id, "ts": message.message_id, "text": text, "blocks": [_section(text)]}
        _judge(self._call("chat.update", told))

    def react(self, message: OutgoingMessage, key: str) -> None:
        plain = message.emoji.replace("\ufe0f", "")
        name = EMOJI.get(plain, plain.strip(":"))
        if not _NAME.fullmatch(name):
            raise Permanent("Slack knows reactions by their names: give one such as :thumbsup:")
        answer = self._call(
            "reactions.add", {"channel": message.chat_id, "timestamp": message.message_id, "name": name}
        )
        if text_at(calls.said_in(answer), "error") != "already_reacted":
            _judge(answer)

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        """A file goes to an address that Slack gives for it, and is shown in the chat by the last of three requests."""
        assert message.file
        form = urlencode({"filename": message.file.name, "length": len(message.file.data)}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"} | self._signed_in()
        try:
            answer = calls.send(f"{self._server()}/files.getUploadURLExternal", body=form, headers=headers)
            _judge(answer)
            said = calls.said_in(answer)
            url, file_id = text_at(said, "upload_url", most=2000), text_at(said, "file_id", most=100)
            if not self._is_slacks(url):
                raise Permanent("Slack wants a file at an address that is not its own")
            sent_to = {"Content-Type": "application/octet-stream"}
            calls.judge(calls.send(url, body=message.file.data, headers=sent_to))
        except InDoubt as error:  # nothing is shown yet
            raise Retry(str(error), status=error.status) from None
        told: dict[str, Any] = {"files": [{"id": file_id, "title": message.file.name}], "channel_id": message.chat_id}
        if message.thread:
            told["thread_ts"] = message.thread
        if message.text:
            told["initial_comment"] = dialects.slack(message.text)
        _judge(self._call("files.completeUploadExternal", told))
        return ""

    def _to(self, message: OutgoingMessage) -> dict[str, Any]:
        return {"channel": message.chat_id} | ({"thread_ts": message.thread} if message.thread else {})

    def _call(self, method: str, told: Mapping[str, Any]) -> Answer:
        return calls.send(f"{self._server()}/{method}", body=told, headers=self._signed_in())

    # --- what comes in -----------------------------------------------------------------------------------------------

    def _verified(self, request: Request) -> Any:
        """What a request says; raises :class:`NotGenuine` unless Slack has signed it, lately."""
        stamp = request.headers.get("x-slack-request-timestamp", "")
        if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
            raise NotGenuine("X-Slack-Request-Timestamp: seconds since 1970 are needed.")
        if abs(time.time() - int(stamp)) > WINDOW:
            raise NotGenuine(f"X-Slack-Request-Timestamp: it is more than {WINDOW} s off this host's clock.")
        signed = b":".join((b"v0", stamp.encode(), request.body))
        made = hmac.new(self.secret("signing_secret").encode(), signed, hashlib.sha256).hexdigest()
        given = request.headers.get("x-slack-signature", "")
        if not hmac.compare_digest(given.encode(), f"v0={made}".encode()):
            raise NotGenuine("X-Slack-Signature: it is not of this app's signing secret.")
        if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):  # a button
            payload = parse_qs(request.body.decode(errors="replace"), max_num_fields=10).get("payload", [""])
            return load_json(payload[0].encode(errors="replace"))
        return load_json(request.body)

    def _events(self, said: Any) -> Sequence[Event]:
        if text_at(said, "type") == "block_actions":
            return self._choice(said)
        if text_at(said, "type") != "event_callback":
            return ()
        event, event_id = at(said, "event"), text_at(said, "event_id", most=100)
        # Its own words come back to it as events.
        if not event_id or text_at(event, "bot_id") or at(event, "message", "bot_id"):
            return ()
        match text_at(event, "type"):
            case "message" | "app_mention":
                return self._message(event, event_id, bots=_bots(said))
            case "reaction_added":
                return self._reaction(event, event_id)
        return ()

    def _message(self, event: Any, event_id: str, *, bots: Sequence[str]) -> Sequence[Event]:
        subtype = text_at(event, "subtype")
        if subtype == "message_changed":
            return self._edit(event, event_id)
        chat_id, sender_id, ts = (text_at(event, name, most=50) for name in ("channel", "user", "ts"))
        if subtype not in ("", "file_share", "thread_broadcast") or not (chat_id and sender_id and ts):
            return ()
        said = text_at(event, "text")
        is_alone = text_at(event, "channel_type") == "im"
        is_called = text_at(event, "type") == "app_mention" or any(f"<@{bot}>" in said for bot in bots)
        files = _files(event)
        text = _unescaped(said, without=bots)
        if not text.strip() and not files:
            return ()
        thread = text_at(event, "thread_ts", most=50)
        found = Event(
            # A mention in a channel is told of twice, as a message and as a mention.
            external_id=f"message {chat_id} {ts}",
            chat_id=chat_id,
            thread=thread if thread != ts else "",
            sender_id=sender_id,
            message_id=ts,
            text=text,
            is_called=is_alone or is_called,
            fetch=(lambda: [self._file(*each) for each in files]) if files else None,
        )
        return (found,)

    def _edit(self, event: Any, event_id: str) -> Sequence[Event]:
        now, before = at(event, "message"), at(event, "previous_message")
        chat_id, sender_id = text_at(event, "channel", most=50), text_at(now, "user", most=50)
        text = _unescaped(text_at(now, "text"))
        # Slack tells of a preview of a link in the same way.
        if not (chat_id and sender_id and text.strip()) or text_at(before, "text") == text_at(now, "text"):
            return ()
        message_id, thread = text_at(now, "ts", most=50), text_at(now, "thread_ts", most=50)
        edit = Event(
            external_id=event_id,
            kind="edit",
            chat_id=chat_id,
            thread=thread if thread != message_id else "",
            sender_id=sender_id,
            message_id=message_id,
            text=text,
        )
        return (edit,)

    def _reaction(self, event: Any, event_id: str) -> Sequence[Event]:
        chat_id, sender_id = text_at(event, "item", "channel", most=50), text_at(event, "user", most=50)
        emoji = text_at(event, "reaction", most=100)
        if not (chat_id and sender_id and emoji):
            return ()
        reaction = Event(
            external_id=event_id,
            kind="reaction",
            chat_id=chat_id,
            sender_id=sender_id,
            message_id=text_at(event, "item", "ts", most=50),
            text=f":{emoji}:",
        )
        return (reaction,)

    def _choice(self, said: Any) -> Sequence[Event]:
        pressed = next(iter(list_at(said, "actions")), None)
        where, value = at(said, "container"), text_at(pressed, "value", most=64)
        chat_id = text_at(where, "channel_id", most=50) or text_at(said, "channel", "id", most=50)
        sender_id, ts = text_at(said, "user", "id", most=50), text_at(where, "message_ts", most=50)
        if not (chat_id and sender_id and ts and value):
            return ()
        thread = text_at(where, "thread_ts", most=50)
        choice = Event(
            external_id=f"choice {chat_id} {ts} {text_at(pressed, 'action_ts', most=50)} {sender_id}",
            kind="choice",
            chat_id=chat_id,
            thread=thread if thread != ts else "",
            sender_id=sender_id,
            sender_name=text_at(said, "user", "name", most=100),
            message_id=ts,
            text=value,
        )
        return (choice,)

    def _is_slacks(self, url: str) -> bool:
        host, own = urlsplit(url).hostname or "", urlsplit(self._server())
        is_slack = host.endswith((".slack.com", ".slack-files.com")) and url.startswith("https://")
        return is_slack or url.startswith(f"{own.scheme}://{own.netloc}/")

    def _file(self, url: str, name: str) -> SentFile:
        """The token goes to Slack alone, whatever address an event names."""
        if not self._is_slacks(url):
            raise Permanent("A file lies at an address that is not Slack's")
        return calls.file(url, name=name, headers=self._signed_in())

    def _server(self) -> str:
        return str(self.setting("server")).rstrip("/")

    def _signed_in(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret('token')}"}


def _judge(answer: Answer) -> None:
    """Raise what an answer means that is no yes; Slack says most of its errors with status 200."""
    said = calls.said_in(answer)
    error = text_at(said, "error", most=100)
    if error in _FOR_NOW:
        calls.judge(answer, words=error)
        raise Retry(f"It answered {error}", status=answer.status)
    calls.judge(answer, words=error)
    if error in _UNCLEAR or not said:
        raise InDoubt(f"It answered {error or 'with no JSON'}", status=answer.status)
    if at(said, "ok") is not True:
        raise Permanent(f"It answered {error or 'neither yes nor no'}", status=answer.status)


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:3000]}}


def _button(number: int, option: Option) -> dict[str, Any]:
    label = {"type": "plain_text", "text": option.label[:75], "emoji": True}
    return {"type": "button", "action_id": f"choice-{number}", "text": label, "value": option.value}


def _bots(said: Any) -> Sequence[str]:
    """Who the app is in this workspace."""
    named = (text_at(each, "user_id", most=50) for each in list_at(said, "authorizations"))
    return [each for each in named if each]


def _files(event: Any) -> Sequence[tuple[str, str]]:
    """Where its files are, and what they are called."""
    found = []
    for each in list_at(event, "files"):
        url = text_at(each, "url_private_download", most=2000) or text_at(each, "url_private", most=2000)
        if url:
            found.append((url, text_at(each, "name", most=100) or "file"))
    return found[: calls.MAX_FILES]


def _unescaped(text: str, *, without: Sequence[str] = ()) -> str:
    """As it was typed, but for the marks by which it calls the app."""
    for bot in without:
        text = text.replace(f"<@{bot}>", "")
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()
