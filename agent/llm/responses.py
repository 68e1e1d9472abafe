"""OpenAI's Responses API, by its package: what ChatGPT's Codex takes, with the token of a person who has signed in.

Nothing is stored there: each request has the whole chat, and what the model has thought comes encrypted, and goes back
within a turn. An answer is streamed in any case, since Codex gives no other.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx2
import openai
from django.conf import settings

from agent import errors
from agent.images import data_url, images_of
from agent.llm.answers import MALFORMED, error_of, parsed, tokens_in, too_many_calls
from agent.llm.base import MAX_TOOL_CALLS, Completion, Delta, ModelRequest, OnDelta, Usage, tool_call
from agent.llm.connections import BROKEN, DRAIN_SECONDS, Connections, broken
from agent.llm.openai import translated
from agent.llm.providers import Access
from agent.llm.sse import EventParser
from agent.loop import ChatMessage
from nanohost.lib.text import storable


class ResponsesClient:
    """See the module. One a process, made on first use: it keeps connections to one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connections = Connections(kept=settings.WORKER_MAX_TURNS)
        timeout = settings.LLM_TIMEOUT_SECONDS
        account = _account_of(access.key)
        self._package = openai.AsyncOpenAI(
            api_key=access.key or "none",
            base_url=access.base_url,
            timeout=timeout,
            max_retries=0,
            default_headers={"originator": "nanohost"}
            | ({"chatgpt-account-id": account} if account else {})
            | access.headers,
            http_client=httpx2.AsyncClient(
                # Which also keeps the environment's proxies out.
                transport=self._connections.transport(),
                headers={"Accept-Encoding": "identity"},
                timeout=timeout,
                follow_redirects=False,
            ),
        )

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Completion:
        answer = StreamedResponse(on_delta)
        try:
            body = body_of(request, self._access)
            async with self._package.responses.with_streaming_response.create(**body, stream=True) as response:
                await _read(response.iter_bytes(), answer)
        except openai.OpenAIError as error:
            raise translated(error) from None
        except BROKEN as error:
            if not answer.is_done:
                raise broken(error) from None
        return answer.finish()

    async def list_models(self) -> list[str]:
        """Codex lists none."""
        raise errors.LlmRequestRefused("it lists no models")

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.aclose()
        await self._package.close()


def _account_of(token: str) -> str:
    """The account that a token is of, which Codex wants to be told; the token says so itself."""
    try:
        _, payload, _ = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        account = claims["https://api.openai.com/auth"]["chatgpt_account_id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return account if isinstance(account, str) and account.isascii() and account.isprintable() else ""


# --- what is sent ------------------------------------------------------------------------------------------------


def body_of(request: ModelRequest, access: Access) -> dict[str, Any]:
    """What is asked, of a request in the chat format. There is no bound of an answer's tokens that Codex would take."""
    system = "\n\n".join(str(each["content"]) for each in request.messages if each["role"] == "system")
    body: dict[str, Any] = {
        "model": request.model,
        "instructions": system,
        "input": [item for each in request.messages for item in _items(each, access.provider.name, request.pictures)],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        # Prompts that begin alike are sent to where their beginning is cached.
        "prompt_cache_key": hashlib.sha256(f"{request.model}\n{system}".encode("utf-8", "replace")).hexdigest()[:32],
    }
    if request.tools:
        body["tools"] = [{"type": "function", "strict": False, **each["function"]} for each in request.tools]
    if request.tool_choice:
        body["tool_choice"] = {"type": "function", "name": request.tool_choice}
    elif request.must_call and request.tools:
        body["tool_choice"] = "required"
    if request.effort:
        body["reasoning"] = {"effort": request.effort, "summary": "auto"}
    if request.answer:
        is_any = request.answer.schema is None
        told = {"type": "json_object"} if is_any else {"type": "json_schema", **request.answer.as_json_schema()}
        body["text"] = {"format": told}
    return body


def _items(message: ChatMessage, provider: str, pictures: Mapping[str, str]) -> list[dict[str, Any]]:
    role, content = message["role"], message.get("content") or ""
    if role == "system":
        return []
    if role == "user":
        images = [{"type": "input_image", "image_url": data_url(each, pictures)} for each in images_of(message)]
        return [{"role": "user", "content": [*images, {"type": "input_text", "text": content}]}]
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": content}]
    thoughts = message.get("thoughts")
    items: list[dict[str, Any]] = list(thoughts["blocks"]) if thoughts and thoughts["by"] == provider else []
    if content.strip():
        items.append({"role": "assistant", "content": [{"type": "output_text", "text": content}]})
    for call in message.get("tool_calls") or ():
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


# --- what is answered --------------------------------------------------------------------------------------------


async def _read(parts: AsyncIterator[bytes], answer: "StreamedResponse") -> None:
    """Read to the end of the answer, and a moment longer: then the connection can be used again."""
    async for part in parts:
        if answer.feed(part):
            break
    if answer.is_done:
        with suppress(TimeoutError, errors.LlmError, *BROKEN):
            async with asyncio.timeout(DRAIN_SECONDS):
                async for _ in parts:
                    pass


_DELTAS = {"response.output_text.delta": "content", "response.refusal.delta": "content"}
_DELTAS |= {"response.reasoning_summary_text.delta": "reasoning", "response.reasoning_text.delta": "reasoning"}


class StreamedResponse:
    """An answer that arrives as events. The items of it count as they are when they are done."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self._on_delta = on_delta
        self._events = EventParser()
        self._items: list[dict[str, Any]] = []
        self._response: dict[str, Any] = {}
        self.is_done = False

    def feed(self, part: bytes) -> bool:
        """Take some bytes, cut anywhere, and hand over what they hold; returns whether nothing follows. Raises
        :class:`agent.errors.LlmError`."""
        told = {"content": "", "reasoning": ""}
        try:
            for data in self._events.feed(part):
                if data.startswith(b"[DONE]"):
                    break
                event = parsed(data)
                if name := _DELTAS.get(event["type"]):
                    told[name] += storable(event["delta"])
                else:
                    self._take(event)
        except MALFORMED as error:
            raise errors.LlmBadResponse(f"not an event of a response ({type(error).__name__})") from None
        finally:
            if self._on_delta and any(told.values()):
                self._on_delta(Delta(**told))
        return self.is_done

    def _take(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "response.output_item.done":
                self._items.append(event["item"])
                if len(self._items) > 2 * MAX_TOOL_CALLS:
                    raise too_many_calls()
            case "response.completed" | "response.incomplete":
                self._response, self.is_done = event["response"], True
            case "response.failed":
                raise _reported(event["response"].get("error"))
            case "error":
                raise _reported(event.get("error") or event)

    def finish(self) -> Completion:
        """The whole, when the stream has ended; raises :class:`agent.errors.LlmError`."""
        if not self.is_done:
            raise errors.LlmUnavailable("broke off")
        try:
            return _completion_of(self._response, self._items or self._response.get("output") or [])
        except MALFORMED as error:
            raise errors.LlmBadResponse(f"not a response ({type(error).__name__})") from None


def _completion_of(response: dict[str, Any], items: Sequence[dict[str, Any]]) -> Completion:
    text, thought, thoughts, calls = [], [], [], []
    for item in items:
        match item["type"]:
            case "message":
                text += [part.get("text") or part.get("refusal") or "" for part in item["content"]]
            case "reasoning":
                thought += [part["text"] for part in item.get("summary") or ()]
                if item.get("encrypted_content"):  # without, nothing of it can be sent back
                    kept = ("type", "id", "summary", "encrypted_content")
                    thoughts.append({name: item[name] for name in kept if name in item})
            case "function_call":
                calls.append(tool_call(str(item.get("call_id") or ""), item["name"], item["arguments"] or "{}"))
    if len(calls) > MAX_TOOL_CALLS:
        raise too_many_calls()
    if (response.get("incomplete_details") or {}).get("reason") == "content_filter":
        raise errors.LlmContentFiltered("the answer was cut by the content filter")
    usage = response.get("usage") or {}
    prompt = tokens_in(usage.get("input_tokens"))
    cached = tokens_in((usage.get("input_tokens_details") or {}).get("cached_tokens"))
    return Completion(
        content=storable("".join(text)),
        reasoning=storable("\n\n".join(thought)),
        thoughts=tuple(thoughts),
        tool_calls=tuple(calls),
        model=storable(str(response.get("model") or ""))[:128],
        usage=Usage(
            prompt_tokens=prompt,
            completion_tokens=tokens_in(usage.get("output_tokens")),
            cached_tokens=min(cached, prompt),
        ),
        is_cut=(response.get("incomplete_details") or {}).get("reason") == "max_output_tokens",
    )


def _reported(error: Any) -> errors.LlmError:
    """An error within an answer."""
    told = error if isinstance(error, dict) else {}
    code = str(told.get("code"))
    status = {"rate_limit_exceeded": 429, "invalid_prompt": 400}.get(code)
    return error_of(status=status, codes={code}, words=str(told.get("message")))
