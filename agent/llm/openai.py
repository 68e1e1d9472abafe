"""OpenAI, and any server that speaks its Chat Completions API.

Plain dicts go through the package's low-level ``post``: it keeps the package's errors, headers and connections, but
not its request transforms, which cost 0.14 ms of CPU a message. Retrying is the turn's affair: it waits in the
database, so that a restart loses no count and a worker is not held by a sleep.

The key and the prompt go to LLM_BASE_URL and nowhere else: redirects are not followed (an API that redirects a POST is
an address mistyped), the environment's proxies are not used, nor is its OPENAI_BASE_URL. What the provider says about
an error is read for its code and then dropped, since it may quote the key or the prompt.
"""

import json
import math
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
from django.conf import settings

from agent import errors
from agent.llm.base import MAX_TOOL_CALLS, Completion, ModelRequest, Usage, tool_call
from nanohost.lib.text import storable

OPENAI_BASE_URL = "https://api.openai.com/v1"

# The longest answers models give, 128,000 tokens, are half a megabyte.
MAX_RESPONSE_BYTES = 8 * 1024 * 1024

# A count of tokens above this is no count; the sum of a turn's must fit a 32-bit column.
MAX_TOKENS = 10_000_000

# The codes of errors that are worth a name. Others are left out: they are the provider's own words.
_NO_QUOTA = {"insufficient_quota", "billing_hard_limit_reached"}
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
_FILTERED = {"content_filter", "content_policy_violation"}
_NAMED = _NO_QUOTA | _TOO_LONG | _FILTERED | {"invalid_api_key", "model_not_found", "rate_limit_exceeded"}

# Servers other than OpenAI's say it in words only (vLLM, llama.cpp, Anthropic's).
_TOO_LONG_IN_WORDS = re.compile(r"context (length|window|size)|(prompt|input) is too long", re.IGNORECASE)


class OpenAIClient:
    """See the module. One a process, made on first use: it keeps connections to one event loop."""

    def __init__(self) -> None:
        # A transport of our own also keeps the environment's proxies out; the turns held are the bound of connections.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=settings.WORKER_MAX_TURNS)
        # The turn's own timeout is total, and lies around the call; this one is per read.
        timeout = settings.LLM_TIMEOUT_SECONDS
        self._client = openai.AsyncOpenAI(
            # A server of one's own may ask for no key; the package insists on some.
            api_key=settings.OPENAI_API_KEY or "none",
            base_url=settings.LLM_BASE_URL or OPENAI_BASE_URL,
            timeout=timeout,
            max_retries=0,
            http_client=httpx2.AsyncClient(
                transport=_BoundedTransport(limits=limits),
                headers={"Accept-Encoding": "identity"},
                timeout=timeout,
                follow_redirects=False,
            ),
        )

    async def complete(self, request: ModelRequest) -> Completion:
        body: dict[str, Any] = {"model": request.model, "messages": request.messages}
        if request.tools:
            body["tools"] = request.tools
        try:
            response = await self._client.post("/chat/completions", cast_to=httpx2.Response, body=body)
        except openai.OpenAIError as error:
            raise _translated(error) from None
        except httpx2.InvalidURL:
            raise errors.LlmUnavailable("LLM_BASE_URL is no address") from None
        return _completion(_parsed(response.content))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Bounds what is read of an answer. A compressed one is refused: nobody asked for it, and it may swell."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise errors.LlmBadResponse("the answer is compressed, though that was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_RESPONSE_BYTES:
                raise errors.LlmBadResponse(f"the answer is larger than {MAX_RESPONSE_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _translated(error: openai.OpenAIError) -> errors.LlmError:
    """The package's error as one of ours."""
    if isinstance(error, openai.APITimeoutError):
        return errors.LlmTimeout("no answer in time")
    if isinstance(error, openai.APIConnectionError):
        return errors.LlmUnavailable("cannot be reached, or broke off")
    if not isinstance(error, openai.APIStatusError):
        return errors.LlmBadResponse(type(error).__name__)
    status = error.status_code
    codes = {str(error.code), str(error.type)}
    detail = " ".join([f"HTTP {status}", *sorted(codes & _NAMED)])
    # Out of quota is a bill to pay, not a wait.
    if status in (401, 402, 403) or codes & _NO_QUOTA:
        return errors.LlmAuthError(detail)
    if status == 429:
        return errors.LlmRateLimited(detail, retry_after=_retry_after(error))
    if codes & _TOO_LONG or status == 413 or (status == 400 and _TOO_LONG_IN_WORDS.search(error.message)):
        return errors.LlmContextTooLong(detail)
    if codes & _FILTERED:
        return errors.LlmContentFiltered(detail)
    if status in (408, 504):
        return errors.LlmTimeout(detail, retry_after=_retry_after(error))
    if status in (409, 425) or status >= 500:
        return errors.LlmUnavailable(detail, retry_after=_retry_after(error))
    return errors.LlmRequestRefused(detail)


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Retry-After in seconds; its other form, a date, is rare enough to be answered with our own backoff, and so is 0,
    which would use up all retries at once."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if seconds > 0 and math.isfinite(seconds) else None


def _parsed(body: bytes) -> Any:
    """The JSON, whatever its Content-Type says; some servers have it wrong."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise errors.LlmBadResponse("not JSON") from None


def _completion(answer: Any) -> Completion:
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content = message.get("content") or message.get("refusal") or ""
        if not isinstance(content, str):
            raise TypeError("content is not text")
        asked_for = message.get("tool_calls") or ()
        calls = tuple(
            tool_call(str(call.get("id") or ""), call["function"]["name"], _arguments(call["function"]))
            for call in asked_for
        )
        usage = answer.get("usage") or {}
        counted = Usage(
            prompt_tokens=_tokens(usage.get("prompt_tokens")), completion_tokens=_tokens(usage.get("completion_tokens"))
        )
        finish_reason, model = choice.get("finish_reason"), str(answer.get("model") or "")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise errors.LlmBadResponse(f"not a completion ({type(error).__name__})") from None
    if finish_reason == "content_filter":
        raise errors.LlmContentFiltered("the answer was cut by the content filter")
    if len(calls) > MAX_TOOL_CALLS:
        raise errors.LlmBadResponse(f"more than {MAX_TOOL_CALLS} tool calls at once")
    return Completion(content=storable(content), tool_calls=calls, model=storable(model)[:128], usage=counted)


def _arguments(function: dict[str, Any]) -> str:
    """The arguments as JSON text; some servers send the object itself, or nothing where there are none."""
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        return json.dumps(arguments)
    return arguments or "{}"


def _tokens(count: Any) -> int:
    """A count of tokens; what is none counts as 0."""
    return count if isinstance(count, int) and 0 <= count <= MAX_TOKENS else 0
