"""A chat in the terminal: a client of the REST API like any other, with history, streamed answers and Markdown.

``rich`` and ``prompt_toolkit`` make it comfortable; without them, or where there is no terminal, it reads lines and
prints text.
"""

import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx2

from conversations.events.kinds import EventKind

# Seconds without a byte, of which a stream has some every 15 s; and how often in a row it is gone on with.
SILENT_SECONDS, MAX_RECONNECTS = 45.0, 20

# What ends the chat.
BYE = frozenset({"exit", "quit", "/exit", "/quit", ":q"})

# What a terminal would take for an order.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class NoAnswer(Exception):
    """What the host has answered is no answer; says what to do, for people."""


@dataclass(frozen=True)
class Event:
    """Of a stream."""

    id: str
    name: str
    data: dict[str, Any]


class Api:
    """The API of a host. ``url``: its address. ``key``: an API key."""

    def __init__(self, url: str, key: str) -> None:
        try:
            self._url = httpx2.URL(url)
        except httpx2.InvalidURL:
            self._url = httpx2.URL("")
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise NoAnswer(f"--url: {url} is not an address such as http://127.0.0.1:8080.")
        self._client = httpx2.Client(
            base_url=self._url, headers={"Authorization": f"Bearer {key}"}, timeout=SILENT_SECONDS, trust_env=False
        )

    def conversation(self, key: str, agent: str | None) -> str:
        """The id of the conversation of this key, made if there is none."""
        asked = {"key": key} | ({"agent": agent} if agent else {})
        return str(self._post("/api/v1/conversations", asked)["conversationId"])

    def cancel(self, turn_id: str) -> None:
        """Cancel a turn."""
        self._post(f"/api/v1/turns/{turn_id}/cancel", {})

    def say(self, conversation_id: str, text: str) -> Iterator[Event]:
        """Say something, and the events of its turn until that has ended. It is said once, however often the connection
        is lost."""
        path = f"/api/v1/conversations/{conversation_id}/chat"
        once = {"Idempotency-Key": f"terminal-{uuid.uuid4()}"}
        turn_id, last_id = "", ""
        for _ in range(MAX_RECONNECTS):
            if turn_id:
                after = {"last_event_id": last_id} if last_id else {}
                events = self._events("GET", f"/api/v1/turns/{turn_id}/events", params=after)
            else:
                events = self._events("POST", path, json={"message": text, "stream": True}, headers=once)
            with suppress(httpx2.TransportError):
                for event in events:
                    turn_id, last_id = event.data.get("turnId") or turn_id, event.id
                    yield event
                    if event.name in (EventKind.TURN_COMPLETED, EventKind.TURN_FAILED, EventKind.TURN_CANCELLED):
                        return
        raise NoAnswer(f"The connection to {self._url.host} was lost repeatedly. Your message may have been stored.")

    def _post(self, path: str, body: Any) -> Any:
        try:
            answer = self._client.post(path, json=body)
        except httpx2.TransportError as error:
            raise NoAnswer(f"There is no host at {self._url}: {error}. Start it, or name another: --url.") from None
        if answer.status_code >= 300:
            raise _told(answer)
        return answer.json()

    def _events(self, method: str, path: str, **asked: Any) -> Iterator[Event]:
        with self._client.stream(method, path, **asked) as answer:
            if answer.status_code >= 300:
                answer.read()
                raise _told(answer)
            yield from read_events(answer.iter_bytes())


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """The events of a stream; what its end cuts off is none."""
    fields: dict[str, str] = {}
    for line in _lines(chunks):
        if not line:
            if "data" in fields:
                yield Event(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
            fields = {}
        name, _, value = line.partition(":")
        if name in ("id", "event", "data"):
            fields[name] = value.removeprefix(" ")


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines of a stream, which end with a line feed and with no other of Unicode's ends of lines."""
    begun: list[bytes] = []
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            yield b"".join([*begun, line]).decode(errors="replace").rstrip("\r")
            begun = []
        begun.append(rest)


def _told(answer: httpx2.Response) -> NoAnswer:
    try:
        detail = answer.json().get("detail", "")
    except (ValueError, AttributeError):
        detail = ""
    hint = " Is the key in NANOHOST_API_KEY right?" if answer.status_code == 401 else ""
    return NoAnswer(f"The host answered {answer.status_code}: {detail or 'nothing that can be read'}{hint}")


def harmless(text: str) -> str:
    """The text without what would move the cursor or change the terminal."""
    return _CONTROLS.sub("", text)


# --- what is seen ------------------------------------------------------------------------------------------------


class Screen(Protocol):
    """What shows an answer as it comes."""

    def tell(self, text: str) -> None:
        """A line of what happens meanwhile."""

    def update(self, text: str) -> None:
        """So far it has come."""

    def finish(self, text: str) -> None:
        """This is the whole of it."""


class PlainScreen:
    """Lines of text, one behind the other."""

    @staticmethod
    def _write(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def tell(self, text: str) -> None:
        self._write(f"[{harmless(text)}]")

    def update(self, text: str) -> None:
        pass

    def finish(self, text: str) -> None:
        self._write(harmless(text))


class RichScreen:
    """Markdown, drawn anew with each piece."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live: Live | None = None

    def tell(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(harmless(text), style="dim"))

    def update(self, text: str) -> None:
        from rich.live import Live
        from rich.markdown import Markdown

        if self._live is None:
            # What does not fit the window is shown at the end: a drawing may be no higher than it.
            self._live = Live(console=self._console, transient=True, vertical_overflow="ellipsis", auto_refresh=False)
            self._live.start()
        self._live.update(Markdown(harmless(text)), refresh=True)

    def finish(self, text: str) -> None:
        from rich.markdown import Markdown

        if self._live is not None:
            self._live.stop()
            self._live = None
        self._console.print(Markdown(harmless(text)))


def screen() -> Screen:
    """The best there is."""
    if sys.stdout.isatty():
        with suppress(ImportError):
            return RichScreen()
    return PlainScreen()


def reader(history: Path) -> Callable[[], str]:
    """What asks for the next line; raises ``EOFError`` behind the last. ``history``: where lines are kept."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return input
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
    except ImportError:
        return lambda: input("You: ")
    history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # What people say is theirs alone.
    os.close(os.open(history, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    session: Any = PromptSession(history=FileHistory(str(history)))
    return lambda: str(session.prompt("You: "))


def show(events: Iterator[Event], on: Screen, *, began: Callable[[str], None]) -> None:
    """Show an answer as it comes. ``began``: is told the turn's id. Raises :class:`NoAnswer` if there is none."""
    pieces: dict[int, str] = {}
    for event in events:
        data = event.data
        if event.name == EventKind.TURN_QUEUED:
            began(data["turnId"])
        elif event.name == EventKind.TURN_RESET:
            pieces.clear()
        elif event.name == EventKind.MESSAGE_RESET:
            pieces.pop(data["message"], None)
        elif event.name == EventKind.MESSAGE_DELTA:
            so_far = pieces.get(data["message"], "")
            if len(so_far) >= data["offset"]:  # a piece before it is lost otherwise; the end has all
                pieces[data["message"]] = so_far[: data["offset"]] + data["text"]
                on.update("\n\n".join(pieces[number] for number in sorted(pieces)))
        elif event.name == EventKind.TOOL_STARTED:
            on.tell(f"calls {data['toolName']}")
        elif event.name == EventKind.APPROVAL_REQUESTED:
            on.tell(f"{data['toolName']} waits for consent; decide in the console, or in the chat of the browser")
        elif event.name == EventKind.TURN_COMPLETED:
            on.finish(data["assistantMessage"])
        elif event.name in (EventKind.TURN_FAILED, EventKind.TURN_CANCELLED):
            on.finish("\n\n".join(pieces[number] for number in sorted(pieces)))
            raise NoAnswer(str(data.get("detail", "The turn has ended without an answer.")))


def talk(api: Api, conversation_id: str, *, ask: Callable[[], str], on: Screen) -> None:
    """Say what people enter, until they leave. Ctrl-C while an answer comes cancels it."""
    while True:
        try:
            text = ask().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        if text.lower() in BYE:
            return
        if text:
            answer(api, conversation_id, text, on=on)


def answer(api: Api, conversation_id: str, text: str, *, on: Screen) -> bool:
    """Say something and show what is answered; True if it was."""
    turns: list[str] = []
    try:
        show(api.say(conversation_id, text), on, began=turns.append)
    except KeyboardInterrupt:
        on.finish("")
        if turns:
            api.cancel(turns[-1])
        on.tell("cancelled")
    except NoAnswer as error:
        on.tell(str(error))
        return False
    return True
