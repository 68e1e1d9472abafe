"""A worker process: its event loop of turns, its threads of tools, its heartbeat and its sweeper.

Celery's tasks hand over what they are rung for and return at once; how much runs at a time is bounded here.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import UUID

import uvloop
from django.conf import settings
from django.db import OperationalError

import nanohost
from agent import llm
from agent.models import Agent
from conversations import events
from conversations.engine import deferred, doorbell
from conversations.engine.compactor import Compactor
from conversations.engine.sweeper import due_calls, due_compactions, due_turns
from conversations.engine.turns import TurnRunner
from conversations.models import COMPACTION, TOOLS, TURNS, Worker
from nanohost.lib.clock import Now, from_now
from nanohost.lib.database import borrowed_connection, pool_use
from nanohost.lib.database_threads import DatabaseThreads
from nanohost.lib.statements import Given, Rows
from tools import gate
from tools.gate import AgentTools
from tools.models import ToolCall
from tools.sandbox.modes import in_force

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0

# Compactions a process works on at a time: a model's provider is asked for replies first.
MOST_COMPACTIONS = 4


class _Room:
    """Places for so many things at a time; :attr:`free` of them can be taken now."""

    def __init__(self, places: int) -> None:
        self.free = places
        self._changed = threading.Condition()

    def enter(self, *, timeout: float) -> bool:
        """Take a place; False if none comes free within so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.free > 0, timeout):
                return False
            self.free -= 1
            return True

    def leave(self) -> None:
        with self._changed:
            self.free += 1
            self._changed.notify()


class Runtime:
    """What a worker process holds: one, made for its queues and started by :func:`start_runtime`. It lives on ``loop``,
    which runs in another thread; if none is given, on one of its own."""

    def __init__(
        self, queues: Collection[str] = (TURNS, TOOLS), *, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.name = f"{socket.gethostname()[:64]}:{os.getpid()}:{time.time():.0f}"
        self.queues = sorted(queues)
        self._loop = loop or uvloop.new_event_loop()
        self._thread = None if loop else threading.Thread(target=self._run_loop, name="turns", daemon=True)
        self._life: Future[None] | None = None
        self._database = DatabaseThreads(settings.WORKER_DB_THREADS)
        # Of its own: behind hundreds of turns that are begun at once, the leases of those that are held would run out.
        self._heart = DatabaseThreads(1)
        self._runner = TurnRunner(worker=self.name, database=self._database)
        self._compactor = Compactor(worker=self.name, database=self._database)
        self._call_threads = ThreadPoolExecutor(settings.TOOL_CONCURRENCY, thread_name_prefix="tools")
        self._room_for_turns = _Room(settings.WORKER_MAX_TURNS)
        self._room_for_calls = _Room(settings.TOOL_CONCURRENCY)
        self._room_for_compactions = _Room(MOST_COMPACTIONS)
        self._stopping = threading.Event()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start the loop; returns once the worker's row is written. Raises RuntimeError if it cannot be."""
        if TOOLS in self.queues:
            gate.warm_tools()
            sandbox = in_force()
            logger.log(
                logging.INFO if sandbox.is_whole else logging.WARNING, "the sandbox of tools is %s", sandbox.sentence
            )
        if TURNS in self.queues or COMPACTION in self.queues:
            llm.client()  # importing a provider's package takes a third of a second, which the loop must not
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        if self._thread:
            self._thread.start()
        if not self._started.wait(timeout=30):
            raise RuntimeError("its row could not be written within 30 s")
        if self._failure:
            raise RuntimeError("its row could not be written") from self._failure
        if TURNS in self.queues:
            doorbell.answer_here(doorbell.ADVANCE_TURN, partial(self.take_turn, wait=False))
        if TOOLS in self.queues:
            doorbell.answer_here(doorbell.RUN_TOOL_CALL, partial(self.take_call, wait=False))
        if COMPACTION in self.queues:
            doorbell.answer_here(doorbell.COMPACT, self.take_compaction)

    def wind_down(self) -> None:
        """Begin nothing more, and tell the tools that run."""
        doorbell.answer_no_more()
        self._stopping.set()
        if TOOLS in self.queues:
            gate.stop_tools()

    def stop(self, *, timeout: float = 6.0) -> None:
        """Hand the turns back, say goodbye, end the loop; a database that hangs is not waited for longer."""
        self.wind_down()
        if self._life and not self._life.done():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._ended.wait(timeout)
        events.transport().flush(timeout=1)
        if TOOLS in self.queues:
            gate.close_tools()

    def take_turn(self, turn_id: UUID, *, wait: bool = True) -> bool:
        """Hand a turn to the loop and return at once. While the process holds as many as it may: wait, or leave it and
        return False."""
        if entered := self._enters(self._room_for_turns, wait=wait):
            self._loop.call_soon_threadsafe(self._begin, turn_id)
        return entered

    def _begin(self, turn_id: UUID) -> None:
        turn = self._loop.create_task(self._runner.advance(turn_id))
        turn.add_done_callback(lambda done: self._after(self._room_for_turns, f"turn {turn_id}", done))

    def take_call(self, call_id: UUID, *, wait: bool = True) -> bool:
        """Hand a tool call to a thread and return at once. While as many run as may: wait, or leave it and return
        False."""
        if entered := self._enters(self._room_for_calls, wait=wait):
            call = self._call_threads.submit(self._run_call, call_id)
            call.add_done_callback(lambda done: self._after(self._room_for_calls, f"tool call {call_id}", done))
        return entered

    def take_compaction(self, compaction_id: UUID) -> bool:
        """Hand a compaction to the loop and return at once; without room, leave it to a sweep and return False."""
        if entered := self._enters(self._room_for_compactions, wait=False):
            future = asyncio.run_coroutine_threadsafe(self._compactor.advance(compaction_id), self._loop)
            future.add_done_callback(
                lambda done: self._after(self._room_for_compactions, f"compaction {compaction_id}", done)
            )
        return entered

    def _enters(self, room: _Room, *, wait: bool) -> bool:
        """Take a place; False if there is none or the worker stops: what was rung for is left to others."""
        while not room.enter(timeout=0.5 if wait else 0):
            if self._stopping.is_set() or not wait:
                return False
        if self._stopping.is_set():
            room.leave()
            return False
        return True

    def _after(self, room: _Room, what: str, done: "Future[None] | asyncio.Task[None]") -> None:
        room.leave()
        if not done.cancelled() and (error := done.exception()):
            # Its lease runs out and it is taken again, here or elsewhere.
            logger.error("%s was dropped", what, exc_info=error)

    def _run_call(self, call_id: UUID) -> None:
        """Run a tool call in this thread, and ring for its turn when it has ended."""
        with borrowed_connection():
            gate.run(
                call_id,
                agent_tools=tools_of_its_agent,
                worker=self.name,
                on_start=_tell,
                then=_go_on,
            )

    def _run_loop(self) -> None:
        assert self._life
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.wrap_future(self._life, loop=self._loop))
        self._loop.close()

    async def _live(self) -> None:
        try:
            await self._serve()
        except Exception as error:
            logger.exception("the worker's loop has ended")
            self._failure = error
            self._started.set()
        # A database that hangs holds the threads; the loop may be others' too.
        threading.Thread(target=self._close, name="closing", daemon=True).start()

    def _close(self) -> None:
        self._database.close()
        self._heart.close()
        self._ended.set()

    async def _serve(self) -> None:
        await self._database(self._introduce)
        self._started.set()
        periodic = [
            asyncio.create_task(self._every(WATCH_SECONDS, self._runner.watch)),
            asyncio.create_task(self._every(Worker.HEARTBEAT_SECONDS, self._beat)),
            asyncio.create_task(self._every(Worker.HEARTBEAT_SECONDS, _show_life)),
            asyncio.create_task(self._every(settings.SWEEP_SECONDS, self._sweep)),
        ]
        await self._stop.wait()
        for task in periodic:
            task.cancel()
        await asyncio.gather(*periodic, return_exceptions=True)
        await asyncio.gather(self._runner.stop(), self._compactor.stop())
        await asyncio.to_thread(self._call_threads.shutdown, cancel_futures=True)
        await self._database(self._say_goodbye)

    async def _every(self, seconds: float, do: Callable[[], Awaitable[object]]) -> None:
        """Now, and again after ``seconds``; a failure is logged, and does not end it."""
        away = False
        while True:
            try:
                await do()
                away = False
            except OperationalError as error:
                if not away:  # what it holds, it goes on to hold
                    logger.warning("a duty of the worker must wait: the database is away (%s)", type(error).__name__)
                away = True
            except Exception:
                logger.exception("a periodic duty of the worker failed; it goes on")
            await asyncio.sleep(seconds)

    async def _sweep(self) -> None:
        """Take what is due and nobody was told of, as far as there is room."""
        if TURNS in self.queues:
            await self._database(deferred.fire_due)
        if TURNS in self.queues and (room := self._room_for_turns.free):
            for turn_id in await self._database(due_turns, wanted=room, held=self._runner.held):
                self.take_turn(turn_id, wait=False)
        if TOOLS in self.queues and (room := self._room_for_calls.free):
            for call_id in await self._database(due_calls, wanted=room):
                self.take_call(call_id, wait=False)

        if COMPACTION in self.queues and (room := self._room_for_compactions.free):
            for compaction_id in await self._database(due_compactions, wanted=room):
                self.take_compaction(compaction_id)

    async def _beat(self) -> None:
        await self._runner.keep(self._heart)
        await self._heart(self._report)

    def _introduce(self) -> None:
        Worker.objects.create(
            name=self.name,
            version=nanohost.__version__,
            queues=",".join(self.queues),
            heartbeat_at=Now(),
            turns_most=settings.WORKER_MAX_TURNS if TURNS in self.queues else 0,
            sandbox=in_force().words if TOOLS in self.queues else "",
            provider=settings.LLM_PROVIDER if TURNS in self.queues else "",
        )

    def _report(self) -> None:
        pool = pool_use()
        Worker.objects.filter(name=self.name).update(
            heartbeat_at=Now(),
            pool_used=pool.used if pool else None,
            pool_most=pool.most if pool else None,
            pool_waiting=pool.waiting if pool else None,
        )

    def _say_goodbye(self) -> None:
        Worker.objects.filter(name=self.name).update(ended_at=Now())


async def _show_life() -> None:
    """For those who watch the process from outside, where there is no port to ask: its loop goes round. A database that
    is away is no reason to end a worker, which may hold answers to be stored."""
    if settings.WORKER_ALIVE_FILE:
        await asyncio.to_thread(Path(settings.WORKER_ALIVE_FILE).touch)


def _tell(call: ToolCall) -> None:
    """Tell those who follow its turn how far the call is."""
    kind, data = events.tool_events(call)[-1]
    events.publish(call.turn_id, kind, data)


def _go_on(call: ToolCall) -> None:
    _tell(call)
    doorbell.ring_for_turn(call.turn_id)


_agent = Rows(lambda: Agent.objects.filter(name=Given("name")))


def tools_of_its_agent(call: ToolCall) -> AgentTools:
    """What the call's agent may use now; an agent that is gone may use nothing."""
    agent = next(iter(_agent(name=call.agent)), None)
    return agent.allowed_tools() if agent else AgentTools(names=frozenset())


_runtime: Runtime | None = None


def start_runtime(queues: Collection[str], *, loop: asyncio.AbstractEventLoop | None = None) -> Runtime:
    """Make the process's runtime, for its queues, and start it."""
    global _runtime
    _runtime = Runtime(queues, loop=loop)
    _runtime.start()
    return _runtime


def runtime() -> Runtime:
    """The process's runtime; raises RuntimeError where none was started."""
    if _runtime is None:
        raise RuntimeError("this process is no worker")
    return _runtime


def forget_dead_workers() -> int:
    """Delete the rows of workers not heard of for a week; returns how many."""
    return Worker.objects.filter(heartbeat_at__lt=from_now(-7 * 86_400)).delete()[0]
