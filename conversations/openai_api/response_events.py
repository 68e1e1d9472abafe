"""A response as a stream: its turn's events, written as the Responses API has them.

Each has a number. Numbers are counted, not kept: whoever reads the same events, on whatever node, counts the same. Once
the events are gone, the turn is told from its rows in fewer of them; so the number of the last one is kept with the
response, and what is told last has it: who has seen some goes on behind them, and misses no end.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Q

from conversations.errors import Draining
from conversations.events.kinds import EventKind
from conversations.events.wire import ToStore, as_line, as_sse
from conversations.models import Message, StoredResponse
from conversations.openai_api import ids
from conversations.openai_api.items import (
    COMMENTARY,
    COMPLETED,
    FAILED,
    INCOMPLETE,
    Item,
    answer_item,
    output_text,
    pair_of,
    reasoning_item,
    told_call,
)
from nanohost.lib.openai_errors import error_body

DONE = b"data: [DONE]\n\n"

_LAST = {COMPLETED: "response.completed", INCOMPLETE: "response.incomplete"}
MESSAGE, REASONING = "message", "reasoning"


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Which of a turn's events tell of a part. ``first`` and ``last``: of its answers, ``last`` being the first that is
    none. ``others``: calls of other parts."""

    first: int = 0
    last: int | None = None
    others: frozenset[str] = frozenset()

    def has(self, message: int) -> bool:
        """Whether an answer is part of it."""
        return self.first <= message and (self.last is None or message < self.last)


@dataclass
class _Open:
    """An item that is told piece by piece. ``id``: as it is streamed; ``own``: as it will be in the response."""

    kind: str
    id: str
    own: str
    index: int
    text: str = ""


@dataclass(kw_only=True)
class ResponseWire:
    """See the module. ``head``: the response as it began. ``row_id``: its own. ``has_pairs``: calls of the host's are
    told as calls of functions. ``starting_after``: of the last event that the reader has seen. ``last_number``: of the
    last that any reader was sent."""

    head: dict[str, Any]
    row_id: UUID
    turn_id: UUID
    stretch: Stretch
    has_pairs: bool = False
    starting_after: int | None = None
    last_number: int | None = None
    to_store: ToStore = None
    _number: int = 0
    _index: int = 0
    _is_in_progress: bool = False
    _open: dict[tuple[str, int], _Open] = field(default_factory=dict)
    _closed: set[tuple[str, int]] = field(default_factory=set)
    # How often an answer was begun anew.
    _attempts: dict[int, int] = field(default_factory=dict)
    # Of calls of the host's, where they stand; and ids of what is told to its end, as the response will have them.
    _calls: dict[str, tuple[int, Item]] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    # --- what the gateway asks for --------------------------------------------------------------------------------

    def begin(self, queued: dict[str, Any], *, last_id: str) -> bytes:
        said = self._emit("response.created", response=self.head)
        if self.head["status"] == "queued":
            return said + self._emit("response.queued", response=self.head)
        return said + self._in_progress()

    def event(self, kind: str, data: dict[str, Any], *, line: bytes = b"", event_id: str = "") -> bytes:
        if "message" in data and not self.stretch.has(data["message"]):
            return b""
        if data.get("callId") in self.stretch.others:
            return b""
        match kind:
            case EventKind.TURN_STARTED:
                return self._in_progress()
            case EventKind.REASONING_DELTA:
                return self._in_progress() + self._add(REASONING, data["message"], data["text"])
            case EventKind.MESSAGE_DELTA:
                return self._in_progress() + self._add(MESSAGE, data["message"], data["text"])
            case EventKind.MESSAGE_RESET:
                return self._begin_anew(data["message"])
            case EventKind.TOOL_STARTED:
                return self._in_progress() + self._begin_call(data)
            case EventKind.TOOL_FINISHED:
                return self._in_progress() + self._end_call(data)
        return b""

    def end(self, kind: EventKind, body: dict[str, Any]) -> bytes:
        if "output" not in body:  # it was deleted
            return self._error_line(body)
        said = self._in_progress()
        for item in body["output"]:
            said += self._complete(item)
        for key in list(self._open):  # of no answer that was stored
            said += self._close(key, status=INCOMPLETE)
        # Asking for a function to be called has ended as it began; a reader may have missed the call's own end.
        for index, item in () if self.has_pairs else self._calls.values():
            said += self._emit("response.output_item.done", output_index=index, item=item | {"status": INCOMPLETE})
        renamed = [item | {"id": self._told.get(item["id"], item["id"])} for item in body["output"]]
        return said + self._last(body | {"output": renamed}) + DONE

    def cut_off(self) -> bytes:
        error = Draining()
        return self._error_line(error_body(error, error.detail))

    # --- events ---------------------------------------------------------------------------------------------------

    def _emit(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        if self.starting_after is not None and number <= self.starting_after:
            return b""
        return as_sse(kind, {"type": kind, "sequence_number": number, **fields})

    def _last(self, body: dict[str, Any]) -> bytes:
        number = max(self._number, self.last_number or 0)
        if self.starting_after is not None and self.starting_after >= number:
            if self.last_number is not None:
                return b""  # its reader has seen it
            number = self.starting_after + 1
        if number != self.last_number:
            self.to_store = partial(_keep, self.row_id, number)
        kind = _LAST.get(body["status"], "response.failed")
        return as_sse(kind, {"type": kind, "sequence_number": number, "response": body})

    def _error_line(self, body: dict[str, Any]) -> bytes:
        return f"data: {as_line(body)}\n\n".encode() + DONE

    def _in_progress(self) -> bytes:
        if self._is_in_progress:
            return b""
        self._is_in_progress = True
        return self._emit("response.in_progress", response=self.head | {"status": "in_progress"})

    # --- what is said, and thought --------------------------------------------------------------------------------

    def _add(self, kind: str, message: int, text: str) -> bytes:
        key = kind, message
        if key in self._closed:
            return b""  # the response has it
        said = b""
        if key not in self._open:
            said = self._close_before(kind, message) + self._open_item(kind, message)
        item = self._open[key]
        item.text += text
        where = {"item_id": item.id, "output_index": item.index, "content_index": 0, "delta": text}
        if kind == REASONING:
            return said + self._emit("response.reasoning_text.delta", **where)
        return said + self._emit("response.output_text.delta", **where, logprobs=[])

    def _open_item(self, kind: str, message: int) -> bytes:
        row_id = Message.id_in(self.turn_id, message)
        own = ids.shown(ids.REASONING if kind == REASONING else ids.MESSAGE, row_id)
        attempt = self._attempts.get(message, 0)
        item = _Open(kind, f"{own}_{attempt}" if attempt else own, own, self._take_index())
        self._open[kind, message] = item
        return self._begin_item(item)

    def _begin_item(self, item: _Open) -> bytes:
        begun = (reasoning_item if item.kind == REASONING else answer_item)(item.id, None, status="in_progress")
        said = self._emit("response.output_item.added", output_index=item.index, item=begun)
        if item.kind == REASONING:
            return said
        where = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        return said + self._emit("response.content_part.added", **where, part=output_text(""))

    def _take_index(self) -> int:
        self._index += 1
        return self._index - 1

    def _close_before(self, kind: str, message: int) -> bytes:
        """What was under way has ended, but for what its model says beside what it thinks."""
        open_ones = [key for key in self._open if key != (MESSAGE, message)]
        return b"".join(self._close(key, phase=COMMENTARY) for key in open_ones)

    def _close(self, key: tuple[str, int], *, status: str = COMPLETED, phase: str | None = None) -> bytes:
        item = self._open.pop(key)
        if status == COMPLETED:
            self._closed.add(key)
            self._told[item.own] = item.id
        return self._end_item(item, status=status, phase=phase)

    def _end_item(self, item: _Open, *, status: str, phase: str | None) -> bytes:
        where = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        if item.kind == REASONING:
            said = self._emit("response.reasoning_text.done", **where, text=item.text)
            ended = reasoning_item(item.id, item.text, status=status)
        else:
            said = self._emit("response.output_text.done", **where, text=item.text, logprobs=[])
            said += self._emit("response.content_part.done", **where, part=output_text(item.text))
            ended = answer_item(item.id, item.text, status=status, phase=phase)
        return said + self._emit("response.output_item.done", output_index=item.index, item=ended)

    def _begin_anew(self, message: int) -> bytes:
        open_ones = [key for key in self._open if key[1] == message]
        said = b"".join(self._close(key, status=INCOMPLETE) for key in open_ones)
        self._closed -= {(MESSAGE, message), (REASONING, message)}
        self._attempts[message] = self._attempts.get(message, 0) + 1
        return said

    # --- calls of the host's --------------------------------------------------------------------------------------

    def _begin_call(self, data: dict[str, Any]) -> bytes:
        if "toolCallId" not in data or data["callId"] in self._calls:  # a worker of the release before
            return b""
        said = self._close_before("", -1)
        item_id = ids.shown(ids.HOSTS_CALL, UUID(data["toolCallId"]))
        if item_id in self._told:
            return said
        item = told_call(item_id, data["toolName"], data.get("arguments", ""), "", None)
        index = self._take_index()
        self._calls[data["callId"]] = index, item
        return said + self._asking(index, item)

    def _asking(self, index: int, item: Item) -> bytes:
        """A call that begins."""
        if self.has_pairs:
            (asking,) = pair_of(item)
            return self._tell_call(index, asking)
        where = {"item_id": item["id"], "output_index": index}
        said = self._emit("response.output_item.added", output_index=index, item=item | {"arguments": ""})
        said += self._emit("response.mcp_call.in_progress", **where)
        said += self._emit("response.mcp_call_arguments.delta", **where, delta=item["arguments"])
        return said + self._emit("response.mcp_call_arguments.done", **where, arguments=item["arguments"])

    def _end_call(self, data: dict[str, Any]) -> bytes:
        said = b"" if data["callId"] in self._calls else self._begin_call(data)
        if data["callId"] not in self._calls:
            return said
        index, item = self._calls.pop(data["callId"])
        ended = told_call(item["id"], item["name"], item["arguments"], data["status"], data["result"])
        return said + self._give(index, ended)

    def _give(self, index: int, item: Item) -> bytes:
        """A call that has ended."""
        self._told[item["id"]] = item["id"]
        if self.has_pairs:
            output = pair_of(item)[1]
            return self._tell_output(output)
        where = {"item_id": item["id"], "output_index": index}
        outcome = "response.mcp_call.failed" if item["status"] == FAILED else "response.mcp_call.completed"
        said = self._emit(outcome, **where)
        return said + self._emit("response.output_item.done", output_index=index, item=item)

    # --- what the response has besides ----------------------------------------------------------------------------

    def _complete(self, item: Item) -> bytes:
        """Tell what of an item of the response was not told."""
        if item["id"] in self._told:
            return b""
        key = next((key for key, each in self._open.items() if each.own == item["id"]), None)
        if item["type"] in (MESSAGE, REASONING):
            return self._complete_text(item, key)
        if item["type"] == "function_call":
            self._told[item["id"]] = item["id"]
            return self._close_before("", -1) + self._tell_call(self._take_index(), item)
        if item["type"] == "function_call_output":
            return self._tell_output(item)
        call_id = next((call_id for call_id, (_, each) in self._calls.items() if each["id"] == item["id"]), None)
        index = self._calls.pop(call_id)[0] if call_id else self._take_index()
        said = b"" if call_id else self._close_before("", -1) + self._asking(index, item)
        return said + self._give(index, item)

    def _complete_text(self, item: Item, key: tuple[str, int] | None) -> bytes:
        whole, phase = item["content"][0]["text"], item.get("phase")
        said = b""
        if key:
            sent = self._open[key].text
            # Where a limit was met, blanks at the beginning are gone.
            rest = next((whole[len(each) :] for each in (sent, sent.lstrip()) if whole.startswith(each)), None)
            if rest is not None:
                said = self._add(*key, rest) if rest else b""
                return said + self._close(key, phase=phase)
            said = self._begin_anew(key[1])
        suffix = f"_{self._attempts[key[1]]}" if key else ""
        told = _Open(item["type"], f"{item['id']}{suffix}", item["id"], self._take_index(), whole)
        said += (self._close_before("", -1) if not key else b"") + self._begin_item(told)
        where = {"item_id": told.id, "output_index": told.index, "content_index": 0, "delta": whole}
        if told.kind == REASONING:
            said += self._emit("response.reasoning_text.delta", **where)
        else:
            said += self._emit("response.output_text.delta", **where, logprobs=[])
        self._told[told.own] = told.id
        return said + self._end_item(told, status=COMPLETED, phase=phase)

    def _tell_call(self, index: int, item: Item) -> bytes:
        """A call of a function."""
        self._told[item["id"]] = item["id"]
        where = {"item_id": item["id"], "output_index": index}
        begun = item | {"arguments": "", "status": "in_progress"}
        said = self._emit("response.output_item.added", output_index=index, item=begun)
        said += self._emit("response.function_call_arguments.delta", **where, delta=item["arguments"])
        said += self._emit("response.function_call_arguments.done", **where, arguments=item["arguments"])
        return said + self._emit("response.output_item.done", output_index=index, item=item)

    def _tell_output(self, item: Item) -> bytes:
        self._told[item["id"]] = item["id"]
        index = self._take_index()
        said = self._emit("response.output_item.added", output_index=index, item=item)
        return said + self._emit("response.output_item.done", output_index=index, item=item)


def _keep(row_id: UUID, number: int) -> None:
    """Keep the number of the last event that a reader was sent, unless a later one was."""
    rows = StoredResponse.objects.filter(pk=row_id)
    rows.filter(Q(last_sequence_number=None) | Q(last_sequence_number__lt=number)).update(last_sequence_number=number)
