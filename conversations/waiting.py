"""The waiting room: a small pure-ASGI application around Django, which never waits.

Django's views store and answer at once, as WSGI in a small pool of threads with kept connections. This application

1. gives the request its id, and bounds and reads the body;
2. has Django answer;
3. sees by ``AWAIT_HEADER`` that the answer stands for a turn that is not done; then it keeps the client, without a
   thread or a connection, until the turn has ended, the time is up or the client is gone;
4. sends the finished body.

A client that goes away does not stop its turn.
"""

import asyncio
import contextlib
import contextvars
import io
import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from a2wsgi.wsgi import build_environ
from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.utils.http import parse_header_parameters

from conversations.answers import Answer, chat_answer, problem_answer
from conversations.models import Turn
from nanohost.lib.database import borrowed_connection
from nanohost.lib.errors import BodyTooLarge, BodyTooSlow, HeadersTooLarge, Problem, UnsupportedMediaType
from nanohost.lib.ids import request_id
from nanohost.lib.logs import about, also_about
from nanohost.lib.rest import as_problem

access_log = logging.getLogger("nanohost.request")
logger = logging.getLogger(__name__)

AWAIT_HEADER = "X-Nanohost-Await-Turn"
POLL_SECONDS = 0.025
BODY_SECONDS = 60
# As much as common proxies pass on.
MAX_HEADER_BYTES = 32 * 1024
# Of a body that is too large, so much is read and dropped, since a client that still sends does not read its answer.
DROPPED_BYTES, DROPPING_SECONDS = 8 * 1024 * 1024, 5

_SUBJECT = re.compile(r"/(conversations|turns)/([0-9a-f-]{36})(?=/|$)")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Reply:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class WaitingRoom:
    """The ASGI application; ``django`` is the WSGI one it stands around."""

    def __init__(self, django: Callable[..., Any]) -> None:
        self._django = django
        self._threads = ThreadPoolExecutor(max_workers=settings.WEB_THREADS, thread_name_prefix="web")
        self._waiters: dict[UUID, set[asyncio.Future[None]]] = defaultdict(set)
        self._looking: asyncio.Task[None] | None = None
        self._draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        began = time.perf_counter()
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        identity = request_id(given)
        with about(requestId=identity, **_subjects(scope["path"])):
            reply = await self._reply(scope, receive, identity)
            if reply is not None:
                headers = [*reply.headers, (b"x-request-id", identity.encode())]
                await send({"type": "http.response.start", "status": reply.status, "headers": headers})
                await send({"type": "http.response.body", "body": reply.body})
            access_log.info(
                "request",
                extra={
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": reply.status if reply else 499,
                    "durationMs": round((time.perf_counter() - began) * 1000, 1),
                },
            )

    def drain(self) -> None:
        """Let everybody who waits go, each with the address of the turn: the process is about to stop."""
        self._draining = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _reply(self, scope: Scope, receive: Receive, identity: str) -> _Reply | None:
        """The reply; None if the client went away first."""
        try:
            return await self._serve(scope, receive, identity)
        except Problem as error:
            return _as_reply(problem_answer(error, identity), close=True)
        except Exception as error:
            logger.exception("request failed outside the views")
            return _as_reply(problem_answer(as_problem(error), identity), close=True)

    async def _serve(self, scope: Scope, receive: Receive, identity: str) -> _Reply | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise HeadersTooLarge(f"The headers may have {MAX_HEADER_BYTES} bytes.")
        if scope["path"] == "/health/live" and scope["method"] in ("GET", "HEAD"):
            # Answered without a thread: they may all be waiting for the database, and the process is alive.
            return _as_reply(Answer(status=200, body={"status": "ok"}))
        if scope["path"] == "/health/ready" and self._draining:
            return _as_reply(Answer(status=503, body={"status": "unavailable", "checks": {"web": "draining"}}))
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(scope, receive)
        except TimeoutError:
            raise BodyTooSlow(f"The body did not arrive within {BODY_SECONDS} s.") from None
        if body is None:
            return None
        reply = await self._in_thread(_call_wsgi, self._django, scope, body, identity)
        kept = [(name, value) for name, value in reply.headers if name != AWAIT_HEADER.lower().encode()]
        if len(kept) == len(reply.headers):
            return reply
        turn_id = UUID(dict(reply.headers)[AWAIT_HEADER.lower().encode()].decode())
        also_about(turn=turn_id)
        if not await self._wait(turn_id, receive):
            return None
        if self._draining:  # what Django said still holds, and asks nothing of a database that may hang
            return _Reply(status=reply.status, headers=kept, body=reply.body)
        return _as_reply(await self._in_thread(chat_answer, turn_id, request_id=identity))

    async def _wait(self, turn_id: UUID, receive: Receive) -> bool:
        """Wait until the turn has ended or the time is up; False if the client goes away first."""
        if self._draining:
            return True
        ended = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(_disconnected(receive))
        self._waiters[turn_id].add(ended)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait((ended, gone), timeout=settings.CHAT_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return not gone.done()
        finally:
            gone.cancel()
            self._waiters[turn_id].discard(ended)
            if not self._waiters[turn_id]:
                del self._waiters[turn_id]

    async def _look(self) -> None:
        """Look at the rows of all turns that are waited for, while there are any."""
        while self._waiters:
            await asyncio.sleep(POLL_SECONDS)
            # Who joins while the rows are read is looked at next time.
            looked_at = list(self._waiters)
            try:
                still_open = await self._in_thread(_open_turns, looked_at)
            except Exception:
                logger.exception("the waiting room cannot read turns; it tries again")
                await asyncio.sleep(1)
                continue
            for turn_id in set(looked_at) - still_open:
                for waiter in self._waiters.get(turn_id, ()):
                    if not waiter.done():
                        waiter.set_result(None)

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        context = contextvars.copy_context()

        def call() -> T:
            with borrowed_connection():
                return context.run(function, *args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _subjects(path: str) -> dict[str, str]:
    """What a request is about, as its address tells."""
    return {kind[:-1]: found for kind, found in _SUBJECT.findall(path)}


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """The whole body, bounded; None if the client went away."""
    headers = dict(scope["headers"])
    too_large = BodyTooLarge(f"The body may have {settings.MAX_BODY_BYTES} bytes.")
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced[:18]) > settings.MAX_BODY_BYTES:
        if b"expect" not in headers:  # who asks before sending is told before sending
            await _drop_rest(receive)
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > settings.MAX_BODY_BYTES:
            if message.get("more_body"):
                await _drop_rest(receive)
            raise too_large
        if not message.get("more_body"):
            return bytes(body)


async def _drop_rest(receive: Receive) -> None:
    dropped = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROPPING_SECONDS):
            while dropped < DROPPED_BYTES:
                message = await receive()
                dropped += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _call_wsgi(django: Callable[..., Any], scope: Scope, body: bytes, identity: str) -> _Reply:
    """Have Django answer. Headers with an underscore are dropped: WSGI cannot tell them from those with a hyphen."""
    own = (b"content-length", b"transfer-encoding", b"x-request-id")
    headers = [(name, value) for name, value in scope["headers"] if b"_" not in name and name not in own]
    headers += [(b"content-length", str(len(body)).encode()), (b"x-request-id", identity.encode())]
    # WSGI wants ASCII here; what a client sent raw is quoted, as it should have done.
    query = re.sub(rb"[^\x21-\x7e]", lambda found: b"%%%02X" % found.group()[0], scope["query_string"])
    environ = build_environ({**scope, "headers": headers, "query_string": query}, io.BytesIO(body))  # type: ignore[typeddict-item,arg-type]
    _refuse_charset(environ.get("CONTENT_TYPE", ""))
    started: dict[str, Any] = {}

    def start_response(status: str, response_headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        started["status"] = int(status.split(" ", 1)[0])
        started["headers"] = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response_headers
        ]

    chunks = django(environ, start_response)
    try:
        content = b"".join(chunks)
    finally:
        if hasattr(chunks, "close"):
            chunks.close()
    return _Reply(status=started["status"], headers=started["headers"], body=content)


def _refuse_charset(content_type: str) -> None:
    """Refuse all but UTF-8: Django would read the query by any codec named here, and stumble over those not of text."""
    try:
        charset = parse_header_parameters(content_type)[1].get("charset", "utf-8")
    except (ValueError, LookupError, TypeError):
        raise UnsupportedMediaType("The Content-Type cannot be read.") from None
    if charset.lower() not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType("Send UTF-8; no other charset is read.")


def _as_reply(answer: Answer, *, close: bool = False) -> _Reply:
    body = json.dumps(answer.body, cls=DjangoJSONEncoder, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {"Content-Type": answer.content_type, **answer.headers, "Content-Length": str(len(body))}
    if close:  # the rest of the body is not read
        headers["Connection"] = "close"
    return _Reply(
        status=answer.status,
        headers=[(name.lower().encode(), value.encode()) for name, value in headers.items()],
        body=body,
    )


def _open_turns(turn_ids: list[UUID]) -> set[UUID]:
    return set(Turn.objects.open().filter(pk__in=turn_ids).values_list("pk", flat=True))
