"""A real, strict server of OpenAI's Chat Completions API, on loopback.

It holds every request against the rules of the chat format and answers 400 to one that breaks them, records what it is
sent, and answers as it is told, request by request. Untold, it follows the protocol of ``agent/llm/scripted.py``. What
it is told by :func:`completion` and what it makes up itself is streamed to who asks for that; other replies go out as
they are.

``python -m tests.support.openai_server [PORT]`` runs it as a process and prints its address.
"""

import asyncio
import itertools
import json
import re
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from agent import answer_schemas, errors
from agent.llm.base import Completion, Delta, ModelRequest
from agent.llm.scripted import ScriptedClient
from tests.support.wait import rest

USAGE_WANTED = {"include_usage": True}
PARAMETERS = {"temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "verbosity"}
PARAMETERS |= {"parallel_tool_calls"}
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
DATA_URL = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")


# --- the rules ---------------------------------------------------------------------------------------------------


class Broken(Exception):
    """A rule of the chat format is broken."""


def check_request(body: Any) -> None:
    """Hold a request against the rules; raises :class:`Broken`. Only what nanohost means to send is known."""
    known = {"model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens", *PARAMETERS}
    known |= {"response_format"}
    _need(isinstance(body, dict) and set(body) <= known, f"unknown keys: {sorted(body)}")
    _need(body.get("stream", True) is True, "stream must be true, where it is given")
    _need("stream" in body or "stream_options" not in body, "stream_options without stream")
    _need(body.get("stream_options", USAGE_WANTED) == USAGE_WANTED, "stream_options has unknown keys")
    _need(isinstance(body.get("model"), str) and body["model"], "model must be a name")
    _need(body.get("max_tokens", 1) >= 1, "max_tokens must be at least 1")
    check_messages(body.get("messages"))
    if "response_format" in body:
        check_answer_format(body["response_format"], body["messages"])
    if "tools" in body:
        _check_tools(body["tools"])
    _need("parallel_tool_calls" not in body or body.get("tools"), "parallel_tool_calls is for tools only")
    if body.get("tool_choice") == "required":
        _need(body.get("tools"), "tool_choice is for tools only")
    elif "tool_choice" in body:
        choice = body["tool_choice"]
        _need(isinstance(choice, dict) and choice.get("type") == "function", "tool_choice must be a function")
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        _need(choice.get("function", {}).get("name") in names, "tool_choice must be one of the tools")


def check_answer_format(told: Any, messages: Any) -> None:
    """Hold the form of an answer against the rules; raises :class:`Broken`."""
    kind = told.get("type") if isinstance(told, dict) else None
    if kind == "json_object":
        _need(set(told) == {"type"}, f"response_format has unknown keys: {sorted(told)}")
        _need("json" in json.dumps(messages).lower(), "'messages' must contain the word 'json'")
        return
    _need(kind == "json_schema" and set(told) == {"type", "json_schema"}, "response_format must have a known type")
    check_json_schema(told["json_schema"])


def check_json_schema(told: Any) -> None:
    """Hold a named schema against the rules; raises :class:`Broken`."""
    _need(set(told) <= {"name", "description", "schema", "strict"}, f"json_schema has unknown keys: {sorted(told)}")
    _need(NAME.fullmatch(told["name"]), f"json_schema.name is {told['name']!r}")
    _need(isinstance(told["schema"], dict), "json_schema.schema must be an object")
    if told.get("strict"):
        schema = told["schema"]
        _need(schema.get("additionalProperties") is False, "'additionalProperties' is required to be false")
        _need(set(schema.get("required", ())) == set(schema["properties"]), "'required' must have every property")


def check_messages(messages: Any) -> None:
    """Hold messages against the rules; raises :class:`Broken`."""
    _need(isinstance(messages, list) and messages, "messages must be a list, and not empty")
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        _need(isinstance(message, dict), f"{where} must be an object")
        role = message.get("role")
        known = {
            "system": {"role", "content"},
            "user": {"role", "content"},
            "assistant": {"role", "content", "tool_calls"},
            "tool": {"role", "content", "tool_call_id"},
        }
        _need(role in known, f"{where} has the role {role!r}")
        _need(set(message) <= known[role], f"{where} has unknown keys: {sorted(message)}")
        content = message.get("content")
        if role == "user" and isinstance(content, list):
            content = _check_parts(content, where)
        _need(isinstance(content, str) or (role == "assistant" and content is None), f"{where} has no text")
        _need("\x00" not in (content or "") and not re.search("[\ud800-\udfff]", content or ""), f"{where} is no UTF-8")
        if role == "tool":
            _need(message.get("tool_call_id") in open_calls, f"{where} does not answer a call directly before it")
            open_calls.discard(message["tool_call_id"])
            continue
        _need(not open_calls, f"{where} comes before the answers to {sorted(open_calls)}")
        if role == "assistant":
            _need((content or "").strip() or message.get("tool_calls"), f"{where} is blank")
        if "tool_calls" in message:
            open_calls = _check_calls(message["tool_calls"], where)
    _need(not open_calls, f"{sorted(open_calls)} are not answered")


def _check_parts(parts: list[Any], where: str) -> str:
    """A message's parts; returns its words."""
    for part in parts:
        kind = part.get("type")
        _need(kind in ("text", "image_url") and set(part) == {"type", kind}, f"{where} has an odd part")
        if kind == "image_url":
            _need(set(part[kind]) == {"url"} and DATA_URL.fullmatch(part[kind]["url"]), f"{where} has an odd image")
    return "".join(part["text"] for part in parts if part["type"] == "text")


def _check_calls(calls: Any, where: str) -> set[str]:
    _need(isinstance(calls, list) and calls, f"{where}.tool_calls must be a list, and not empty")
    ids = set()
    for call in calls:
        _need(set(call) == {"id", "type", "function"} and call["type"] == "function", f"{where} has an odd call")
        _need(set(call["function"]) == {"name", "arguments"}, f"{where} has an odd function")
        _need(isinstance(call["id"], str) and call["id"] and call["id"] not in ids, f"{where} repeats an id")
        _need(NAME.fullmatch(call["function"]["name"]), f"{where} calls {call['function']['name']!r}")
        # OpenAI takes any text here; servers that fill a template parse it.
        try:
            parsed = json.loads(call["function"]["arguments"])
        except ValueError:
            parsed = None
        _need(isinstance(parsed, dict), f"{where} has arguments that are no object")
        ids.add(call["id"])
    return ids


def _check_tools(tools: Any) -> None:
    _need(isinstance(tools, list) and 1 <= len(tools) <= 128, "tools must be a list of 1 to 128")
    for tool in tools:
        _need(set(tool) == {"type", "function"} and tool["type"] == "function", "a tool must be a function")
        function = tool["function"]
        _need(set(function) <= {"name", "description", "parameters"}, f"unknown keys: {sorted(function)}")
        _need(NAME.fullmatch(function["name"]), f"a tool is named {function['name']!r}")
        _need(function["parameters"].get("type") == "object", "a tool's parameters must be an object's schema")
    names = [tool["function"]["name"] for tool in tools]
    _need(len(set(names)) == len(names), "two tools have one name")


def _need(holds: object, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


EVENT_STREAM = {"Content-Type": "text/event-stream"}


# --- what it is told to answer -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer, byte by byte. A ``body`` of several parts is sent in chunks, and may be endless."""

    status: int = 200
    body: bytes | Iterable[bytes] | AsyncIterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    before: float = 0  # seconds of silence before the first byte
    between: float = 0  # seconds between the parts of the body
    hang_up: bool = False  # reset the connection instead of answering; after the parts of a body: close it, unfinished
    answer: Any = None  # what the body says, if it can be streamed as well


def completion(
    content: Any = "Hello.",
    *,
    tool_calls: Any = None,
    finish_reason: str = "stop",
    usage: Any = None,
    model: str = "model-1",
    thought: str = "",
    **how: Any,
) -> Reply:
    """An answer as a model gives it, whole or streamed as the request asks."""
    message = {"role": "assistant", "content": content} | ({"tool_calls": tool_calls} if tool_calls is not None else {})
    if thought:
        message["reasoning_content"] = thought
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": usage if usage is not None else {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    }
    return as_json(answer, answer=answer, **how)


def events(*chunks: Any, **how: Any) -> Reply:
    """A stream of these, each in a part of its own; text and bytes are sent as they are."""
    return Reply(body=[event(chunk) for chunk in chunks], headers=EVENT_STREAM, **how)


def event(chunk: Any) -> bytes:
    """One event; of text, its data."""
    if isinstance(chunk, bytes):
        return chunk
    return f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n".encode()


def chunk(delta: Any = None, *, finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of an answer as OpenAI streams it."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "model-1",
        "choices": [{"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish_reason}],
        **more,
    }


def in_chunks(answer: dict[str, Any], *, usage: bool) -> list[Any]:
    """A whole answer as chunks, word by word, and the word that ends it. What is malformed stays so."""
    (choice,) = answer["choices"]
    message, model = choice["message"], {"model": answer["model"]}
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content"):
        text = message.get(name)
        deltas += [
            {name: piece} for piece in (re.findall(r"\S{1,5000}\s*|\s+", text) if isinstance(text, str) else [text])
        ]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        deltas += [{"tool_calls": [piece]} for index, call in enumerate(calls) for piece in call_in_pieces(index, call)]
    else:
        deltas.append({"tool_calls": calls})
    chunks = [chunk(delta, **model) for delta in deltas]
    chunks.append(chunk(finish_reason=choice["finish_reason"], **model))
    if usage:
        chunks.append(chunk(**model) | {"choices": [], "usage": answer["usage"]})
    return [*chunks, "[DONE]"]


def call_in_pieces(index: int, call: Any) -> list[Any]:
    """A tool call as OpenAI streams it: first the id and the name, then the arguments bit by bit."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return [call | {"index": index} if isinstance(call, dict) else call]
    head = call | {"index": index, "function": function | {"arguments": ""}}
    bits = re.findall(r"(?s).{1,5}", function["arguments"])
    return [head, *({"index": index, "function": {"arguments": bit}} for bit in bits)]


def call(name: str, arguments: Any = "{}", call_id: str = "call_1") -> dict[str, Any]:
    """A tool call as a model asks for it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def failure(status: int, code: str | None = None, *, message: str = "It failed.", **how: Any) -> Reply:
    """An error as OpenAI reports it."""
    return as_json({"error": {"message": message, "type": "some_error", "param": None, "code": code}}, status, **how)


def as_json(value: Any, status: int = 200, **how: Any) -> Reply:
    """Any JSON."""
    headers = {"Content-Type": "application/json", **how.pop("headers", {})}
    return Reply(status=status, body=json.dumps(value).encode(), headers=headers, **how)


def endless(part: bytes = b" ", **how: Any) -> Reply:
    """A body that never ends."""
    headers = {"Content-Type": "application/json"}
    return Reply(body=itertools.repeat(part), headers=headers, **how)


# --- the server --------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Request:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: Any
    connection: int  # which connection it came by, counted from 1
    disconnected_at: float | None = None  # when the client went away before the end of the answer
    bytes_sent: int = 0
    broken: str = ""  # the rule it broke


class OpenAIServer:
    """The server, in a thread of its own. ``key``: the one it takes; empty: any."""

    def __init__(self, *, key: str = "") -> None:
        self.key = key
        self.requests: list[Request] = []
        # Called when a request has arrived, before it is answered: here a test kills whom it wants to see die.
        self.on_request: Callable[[Request], None] | None = None
        self.url = ""
        self.lists_models = True
        self._replies: deque[Reply] = deque()
        self._scripted = ScriptedClient()
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openai-server", daemon=True)
        self._server: asyncio.Server | None = None

    def start(self, port: int = 0) -> "OpenAIServer":
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", port, limit=1 << 26)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def answer(self, *replies: Reply) -> None:
        """Answer the next requests with these, in their order; later ones as scripted."""
        self._replies.extend(replies)

    def forget(self) -> None:
        """Forget what was recorded and told."""
        self._replies.clear()
        self.requests.clear()
        self.on_request, self.key = None, ""

    def wait_until(self, holds: Callable[[], object], *, seconds: float = 10) -> None:
        """Wait for a condition of what it has recorded."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() > began + seconds:
                raise TimeoutError(f"not within {seconds} s; recorded: {self.requests}")
            rest(began)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection = self._connections
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request = await self._read(head.decode("latin-1"), reader, connection)
                self.requests.append(request)
                if self.on_request:
                    self.on_request(request)
                answering = asyncio.ensure_future(self._answer(request, writer))
                while not answering.done():
                    await asyncio.wait((answering,), timeout=0.01)
                    if reader.at_eof() or reader.exception():
                        answering.cancel()
                if answering.cancelled() or answering.exception():
                    request.disconnected_at = time.monotonic()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _read(head: str, reader: asyncio.StreamReader, connection: int) -> Request:
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        try:
            body = json.loads(raw)
        except ValueError:
            body = raw
        return Request(path=first.split(" ")[1], headers=headers, body=body, connection=connection)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        reply = await self._choose(request)
        if reply.hang_up and not reply.body:
            # With a linger of 0, closing sends a reset.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            raise ConnectionAbortedError
        await asyncio.sleep(reply.before)
        whole = isinstance(reply.body, bytes)
        length = f"Content-Length: {len(reply.body)}" if whole else "Transfer-Encoding: chunked"
        headers = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        writer.write(f"HTTP/1.1 {reply.status} Status\r\n{headers}{length}\r\n\r\n".encode())
        async for part in _parts(reply.body):
            writer.write(part if whole else b"%x\r\n%b\r\n" % (len(part), part))
            request.bytes_sent += len(part)
            await writer.drain()
            await asyncio.sleep(reply.between)
        if reply.hang_up:
            raise ConnectionAbortedError
        if not whole:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _choose(self, request: Request) -> Reply:
        listing = request.path == "/v1/models" and self.lists_models
        if request.path != "/v1/chat/completions" and not listing:
            return failure(404, message=f"Unknown address {request.path}")
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.key and given != self.key:
            # OpenAI quotes the key it refuses.
            return failure(401, "invalid_api_key", message=f"Incorrect API key provided: {given}.")
        if listing:
            return as_json({"object": "list", "data": [{"id": "model-1", "object": "model"}]})
        try:
            check_request(request.body)
        except Broken as broken:
            request.broken = str(broken)
            return failure(400, message=str(broken))
        streams, usage = "stream" in request.body, "stream_options" in request.body
        if not self._replies:
            return await (self._streamed_as_scripted if streams else self._as_scripted)(request.body)
        reply = self._replies.popleft()
        if streams and reply.answer:
            as_told = events(*in_chunks(reply.answer, usage=usage))
            return replace(reply, body=as_told.body, headers=reply.headers | as_told.headers)
        return reply

    async def _as_scripted(self, body: dict[str, Any]) -> Reply:
        try:
            return as_told(await self._scripted.complete(asked(body)))
        except errors.LlmError as error:
            return failed(error)

    async def _streamed_as_scripted(self, body: dict[str, Any]) -> Reply:
        """The same, while it is made: what fails before the first piece has a status of HTTP."""
        pieces: asyncio.Queue[Delta | None] = asyncio.Queue()
        answering = asyncio.ensure_future(self._scripted.complete(asked(body), pieces.put_nowait))
        answering.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            first = await pieces.get()
        except asyncio.CancelledError:
            answering.cancel()
            raise
        if first is None and (error := answering.exception()):
            assert isinstance(error, errors.LlmError), error
            return failed(error)
        return Reply(body=self._follow(answering, first, pieces, "stream_options" in body), headers=EVENT_STREAM)

    @staticmethod
    async def _follow(
        answering: asyncio.Future[Completion],
        piece: Delta | None,
        pieces: asyncio.Queue[Delta | None],
        usage: bool,
    ) -> AsyncIterator[bytes]:
        try:
            while piece:
                yield event(
                    chunk({"reasoning_content": piece.reasoning} if piece.reasoning else {"content": piece.content})
                )
                piece = await pieces.get()
            answer = as_told(await answering).answer
            answer["choices"][0]["message"] |= {"content": None, "reasoning_content": None}
            for last in in_chunks(answer, usage=usage):
                yield event(last)
        except errors.LlmError as error:
            # As vLLM and OpenRouter have it: no status of HTTP can say it any more.
            reply = failed(error)
            told = json.loads(reply.body)["error"] if reply.body.startswith(b"{") else None
            yield event({"error": told | {"code": told["code"] or reply.status}}) if told else event("<html>")
            yield event("[DONE]")
        finally:
            answering.cancel()


async def _parts(body: Any) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        body = [body[start : start + 65536] for start in range(0, len(body), 65536)]
    if isinstance(body, AsyncIterable):
        async for part in body:
            yield part
        return
    for part in body:
        yield part


# --- the scripted model ------------------------------------------------------------------------------------------


def _in_words(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    return message | {"content": _check_parts(content, "")} if isinstance(content, list) else message


def asked(body: dict[str, Any]) -> ModelRequest:
    choice = body["tool_choice"]["function"]["name"] if "tool_choice" in body else ""
    return ModelRequest(
        model=body["model"],
        messages=[_in_words(message) for message in body["messages"]],
        tools=body.get("tools", []),
        tool_choice=choice,
        max_tokens=body.get("max_tokens"),
        answer=answer_schemas.read(body["response_format"]) if "response_format" in body else None,
    )


def as_told(answer: Completion) -> Reply:
    """What the scripted model answers."""
    return completion(
        answer.content or None,
        tool_calls=list(answer.tool_calls) or None,
        finish_reason="tool_calls" if answer.tool_calls else "stop",
        model=answer.model,
        thought=answer.reasoning,
        usage={
            "prompt_tokens": answer.usage.prompt_tokens,
            "completion_tokens": answer.usage.completion_tokens,
            "total_tokens": answer.usage.prompt_tokens + answer.usage.completion_tokens,
        },
    )


def failed(error: errors.LlmError) -> Reply:
    """How a provider reports what the scripted model failed with."""
    wait = {"headers": {"Retry-After": str(error.retry_after)}} if error.retry_after is not None else {}
    return {
        "llm_auth": failure(401, "invalid_api_key"),
        "llm_rate_limited": failure(429, "rate_limit_exceeded", **wait),
        "llm_timeout": failure(504),
        "llm_context_too_long": failure(400, "context_length_exceeded"),
        "llm_content_filter": failure(400, "content_filter"),
        "llm_unavailable": failure(503, **wait),
        "llm_bad_response": Reply(body=b"<html>Bad gateway</html>", headers={"Content-Type": "text/html"}),
        "llm_request_refused": failure(400),
    }[error.code]


if __name__ == "__main__":
    server = OpenAIServer().start(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(server.url, flush=True)  # noqa: T201 -- who started it reads the address
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
