"""The gateway: a small pure-ASGI application around Django, which never waits.

Django's views store and answer at once, as WSGI in a small pool of threads with kept connections. This application

1. gives the request its id, and bounds and reads the body;
2. has Django answer;
3. is told by the view (:func:`await_turn`) that its answer stands for a turn that is not done; then it keeps the
   client, without a thread or a connection, until the turn has ended, the time is up or the client is gone;
4. sends the body that the view's renderer makes of the end; or, if the view asks for it, the turn's events as they
   come; or, where ``PARTS_HEADER`` says so, the body part by part, each made when the one before is taken.

A client that goes away does not stop its turn.
"""

import asyncio
import contextvars
import io
import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

from a2wsgi.wsgi import build_environ
from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest
from django.utils.http import parse_header_parameters
from rest_framework.request import Request

from conversations.engine import turn_control
from conversations.errors import Draining
from conversations.events import streams
from conversations.events.answers import Answer, Renderer, problem_answer
from conversations.events.hub import Hub, Subscription
from conversations.events.wire import LAST
from conversations.models import Turn
from conversations.statuses import WaitingFor
from conversations.web import cors
from conversations.web.open_keys import OpenKeys, Use, active_keys
from nanohost.accounts.models import ApiKey
from nanohost.lib import traces
from nanohost.lib.database import borrowed_connection
from nanohost.lib.database_threads import handed_over
from nanohost.lib.errors import (
    BodyTooLarge,
    BodyTooSlow,
    HeadersTooLarge,
    InvalidRequest,
    NotAuthenticated,
    Problem,
    UnsupportedMediaType,
)
from nanohost.lib.http import HANG_UP
from nanohost.lib.ids import new_id, request_id
from nanohost.lib.logs import about, also_about
from nanohost.lib.redaction import redact_head, redact_known, redact_known_aside
from nanohost.lib.rest import as_problem

access_log = logging.getLogger("nanohost.request")
logger = logging.getLogger(__name__)

# An answer without it is put together before it is sent.
PARTS_HEADER = "X-Nanohost-Parts"
# Where a view finds the :class:`Handover`.
HANDOVER = "nanohost.handover"
# A reader that takes nothing for so many seconds is let go; it may come back.
SLOWEST_READ_SECONDS = 60
BODY_SECONDS = 60
# As much as common proxies pass on.
MAX_HEADER_BYTES = 32 * 1024
# Of the forms by which people sign in: a name and passwords. Reading 1 MB of a form takes a second of the processor.
MAX_SIGN_IN_BYTES = 64 * 1024
# As much of a path is logged: it is read for secrets on the loop, by whoever sends one.
LOGGED_PATH_CHARS = 500
# Of a body that nobody wants, so much is read and dropped after the answer was sent. Many clients send all of it before
# they read; a connection closed upon unread bytes is reset, and the answer is lost with it. nginx lingers alike.
DROPPED_BYTES, DROPPING_SECONDS, SILENT_SECONDS = 64 * 1024 * 1024, 30, 5

_SUBJECT = re.compile(r"/(conversations|turns)/([0-9a-f-]{36})(?=/|$)")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
P = ParamSpec("P")
T = TypeVar("T")


_PARTS = PARTS_HEADER.lower().encode()

CLIENT_GONE = 499  # in the access log, as nginx writes it


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """A turn that a client waits for. ``renderer``: of what it is answered. ``streams``: it reads the events.
    ``is_held``: it waits for as long as the turn takes. ``cancels``: if it goes away, its turn is cancelled.
    ``key_id``: of the API key that it asked with, 0 if with none."""

    turn_id: UUID
    renderer: Renderer
    streams: bool
    key_id: int = 0
    is_held: bool = False
    cancels: bool = False


@dataclass(kw_only=True)
class Handover:
    """What the gateway and a view tell each other of a request. ``new_turn_id``: the id that a turn is to have that the
    view makes: its end is listened for before it exists."""

    new_turn_id: UUID
    awaited: Awaited | None = None


def new_turn_id(request: HttpRequest | Request) -> UUID | None:
    """The id that a turn is to have that is made for this request; None outside of the gateway."""
    handover: Handover | None = request.META.get(HANDOVER)
    return handover.new_turn_id if handover else None


def await_turn(
    request: HttpRequest | Request,
    turn_id: UUID,
    *,
    renderer: Renderer,
    streams: bool = False,
    is_held: bool = False,
    cancels: bool = False,
) -> None:
    """Have the client kept until a turn has ended. What the view returns is sent if it does not end in time; for a
    client that ``is_held`` there is no such time, and what the view returns tells the gateway which turn it is."""
    if handover := request.META.get(HANDOVER):
        key = getattr(request, "auth", None)
        handover.awaited = Awaited(
            turn_id=turn_id,
            renderer=renderer,
            streams=streams,
            key_id=key.pk if isinstance(key, ApiKey) else 0,
            is_held=is_held,
            cancels=cancels,
        )


@dataclass(frozen=True, kw_only=True)
class _Reply:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    awaits: Awaited | None = None
    # In the place of a body.
    parts: Any = None


class ResponseGateway:
    """The ASGI application; ``django`` is the WSGI one it stands around."""

    def __init__(self, django: Callable[..., Any]) -> None:
        self.django = django
        self.draining = False
        self.hub = Hub(still_open=lambda turn_ids: self.in_thread(still_open, turn_ids))
        self.keys = OpenKeys(read=lambda key_ids: self.in_thread(active_keys, key_ids))
        self._threads = ThreadPoolExecutor(max_workers=settings.WEB_THREADS, thread_name_prefix="web")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        began = time.perf_counter()
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        identity = request_id(given)
        await self.hub.attach()
        with about(requestId=identity, **_subjects(scope["path"])):
            span = _begin_span(scope) if traces.is_on else None
            status = await _RequestHandler(self, scope, receive, send, identity).serve()
            if span:
                error = str(status) if status >= 500 else ""
                traces.end(
                    span, traces.REQUEST, scope["method"], _as_logged(scope["path"]), status, identity, error=error
                )
            access_log.info(
                "request",
                extra={
                    "method": scope["method"],
                    "path": _as_logged(scope["path"]),
                    "status": status,
                    "durationMs": round((time.perf_counter() - began) * 1000, 1),
                },
            )

    def drain(self) -> None:
        """Let everybody who waits go, each with the address of the turn: the process is about to stop. In the
        loop's thread."""
        self.draining = True
        self.hub.wake_all()

    async def close(self) -> None:
        """Hear of no turn any more."""
        await self.hub.detach()

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what needs the database, or Django, in a thread with a kept connection."""
        context = contextvars.copy_context()

        def call() -> T:
            with borrowed_connection():
                return context.run(function, *args, **kwargs)

        return await handed_over(self._threads, call)


# What is asked again and again, of which nobody wants a trace.
_UNTRACED = ("/health/", "/metrics", "/static/")


def _begin_span(scope: Scope) -> traces.Span | None:
    """The request's span, below its caller's if the headers name one; what is made for it goes on below it."""
    if scope["path"].startswith(_UNTRACED):
        return None
    context = traces.accepted(dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1"))
    span = traces.begin(context)
    traces.enter(traces.of(span, context))
    also_about(traceId=traces.trace_id(context))
    return span


class _RequestHandler:
    """One request, from its first byte to the last of its answer."""

    def __init__(self, gateway: ResponseGateway, scope: Scope, receive: Receive, send: Send, identity: str) -> None:
        self._gateway, self._scope, self._receive, self._send = gateway, scope, receive, send
        self._identity = identity
        self._gone: asyncio.Task[None] | None = None
        self._sent_status: int | None = None
        # Who asks before sending (Expect) is told before sending.
        self._is_body_left = b"expect" not in dict(scope["headers"])
        # What a page of another origin is told with each answer.
        self._opened = cors.origin_headers(scope["path"], dict(scope["headers"]), settings.CORS_ALLOWED_ORIGINS)

    async def serve(self) -> int:
        """Answer; returns the status."""
        try:
            return await self._serve()
        except Problem as error:
            return await self._refuse(self._refusal(error))
        except Exception as error:
            logger.exception("request failed outside the views")
            if self._sent_status is not None:
                return self._sent_status  # half an answer is left as it is: the server closes the connection
            return await self._answer(self._refusal(as_problem(error)))
        finally:
            if self._gone:
                self._gone.cancel()

    def _refusal(self, error: Problem) -> "_Reply":
        told = problem_answer(error, self._identity, path=self._scope["path"])
        return _as_reply(told, close=True)

    async def _serve(self) -> int:
        # The end of a turn that this request makes is listened for before there is the turn: it cannot be missed.
        turn_id = new_id()
        with self._gateway.hub.subscribed(turn_id) if self._scope["method"] == "POST" else nullcontext() as made:
            reply = await self._from_django(turn_id)
            if reply is None:
                return CLIENT_GONE
            if reply.parts is not None:
                return await self._send_parts(reply)
            if reply.awaits is None:
                return await self._answer(reply)
            also_about(turn=reply.awaits.turn_id)
            if made and reply.awaits.turn_id == turn_id:
                return await self._keep(reply, reply.awaits, made, is_new=True)
        with self._gateway.hub.subscribed(reply.awaits.turn_id) as subscription:
            return await self._keep(reply, reply.awaits, subscription, is_new=False)

    async def _from_django(self, turn_id: UUID) -> _Reply | None:
        """What Django answers, or what needs no Django; None if the client went away."""
        scope = self._scope
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise HeadersTooLarge(f"The headers may have {MAX_HEADER_BYTES} bytes.")
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        if hosts > 1 or not (hosts or scope["http_version"] == "1.0"):  # RFC 9112, 3.2
            raise InvalidRequest("A request has one header Host, which names whom it asks.")
        if scope["path"] == "/health/live" and scope["method"] in ("GET", "HEAD"):
            # Answered without a thread: they may all be waiting for the database, and the process is alive.
            return _as_reply(Answer(status=200, body={"status": "ok"}))
        if scope["path"] == "/health/ready" and self._gateway.draining:
            return _as_reply(Answer(status=503, body={"status": "unavailable", "checks": {"web": "draining"}}))
        preflight = cors.preflight_headers(scope["method"], dict(scope["headers"]), self._opened)
        if preflight is not None:
            return _Reply(status=204, headers=preflight, body=b"")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(scope, self._next_part)
        except TimeoutError:
            self._is_body_left = False  # it has been waited for
            raise BodyTooSlow(f"The body did not arrive within {BODY_SECONDS} s.") from None
        if body is None:
            return None
        return await self._gateway.in_thread(_call_wsgi, self._gateway.django, scope, body, self._identity, turn_id)

    async def _keep(self, reply: _Reply, awaited: Awaited, subscription: Subscription, *, is_new: bool) -> int:
        """Keep the client until its turn has ended, or, for a stream, while it reads."""
        self._gone = gone = asyncio.ensure_future(_disconnected(self._receive))
        gone.add_done_callback(lambda _: subscription.wake())
        subscription.exists = True
        if not is_new:
            self._gateway.hub.look()  # it may have ended before it was listened for
        with self._gateway.keys.used(awaited.key_id, subscription.wake) as use:
            if awaited.streams:
                status = await self._stream(reply, awaited, subscription, use, is_new=is_new)
            else:
                status = await self._wait(reply, awaited, subscription, use)
        if status == CLIENT_GONE and awaited.cancels:
            await self._gateway.in_thread(cancel, awaited.turn_id)
        return status

    async def _wait(self, reply: _Reply, awaited: Awaited, subscription: Subscription, use: Use) -> int:
        """Answer with what the turn has come to."""
        assert self._gone
        until = math.inf if awaited.is_held else time.monotonic() + settings.CHAT_WAIT_SECONDS
        seen = 0
        while True:
            while not (subscription.ends > seen or self._gateway.draining or self._gone.done() or use.is_over):
                if (left := until - time.monotonic()) <= 0:
                    break
                await subscription.changed(seconds=None if left == math.inf else left)
            if self._gone.done():
                return CLIENT_GONE
            if use.is_over:
                return await self._answer(self._refusal(NotAuthenticated()))
            if self._gateway.draining and subscription.ends == seen:
                # What Django has answered still holds, and asks nothing of a database that may hang.
                return await self._answer(self._refusal(Draining()) if awaited.is_held else reply)
            seen = subscription.ends
            # It came with the end: what the rows would tell.
            answer = subscription.success and awaited.renderer.succeeded(subscription.success)
            answer = answer or await self._gateway.in_thread(
                awaited.renderer.current, awaited.turn_id, request_id=self._identity
            )
            if answer:
                return await self._answer(await _as_reply_aside(answer))
            subscription.goes_on()

    async def _stream(
        self, reply: _Reply, awaited: Awaited, subscription: Subscription, use: Use, *, is_new: bool
    ) -> int:
        """Send the turn's events, until it has ended or the client is gone."""
        gone = self._gone
        assert gone
        last_id = "" if is_new or awaited.is_held else _last_event_id(self._scope)
        if last_id == LAST:  # it has seen all there is, and shall not come back
            return await self._answer(_Reply(status=204, headers=[], body=b""))
        told, wire = json.loads(reply.body), awaited.renderer.wire()
        events = streams.stream(
            self._gateway.hub,
            awaited.turn_id,
            subscription,
            last_id=last_id,
            queued={name: told[name] for name in ("turnId", "conversationId")},
            replay=streams.Replay(events=[], final=None) if is_new else None,
            read=lambda: self._gateway.in_thread(
                streams.read_replay, awaited.turn_id, renderer=awaited.renderer, request_id=self._identity
            ),
            renderer=awaited.renderer,
            wire=wire,
            is_over=lambda: self._gateway.draining or gone.done() or use.is_over,
        )
        await self._send_head(200, _STREAM_HEADERS)
        try:
            async for chunk in events:
                if wire.to_store:
                    await self._gateway.in_thread(wire.to_store)
                    wire.to_store = None
                if not await self._is_taken(chunk):
                    self._scope.get(HANG_UP, lambda: None)()
                    await asyncio.wait((gone,), timeout=1)
                    return CLIENT_GONE
        except Exception:
            logger.exception("a stream has failed; it ends without a last event, so that its reader comes back")
            await self._is_taken(wire.cut_off())
        finally:
            await events.aclose()
        if gone.done():
            return CLIENT_GONE
        await self._send({"type": "http.response.body", "body": b""})
        return 200

    async def _send_parts(self, reply: _Reply) -> int:
        """Send a body part by part. No thread and no connection is held while the client takes one."""
        self._gone = asyncio.ensure_future(_disconnected(self._receive))
        parts = iter(reply.parts)
        try:
            await self._send_head(reply.status, reply.headers)
            while (chunk := await self._gateway.in_thread(next, parts, None)) is not None:
                if self._gone.done() or not await self._is_taken(chunk):
                    self._scope.get(HANG_UP, lambda: None)()
                    await asyncio.wait((self._gone,), timeout=1)
                    return CLIENT_GONE
        finally:
            await self._gateway.in_thread(reply.parts.close)
        await self._send({"type": "http.response.body", "body": b""})
        return reply.status

    async def _is_taken(self, chunk: bytes) -> bool:
        """Send a part of a stream; False if its reader takes nothing for too long."""
        try:
            async with asyncio.timeout(SLOWEST_READ_SECONDS):
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            return False
        return True

    async def _next_part(self) -> dict[str, Any]:
        """Of the body."""
        message = await self._receive()
        self._is_body_left = message.get("more_body", False)
        return message

    async def _refuse(self, reply: _Reply) -> int:
        """Answer what was not read to its end, so that who sends the rest of it first can read that too."""
        if not self._is_body_left:
            return await self._answer(reply)
        await self._send_head(reply.status, reply.headers)
        await self._send({"type": "http.response.body", "body": reply.body, "more_body": True})
        await self._drop_rest()
        await self._send({"type": "http.response.body", "body": b""})
        return reply.status

    async def _drop_rest(self) -> None:
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DROPPING_SECONDS):
                while self._is_body_left and dropped < DROPPED_BYTES and not self._gateway.draining:
                    message = await asyncio.wait_for(self._next_part(), SILENT_SECONDS)
                    dropped += len(message.get("body", b""))

    async def _answer(self, reply: _Reply) -> int:
        await self._send_head(reply.status, reply.headers)
        await self._send({"type": "http.response.body", "body": reply.body})
        return reply.status

    async def _send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._sent_status = status
        named = [*headers, *self._opened, (b"x-request-id", self._identity.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": named})


_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep it back
]


def _last_event_id(scope: Scope) -> str:
    """From the header that browsers send when they come back, or from the query, for those who cannot send it."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
    return headers.get(b"last-event-id", b"").decode("latin-1").strip() or query.get("last_event_id", "")


def _as_logged(path: str) -> str:
    return path if len(path) <= LOGGED_PATH_CHARS else redact_head(path, LOGGED_PATH_CHARS)


def _subjects(path: str) -> dict[str, str]:
    """What a request is about, as its address tells."""
    return {kind[:-1]: found for kind, found in _SUBJECT.findall(path)}


_MAY_HAVE_FILES = re.compile(
    r"/api/v1/conversations/[0-9a-fA-F-]{32,36}/(?:chat|turns|messages)"
    r"|/v1/(?:chat/completions|responses(?:/(?:input_tokens|compact))?|conversations(?:/[^/]{1,64}/items)?)"
)
_IS_A_FILE = re.compile(r"/api/v1/agents/[^/]{1,64}/files/.+|/admin/agent/agent/[0-9]{1,18}/files/[0-9]{1,18}/put/")
# Whatever follows: below them, anybody may send forms.
_SIGN_IN = ("/chat/sign-in/", "/chat/join/", "/admin/login/")


def _most_bytes(path: str) -> int:
    if path.startswith(_SIGN_IN):
        return min(MAX_SIGN_IN_BYTES, int(settings.MAX_BODY_BYTES))
    if _MAY_HAVE_FILES.fullmatch(path):
        return int(settings.MAX_MESSAGE_BYTES)
    return int(settings.MAX_FILE_BODY_BYTES if _IS_A_FILE.fullmatch(path) else settings.MAX_BODY_BYTES)


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """The whole body, bounded; None if the client went away."""
    headers = dict(scope["headers"])
    most = _most_bytes(scope["path"])
    too_large = BodyTooLarge(f"The body may have {most} bytes.")
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced[:18]) > most:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise too_large
        if not message.get("more_body"):
            return bytes(body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _call_wsgi(django: Callable[..., Any], scope: Scope, body: bytes, identity: str, turn_id: UUID) -> _Reply:
    """Have Django answer. Headers with an underscore are dropped: WSGI cannot tell them from those with a hyphen; that
    there was one is told, since it may have been a proxy's."""
    own = (b"content-length", b"transfer-encoding", b"x-request-id")
    headers = [
        (name, without_escapes(value) if name == b"cookie" else value)
        for name, value in scope["headers"]
        if b"_" not in name and name not in own
    ]
    if any(b"_" in name for name, _ in scope["headers"]):
        headers.append((b"x-nanohost-dropped", b"1"))
    headers += [(b"content-length", str(len(body)).encode()), (b"x-request-id", identity.encode())]
    # WSGI wants ASCII here; what a client sent raw is quoted, as it should have done.
    query = re.sub(rb"[^\x21-\x7e]", lambda found: b"%%%02X" % found.group()[0], scope["query_string"])
    environ = build_environ({**scope, "headers": headers, "query_string": query}, io.BytesIO(body))  # type: ignore[typeddict-item,arg-type]
    _refuse_charset(environ.get("CONTENT_TYPE", ""))
    handover = Handover(new_turn_id=turn_id)
    environ[HANDOVER] = handover  # type: ignore[literal-required]  # WSGI lets servers add what they like
    started: dict[str, Any] = {}

    def start_response(status: str, response_headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        started["status"] = int(status.split(" ", 1)[0])
        started["headers"] = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response_headers
        ]

    chunks = django(environ, start_response)
    told = dict(started["headers"])
    in_parts = _PARTS in told
    try:
        content = b"" if in_parts else b"".join(chunks)
    finally:
        if not in_parts and hasattr(chunks, "close"):
            chunks.close()
    return _Reply(
        status=started["status"],
        headers=[(name, value) for name, value in started["headers"] if name != _PARTS],
        body=content,
        awaits=handover.awaited,
        parts=chunks if in_parts else None,
    )


def without_escapes(cookies: bytes) -> bytes:
    """A header of cookies without those that have a backslash. None of ours has one, and Python before 3.11.10 reads
    them in time that grows with the square of their length."""
    if b"\\" not in cookies:
        return cookies
    return b";".join(each for each in cookies.split(b";") if b"\\" not in each)


def _refuse_charset(content_type: str) -> None:
    """Refuse all but UTF-8: Django would read the query by any codec named here, and stumble over those not of text."""
    try:
        charset = parse_header_parameters(content_type)[1].get("charset", "utf-8")
    except (ValueError, LookupError, TypeError):
        raise UnsupportedMediaType("The Content-Type cannot be read.") from None
    if charset.lower() not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType("Send UTF-8; no other charset is read.")


def _as_reply(answer: Answer, *, close: bool = False) -> _Reply:
    """The reply; of a small answer, since it is made on the loop."""
    return _reply(answer, redact_known(_as_json(answer)), close=close)


async def _as_reply_aside(answer: Answer) -> _Reply:
    """The reply, of which a large one is read for secrets beside the loop."""
    return _reply(answer, await redact_known_aside(_as_json(answer)))


def _as_json(answer: Answer) -> str:
    return json.dumps(answer.body, cls=DjangoJSONEncoder, ensure_ascii=False, separators=(",", ":"))


def _reply(answer: Answer, text: str, *, close: bool = False) -> _Reply:
    body = text.encode()
    headers = {"Content-Type": answer.content_type, **answer.headers, "Content-Length": str(len(body))}
    if close:  # the rest of the body is not read
        headers["Connection"] = "close"
    return _Reply(
        status=answer.status,
        headers=[(name.lower().encode(), value.encode()) for name, value in headers.items()],
        body=body,
    )


def still_open(turn_ids: list[UUID]) -> set[UUID]:
    """Those of which something is still to come by itself: not from their callers."""
    going_on = Turn.objects.open().filter(pk__in=turn_ids).exclude(waiting_for=WaitingFor.CALLER)
    return set(going_on.values_list("pk", flat=True))


def cancel(turn_id: UUID) -> None:
    """Cancel a turn that nobody waits for any more."""
    for turn in Turn.objects.filter(pk=turn_id):
        turn_control.cancel_turn(turn)
