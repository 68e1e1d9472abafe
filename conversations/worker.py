"""A worker process: its event loop of turns, its tools, its heartbeat and its sweeper."""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import cache
from uuid import UUID

from django.conf import settings

import nanohost
from agent import llm
from agent.models import Agent
from conversations import doorbell
from conversations.models import Worker
from conversations.sweeper import sweep
from conversations.turns import DatabaseThreads, TurnRunner
from nanohost.lib.clock import Now, from_now
from tools import gate
from tools.gate import AgentTools
from tools.models import ToolCall

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0


class Runtime:
    """What a worker process holds: one, made by :func:`runtime`, started and stopped with the process's workers."""

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()[:64]}:{os.getpid()}:{time.time():.0f}"
        self._loop = asyncio.new_event_loop()
        self._database = DatabaseThreads(settings.WORKER_DB_THREADS)
        self._runner = TurnRunner(worker=self.name, database=self._database)
        self._room = threading.Semaphore(settings.WORKER_MAX_TURNS)
        self._thread = threading.Thread(target=self._live, name="turns", daemon=True)
        self._calling: set[UUID] = set()
        self._stopping = threading.Event()
        self._stop = asyncio.Event()
        self._started = threading.Event()

    def start(self) -> None:
        """Start the loop; returns once the worker's row is written and the first sweep has begun."""
        gate.warm_tools()
        llm.client()  # importing a provider's package takes a third of a second, which the loop must not
        self._thread.start()
        if not self._started.wait(timeout=30):
            raise RuntimeError("the worker did not start within 30 s; the log tells why")

    def stop(self, *, timeout: float = 6.0) -> None:
        """Hand the turns back, say goodbye, end the loop; a database that hangs is not waited for longer."""
        self._stopping.set()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout)

    def take_turn(self, turn_id: UUID) -> None:
        """Hand a turn to the loop and return at once; waits while the process holds as many turns as it may."""
        while not self._room.acquire(timeout=0.5):
            if self._stopping.is_set():
                return
        if self._stopping.is_set():
            self._room.release()
            return
        future = asyncio.run_coroutine_threadsafe(self._runner.advance(turn_id), self._loop)
        future.add_done_callback(lambda done: self._after_turn(turn_id, done))

    def take_call(self, call_id: UUID) -> None:
        """Run a tool call in this thread, and ring for its turn when it has ended."""
        if self._stopping.is_set():
            return
        self._calling.add(call_id)
        try:
            gate.run(
                call_id,
                agent_tools=_tools_of_its_agent,
                worker=self.name,
                then=lambda call: doorbell.ring_for_turn(call.turn_id),
            )
        finally:
            self._calling.discard(call_id)

    def _after_turn(self, turn_id: UUID, done: "Future[None]") -> None:
        self._room.release()
        if not done.cancelled() and (error := done.exception()):
            # Its lease runs out and the turn is taken again, here or elsewhere.
            logger.error("turn %s was dropped", turn_id, exc_info=error)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()
        self._database.close()

    async def _serve(self) -> None:
        await self._database(self._introduce)
        self._started.set()
        periodic = [
            asyncio.create_task(self._every(WATCH_SECONDS, self._runner.watch)),
            asyncio.create_task(self._every(Worker.HEARTBEAT_SECONDS, self._beat)),
            asyncio.create_task(self._every(settings.SWEEP_SECONDS, self._sweep)),
        ]
        await self._stop.wait()
        for task in periodic:
            task.cancel()
        await asyncio.gather(*periodic, return_exceptions=True)
        await self._runner.stop()
        await self._database(self._say_goodbye)

    async def _every(self, seconds: float, do: Callable[[], Awaitable[object]]) -> None:
        """Now, and again after ``seconds``; a failure is logged, and does not end it."""
        while True:
            try:
                await do()
            except Exception:
                logger.exception("a periodic duty of the worker failed; it goes on")
            await asyncio.sleep(seconds)

    async def _sweep(self) -> None:
        room_for_turns = settings.WORKER_MAX_TURNS - self._runner.busy
        room_for_calls = settings.TOOL_CONCURRENCY - len(self._calling)
        await self._database(sweep, turns_wanted=max(0, room_for_turns), calls_wanted=max(0, room_for_calls))

    async def _beat(self) -> None:
        await self._runner.keep()
        await self._database(self._report)

    def _introduce(self) -> None:
        Worker.objects.create(
            name=self.name,
            version=nanohost.__version__,
            heartbeat_at=Now(),
            turns_most=settings.WORKER_MAX_TURNS,
        )

    def _report(self) -> None:
        Worker.objects.filter(name=self.name).update(heartbeat_at=Now(), turns_held=self._runner.count)

    def _say_goodbye(self) -> None:
        Worker.objects.filter(name=self.name).update(ended_at=Now(), turns_held=0)


def _tools_of_its_agent(call: ToolCall) -> AgentTools:
    """What the call's agent may use now; an agent that is gone may use nothing."""
    agent = Agent.objects.filter(name=call.agent).first()
    return agent.allowed_tools() if agent else AgentTools(names=frozenset())


@cache
def runtime() -> Runtime:
    """The process's runtime."""
    return Runtime()


def forget_dead_workers() -> int:
    """Delete the rows of workers not heard of for a week; returns how many."""
    return Worker.objects.filter(heartbeat_at__lt=from_now(-7 * 86_400)).delete()[0]
