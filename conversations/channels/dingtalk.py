"""DingTalk, by the stream and the REST API of its open platform (https://open.dingtalk.com): told of messages by a
websocket, each of which it tells again unless it hears that the message was taken in."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any
from urllib.parse import quote, quote_plus

from conversations.attachments.parts import SentFile
from conversations.channel_models import MAX_EXTERNAL_ID
from conversations.channels import calls, dialects, fields
from conversations.channels.base import (
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
from conversations.channels.sockets import Lost, Socket
from conversations.channels.tokens import Tokens
from tools.outbound.client import Answer

SERVER, FILES_SERVER = "https://api.dingtalk.com", "https://oapi.dingtalk.com"
TOPIC = "/v1.0/im/bot/messages/get"
# Seconds for which it is waited for something to happen.
WAITS = 25.0
# So often at once it is connected anew before somebody is told.
MANY_LOSSES = 3
# What a group's chat begins with, as nanobot has it; others are people.
GROUP = "group:"
# The beginning of the codes of too many requests, and of tokens that count no more; seconds to wait.
_TOO_MANY, _TOKEN, _WAIT = "Forbidden.AccessDenied.Qps", "InvalidAuthentication", 10.0
_MAX_TITLE = 50
_tokens = Tokens()


class DingTalk(Platform):
    """An app's robot."""

    kind, title = "dingtalk", "DingTalk"
    capabilities = Capabilities(text_limit=4000, files=True, captions=False)
    fields = (
        Setting(name="client_id", words="the app's Client ID (AppKey)", check=fields.text, is_needed=True),
        Setting(
            name="client_secret",
            words="the variable that has the app's Client Secret",
            check=fields.secret,
            is_needed=True,
        ),
        Setting(name="robot_code", words="the robot's code, if it is not the Client ID", check=fields.text),
        Setting(name="server", words="the API's address", check=fields.url, default=SERVER),
        Setting(name="files_server", words="where files are uploaded", check=fields.url, default=FILES_SERVER),
    )
    _socket: Socket | None = None
    _losses = 0
    _is_over = False

    @classmethod
    def has_to_be_asked(cls, settings: Mapping[str, Any]) -> bool:
        return True

    # --- what comes in -----------------------------------------------------------------------------------------------

    def ask(self, cursor: Mapping[str, Any]) -> Heard:
        """What the stream tells. A connection that is lost is opened anew by the next call."""
        try:
            if self._socket is None:
                self._socket = self._opened()
            events = self._hear(self._socket)
        except Lost:
            self._drop()
            self._losses += 1
            if self._losses > MANY_LOSSES and not self._is_over:
                raise Retry("DingTalk closes one connection after the other") from None
            return Heard(events=(), cursor=cursor, pause=0.0 if self._losses == 1 else 1.0)
        self._losses = 0
        return Heard(events=events, cursor=cursor)

    def close(self) -> None:
        self._is_over = True
        self._drop()

    def _drop(self) -> None:
        if socket := self._socket:
            self._socket = None
            socket.close()

    def _opened(self) -> Socket:
        asked = {
            "clientId": self.setting("client_id"),
            "clientSecret": self.secret("client_secret"),
            "subscriptions": [{"type": "CALLBACK", "topic": TOPIC}],
            "ua": "nanohost",
        }
        answer = calls.ask(f"{self._server()}/v1.0/gateway/connections/open", body=asked)
        said = calls.said_in(answer)
        calls.judge_news(answer, words=text_at(said, "message", most=300))
        place, ticket = text_at(said, "endpoint", most=1000), text_at(said, "ticket", most=1000)
        if not (place and ticket):
            raise Retry("DingTalk names no address for its stream")
        return Socket(f"{place}?ticket={quote_plus(ticket)}")

    def _hear(self, socket: Socket) -> Sequence[Event]:
        until = monotonic() + WAITS
        while (left := until - monotonic()) > 0:
            told = socket.receive(left)
            kind, topic = text_at(told, "type", most=50), text_at(told, "headers", "topic", most=200)
            if kind == "SYSTEM" and topic == "disconnect":
                raise Lost(1000)
            if kind == "CALLBACK" and topic == TOPIC and (events := self._message(socket, told)):
                return events
            if told is not None:
                _acknowledge(socket, told)
        socket.check()
        return ()

    def _message(self, socket: Socket, told: Any) -> Sequence[Event]:
        said = _inner(told)
        message_id, sender_id = text_at(said, "msgId", most=MAX_EXTERNAL_ID), text_at(said, "senderStaffId", most=100)
        sender_id = sender_id or text_at(said, "senderId", most=100)
        group = text_at(said, "conversationId", most=100) if text_at(said, "conversationType") == "2" else ""
        text, files = _text(said), _files(said)
        if not (message_id and sender_id) or not (text or files):
            return ()
        found = Event(
            external_id=message_id,
            chat_id=f"{GROUP}{group}" if group else sender_id,
            sender_id=sender_id,
            sender_name=text_at(said, "senderNick", most=100),
            message_id=message_id,
            title=text_at(said, "conversationTitle", most=100) if group else "",
            text=text,
            fetch=(lambda: [self._file(*each) for each in files]) if files else None,
            acknowledge=lambda: _acknowledge(socket, told),
        )
        return (found,)

    def _file(self, code: str, name: str) -> SentFile:
        """Its address, which lasts for a while and which anybody may get, and then what lies there."""
        asked = {"downloadCode": code, "robotCode": self._robot()}
        answer = calls.ask(f"{self._server()}/v1.0/robot/messageFiles/download", body=asked, headers=self._signed_in())
        try:
            self._judge(answer)
        except InDoubt as error:
            raise Retry(str(error), status=error.status) from None
        return calls.file(text_at(calls.said_in(answer), "downloadUrl", most=2000), name=name)

    # --- what goes out -----------------------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage, key: str) -> str:
        text = dialects.discord(message.text, most=self.capabilities.text_limit)
        begins = " ".join(text.split())[:_MAX_TITLE]
        return self._send(message.chat_id, "sampleMarkdown", {"title": begins, "text": text})

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        assert message.file
        file, token = message.file, self._signed_in()["x-acs-dingtalk-access-token"]
        body, headers = calls.multipart({"type": "file"}, "media", file)
        url = f"{str(self.setting('files_server')).rstrip('/')}/media/upload?access_token={quote(token, safe='')}"
        try:
            answer = calls.send(url, body=body, headers=headers)
            self._judge(answer)
        except InDoubt as error:  # what was uploaded is seen by nobody
            raise Retry(str(error), status=error.status) from None
        said = calls.said_in(answer)
        if not (media_id := text_at(said, "media_id", most=300)):
            raise Permanent(f"It takes no such file: {text_at(said, 'errmsg', most=300)}")
        ending = file.name.rpartition(".")[2] if "." in file.name else "bin"
        return self._send(
            message.chat_id, "sampleFile", {"mediaId": media_id, "fileName": file.name, "fileType": ending}
        )

    def _send(self, chat_id: str, kind: str, said: Mapping[str, str]) -> str:
        told: dict[str, Any] = {"robotCode": self._robot(), "msgKey": kind}
        told["msgParam"] = json.dumps(dict(said), ensure_ascii=False)
        if chat_id.startswith(GROUP):
            place, told["openConversationId"] = "groupMessages/send", chat_id.removeprefix(GROUP)
        else:
            place, told["userIds"] = "oToMessages/batchSend", [chat_id]
        answer = calls.send(f"{self._server()}/v1.0/robot/{place}", body=told, headers=self._signed_in())
        self._judge(answer)
        became = calls.said_in(answer)
        if list_at(became, "flowControlledStaffIdList"):
            raise Retry("DingTalk takes no more for this person just now", after=60.0)
        if list_at(became, "invalidStaffIdList"):
            raise Permanent("DingTalk knows nobody of this id in the organisation")
        if not (external_id := text_at(became, "processQueryKey", most=MAX_EXTERNAL_ID)):
            raise InDoubt("It answered without a processQueryKey", status=answer.status)
        return external_id

    def _judge(self, answer: Answer) -> None:
        """Raise what an answer means that is no yes, by the code that DingTalk gives it."""
        said = calls.said_in(answer)
        code, words = text_at(said, "code", most=200), text_at(said, "message", most=300)
        if answer.status == 401 or code.startswith(_TOKEN):
            _tokens.forget(*self._asked_with())
            raise Retry(f"It answered {answer.status}: {words}", status=answer.status)
        if code.startswith(_TOO_MANY):
            raise Retry(f"It answered {answer.status}: {words}", after=_WAIT, status=answer.status, everything=True)
        calls.judge(answer, words=words)

    def _signed_in(self) -> dict[str, str]:
        return {"x-acs-dingtalk-access-token": _tokens.of(*self._asked_with(), ask=self._new_token)}

    def _new_token(self) -> tuple[str, float]:
        server, key, secret = self._asked_with()
        answer = calls.ask(f"{server}/v1.0/oauth2/accessToken", body={"appKey": key, "appSecret": secret})
        said = calls.said_in(answer)
        calls.judge_news(answer, words=text_at(said, "message", most=300))
        if not (token := text_at(said, "accessToken", most=1000)):
            raise Permanent("It gives no token: client_id or client_secret is wrong")
        return token, calls.wait_in(at(said, "expireIn"))

    def _asked_with(self) -> tuple[str, str, str]:
        return self._server(), self.setting("client_id"), self.secret("client_secret")

    def _robot(self) -> str:
        return str(self.setting("robot_code") or self.setting("client_id"))

    def _server(self) -> str:
        return str(self.setting("server")).rstrip("/")


def _acknowledge(socket: Socket, told: Any) -> None:
    """Say that a frame was taken in. Of one that is lost meanwhile, DingTalk tells again."""
    headers = {"messageId": text_at(told, "headers", "messageId", most=300), "contentType": "application/json"}
    is_system = text_at(told, "type", most=50) == "SYSTEM"
    data = text_at(told, "data") if is_system else json.dumps({"response": "OK"})
    with suppress(Lost):
        socket.send({"code": 200, "headers": headers, "message": "OK", "data": data})


def _inner(told: Any) -> Any:
    """What a frame tells, which is JSON in a text."""
    try:
        return json.loads(text_at(told, "data", most=1_000_000))
    except (ValueError, RecursionError):
        return None


def _text(said: Any) -> str:
    if text_at(said, "msgtype") == "richText":
        return "".join(text_at(each, "text") for each in list_at(said, "content", "richText")).strip()[:100_000]
    return text_at(said, "text", "content").strip() or text_at(said, "content", "recognition").strip()


def _files(said: Any) -> Sequence[tuple[str, str]]:
    """By which codes its files are had, and what they are called."""
    parts = list_at(said, "content", "richText") or [at(said, "content")]
    found = [(text_at(each, "downloadCode", most=1000), text_at(each, "fileName", most=100)) for each in parts]
    return [(code, name or "picture.jpg") for code, name in found if code][: calls.MAX_FILES]
