"""Anthropic's own API: Messages, by its package.

The package makes the requests and tells what an error means; its answers come as events, and are read by the rules of
our own, since a server may send anything. An answer is streamed in any case: asked for whole ones, the package refuses
what may take long. The stable beginning of a prompt is marked for Anthropic's cache: the tools, the system prompt, and
what the conversation has so far, which the next prompt begins with.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import anthropic
import httpx2
from django.conf import settings

from agent import errors
from agent.images import images_of
from agent.llm.answers import MALFORMED, error_of, parsed, retry_after, tokens_in, too_many_calls
from agent.llm.base import MAX_TOOL_CALLS, Completion, Delta, ModelRequest, OnDelta, Usage, tool_call
from agent.llm.connections import BROKEN, DRAIN_SECONDS, Connections, broken
from agent.llm.providers import Access
from agent.llm.sse import EventParser
from agent.loop import ChatMessage
from nanohost.lib.text import storable

_CACHED = {"type": "ephemeral"}

# Of the tokens that an answer may have, thinking gets so much; and 1024 at least, which is Anthropic's minimum.
_BUDGETS = {"low": 0.25, "medium": 0.5, "high": 0.8}
_LEAST_BUDGET = 1024
# Models from this version on decide by themselves how much they think, and are told how hard to try.
_ADAPTIVE_SINCE = (4, 6)

# What the statuses of errors within an answer are.
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
}

_ODD_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


class AnthropicClient:
    """See the module. One a process, made on first use: it keeps connections to one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connections = Connections(kept=settings.WORKER_MAX_TURNS)
        timeout = settings.LLM_TIMEOUT_SECONDS
        self._package = anthropic.AsyncAnthropic(
            api_key=access.key or "none",
            base_url=access.base_url,
            timeout=timeout,
            max_retries=0,
            open_telemetry=False,
            default_headers=access.headers,
            http_client=httpx2.AsyncClient(
                # Which also keeps the environment's proxies out.
                transport=self._connections.transport(),
                headers={"Accept-Encoding": "identity"},
                timeout=timeout,
                follow_redirects=False,
            ),
        )

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Completion:
        answer = StreamedMessage(on_delta)
        try:
            opening = self._package.messages.with_streaming_response.create(**body_of(request), stream=True)
            async with opening as response:
                await _read(response.iter_bytes(), answer)
        except anthropic.AnthropicError as error:
            raise _translated(error) from None
        except BROKEN as error:
            if not answer.is_done:
                raise broken(error) from None
        return answer.finish()

    async def list_models(self) -> list[str]:
        """The models that it says it has; raises :class:`agent.errors.LlmError`."""
        try:
            listed = await self._package.get("/v1/models", cast_to=httpx2.Response)
            return [storable(each["id"])[:128] for each in parsed(listed.content)["data"]]
        except anthropic.AnthropicError as error:
            raise _translated(error) from None
        except BROKEN as error:
            raise broken(error) from None
        except MALFORMED:
            raise errors.LlmBadResponse("no list of models") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.aclose()
        await self._package.close()


# --- what is sent ------------------------------------------------------------------------------------------------


def body_of(request: ModelRequest) -> dict[str, Any]:
    """What Anthropic is asked, of a request in the chat format."""
    most = request.max_tokens or settings.LLM_OUTPUT_RESERVE
    system = "\n\n".join(str(each["content"]) for each in request.messages if each["role"] == "system")
    messages = _messages(request.messages, request.pictures)
    if messages:
        messages[-1]["content"][-1] |= {"cache_control": _CACHED}
    body: dict[str, Any] = {"model": request.model, "max_tokens": most, "messages": messages}
    if system.strip():
        body["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    if request.tools:
        body["tools"] = [_tool(each["function"]) for each in request.tools]
        body["tools"][-1] |= {"cache_control": _CACHED}
    given = request.parameters
    if choice := _tool_choice(request):
        body["tool_choice"] = choice
    if not (request.tool_choice or request.must_call) and request.effort:
        body |= _thinking(request.model, request.effort, most, messages)
    if request.answer and request.answer.schema is not None:
        answer = {"format": {"type": "json_schema", "schema": request.answer.schema}}
        body["output_config"] = body.get("output_config", {}) | answer
    # A model that thinks takes neither, and none takes both. The package does not know them any more; models do.
    if "thinking" not in body:
        temperature = given.get("temperature", request.temperature)
        if temperature is not None:
            body["extra_body"] = {"temperature": min(temperature, 1.0)}
        elif "top_p" in given:
            body["extra_body"] = {"top_p": given["top_p"]}
    if stop := given.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    return body


def _tool_choice(request: ModelRequest) -> dict[str, Any] | None:
    kind: dict[str, Any] | None = None
    if request.tool_choice:
        kind = {"type": "tool", "name": request.tool_choice}
    elif request.must_call and request.tools:
        kind = {"type": "any"}
    if request.tools and request.parameters.get("parallel_tool_calls") is False:
        kind = (kind or {"type": "auto"}) | {"disable_parallel_tool_use": True}
    return kind


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    told = {"name": function["name"], "input_schema": function["parameters"]}
    return told | ({"description": function["description"]} if function.get("description") else {})


def _thinking(model: str, effort: str, most: int, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How it is told to think; not at all where there is no room for that, or where it goes on with calls that were
    made without: it would refuse that."""
    if (version := _version(model)) and version >= _ADAPTIVE_SINCE:
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
    budget = max(int(_BUDGETS[effort] * most), _LEAST_BUDGET)
    for message in messages:
        kinds = [block["type"] for block in message["content"]]
        goes_on = "tool_use" in kinds and message is [each for each in messages if each["role"] == "assistant"][-1]
        if goes_on and not kinds[0].endswith("thinking"):
            return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget < most else {}


def _version(model: str) -> tuple[int, int] | None:
    """(4, 6) of claude-opus-4-6 or claude-opus-4-6-20260101."""
    found = re.search(r"-(\d{1,2})(?:-(\d{1,2}))?(?:-\d{8}|-latest)?$", model)
    return (int(found[1]), int(found[2] or 0)) if found else None


def _messages(messages: Sequence[ChatMessage], pictures: Mapping[str, str]) -> list[dict[str, Any]]:
    """The chat as Anthropic has it: results of tools are the user's, and who speaks twice in a row speaks once."""
    told: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system" or not (blocks := _blocks(message, pictures)):
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        if told and told[-1]["role"] == role:
            told[-1]["content"] += blocks
        else:
            told.append({"role": role, "content": blocks})
    return told


def _blocks(message: ChatMessage, pictures: Mapping[str, str]) -> list[dict[str, Any]]:
    content = message.get("content")
    if message["role"] == "tool":
        told = str(content) if str(content or "").strip() else "(empty)"
        return [{"type": "tool_result", "tool_use_id": _fit_id(message["tool_call_id"]), "content": told}]
    blocks: list[dict[str, Any]] = []
    if (thoughts := message.get("thoughts")) and thoughts.get("by") == "anthropic":
        blocks += thoughts["blocks"]
    for image in images_of(message):
        source = {"type": "base64", "media_type": image["type"], "data": pictures[image["sha256"]]}
        blocks.append({"type": "image", "source": source})
    if isinstance(content, str) and content.strip():
        blocks.append({"type": "text", "text": content})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        given = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": _fit_id(call["id"]), "name": function["name"], "input": given})
    return blocks


def _fit_id(call_id: str) -> str:
    """Anthropic's pattern for ids; those of another provider's model may have other characters."""
    return _ODD_IN_ID.sub("_", call_id)


# --- what is answered --------------------------------------------------------------------------------------------


async def _read(parts: AsyncIterator[bytes], answer: "StreamedMessage") -> None:
    """Read to the end of the answer, and a moment longer: then the connection can be used again."""
    async for part in parts:
        if answer.feed(part):
            break
    if answer.is_done:
        with suppress(TimeoutError, errors.LlmError, *BROKEN):
            async with asyncio.timeout(DRAIN_SECONDS):
                async for _ in parts:
                    pass


class StreamedMessage:
    """An answer that arrives as events; what does not stream may send the message as a whole."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self._on_delta = on_delta
        self._events = EventParser()
        self._whole: list[bytes] = []
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._pieces: dict[Any, list[str]] = {}
        self._calls = 0
        self._usage: dict[str, Any] = {}
        self._model: Any = ""
        self._stop_reason: Any = None
        self.is_done = False

    def feed(self, part: bytes) -> bool:
        """Take some bytes, cut anywhere, and hand over what they hold; returns whether nothing follows. Raises
        :class:`agent.errors.LlmError`."""
        if not self._model and not self._blocks:
            self._whole.append(part)  # in case that it is none
        said, thought = [], []
        try:
            for data in self._events.feed(part):
                delta = self._take(parsed(data))
                if self.is_done:
                    break
                said.append(delta.content)
                thought.append(delta.reasoning)
        except MALFORMED as error:
            raise errors.LlmBadResponse(f"not an event of a message ({type(error).__name__})") from None
        finally:
            delta = Delta(content="".join(said), reasoning="".join(thought))
            if self._on_delta and (delta.content or delta.reasoning):
                self._on_delta(delta)
        return self.is_done

    def _take(self, event: Any) -> Delta:
        match event["type"]:
            case "message_start":
                self._start(event["message"])
            case "content_block_start":
                return self._open(event["index"], event["content_block"])
            case "content_block_delta":
                return self._add(event["index"], event["delta"])
            case "message_delta":
                self._stop_reason = event["delta"].get("stop_reason") or self._stop_reason
                self._usage |= {name: count for name, count in (event.get("usage") or {}).items() if count is not None}
            case "message_stop":
                self.is_done = True
            case "error":
                raise _reported(event)
        return Delta()

    def _start(self, message: dict[str, Any]) -> None:
        self._model = message.get("model") or ""
        self._usage |= message.get("usage") or {}

    def _open(self, index: Any, block: dict[str, Any]) -> Delta:
        if block["type"] == "tool_use":
            self._calls += 1
            if self._calls > MAX_TOOL_CALLS:
                raise too_many_calls()
        self._blocks[index] = dict(block)
        self._pieces[index] = []
        if block["type"] in _TEXTS:  # it may begin with some of it
            return self._add(index, block | {"type": f"{block['type']}_delta"})
        return Delta()

    def _add(self, index: Any, delta: dict[str, Any]) -> Delta:
        block = self._blocks[index]
        match delta["type"]:
            case "text_delta":
                self._pieces[index].append(delta["text"])
                return Delta(content=storable(delta["text"]))
            case "thinking_delta":
                self._pieces[index].append(delta["thinking"])
                return Delta(reasoning=storable(delta["thinking"]))
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                self._pieces[index].append(delta["partial_json"])
        return Delta()

    def finish(self) -> Completion:
        """The whole, when the stream has ended; raises :class:`agent.errors.LlmError`."""
        try:
            if not self._blocks and not self.is_done and not self._model:
                self._take_whole(parsed(b"".join(self._whole)))
            if not self.is_done and self._stop_reason is None:
                raise errors.LlmUnavailable("broke off")
            return self._completion()
        except MALFORMED as error:
            raise errors.LlmBadResponse(f"not a message ({type(error).__name__})") from None

    def _take_whole(self, message: Any) -> None:
        if message["type"] == "error":
            raise _reported(message)
        self._start(message)
        for index, block in enumerate(message["content"]):
            delta = self._open(index, block)
            if self._on_delta and (delta.content or delta.reasoning):
                self._on_delta(delta)
        self._stop_reason = message["stop_reason"]

    def _completion(self) -> Completion:
        text, thoughts, calls = [], [], []
        for index, block in sorted(self._blocks.items()):
            pieces = "".join(self._pieces[index])
            match block["type"]:
                case "text":
                    text.append(pieces)
                case "thinking":
                    block = {"type": "thinking", "thinking": pieces, "signature": block.get("signature") or ""}
                    thoughts.append(block)
                case "redacted_thinking":
                    thoughts.append({"type": "redacted_thinking", "data": str(block["data"])})
                case "tool_use":
                    # A server that does not cut it has it whole at the beginning.
                    arguments = pieces or json.dumps(block.get("input") or {})
                    calls.append(tool_call(str(block.get("id") or ""), block["name"], arguments))
        if self._stop_reason == "refusal":
            raise errors.LlmContentFiltered("the model refused to answer")
        if self._stop_reason == "model_context_window_exceeded" and not (text or calls):
            raise errors.LlmContextTooLong("no room is left in the model's context")
        return Completion(
            content=storable("".join(text)),
            reasoning=storable("\n\n".join(each["thinking"] for each in thoughts if each.get("thinking"))),
            thoughts=tuple(thoughts),
            tool_calls=tuple(calls),
            model=storable(str(self._model))[:128],
            usage=self._counted(),
            is_cut=self._stop_reason == "max_tokens",
        )

    def _counted(self) -> Usage:
        """Anthropic counts apart what of a prompt it had cached, what it puts there, and the rest."""
        read = tokens_in(self._usage.get("cache_read_input_tokens"))
        written = tokens_in(self._usage.get("cache_creation_input_tokens"))
        return Usage(
            prompt_tokens=tokens_in(self._usage.get("input_tokens")) + read + written,
            completion_tokens=tokens_in(self._usage.get("output_tokens")),
            cached_tokens=read,
            written_tokens=written,
        )


_TEXTS = ("text", "thinking")


def _reported(event: dict[str, Any]) -> errors.LlmError:
    """An error within an answer."""
    told = event.get("error")
    kind = str(told.get("type")) if isinstance(told, dict) else ""
    words = str(told.get("message")) if isinstance(told, dict) else ""
    return error_of(status=_STATUSES.get(kind), codes={kind}, words=words)


def _translated(error: anthropic.AnthropicError) -> errors.LlmError:
    """The package's error as one of ours."""
    if isinstance(error, anthropic.APITimeoutError):
        return errors.LlmTimeout("no answer in time")
    if isinstance(error, anthropic.APIConnectionError):
        return errors.LlmUnavailable("cannot be reached, or broke off")
    if not isinstance(error, anthropic.APIStatusError):
        return errors.LlmBadResponse(type(error).__name__)
    kind = str(error.type)
    return error_of(
        status=_STATUSES.get(kind, error.status_code) if error.status_code == 400 else error.status_code,
        codes={kind},
        words=str(error.message),
        retry_after=retry_after(error.response.headers),
    )
