"""``python -m tools.mcp.keeper FD``: the process that talks to MCP servers, and alone imports the package ``mcp``.

A worker starts it and hands it, over the socket FD, one connection for each thing it asks. The keeper has none of the
host's keys: what a server is to be given comes with the request. It ends with its worker. Imports no Django.

A server is started by the first request for it and stays. It is ended when nobody has asked for a while. One that ends
by itself is started again at once; one that fails to start, or ends again before it has answered a request, is left
alone for longer and longer. Each has a task of its own, which enters its session and leaves it: what a broken
connection raises is raised there.
"""

import array
import asyncio
import hashlib
import json
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from nanohost.lib.process import close_to_others
from tools.mcp.definitions import MAX_TOOLS, Definition, Unfit, checked
from tools.mcp.frames import LENGTH, MAX_BYTES, packed
from tools.mcp.remote import Remote, Sent, sending
from tools.mcp.stdio import Program

IDLE_SECONDS = 600.0
START_SECONDS = 30.0
MAX_BACKOFF_SECONDS = 60.0
# How often a server that says that its tools have changed is asked which it has.
RELIST_SECONDS = 1.0
# Of a call's progress, so much is told at once, and then once a second; and so many characters of a message.
PROGRESS_AT_ONCE, PROGRESS_SECONDS, PROGRESS_CHARS = 50, 1.0, 300
# Of one result, so many pictures, and so many characters of base64 for all of them, are handed on.
MAX_PICTURES, MAX_PICTURE_CHARS = 4, 6 << 20
# Characters of each end of a result; the worker cuts it further.
_ENDS = 1 << 18


_TEXT = {"type": "string", "maxLength": 2_000}


def _reading(name: str, description: str, properties: dict[str, Any], *needed: str) -> Definition:
    schema = {"type": "object", "properties": properties, "required": list(needed), "additionalProperties": False}
    return Definition(name=name, description=description, schema=schema, reads=True)


# What servers have besides tools, as tools of ours.
RESOURCES = (
    _reading("list_resources", "List the resources of this MCP server: address, name, type.", {"cursor": _TEXT}),
    _reading("read_resource", "Read a resource of this MCP server, by its address.", {"uri": _TEXT}, "uri"),
)
PROMPTS = (
    _reading("list_prompts", "List the prompts of this MCP server: name, arguments.", {"cursor": _TEXT}),
    _reading(
        "get_prompt",
        "Read a prompt of this MCP server, filled with arguments.",
        {"name": _TEXT, "arguments": {"type": "object", "additionalProperties": _TEXT, "maxProperties": 50}},
        "name",
    ),
)


class Unavailable(Exception):
    """A server could not be asked: nothing has been sent to it."""


class Session:
    """One server, started, with its task. ``key``: of what it was started with. ``ended``: its task is over."""

    def __init__(self, key: str, spec: dict[str, Any]) -> None:
        self.key = key
        self.program: Program | Remote = Remote() if "url" in spec else Program()
        self.client: Client | None = None
        self.tools: dict[str, Definition] = {}
        self.unfit: dict[str, str] = {}
        self.ours: dict[str, Definition] = {}
        self.error = ""
        self.used = time.monotonic()
        self.calls = 0
        self.ready, self.closing, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._changed, self._listing = asyncio.Event(), asyncio.Lock()
        self._listed_at = 0.0
        self.task = asyncio.create_task(self._live(spec))

    @property
    def has_ended(self) -> bool:
        """Whether it answers nothing any more."""
        return self.ended.is_set() or self.program.ended.is_set()

    async def _live(self, spec: dict[str, Any]) -> None:
        try:
            async with Client(
                self.program.run(spec), message_handler=self._hear, cache=None, read_timeout_seconds=START_SECONDS
            ) as client:
                self.client = client
                await self.list()
                self.ready.set()
                await _first(self.closing.wait(), self.program.ended.wait())
        except BaseException as error:  # whatever a session is torn down by, also an ExceptionGroup
            self.error = _words(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            said = self.program.errors.decode("utf-8", "replace").strip().splitlines()
            why = self.program.why or self.error
            self.error = ": ".join(filter(None, (why, said[-1][:300] if said and why else "")))
            self.ended.set()
            self.ready.set()

    async def _hear(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    async def list(self) -> None:
        """Ask which tools it has."""
        async with self._listing:
            self._changed.clear()
            assert self.client
            found: dict[str, Definition] = {}
            unfit: dict[str, str] = {}
            cursor: str | None = None
            while len(found) + len(unfit) < MAX_TOOLS:
                params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
                page = await self.client.session.list_tools(params=params)
                for tool in page.tools[: MAX_TOOLS - len(found) - len(unfit)]:
                    made = Definition(
                        name=tool.name,
                        description=tool.description or "",
                        schema=tool.input_schema,
                        reads=bool(tool.annotations and tool.annotations.read_only_hint),
                    )
                    try:
                        found[tool.name] = checked(made)
                    except Unfit as why:
                        unfit[tool.name[:200]] = str(why)
                if not (cursor := page.next_cursor) or not page.tools:
                    break
            # A tool of the server's own that has the name of one of ours is the one that is meant.
            self.ours = {name: each for name, each in self._ours().items() if name not in found and name not in unfit}
            self.tools, self.unfit, self._listed_at = found | self.ours, unfit, time.monotonic()

    def _ours(self) -> dict[str, Definition]:
        """Tools that read what the server has besides tools; pinned, seen and allowed as its own are."""
        assert self.client
        can = self.client.server_capabilities
        made = (*(RESOURCES if can.resources else ()), *(PROMPTS if can.prompts else ()))
        return {each.name: each for each in made}

    async def list_if_changed(self) -> None:
        """Ask again if it said that they have changed: before a call, and not each time it says so."""
        if self._changed.is_set() and time.monotonic() - self._listed_at > RELIST_SECONDS:
            await self.list()

    def told(self) -> dict[str, Any]:
        """Its tools, for the worker."""
        return {
            "tools": [
                {"name": each.name, "description": each.description, "schema": each.schema, "reads": each.reads}
                for each in self.tools.values()
            ],
            "unfit": self.unfit,
        }


# How often a server has failed in a row, until when it is left alone, and why.
_NO_FAILURES = (0, 0.0, "")


class Keeper:
    """All servers of one worker, by what they are started with."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._failures: dict[str, tuple[int, float, str]] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def session(self, spec: dict[str, Any]) -> Session:
        """The server, started; raises :class:`Unavailable`."""
        key = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
        async with self._opening.setdefault(key, asyncio.Lock()):
            session = self._sessions.get(key)
            if session and not session.has_ended:
                session.used = time.monotonic()
                return session
            if session:
                self._forget(session)
            _, until, why = self._failures.get(key, _NO_FAILURES)
            if (left := until - time.monotonic()) > 0:
                raise Unavailable(f"it has failed ({why}); it is tried again in {left:.0f} s")
            session = self._sessions[key] = Session(key, spec)
            try:
                await asyncio.wait_for(session.ready.wait(), START_SECONDS)
            except TimeoutError:
                session.error = session.error or "it did not answer"
            if session.ended.is_set() or not session.client or not session.ready.is_set():
                await self._end(session)
                del self._sessions[key]
                self._note_failure(key, session.error, spared=0)
                raise Unavailable(f"it could not be started ({session.error})")
            return session

    def _forget(self, session: Session) -> None:
        """Ask it no more. After one that has ended by itself, the next is started at once; but after each further one
        that ends before it has answered a request, only in a while."""
        del self._sessions[session.key]
        if session.has_ended and not session.closing.is_set():
            self._note_failure(session.key, session.program.why or session.error or "it ended", spared=1)

    def _note_failure(self, key: str, why: str, *, spared: int) -> None:
        """``spared``: how many in a row are followed by no pause."""
        failures = self._failures.get(key, _NO_FAILURES)[0] + 1
        pause = min(MAX_BACKOFF_SECONDS, 2.0 ** (failures - 1 - spared)) if failures > spared else 0.0
        self._failures[key] = (failures, time.monotonic() + pause, why)

    async def sweep(self) -> None:
        """End those that nobody has asked for a while, and forget those that have ended."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 20)
            for session in list(self._sessions.values()):
                idle = not session.calls and time.monotonic() - session.used > IDLE_SECONDS
                # One that is being started is whoever's who starts it.
                is_free = self._sessions.get(session.key) is session and not self._opening[session.key].locked()
                if is_free and (idle or session.has_ended):
                    self._forget(session)
                    await self._end(session)

    async def close(self) -> None:
        """End all of them."""
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*map(self._end, sessions))

    async def _end(self, session: Session) -> None:
        session.closing.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(session.ended.wait(), 3)
        if not session.ended.is_set():
            session.task.cancel()
        await asyncio.gather(session.task, return_exceptions=True)

    async def answer(self, asked: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
        """What is said to one request. ``tell`` is told how far its call is, in words."""
        try:
            session = await self.session(asked["server"])
            if asked["ask"] == "list":
                await session.list()
                self._failures.pop(session.key, None)
                return {"ok": True, **session.told()}
            await session.list_if_changed()
        except (Unavailable, MCPError, ValueError, RuntimeError) as error:
            return {"ok": False, "rule": "unavailable", "text": _words(error)}
        found = session.tools.get(asked["tool"])
        if found is None or found.hash != asked["hash"]:
            return {
                "ok": False,
                "rule": "changed",
                "text": "its server describes it in another way by now",
                **session.told(),
            }
        session.calls += 1
        try:
            answer = await self._call(session, asked, tell)
            if answer["ok"] or answer["rule"] == "raised":
                self._failures.pop(session.key, None)
            return answer
        finally:
            session.calls -= 1
            session.used = time.monotonic()

    async def _call(self, session: Session, asked: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
        sent = Sent()
        sending.set(sent)  # the task below has it as well, and what posts its message over HTTP
        call = asyncio.create_task(_ask(session, asked, _Progress(tell)))
        try:
            answer = await self._answer_of(session, call, asked["seconds"])
        finally:
            call.cancel()
        if isinstance(session.program, Remote) and not answer["ok"]:
            if sent.status == 404 or not sent.begun:  # it knows nothing of the session, or of the call
                session.closing.set()
                why = "its server has ended the session" if sent.begun else session.program.why or answer["text"]
                return {"ok": False, "rule": "unavailable", "text": why}
            if sent.status >= 500:  # also from a proxy, behind which it may have been done
                return {"ok": False, "rule": "crashed", "text": f"its server answered with the status {sent.status}"}
        return answer

    async def _answer_of(self, session: Session, call: asyncio.Task[dict[str, Any]], seconds: float) -> dict[str, Any]:
        try:
            await _first(call, session.ended.wait(), session.program.ended.wait())
            if not call.done():  # its program has ended: what it has written was read before
                await asyncio.wait([call], timeout=0.2)
            if not call.done():
                return {"ok": False, "rule": session.program.rule, "text": session.program.why or "its server ended"}
            return call.result()
        except MCPError as error:
            code = error.error.code
            if session.program.ended.is_set() or code == types.CONNECTION_CLOSED:
                return {"ok": False, "rule": session.program.rule, "text": session.program.why or "its server ended"}
            if code == types.REQUEST_TIMEOUT:
                return {"ok": False, "rule": "timeout", "text": f"timed out after {seconds:g} s"}
            return {"ok": False, "rule": "raised", "text": _cut(error.error.message)}
        except (ValueError, RuntimeError) as error:  # an answer that is none
            return {"ok": False, "rule": "output", "text": f"its server's answer cannot be read: {_words(error)}"}
        except asyncio.CancelledError:
            if not call.cancelled():  # nobody wants it any more
                raise
            return {"ok": False, "rule": session.program.rule, "text": session.program.why or "its server ended"}


class _Progress:
    """Tells how far a call is, as often as somebody can follow."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told, self._last = tell, 0, 0.0

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        if self._told >= PROGRESS_AT_ONCE and now - self._last < PROGRESS_SECONDS:
            return
        self._told, self._last = self._told + 1, now
        done = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        words = " ".join((message or "")[:PROGRESS_CHARS].split())
        self._tell(f"[progress {done}]{f' {words}' if words else ''}\n")


async def _ask(session: Session, asked: dict[str, Any], progress: _Progress) -> dict[str, Any]:
    """Have a tool called, or what stands for one of ours, and its result as text."""
    assert session.client
    send, name, given = session.client.session.send_request, asked["tool"], asked["arguments"]
    limit: Any = {"request_read_timeout_seconds": asked["seconds"]}
    page = types.PaginatedRequestParams(cursor=given["cursor"]) if given.get("cursor") else None
    match name if name in session.ours else "":
        case "list_resources":
            found = await send(types.ListResourcesRequest(params=page), types.ListResourcesResult, **limit)
            rows = [(str(each.uri), each.name, each.mime_type, each.description) for each in found.resources]
            return _listed(rows, found.next_cursor)
        case "read_resource":
            params = types.ReadResourceRequestParams(uri=given["uri"])
            read = await send(types.ReadResourceRequest(params=params), types.ReadResourceResult, **limit)
            return {"ok": True, "text": _cut("\n".join(map(_contents, read.contents)))}
        case "list_prompts":
            prompts = await send(types.ListPromptsRequest(params=page), types.ListPromptsResult, **limit)
            rows = [
                (each.name, ", ".join(one.name for one in each.arguments or ()), None, each.description)
                for each in prompts.prompts
            ]
            return _listed(rows, prompts.next_cursor)
        case "get_prompt":
            of_prompt = types.GetPromptRequestParams(name=given["name"], arguments=given.get("arguments") or {})
            prompt = await send(types.GetPromptRequest(params=of_prompt), types.GetPromptResult, **limit)
            return {
                "ok": True,
                "text": _cut("\n".join(f"{each.role}: {_part(each.content)}" for each in prompt.messages)),
            }
    along: Any = {"_meta": {"traceparent": asked["traceparent"]}} if asked.get("traceparent") else {}
    request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=given, **along))
    return _result(await send(request, types.CallToolResult, progress_callback=progress, **limit))


def _listed(rows: Iterable[tuple[str | None, ...]], cursor: str | None) -> dict[str, Any]:
    lines = [" | ".join(each[:500] for each in row if each) for row in rows]
    more = [f"[more: cursor {json.dumps(cursor)}]"] if cursor else []
    return {"ok": True, "text": _cut("\n".join([*lines, *more])) or "none"}


def _result(result: types.CallToolResult) -> dict[str, Any]:
    parts = [_part(each) for each in result.content]
    # Servers are asked to say it as text, too; what stands there twice is said once.
    if (given := result.structured_content) is not None and given not in map(_parsed, parts):
        parts.append(json.dumps(given, ensure_ascii=False))
    text = _cut("\n".join(parts))
    if result.is_error:
        return {"ok": False, "rule": "raised", "text": text}
    return {"ok": True, "text": text, "pictures": _pictures(result)}


def _pictures(result: types.CallToolResult) -> list[str]:
    """The first of its pictures, in base64, as many as there is room for."""
    found: list[str] = []
    room = MAX_PICTURE_CHARS
    for each in result.content:
        if isinstance(each, types.ImageContent) and len(found) < MAX_PICTURES and len(each.data) <= room:
            found.append(each.data)
            room -= len(each.data)
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _part(part: Any) -> str:
    """A part of a result as text; what is none is described."""
    if isinstance(part, types.TextContent):
        return part.text
    if isinstance(part, types.ImageContent | types.AudioContent):
        return f"[{part.type}: {part.mime_type[:100]}, {len(part.data) * 3 // 4} bytes]"
    if isinstance(part, types.EmbeddedResource):
        return _contents(part.resource)
    return f"[{part.type}: {str(getattr(part, 'uri', ''))[:300]}]"


def _contents(resource: Any) -> str:
    """What a resource holds, if it is text."""
    text = getattr(resource, "text", None)
    return str(text) if text is not None else f"[resource: {str(resource.uri)[:300]}]"


def _cut(text: str) -> str:
    return text if len(text) <= 2 * _ENDS else f"{text[:_ENDS]}\n[cut: {len(text)} characters]\n{text[-_ENDS:]}"


def _words(error: BaseException) -> str:
    """An error in a few words; of a group, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{str(error)[:300] or type(error).__name__}"


async def _first(*waits: Any) -> None:
    """Wait for the first of these; a task among them goes on."""
    tasks = [each if isinstance(each, asyncio.Task) else asyncio.create_task(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, given in zip(tasks, waits, strict=True):
            if task is not given:
                task.cancel()


async def _serve(keeper: Keeper, connection: socket.socket) -> None:
    """One request; whoever hangs up wants no answer any more, and the call is cancelled."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_BYTES)
    try:
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        asked = json.loads(await reader.readexactly(size))
        answer = asyncio.create_task(keeper.answer(asked, lambda text: writer.write(packed({"progress": text}))))
        try:
            await _first(answer, reader.read(1))
            if answer.done():
                writer.write(packed(answer.result()))
                await writer.drain()
        finally:
            answer.cancel()
    except (OSError, EOFError):
        pass
    finally:
        writer.close()


async def main(control: socket.socket) -> None:
    keeper, tasks, over = Keeper(), set[asyncio.Task[None]](), asyncio.Event()
    control.setblocking(False)

    def take() -> None:
        try:
            said, passed, _, _ = control.recvmsg(1, socket.CMSG_SPACE(4))
        except BlockingIOError:
            return
        except OSError:
            said, passed = b"", []
        if not said:
            asyncio.get_running_loop().remove_reader(control)
            over.set()
            return
        for level, kind, data in passed:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (fd,) = array.array("i", data[:4])
                connection = socket.socket(fileno=fd)
                connection.setblocking(False)
                task = asyncio.create_task(_serve(keeper, connection))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_reader(control, take)
    sweeper = asyncio.create_task(keeper.sweep())
    await over.wait()
    sweeper.cancel()
    for task in tasks:
        task.cancel()
    await keeper.close()


if __name__ == "__main__":
    close_to_others()
    logging.disable(logging.CRITICAL)  # what servers say may hold anything
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1]))))
