"""Reading streams of events as browsers do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2


@dataclass(frozen=True)
class Told:
    """An event as its reader has it."""

    id: str
    kind: str
    data: dict[str, Any]


def parse(lines: Iterator[str]) -> Iterator[Told]:
    """The events of a stream's lines; what an event's id is stays the last one that was sent, as in browsers."""
    event_id, kind, data = "", "", ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            event_id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data += value
        elif not line and kind:
            yield Told(event_id, kind, json.loads(data))
            kind, data = "", ""


@contextmanager
def streaming(client: httpx2.Client, method: str, url: str, **options: Any) -> Iterator[Iterator[Told]]:
    """The events of a request's answer, while they come."""
    with client.stream(method, url, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield parse(answer.iter_lines())


def events_of(client: httpx2.Client, turn_id: str, last_id: str = "") -> list[Told]:
    """All that is told of a turn, to its end."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    with streaming(client, "GET", f"/turns/{turn_id}/events", headers=headers) as events:
        return list(events)


def say(client: httpx2.Client, conversation_id: str, message: str, **body: Any) -> list[Told]:
    """Say something, and have all that is told of its turn."""
    asked = {"message": message, "stream": True, **body}
    with streaming(client, "POST", f"/conversations/{conversation_id}/chat", json=asked) as events:
        return list(events)


def text_of(events: list[Told], number: int = 0) -> str:
    """What a reader has put together of a turn's message: pieces, each at its place; a reset voids them."""
    text = ""
    for event in events:
        if event.kind in ("message.reset", "turn.reset"):
            text = ""
        if event.kind == "message.delta" and event.data["message"] == number:
            assert event.data["offset"] == len(text)
            text += event.data["text"]
    return text
