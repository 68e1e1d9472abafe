"""OpenAI, and any server that speaks its Chat Completions API.

The package says what a request looks like (address, headers, credentials) and what an error means. It is asked for the
first once, since nothing but the body differs from call to call, and for the second when there is one: what it does for
each request takes a fifth of a turn's CPU. Retrying is the turn's affair: it waits in the database, so that a restart
loses no count and a worker is not held by a sleep.

The key and the prompt go to LLM_BASE_URL and nowhere else: redirects are not followed (an API that redirects a POST is
an address mistyped), the environment's proxies are not used, nor is its OPENAI_BASE_URL. What the provider says about
an error is read for its code and then dropped, since it may quote the key or the prompt.
"""

import asyncio
import json
import math
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx2
import openai
from django.conf import settings

from agent import errors
from agent.fixed import as_json
from agent.llm.answers import StreamedAnswer, completion_of, error_of, parsed
from agent.llm.base import Completion, ModelRequest, OnDelta
from agent.llm.connections import Connections, Outline, Reply

OPENAI_BASE_URL = "https://api.openai.com/v1"

# Seconds that the end of a stream may take to arrive after its last event; with it, the connection can be used again.
DRAIN_SECONDS = 0.1

# What httpx2 raises where a body breaks off; TLS raises errors of its own.
_BROKEN = (httpx2.RequestError, ssl.SSLError)

# An event stream begins with a field's name, a comment or (.NET) a mark of its byte order; JSON with none of these.
_EVENT_STREAM_BEGINS = (b"d", b"e", b"i", b"r", b":", b"\xef")

_STREAM_OPTIONS = re.compile(rb"stream_options|include_usage")

# Of a request's body.
_STREAM = '"stream": true'
_STREAM_WITH_USAGE = f'{_STREAM}, "stream_options": {{"include_usage": true}}'


class OpenAIClient:
    """See the module. One a process, made on first use: it keeps connections to one event loop."""

    def __init__(self) -> None:
        # The turn's own timeout is total, and lies around the call; this one is per read.
        timeout = settings.LLM_TIMEOUT_SECONDS
        self._network = _InPlaceOfTheNetwork()
        self._package = openai.AsyncOpenAI(
            # A server of one's own may ask for no key; the package insists on some.
            api_key=settings.OPENAI_API_KEY or "none",
            base_url=settings.LLM_BASE_URL or OPENAI_BASE_URL,
            timeout=timeout,
            max_retries=0,
            http_client=httpx2.AsyncClient(
                # Which also keeps the environment's proxies out.
                transport=self._network,
                headers={"Accept-Encoding": "identity"},
                timeout=timeout,
                follow_redirects=False,
            ),
        )
        self._bound = _bound(self._package.base_url.host)
        self._connections = Connections(kept=settings.WORKER_MAX_TURNS)
        self._outline: Outline | None = None
        # Whether the server has refused to count the tokens of streams; they count as 0 then.
        self._refuses_stream_options = False

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Completion:
        if on_delta is None:
            reply = await self._post(request)
            try:
                return completion_of(parsed(await reply.read()))
            except _BROKEN as error:
                raise _broken(error) from None
        reply, answer = await self._post_for_stream(request), StreamedAnswer(on_delta)
        async with aclosing(reply), aclosing(_parts(reply, answer)) as parts:
            return await _read(reply, parts, answer)

    async def _post_for_stream(self, request: ModelRequest) -> Reply:
        """The response, its body not read; to be closed."""
        if self._refuses_stream_options:
            return await self._post(request, _STREAM)
        try:
            return await self._post(request, _STREAM_WITH_USAGE)
        except _StreamOptionsRefused:
            response = await self._post(request, _STREAM)
            # Not before it has answered: the first error may have been about something else, and have quoted a prompt.
            self._refuses_stream_options = True
            return response

    async def _post(self, request: ModelRequest, options: str = "") -> Reply:
        """What a model's server answers, if that is no error; its body is not read yet."""
        body = _body(request, options, self._bound)
        try:
            self._outline = self._outline or await self._outlined()
            reply = await self._connections.send(self._outline, body)
            if not 200 <= reply.status < 300:
                raise await self._error_of(reply)
        except openai.APIStatusError as error:
            if options == _STREAM_WITH_USAGE and _refuses_stream_options(error):
                raise _StreamOptionsRefused from None
            raise _translated(error) from None
        except openai.OpenAIError as error:
            raise _translated(error) from None
        except httpx2.InvalidURL:
            raise errors.LlmUnavailable("LLM_BASE_URL is no address") from None
        except _BROKEN as error:
            raise _broken(error) from None
        return reply

    async def _outlined(self) -> Outline:
        """What each request begins with."""
        await self._ask_package(httpx2.Response(200, content=b"{}"))
        assert self._network.request
        return Outline.of(self._network.request)

    async def _error_of(self, reply: Reply) -> openai.OpenAIError:
        """A reply that is an error, as the package has it."""
        headers = [header for header in reply.headers if header[0].lower() not in (b"content-length", b"connection")]
        answer = httpx2.Response(reply.status, headers=headers, content=await reply.read())
        try:
            await self._ask_package(answer)
        except openai.OpenAIError as error:
            return error
        return openai.OpenAIError("no error")

    async def _ask_package(self, answer: httpx2.Response) -> None:
        """Have the package make a request, which is answered so."""
        async with self._network.answering(answer):
            await self._package.post(
                "/chat/completions", cast_to=httpx2.Response, content=b"{}", stream=True, stream_cls=_Stream
            )

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.aclose()
        await self._package.close()


_Stream = openai.AsyncStream[Any]


class _InPlaceOfTheNetwork(httpx2.AsyncBaseTransport):
    """Takes down what the package sends, and gives it an answer of ours."""

    def __init__(self) -> None:
        self.request: httpx2.Request | None = None
        self._answer: httpx2.Response | None = None
        self._one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def answering(self, answer: httpx2.Response) -> AsyncIterator[None]:
        """What the package asks inside is answered so."""
        async with self._one_at_a_time:
            self._answer = answer
            yield

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert self._answer
        self.request = request
        return self._answer


def _bound(host: str) -> str:
    """What a server calls the most tokens of an answer. OpenAI's own newer models refuse the name that all others know,
    some of which do not know the newer one."""
    is_openai = host == "api.openai.com" or host.endswith(".openai.azure.com")
    return "max_completion_tokens" if is_openai else "max_tokens"


def _body(request: ModelRequest, options: str, bound: str) -> bytes:
    """The request's JSON, put together of what is kept of its messages and tools."""
    parts = [f'"model": {json.dumps(request.model)}', f'"messages": {as_json(request.messages)}']
    if request.tools:
        parts.append(f'"tools": {as_json(request.tools)}')
    if request.tool_choice:
        choice = {"type": "function", "function": {"name": request.tool_choice}}
        parts.append(f'"tool_choice": {json.dumps(choice)}')
    if request.max_tokens is not None:
        parts.append(f'"{bound}": {request.max_tokens}')
    if options:
        parts.append(options)
    return f"{{{', '.join(parts)}}}".encode("utf-8", "replace")


class _StreamOptionsRefused(Exception):
    """The server does not know how to count the tokens of a stream."""


async def _parts(reply: Reply, answer: StreamedAnswer) -> AsyncGenerator[bytes]:
    """The body as it arrives; raises :class:`agent.errors.LlmError` if it breaks off before the answer is finished."""
    try:
        async with aclosing(reply.parts()) as parts:
            async for part in parts:
                yield part
    except _BROKEN as error:
        if not answer.is_finished:
            raise _broken(error) from None


async def _read(reply: Reply, parts: AsyncIterator[bytes], answer: StreamedAnswer) -> Completion:
    """The answer out of an event stream; or out of JSON, which is what a server sends that does not stream."""
    begin = b""
    async for part in parts:
        if begin := part.lstrip():
            break
    if not _is_event_stream(reply, begin):
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


def _is_event_stream(reply: Reply, begin: bytes) -> bool:
    """Told by how the body begins, where that is clear: some servers have the Content-Type wrong."""
    if begin.startswith(_EVENT_STREAM_BEGINS):
        return True
    return reply.header(b"content-type").startswith(b"text/event-stream") and not begin.startswith(b"{")


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
