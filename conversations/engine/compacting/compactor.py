"""The compactions that a worker process works on, on its event loop; see
:mod:`conversations.engine.compacting.compaction`."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import OperationalError

from agent import llm, tokens
from agent.errors import BudgetExceeded, LlmBadResponse, LlmError, LlmRequestRefused, LlmTimeout, ModelNotPriced
from agent.llm.base import Completion, ModelRequest
from agent.loop import ChatMessage
from agent.models import Agent
from agent.spending.bills import Bill
from conversations.engine.compacting import compaction, daily, parts
from conversations.engine.compacting.compaction import MAX_FAILURES, Hold
from conversations.engine.compacting.parts import Asking, Part, Result
from conversations.engine.leased_runner import LeasedRunner
from conversations.engine.paying import Purse, ask
from conversations.engine.tracing import context_of
from conversations.errors import FenceLost, Overtaken
from conversations.models import CompactionKind
from memory import documents
from memory.consolidation import (
    SAVE_MEMORY,
    SAVE_SUMMARY,
    Consolidated,
    Malformed,
    added_to,
    parse,
    parse_summary,
    prompt,
    prompt_for_day,
)
from memory.errors import MemoryChanged
from nanohost.lib import traces
from nanohost.lib.logs import about

logger = logging.getLogger(__name__)


Keep = Callable[[Result], Awaitable[None]]

# Seconds: a provider may ask to be left alone for longer than anybody waits.
LONGEST_WAIT = 900.0


class Compactor(LeasedRunner[Hold]):
    """Works on compactions, each a task of its own. Lives on one event loop."""

    noun = "a compaction"

    def warm(self) -> None:
        llm.warm()  # which the loop must not wait for

    def claim_row(self, row_id: UUID) -> Hold | None:
        return compaction.claim(row_id, worker=self.worker)

    def renew_row(self, hold: Hold) -> bool:
        return compaction.renew(hold)

    def release_row(self, hold: Hold) -> None:
        compaction.release(hold)

    def about(self, hold: Hold) -> AbstractContextManager[None]:
        return about(conversation=hold.conversation_id, turn=hold.turn_id)

    async def work(self, hold: Hold) -> None:
        try:
            if traces.is_on:  # below what its turn was asked by; a day's summary is a trace of its own
                context = await self.database(context_of, hold.turn_id) if hold.turn_id else traces.accepted("")
                traces.enter(context)
            await self._work_with_fallbacks(hold)
        except (FenceLost, Overtaken):
            logger.info("the conversation was moved on meanwhile; this compaction is dropped")
            await self.stored(compaction.drop, hold)
        except (BudgetExceeded, ModelNotPriced) as error:
            # Nothing is given up: prompts leave out what is old until there is money again.
            logger.warning("a compaction waits: %s", error.code)
            told = f"{error.code}: {error.detail}"
            await self.stored(compaction.reschedule, hold, error=told, counts=False, seconds=LONGEST_WAIT)
        except LlmError as error:
            # A provider that is away is no reason to give up on a summary.
            logger.warning("a compaction has failed: %s", error.code)
            await self.stored(
                compaction.reschedule,
                hold,
                error=f"{error.code}: {error.detail}",
                counts=not error.transient or isinstance(error, LlmBadResponse | LlmTimeout),
                seconds=error.retry_after and min(error.retry_after, LONGEST_WAIT),
                of_provider=error.transient,
            )
        except Malformed as error:
            logger.warning("a compaction has failed: the model's answer is of no use: %s", error)
            await self.stored(compaction.reschedule, hold, error=f"the model's answer: {error}", counts=True)
        except MemoryChanged:
            await self.stored(compaction.reschedule, hold, error="the memory keeps changing", counts=False)
        except OperationalError as error:
            logger.warning("a compaction could not be stored (%s); it is begun again", type(error).__name__)
            await self.stored(compaction.reschedule, hold, error=type(error).__name__, counts=False)
        except Exception as error:
            logger.exception("a compaction stumbled over a fault of ours")
            await self.stored(compaction.reschedule, hold, error=type(error).__name__, counts=True)

    async def _work_with_fallbacks(self, hold: Hold) -> None:
        """See it through with the agent's model, or, while that fails or has no room, with its further ones, as turns
        do."""
        while True:
            try:
                await self._work(hold)
                return
            except LlmError as error:
                if not (following := hold.model_after(error)):
                    raise
                logger.info("%s is asked in the place of a model for a compaction", following)
                reason = f"{hold.model} has failed: {error.code} ({error.detail})"
                hold = await self.stored(compaction.fall_back, hold, model=following, reason=reason)

    async def _work(self, hold: Hold) -> None:
        if hold.kind == CompactionKind.DAILY:
            await self._summarise_day(hold)
            return
        for _ in range(compaction.MAX_CLASHES):
            part = await self.database(parts.read, hold.conversation_id, agent=hold.agent, keep_tokens=hold.keep_tokens)
            if part is None:
                await self.stored(compaction.drop, hold)
                return
            made = parts.made_so_far(part, hold.made_so_far, model=hold.model)
            if hold.failures >= MAX_FAILURES:
                result = await self.database(parts.stub_of, part, made)
            else:
                result = await self._consolidate(hold, part, made)
            try:
                await self.stored(compaction.store, hold, part, result)
            except MemoryChanged:
                continue
            logger.info("messages %s to %s are in the summary", part.lines[0].seq, part.through)
            return
        raise MemoryChanged

    async def _consolidate(self, hold: Hold, part: Part, made: Result) -> Result:
        async def keep(so_far: Result) -> None:
            await self.stored(compaction.keep_so_far, hold, part, so_far)

        try:
            ask = self._asker(hold)
            return await consolidate(part, agent=hold.agent, model=hold.model, ask=ask, made=made, keep=keep)
        except Malformed as error:
            if error.memory is not None:
                kept = partial(compaction.keep_memory, part, error.memory, model=hold.model, turn_id=hold.turn_id)
                await self.stored(lambda held: kept(hold=held), hold)
            raise

    def _asker(self, hold: Hold) -> "Asker":
        purse = Purse(
            self.database,
            work_id=hold.id,
            conversation_id=hold.conversation_id,
            owner_id=hold.owner_id,
            agent=hold.agent,
        )

        async def charge(completion: Completion, bill: Bill) -> None:
            await self.stored(compaction.charge, hold, completion, bill)

        return Asker(purse, charge, hold.provider)

    async def _summarise_day(self, hold: Hold) -> None:
        if hold.failures >= MAX_FAILURES:
            await self.stored(compaction.fail, hold)
        elif lines := await self.database(daily.read, hold):
            result, ask = Result(summary="", model=hold.model), self._asker(hold)
            besides = parts.told_besides(SAVE_SUMMARY, prompt_for_day(summary="", lines=[]))
            fit: dict[str, Any] = {"agent": hold.agent, "model": hold.model, "besides": besides}
            while left := result.left_of(lines):
                asking = parts.next_chunk(left, **fit, summary=result.summary)
                messages = prompt_for_day(summary=asking.summary, lines=asking.lines)
                completion = await ask(hold.model, messages, SAVE_SUMMARY)
                summary = parse_summary(completion.tool_calls, completion.content)
                made = Consolidated(summary=summary, memory=None, entry="")
                result = result.folded(made, asking.lines)
            await self.stored(daily.store, hold, lines, result)
        else:
            await self.stored(compaction.drop, hold)


async def consolidate(
    part: Part, *, agent: Agent, model: str, ask: "Asker", made: Result | None = None, keep: Keep | None = None
) -> Result:
    """Have a model take in a part, chunk by chunk; raises :class:`LlmError` and :class:`Malformed`, which has the
    memory as far as it was rewritten. ``ask``: asks it, and pays for that. ``made``: what was made of its first chunks
    before. ``keep``: called with what is made after each chunk but the last."""
    made = made or Result(summary=part.summary, model=model)
    left = made.left_of(part.lines)
    while left:
        memory = part.memory if made.memory is None else made.memory
        fit: dict[str, Any] = {"agent": agent, "model": model, "besides": parts.BESIDES}
        asking = parts.next_chunk(left, **fit, summary=made.summary, memory=memory)
        shorten_to = settings.MEMORY_MAX_CHARS * 4 // 5 if documents.is_full(memory) and not asking.is_part else None
        shown: dict[str, Any] = {"memory": asking.memory, "summary": asking.summary, "is_part": asking.is_part}
        messages = prompt(**shown, lines=asking.lines, shorten_to=shorten_to)
        completion = await ask(model, messages, SAVE_MEMORY)
        try:
            told = parse(completion.tool_calls, completion.content, summary_so_far=made.summary)
        except Malformed as error:
            raise Malformed(str(error), memory=_whole(error.memory, memory, asking) or made.memory) from None
        told = replace(told, memory=_whole(told.memory, memory, asking))
        made = replace(made.folded(told, asking.lines), model=model)
        left = made.left_of(part.lines)
        if left and keep:
            await keep(made)
    return made


def _whole(given: str | None, memory: str, asking: Asking) -> str | None:
    """The memory that a model gave; where it was shown a part only, the one there is with what it adds."""
    return added_to(memory, given, shown=asking.memory) if given is not None and asking.is_part else given


@dataclass(frozen=True)
class Asker:
    """Asks models that are to call a tool. ``charge``: stores what each answer costs, before anything is made of it.
    ``provider``: the one that the agent names, if it names one."""

    purse: Purse
    charge: Callable[[Completion, Bill], Awaitable[None]]
    provider: str = ""

    async def __call__(self, model: str, messages: list[ChatMessage], tool: dict[str, Any]) -> Completion:
        request = ModelRequest(
            model=model,
            messages=messages,
            tools=[tool],
            tool_choice=tool["function"]["name"],
            provider=self.provider,
        )
        estimated = tokens.estimated_tools(request.tools) + sum(map(tokens.estimated_message, messages))
        try:
            completion = await self._ask(request, estimated)
        except LlmRequestRefused:  # some servers do not let a client choose; most models call the one tool all the same
            completion = await self._ask(replace(request, tool_choice=""), estimated)
        tokens.correction.learn(model, estimated=estimated, reported=completion.usage.prompt_tokens)
        return completion

    async def _ask(self, request: ModelRequest, estimated: int) -> Completion:
        completion, bill = await ask(self.purse, request, estimated=estimated)
        await self.charge(completion, bill)
        return completion
