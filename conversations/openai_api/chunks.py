"""A chat completion as a stream: its turn's events, written as chunks.

What was sent cannot be taken back. A message that is begun anew, since its worker died or its model failed, goes on
where its new text agrees with what was sent; where it does not, the client is told that it has to ask again. It is
never left with a text that is no answer.
"""

from dataclasses import dataclass, field
from typing import Any

from conversations.errors import Draining
from conversations.events.kinds import EventKind
from conversations.events.wire import ToStore, as_line
from conversations.openai_api.errors import AnswerRestarted
from nanohost.lib.errors import Problem
from nanohost.lib.openai_errors import error_body

DONE = b"data: [DONE]\n\n"
# Between messages of one answer: what is said before a call of a tool, and after.
BETWEEN = "\n\n"


@dataclass(kw_only=True)
class ChunkWire:
    """See the module. ``head``: what all chunks have. ``first_message``: of the turn's messages, the first that belongs
    to the answer. ``tells_usage``: whether a last chunk says what it took. ``tells_progress``: whether it is told what
    the model thinks, and which tools run."""

    head: dict[str, Any]
    first_message: int
    tells_usage: bool
    tells_progress: bool
    to_store: ToStore = None
    # What the client has of the answer; and of its message that is under way.
    _sent: list[str] = field(default_factory=list)
    _of_message: list[str] = field(default_factory=list)
    _message: int = -1
    # After a reset: what the message is to begin with, and how far it has.
    _expected: str = ""
    _at: int = 0
    # Blanks that may be the beginning of a message.
    _held: str = ""
    _is_over: bool = False

    def begin(self, queued: dict[str, Any], *, last_id: str) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def event(self, kind: str, data: dict[str, Any], *, line: bytes = b"", event_id: str = "") -> bytes:
        if self._is_over or data.get("message", self.first_message) < self.first_message:
            return b""
        match kind:
            case EventKind.MESSAGE_DELTA:
                return self._add(data["message"], data["text"])
            case EventKind.MESSAGE_RESET:
                self._begin_anew(data["message"])
            case EventKind.REASONING_DELTA if self.tells_progress:
                return self._chunk({"reasoning_content": data["text"]})
            case EventKind.TOOL_STARTED if self.tells_progress:
                return self._chunk({"reasoning_content": f"\n[{data['toolName']} runs]\n"})
            case EventKind.TOOL_FINISHED if self.tells_progress:
                return self._chunk({"reasoning_content": f"\n[{data['toolName']}: {data['status']}]\n"})
        return b""

    def end(self, kind: EventKind, body: dict[str, Any]) -> bytes:
        if self._is_over:
            return b""
        if "error" in body:
            return self._error_line(body)
        choice = body["choices"][0]
        whole = choice["message"]["content"] or ""
        sent = "".join(self._sent)
        rest = _rest(whole, sent)
        if rest is None:  # where a limit was met, blanks at the beginning are gone
            rest = _rest(whole, sent.lstrip())
        if rest is None:
            return self._fail(AnswerRestarted())
        said = self._chunk({"content": rest}) if rest else b""
        if calls := choice["message"].get("tool_calls"):
            said += self._chunk({"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]})
        said += self._chunk({}, choice["finish_reason"])
        if self.tells_usage:
            said += _line({**self.head, "choices": [], "usage": body["usage"]})
        return said + DONE

    def cut_off(self) -> bytes:
        return b"" if self._is_over else self._fail(Draining())

    def _begin_anew(self, message: int) -> None:
        if message == self._message:
            self._expected, self._at, self._held = "".join(self._of_message), 0, ""
            if self._expected and len(self._sent) > len(self._of_message):
                self._expected = self._expected.removeprefix(BETWEEN)

    def _add(self, message: int, text: str) -> bytes:
        if message != self._message:
            self._message, self._of_message = message, []
            self._expected, self._at, self._held = "", 0, ""
        if self._at < len(self._expected):
            again = text[: len(self._expected) - self._at]
            if not self._expected.startswith(again, self._at):
                return self._fail(AnswerRestarted())
            self._at += len(again)
            text = text[len(again) :]
        text = self._held + text
        if not self._of_message and self._sent:
            # Blank messages are no part of an answer.
            self._held = "" if text.strip() else text
            text = BETWEEN + text if text.strip() else ""
        if not text:
            return b""
        self._of_message.append(text)
        self._sent.append(text)
        return self._chunk({"content": text})

    def _fail(self, error: Problem) -> bytes:
        return self._error_line(error_body(error, error.detail))

    def _error_line(self, body: dict[str, Any]) -> bytes:
        self._is_over = True
        return _line(body) + DONE

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        usage = {"usage": None} if self.tells_usage else {}
        return _line({**self.head, "choices": [choice], **usage})


def _rest(whole: str, sent: str) -> str | None:
    return whole[len(sent) :] if whole.startswith(sent) else None


def _line(data: dict[str, Any]) -> bytes:
    return f"data: {as_line(data)}\n\n".encode()
