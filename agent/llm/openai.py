"""Providers that speak OpenAI's Chat Completions API: most of them, servers of one's own, and Azure by its own URLs.

The package says what a request looks like (address, headers, credentials) and what an error means. It is asked for the
first once, since nothing but the body differs from call to call, and for the second when there is one: what it does for
each request takes a fifth of a turn's CPU. Retrying is the turn's affair: it waits in the database, so that a restart
loses no count and a worker is not held by a sleep.

The key and the prompt go to the provider's address and nowhere else: redirects are not followed (an API that redirects
a POST is an address mistyped), the environment's proxies are not used, nor is its OPENAI_BASE_URL. What the provider
says about an error is read for its code and then dropped, since it may quote the key or the prompt.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx2
import openai
from django.conf import settings

from agent import errors
from agent.answer_schemas import as_response_format
from agent.fixed import as_json
from agent.images import data_url, images_of
from agent.llm.answers import MALFORMED, StreamedAnswer, completion_of, error_of, parsed, retry_after
from agent.llm.base import Completion, ModelRequest, OnDelta
from agent.llm.connections import BROKEN, DRAIN_SECONDS, Connections, Outline, Reply, broken
from agent.llm.providers import Access, Dialect, Provider, Thinking
from agent.loop import ChatMessage
from nanohost.lib.text import storable

# An event stream begins with a field's name, a comment or (.NET) a mark of its byte order; JSON with none of these.
_EVENT_STREAM_BEGINS = (b"d", b"e", b"i", b"r", b":", b"\xef")

_STREAM_OPTIONS = re.compile(rb"stream_options|include_usage")

# Of a request's body.
_STREAM = '"stream": true'
_STREAM_WITH_USAGE = f'{_STREAM}, "stream_options": {{"include_usage": true}}'


class OpenAIClient:
    """See the module. One a process, made on first use: it keeps connections to one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._network = _InPlaceOfTheNetwork()
        self._package = self._packaged(self._network)
        self._bound = _bound(access, self._package.base_url.host)
        self._connections = Connections(kept=settings.WORKER_MAX_TURNS)
        # What requests begin with: the same for all, but Azure's have the model in their address.
        self._outlines: dict[str, Outline] = {}
        # Whether the server has refused to count the tokens of streams; they count as 0 then.
        self._refuses_stream_options = False

    def _packaged(self, transport: httpx2.AsyncBaseTransport) -> openai.AsyncOpenAI:
        """The package's client of this provider, over a transport of ours."""
        # The turn's own timeout is total, and lies around the call; this one is per read.
        timeout = settings.LLM_TIMEOUT_SECONDS
        how: dict[str, Any] = {
            # A server of one's own may ask for no key; the package insists on some.
            "api_key": self._access.key or "none",
            "timeout": timeout,
            "max_retries": 0,
            "default_headers": self._access.headers,
            "http_client": httpx2.AsyncClient(
                # Which also keeps the environment's proxies out.
                transport=transport,
                headers={"Accept-Encoding": "identity"},
                timeout=timeout,
                follow_redirects=False,
            ),
        }
        if self._is_azure:
            version = settings.AZURE_OPENAI_API_VERSION
            return openai.AsyncAzureOpenAI(azure_endpoint=self._access.base_url, api_version=version, **how)
        return openai.AsyncOpenAI(base_url=self._access.base_url, **how)

    def use(self, access: Access) -> None:
        """Go on with another key."""
        self._access = access
        self._package = self._packaged(self._network)
        self._outlines.clear()

    @property
    def _is_azure(self) -> bool:
        return self._access.provider.dialect == Dialect.AZURE

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Completion:
        if on_delta is None:
            reply = await self._post(request)
            try:
                return completion_of(parsed(await reply.read()))
            except BROKEN as error:
                raise broken(error) from None
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
        body = body_of(request, options, self._bound, self._access.provider)
        try:
            outline = self._outlines.get(request.model if self._is_azure else "")
            reply = await self._connections.send(outline or await self._outlined(request.model), body)
            if not 200 <= reply.status < 300:
                raise await self._error_of(reply)
        except openai.APIStatusError as error:
            if options == _STREAM_WITH_USAGE and _refuses_stream_options(error):
                raise _StreamOptionsRefused from None
            raise translated(error) from None
        except openai.OpenAIError as error:
            raise translated(error) from None
        except httpx2.InvalidURL:
            raise errors.LlmUnavailable("its address is none") from None
        except BROKEN as error:
            raise broken(error) from None
        return reply

    async def _outlined(self, model: str) -> Outline:
        """What each request begins with; kept."""
        await self._ask_package(httpx2.Response(200, content=b"{}"), model)
        assert self._network.request
        made = self._outlines[model if self._is_azure else ""] = Outline.of(self._network.request)
        return made

    async def _error_of(self, reply: Reply) -> openai.OpenAIError:
        """A reply that is an error, as the package has it."""
        headers = [header for header in reply.headers if header[0].lower() not in (b"content-length", b"connection")]
        answer = httpx2.Response(reply.status, headers=headers, content=await reply.read())
        try:
            await self._ask_package(answer, "")
        except openai.OpenAIError as error:
            return error
        return openai.OpenAIError("no error")

    async def _ask_package(self, answer: httpx2.Response, model: str) -> None:
        """Have the package make a request, which is answered so. Azure's address it makes of the model."""
        body: dict[str, Any] = {"body": {"model": model}} if self._is_azure and model else {"content": b"{}"}
        async with self._network.answering(answer):
            await self._package.post(
                "/chat/completions", cast_to=httpx2.Response, stream=True, stream_cls=_Stream, **body
            )

    async def list_models(self) -> list[str]:
        """The models that the server says it has; raises :class:`agent.errors.LlmError`."""
        package = self._packaged(self._connections.transport())
        try:
            listed = await package.get("/models", cast_to=httpx2.Response)
            return [storable(each["id"])[:128] for each in parsed(listed.content)["data"]]
        except openai.OpenAIError as error:
            raise translated(error) from None
        except BROKEN as error:
            raise broken(error) from None
        except MALFORMED:
            raise errors.LlmBadResponse("no list of models") from None

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


def _bound(access: Access, host: str) -> str:
    """What a server calls the most tokens of an answer. OpenAI's own newer models refuse the name that all others know,
    some of which do not know the newer one."""
    is_openai = host == "api.openai.com" or access.provider.dialect == Dialect.AZURE
    return "max_completion_tokens" if is_openai else "max_tokens"


def body_of(request: ModelRequest, options: str, bound: str, provider: Provider) -> bytes:
    """The request's JSON, put together of what is kept of its messages and tools."""
    messages = [_with_thoughts(each, provider) if "thoughts" in each else each for each in request.messages]
    messages = [_with_images(each, request.pictures) if "attachments" in each else each for each in messages]
    parts = [f'"model": {json.dumps(request.model)}', f'"messages": {as_json(messages)}']
    if request.tools:
        parts.append(f'"tools": {as_json(request.tools)}')
    if request.tool_choice:
        choice = {"type": "function", "function": {"name": request.tool_choice}}
        parts.append(f'"tool_choice": {json.dumps(choice)}')
    elif request.must_call and request.tools:
        parts.append('"tool_choice": "required"')
    for name, value in request.parameters.items():
        # Servers refuse it where there are no tools.
        if name != "parallel_tool_calls" or request.tools:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    if request.max_tokens is not None:
        parts.append(f'"{bound}": {request.max_tokens}')
    if (temperature := provider.temperature(request.model, request.temperature)) is not None:
        parts.append(f'"temperature": {json.dumps(temperature)}')
    if request.effort:
        parts.append(_THINKING[provider.thinking].format(effort=json.dumps(request.effort)))
    if request.answer:
        parts.append(f'"response_format": {json.dumps(as_response_format(request.answer))}')
    if options:
        parts.append(options)
    return f"{{{', '.join(parts)}}}".encode("utf-8", "replace")


# How much a model is to think, as providers want to be told.
_THINKING = {
    Thinking.EFFORT: '"reasoning_effort": {effort}',
    Thinking.TYPE: '"thinking": {{"type": "enabled"}}',
    Thinking.ENABLE: '"enable_thinking": true',
    Thinking.SPLIT: '"reasoning_split": true',
}


def _with_thoughts(message: ChatMessage, provider: Provider) -> ChatMessage:
    """An assistant's message with what was thought before it, if this provider has answered so and wants it back."""
    told = {name: value for name, value in message.items() if name != "thoughts"}
    thoughts = message["thoughts"]
    if provider.sends_back and thoughts["by"] == provider.name:
        back = thoughts["text"] if provider.sends_back == "reasoning_content" else thoughts["blocks"]
        return told | ({provider.sends_back: back} if back else {})
    return told


def _with_images(message: ChatMessage, pictures: Mapping[str, str]) -> ChatMessage:
    """A user's message with its pictures."""
    told = {name: value for name, value in message.items() if name != "attachments"}
    images = [{"type": "image_url", "image_url": {"url": data_url(each, pictures)}} for each in images_of(message)]
    return told | ({"content": [{"type": "text", "text": message["content"]}, *images]} if images else {})


class _StreamOptionsRefused(Exception):
    """The server does not know how to count the tokens of a stream."""


async def _parts(reply: Reply, answer: StreamedAnswer) -> AsyncGenerator[bytes]:
    """The body as it arrives; raises :class:`agent.errors.LlmError` if it breaks off before the answer is finished."""
    try:
        async with aclosing(reply.parts()) as parts:
            async for part in parts:
                yield part
    except BROKEN as error:
        if not answer.is_finished:
            raise broken(error) from None


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


def translated(error: openai.OpenAIError) -> errors.LlmError:
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
        retry_after=retry_after(error.response.headers),
    )


def _refuses_stream_options(error: openai.APIStatusError) -> bool:
    """Whether the server does not know the option; Mistral's says so with 422, others with 400."""
    return error.status_code in (400, 422) and bool(_STREAM_OPTIONS.search(error.response.content))
