"""A model that costs next to nothing: the Chat Completions API on loopback, streamed, with a delay if asked for one.

    python -m tests.bench.model PORT

The name of the model that is asked for tells how it answers: ``words:20`` with so many pieces of text, ``tool`` by
calling ``time`` once, and ``+1000`` behind either with the first piece after so many milliseconds.
"""

import asyncio
import json
import sys
from functools import cache
from typing import Any

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


# By kind of answer.
CALLS = {
    "tool": {"name": "time", "arguments": "{}"},
    "memory": {"name": "save_memory", "arguments": json.dumps({"summary": "They spoke.", "history_entry": "Words."})},
}


@cache
def answer_of(kind: str) -> bytes:
    """The chunks of an answer, as they go over the wire."""
    deltas: list[dict[str, Any]]
    if kind in CALLS:
        function = CALLS[kind]
        deltas = [{"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}]
    else:
        deltas = [{"content": f"word{number} "} for number in range(int(kind.partition(":")[2]))]
    finish = "tool_calls" if kind in CALLS else "stop"
    choices: list[list[dict[str, Any]]] = [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        *([{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas),
        [{"index": 0, "delta": {}, "finish_reason": finish}],
        [],
    ]
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    events = [
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": choice}
        | ({} if choice else {"usage": usage})
        for choice in choices
    ]
    lines = [f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode() for event in events]
    whole = b"".join([*lines, b"data: [DONE]\n\n"])
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(whole), whole)


@cache
def whole_answer_of(kind: str) -> bytes:
    """An answer that calls something, for who does not ask for a stream: a compaction."""
    message = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": CALLS[kind]}]}
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    answer = {"model": "bench", "choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage}
    body = json.dumps(answer).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Model(asyncio.Protocol):
    """One connection, kept."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(self._received) < end + 4 + length:
                return
            body = json.loads(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            kind, _, delay = body["model"].partition("+")
            if kind == "tool" and body["messages"][-1]["role"] == "tool":
                kind = "words:1"
            if "tool_choice" in body:  # asked to put a conversation into memory
                kind = "memory"
            is_whole = kind in CALLS and not body.get("stream")
            answer = whole_answer_of(kind) if is_whole else HEAD + answer_of(kind)
            asyncio.get_running_loop().call_later(int(delay or 0) / 1000, self._transport.write, answer)


async def serve(port: int) -> None:
    """For ever."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
