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


@cache
def answer_of(kind: str) -> bytes:
    """The chunks of an answer, as they go over the wire."""
    deltas: list[dict[str, Any]]
    if kind == "tool":
        function = {"name": "time", "arguments": "{}"}
        deltas = [{"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}]
    else:
        deltas = [{"content": f"word{number} "} for number in range(int(kind.partition(":")[2]))]
    finish = "tool_calls" if kind == "tool" else "stop"
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
            asyncio.get_running_loop().call_later(int(delay or 0) / 1000, self._answer, kind)

    def _answer(self, kind: str) -> None:
        self._transport.write(HEAD + answer_of(kind))


async def serve(port: int) -> None:
    """For ever."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
