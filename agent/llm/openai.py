"""OpenAI, and any server that speaks its Chat Completions API.

Plain dicts go through the package's low-level ``post``: it keeps the package's errors, headers and connections, but
not its request transforms, which cost 0.14 ms of CPU a message. Retrying is the turn's affair: it waits in the
database, so that a restart loses no count and a worker is not held by a sleep.

The key and the prompt go to LLM_BASE_URL and nowhere else: redirects are not followed (an API that redirects a POST is
an address mistyped), the environment's proxies are not used, nor is its OPENAI_BASE_URL. What the provider says about
an error is read for its code and then dropped, since it may quote the key or the prompt.
"""

import asyncio
import math
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import httpx2
import openai
from django.conf import settings

from agent import errors
from agent.llm.answers import StreamedAnswer, completion_of, error_of, parsed
from agent.llm.base import Completion, ModelRequest, OnDelta
from agent.llm.connections import Connections

OPENAI_BASE_URL = "https://api.openai.com/v1"

# Seconds that the end of a stream may take to arrive after its last event; with it, the connection can be used again.
DRAIN_SECONDS = 0.1

# What httpx2 raises where a body breaks off; TLS raises errors of its own.
_BROKEN = (httpx2.RequestError, ssl.SSLError)

# An event stream begins with a field's name, a comment or (.NET) a mark of its byte order; JSON with none of these.
_EVENT_STREAM_BEGINS = (b"d", b"e", b"i", b"r", b":", b"\xef")

_STREAM_OPTIONS = re.compile(rb"stream_options|include_usage")


class OpenAIClient:
    """See the module. One a process, made on first use: it keeps connections to one event loop."""

    def __init__(self) -> None:
        # The turn's own timeout is total, and lies around the call; this one is per read.
        timeout = settings.LLM_TIMEOUT_SECONDS
        self._client = openai.AsyncOpenAI(
            # A server of one's own may ask for no key; the package insists on some.
            api_key=settings.OPENAI_API_KEY or "none",
            base_url=settings.LLM_BASE_URL or OPENAI_BASE_URL,
            timeout=timeout,
            max_retries=0,
            http_client=httpx2.AsyncClient(
                # Which also keeps the environment's proxies out.
                transport=Connections(kept=settings.WORKER_MAX_TURNS),
                headers={"Accept-Encoding": "identity"},
                timeout=timeout,
                follow_redirects=False,
            ),
        )
        # Whole: the package would put it together for each call.
        self._address = f"{self._client.base_url}chat/completions"
        # Whether the server has refused to count the tokens of streams; they count as 0 then.
        self._refuses_stream_options = False

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Completion:
        body: dict[str, Any] = {"model": request.model, "messages": request.messages}
        if request.tools:
            body["tools"] = request.tools
        if request.tool_choice:
            body["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
        if on_delta is None:
            return completion_of(parsed((await self._post(body)).content))
        response, answer = await self._post_for_stream(body | {"stream": True}), StreamedAnswer(on_delta)
        async with aclosing(response), aclosing(_parts(response, answer)) as parts:
            return await _read(response, parts, answer)

    async def _post_for_stream(self, body: dict[str, Any]) -> httpx2.Response:
        """The response, its body not read; to be closed."""
        if self._refuses_stream_options:
            return await self._post(body, stream=True)
        try:
            return await self._post(body | {"stream_options": {"include_usage": True}}, stream=True)
        except _StreamOptionsRefused:
            response = await self._post(body, stream=True)
            # Not before it has answered: the first error may have been about something else, and have quoted a prompt.
            self._refuses_stream_options = True
            return response

    async def _post(self, body: dict[str, Any], *, stream: bool = False) -> httpx2.Response:
        try:
            # For this type the package hands over the response as it is, streamed or not.
            response: Any = await self._client.post(
                self._address,
                cast_to=httpx2.Response,
                body=body,
                stream=stream,
                stream_cls=openai.AsyncStream[Any],
            )
        except openai.APIStatusError as error:
            if "stream_options" in body and _refuses_stream_options(error):
                raise _StreamOptionsRefused from None
            raise _translated(error) from None
        except openai.OpenAIError as error:
            raise _translated(error) from None
        except httpx2.InvalidURL:
            raise errors.LlmUnavailable("LLM_BASE_URL is no address") from None
        except _BROKEN as error:  # in the body of an error, which the package reads unguarded if asked for a stream
            raise _broken(error) from None
        assert isinstance(response, httpx2.Response)
        return response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class _StreamOptionsRefused(Exception):
    """The server does not know how to count the tokens of a stream."""


async def _parts(response: httpx2.Response, answer: StreamedAnswer) -> AsyncGenerator[bytes]:
    """The body as it arrives; raises :class:`agent.errors.LlmError` if it breaks off before the answer is finished."""
    try:
        async with aclosing(response.aiter_raw()) as parts:
            async for part in parts:
                yield part
    except _BROKEN as error:
        if not answer.is_finished:
            raise _broken(error) from None


async def _read(response: httpx2.Response, parts: AsyncIterator[bytes], answer: StreamedAnswer) -> Completion:
    """The answer out of an event stream; or out of JSON, which is what a server sends that does not stream."""
    begin = b""
    async for part in parts:
        if begin := part.lstrip():
            break
    if not _is_event_stream(response, begin):
        return answer.take_whole(b"".join([begin, *[part async for part in parts]]))
    done = answer.feed(begin)
    if not done:
        async for part in parts:
            if done := answer.feed(part):
                break
    if done:
        with suppress(TimeoutError, errors.LlmError):
            async with asyncio.timeout(DRAIN_SECONDS):
                async for _ in parts:
                    pass
    return answer.finish()


def _is_event_stream(response: httpx2.Response, begin: bytes) -> bool:
    """Told by how the body begins, where that is clear: some servers have the Content-Type wrong."""
    if begin.startswith(_EVENT_STREAM_BEGINS):
        return True
    return response.headers.get("content-type", "").startswith("text/event-stream") and not begin.startswith(b"{")


def _broken(error: Exception) -> errors.LlmError:
    """What broke a connection, as one of ours."""
    if isinstance(error, httpx2.TimeoutException):
        return errors.LlmTimeout("no answer in time")
    return errors.LlmUnavailable("cannot be reached, or broke off")


def _translated(error: openai.OpenAIError) -> errors.LlmError:
    """The package's error as one of ours."""
    if isinstance(error, openai.APITimeoutError):
        return errors.LlmTimeout("no answer in time")
    if isinstance(error, openai.APIConnectionError):
        return errors.LlmUnavailable("cannot be reached, or broke off")
    if not isinstance(error, openai.APIStatusError):
        return errors.LlmBadResponse(type(error).__name__)
    return error_of(
        status=error.status_code,
        codes={str(error.code), str(error.type)},
        words=error.message,
        retry_after=_retry_after(error),
    )


def _refuses_stream_options(error: openai.APIStatusError) -> bool:
    """Whether the server does not know the option; Mistral's says so with 422, others with 400."""
    return error.status_code in (400, 422) and bool(_STREAM_OPTIONS.search(error.response.content))


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Retry-After in seconds; its other form, a date, is rare enough to be answered with our own backoff, and so is
    less than a second, which would use up all retries at once."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if seconds >= 1 and math.isfinite(seconds) else None
