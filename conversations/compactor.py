"""The compactions that a worker process works on, on its event loop; see :mod:`conversations.compaction`."""

import asyncio
import logging
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import OperationalError

from agent import llm, tokens
from agent.errors import LlmBadResponse, LlmError, LlmRequestRefused, LlmTimeout
from agent.llm.base import Completion, ModelRequest
from agent.loop import ChatMessage
from agent.models import Agent
from conversations import compaction, daily
from conversations.compaction import MOST_FAILURES, Hold, Part, Result
from conversations.database_threads import DatabaseThreads
from conversations.errors import FenceLost, Overtaken
from conversations.models import CompactionKind
from memory import documents
from memory.consolidation import SAVE_MEMORY, SAVE_SUMMARY, Malformed, parse, parse_summary, prompt, prompt_for_day
from memory.errors import MemoryChanged
from nanohost.lib.logs import about

logger = logging.getLogger(__name__)

# How often what was made is made again, because the memory it was made of has changed.
MOST_CLASHES = 5

# Seconds: a provider may ask to be left alone for longer than anybody waits.
LONGEST_WAIT = 900.0


class Compactor:
    """Works on compactions, each a task of its own. Lives on one event loop."""

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        self.worker = worker
        self._database = database
        self._working: set[asyncio.Task[None]] = set()

    async def advance(self, compaction_id: UUID) -> None:
        """Take a compaction and see it through; does nothing if it is not to be had."""
        task = asyncio.current_task()
        assert task is not None
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        try:
            hold = await self._database(compaction.claim, compaction_id, worker=self.worker)
        except OperationalError as error:
            logger.warning("a compaction could not be claimed (%s); a sweep finds it", type(error).__name__)
            return
        if hold is None:
            return
        keeper = asyncio.create_task(self._keep(hold, task))
        with about(conversation=hold.conversation_id, turn=hold.turn_id):
            try:
                await self._work(hold)
            except asyncio.CancelledError:
                await self._database(compaction.hand_back, hold)
            except (FenceLost, Overtaken):
                logger.info("the conversation was moved on meanwhile; this compaction is dropped")
                await self._database(compaction.drop, hold)
            except LlmError as error:
                # A provider that is away is no reason to give up on a summary.
                logger.warning("a compaction has failed: %s", error.code)
                await self._database(
                    compaction.put_off,
                    hold,
                    error=f"{error.code}: {error.detail}",
                    counts=not error.transient or isinstance(error, LlmBadResponse | LlmTimeout),
                    seconds=error.retry_after and min(error.retry_after, LONGEST_WAIT),
                )
            except Malformed as error:
                logger.warning("a compaction has failed: the model's answer is of no use: %s", error)
                await self._database(compaction.put_off, hold, error=f"the model's answer: {error}", counts=True)
            except MemoryChanged:
                await self._database(compaction.put_off, hold, error="the memory keeps changing", counts=False)
            except OperationalError as error:
                logger.warning("a compaction could not be stored (%s); it is begun again", type(error).__name__)
                await self._database(compaction.put_off, hold, error=type(error).__name__, counts=False)
            except Exception as error:
                logger.exception("a compaction stumbled over a fault of ours")
                await self._database(compaction.put_off, hold, error=type(error).__name__, counts=True)
            finally:
                keeper.cancel()

    async def _keep(self, hold: Hold, task: "asyncio.Task[None]") -> None:
        """Renew the lease while the models take their time; without it, others may begin, and our work is void."""
        while True:
            await asyncio.sleep(settings.TURN_LEASE_SECONDS / 6)
            try:
                if not await self._database(compaction.keep, hold):
                    task.cancel()
                    return
            except OperationalError as error:
                logger.warning("a compaction's lease could not be renewed (%s)", type(error).__name__)

    async def _work(self, hold: Hold) -> None:
        if hold.kind == CompactionKind.DAILY:
            await self._summarise_day(hold)
            return
        for _ in range(MOST_CLASHES):
            part = await self._database(
                compaction.read, hold.conversation_id, agent=hold.agent, keep_tokens=hold.keep_tokens
            )
            if part is None:
                await self._database(compaction.drop, hold)
                return
            if hold.failures >= MOST_FAILURES:
                result = await self._database(compaction.stub_of, part)
            else:
                result = await consolidate(part, agent=hold.agent, model=hold.model)
            try:
                await self._database(compaction.store, hold, part, result)
            except MemoryChanged:
                continue
            logger.info("messages %s to %s are in the summary", part.lines[0].seq, part.through)
            return
        raise MemoryChanged

    async def _summarise_day(self, hold: Hold) -> None:
        if hold.failures >= MOST_FAILURES:
            await self._database(compaction.fail, hold)
        elif lines := await self._database(daily.read, hold):
            result = Result(summary="", model=hold.model)
            for chunk in compaction.chunks_of(lines, agent=hold.agent, model=hold.model):
                messages = prompt_for_day(summary=result.summary, lines=chunk)
                completion = await _ask(hold.model, messages, SAVE_SUMMARY)
                summary = parse_summary(completion.tool_calls, completion.content)
                result = replace(result, summary=summary, usage=result.usage + completion.usage)
            await self._database(daily.store, hold, lines, result)
        else:
            await self._database(compaction.drop, hold)

    async def stop(self) -> None:
        """Hand all of them back and wait until that is stored."""
        for task in self._working:
            task.cancel()
        while self._working:
            await asyncio.wait(set(self._working))


async def consolidate(part: Part, *, agent: Agent, model: str) -> Result:
    """Have a model take in a part, chunk by chunk; raises :class:`LlmError` and :class:`Malformed`."""
    result = Result(summary=part.summary, model=model)
    told = len(part.memory) + len(part.summary)
    for lines in compaction.chunks_of(part.lines, agent=agent, model=model, besides=told):
        memory = part.memory if result.memory is None else result.memory
        shorten_to = settings.MEMORY_MAX_CHARS * 4 // 5 if documents.is_full(memory) else None
        messages = prompt(memory=memory, summary=result.summary, lines=lines, shorten_to=shorten_to)
        completion = await _ask(model, messages, SAVE_MEMORY)
        result = result.folded(parse(completion.tool_calls, completion.content), lines, completion.usage)
    return result


async def _ask(model: str, messages: list[ChatMessage], tool: dict[str, Any]) -> Completion:
    """Ask a model that is to call this tool."""
    request = ModelRequest(model=model, messages=messages, tools=[tool], tool_choice=tool["function"]["name"])
    seconds = settings.LLM_TIMEOUT_SECONDS
    try:
        completion = await llm.ask(request, seconds=seconds)
    except LlmRequestRefused:  # some servers do not let a client choose; most models call the one tool all the same
        completion = await llm.ask(replace(request, tool_choice=""), seconds=seconds)
    estimated = tokens.estimated_tools(request.tools) + sum(map(tokens.estimated_message, messages))
    tokens.correction.learn(model, estimated=estimated, reported=completion.usage.prompt_tokens)
    return completion
