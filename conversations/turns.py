"""Running turns. A worker advances a turn as far as it can: it claims it, steps, and stores every step before the next.

All turns of a process live on one event loop; what touches the database goes through a small pool of threads. No
thread, no connection and no transaction waits for a model.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, ParamSpec, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import OperationalError

from agent import llm, tokens
from agent.errors import LlmBadResponse, LlmContextTooLong, LlmError
from agent.llm.base import Completion, Delta
from agent.loop import CallModel, Finish, Limit, RunTools, next_step
from conversations import claims, commands, doorbell, events
from conversations.claims import Claim, View
from conversations.database_threads import DatabaseThreads
from conversations.errors import FenceLost
from conversations.outlook import Asking, Outlook, look
from conversations.sweeper import time_for_last_answer
from nanohost.lib.logs import about
from nanohost.lib.redaction import RedactedPieces, redact_known

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Seconds before the first retry of a provider's error; doubled each time, and never more than the last figure.
RETRY_FIRST, RETRY_MOST = 1.0, 60.0

# Turns whose workers died twice are suspects: one of them may be what kills workers, and those who are held beside it
# die with it each time. So few of them are held at once, and later each alone; for as many seconds they stand back.
SUSPECTS_AT_MOST = 8
STAND_BACK = (1.0, 3.0)

# A model that was given all of a turn's time is stopped a little before its end: uvloop counts in milliseconds.
TIMERS_ARE_EARLY = 0.01

# Seconds between tries to store an answer while the database is away.
STORE_AGAIN = (0.2, 0.5, 1.0, 2.0, 4.0)


Ending = Literal["", "cancelled", "taken over", "deadline", "shutdown"]


@dataclass
class _Held:
    claim: Claim
    task: "asyncio.Task[None]"
    ending: Ending = ""
    missed: int = 0

    def end(self, why: Ending) -> None:
        """Stop the turn's task, which also closes its model's socket; why tells it what to store."""
        if not self.ending:
            self.ending = why
            self.task.cancel()


class TurnRunner:
    """The turns a process holds. Lives on one event loop; only :attr:`count` may be read from elsewhere."""

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        self.worker = worker
        self._database = database
        self._held: dict[UUID, _Held] = {}
        self._busy_with: set[UUID] = set()
        self._rung_meanwhile: set[UUID] = set()
        self._advancing: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def count(self) -> int:
        """How many turns are held."""
        return len(self._held)

    @property
    def held(self) -> list[UUID]:
        """Which turns are held, or are just being taken or let go."""
        return list(self._busy_with)

    async def advance(self, turn_id: UUID) -> None:
        """Take a turn and run it until it waits or ends; does nothing if it is not to be had.

        One that is rung for while we are busy with it is looked at once more afterwards: what it was rung for may have
        come too late to be seen. It is not claimed a second time, even if its lease ran out while the process stalled.
        """
        if turn_id in self._busy_with:
            self._rung_meanwhile.add(turn_id)
            return
        task = asyncio.current_task()
        assert task is not None
        self._advancing.add(task)
        task.add_done_callback(self._advancing.discard)
        self._busy_with.add(turn_id)
        try:
            await self._advance(turn_id, task)
            while turn_id in self._rung_meanwhile and not self._stopping:
                self._rung_meanwhile.discard(turn_id)
                await self._advance(turn_id, task)
        finally:
            self._busy_with.discard(turn_id)
            self._rung_meanwhile.discard(turn_id)

    async def _advance(self, turn_id: UUID, task: "asyncio.Task[None]") -> None:
        try:
            taken = await self._database(_take, turn_id, worker=self.worker)
        except OperationalError as error:
            logger.warning("the turn could not be claimed (%s); a sweep finds it", type(error).__name__)
            return
        if taken is None:
            return
        claim, outlook = taken
        if not self._may_hold(claim):
            await self._stand_back(claim)
            return
        if claim.fence == 1:  # later claims go on with it
            events.publish(turn_id, "turn.started", fence=claim.fence)
        held = self._held[turn_id] = _Held(claim, task)
        with about(requestId=claim.request_id, turn=turn_id, conversation=claim.conversation_id):
            try:
                if self._stopping:
                    held.end("shutdown")
                await self._run(claim, outlook)
            except asyncio.CancelledError:
                await self._store_ending(held)
            except FenceLost:
                if not await self._database(claims.cancel_if_asked, claim):
                    logger.info("the turn was taken over or ended elsewhere; this worker stops")
            except Exception:
                logger.exception("the turn stumbled over a fault of ours")
                await self._retry_or_fail(claim, code="turn_error", detail="An internal fault; see the log.")
            finally:
                if self._held.get(turn_id) is held:
                    del self._held[turn_id]

    def _may_hold(self, claim: Claim) -> bool:
        """Whether this turn, if it is a suspect, may run beside those that are held."""
        if claim.attempts < 2 or claim.attempts > settings.TURN_MAX_ATTEMPTS:
            return True
        suspects = [claim, *(held.claim for held in self._held.values() if held.claim.attempts >= 2)]
        alone = any(each.attempts >= min(3, settings.TURN_MAX_ATTEMPTS) for each in suspects)
        return len(suspects) <= (1 if alone else SUSPECTS_AT_MOST)

    async def _stand_back(self, claim: Claim) -> None:
        """Leave a suspect to another worker, or to a later moment."""
        seconds = random.uniform(*STAND_BACK)  # noqa: S311 -- no secret
        try:
            await self._database(claims.stand_back, claim, seconds=seconds)
        except FenceLost:
            await self._database(claims.cancel_if_asked, claim)
            return
        self._ring_in(claim.turn_id, seconds)

    async def _run(self, claim: Claim, outlook: Outlook | None) -> None:
        """Step until the turn waits or ends."""
        if claim.attempts > settings.TURN_MAX_ATTEMPTS:
            detail = f"{claim.attempts} workers in a row died while they ran it."
            await self._database(claims.fail, claim, code="turn_crashed", detail=detail)
            return
        outlook = outlook or await self._database(look, claim)
        while outlook:
            outlook = await self._step(claim, outlook)

    async def _step(self, claim: Claim, outlook: Outlook) -> Outlook | None:
        """One step, stored; what the next one is decided on, or None when the turn waits or has ended."""
        if claim.seconds_left() <= 0:
            await self._database(claims.fail, claim, code="turn_timeout")
            return None
        view = outlook.view
        if view.command:
            await commands.carry_out(claim, outlook, self._database)
            return None
        limit = _limit_met(claim, view)
        step = next_step(view.own, max_rounds=claim.max_rounds, limit=limit)
        if isinstance(step, RunTools):
            return await self._database(_answer_calls, claim, view)
        completion, compact_to, sent = Completion(), None, None
        if isinstance(step, CallModel):
            asking = Asking(outlook, step.limit)
            try:
                completion = await self._ask(claim, view, asking, step.limit)
            except LlmError as error:
                await self._give_up_or_wait(claim, view, error, sent=asking.record)
                return None
            compact_to, sent = outlook.compact_to(asking.request), asking.record
            step = next_step([*view.own, completion.as_message()], max_rounds=claim.max_rounds, limit=step.limit)
        if isinstance(step, RunTools):
            waits = await self._stored(claims.store_calls, claim, completion, limit=step.limit, sent=sent)
            return None if waits else await self._database(look, claim)
        assert isinstance(step, Finish)
        has_called = any("tool_calls" in message for message in view.own)
        await self._stored(
            claims.finish, claim, completion, reply=step.reply, has_called=has_called, compact_to=compact_to, sent=sent
        )
        return None

    async def _stored(self, store: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Store what a model answered; it was paid for, so a database that is away for moments does not lose it. The
        fence makes repeating safe."""
        for seconds in STORE_AGAIN:
            try:
                return await self._database(store, *args, **kwargs)
            except OperationalError as error:
                logger.warning("an answer could not be stored (%s); again in %s s", type(error).__name__, seconds)
                await asyncio.sleep(seconds)
        return await self._database(store, *args, **kwargs)

    async def _ask(self, claim: Claim, view: View, asking: Asking, limit: Limit | None) -> Completion:
        """Ask the model, within its timeout and the turn's deadline; raises :class:`LlmError`."""
        while True:
            telling = _Telling(claim, view)
            seconds = min(settings.LLM_TIMEOUT_SECONDS, claim.seconds_left())
            try:
                completion = await llm.ask(asking.request, seconds=seconds, on_delta=telling)
                break
            except LlmContextTooLong:
                if not asking.make_smaller():
                    raise
        telling.end()
        tokens.correction.learn(claim.model, estimated=asking.estimated, reported=completion.usage.prompt_tokens)
        if not completion.content.strip() and not completion.tool_calls and not limit:
            raise LlmBadResponse("an empty answer")
        completion = replace(completion, content=redact_known(completion.content))
        return _without_calls(completion) if limit else completion

    async def _give_up_or_wait(self, claim: Claim, view: View, error: LlmError, *, sent: dict[str, Any]) -> None:
        """After a provider's error: wait in the database and try again, or fail with its code."""
        if claim.seconds_left() <= TIMERS_ARE_EARLY:
            await self._database(claims.fail, claim, code="turn_timeout", sent=sent)
            return
        if not error.transient:
            await self._database(claims.fail, claim, code=error.code, detail=error.detail, sent=sent)
            return
        await self._retry_or_fail(
            claim, code=error.code, detail=error.detail, retries=view.retries, wait=error.retry_after, sent=sent
        )

    async def _retry_or_fail(
        self,
        claim: Claim,
        *,
        code: str,
        detail: str,
        retries: int | None = None,
        wait: float | None = None,
        sent: dict[str, Any] | None = None,
    ) -> None:
        try:
            if retries is None:
                retries = (await self._database(claims.read, claim)).retries
            seconds = _backoff(retries) if wait is None else wait
            if retries >= settings.TURN_MAX_ATTEMPTS or seconds >= claim.seconds_left():
                await self._database(claims.fail, claim, code=code, detail=detail, sent=sent)
                return
            await self._database(claims.wait_for_retry, claim, seconds=seconds, sent=sent)
        except FenceLost:
            await self._database(claims.cancel_if_asked, claim)
            return
        self._ring_in(claim.turn_id, seconds)

    def _ring_in(self, turn_id: UUID, seconds: float) -> None:
        timer = asyncio.create_task(self._ring_later(turn_id, seconds))
        self._timers.add(timer)
        timer.add_done_callback(self._timers.discard)

    async def _ring_later(self, turn_id: UUID, seconds: float) -> None:
        """Ring on time. The sweeper would ring too, but only at its next round; this is lost with the process."""
        await asyncio.sleep(seconds + 0.01)
        try:
            await self._database(doorbell.ring_for_turn, turn_id)
        except OperationalError as error:
            logger.warning("a turn could not be rung for (%s); a sweep finds it", type(error).__name__)

    async def _store_ending(self, held: _Held) -> None:
        """A task that was stopped stores what it was stopped for."""
        claim = held.claim
        try:
            if held.ending == "cancelled":
                await self._database(claims.cancel_if_asked, claim)
            elif held.ending == "deadline":
                await self._database(claims.fail, claim, code="turn_timeout")
            elif held.ending == "shutdown":
                await self._database(claims.hand_back, claim)
            else:
                logger.info("the turn was taken over or ended elsewhere; this worker stops")
        except FenceLost:
            if not await self._database(claims.cancel_if_asked, claim):
                logger.info("the turn was taken over or ended elsewhere; this worker stops")

    async def watch(self) -> None:
        """Every second: stop turns that are cancelled, taken over or past their deadline."""
        if not self._held:
            return
        looked_at = list(self._held.values())
        ours = await self._database(claims.still_held, [held.claim for held in looked_at])
        for held in looked_at:
            if held.claim.turn_id not in ours:
                # Or its own last step has just been stored; that task is over by the next look.
                held.missed += 1
                if held.missed > 1:
                    held.end("taken over")
            elif ours[held.claim.turn_id]:
                held.end("cancelled")
            elif held.claim.seconds_left() <= 0:
                held.end("deadline")

    async def keep(self, database: DatabaseThreads) -> None:
        """Every heartbeat: renew the leases of what is held."""
        if self._held:
            await database(claims.keep, [held.claim for held in self._held.values()], worker=self.worker)

    async def stop(self) -> None:
        """Hand all turns back and wait until that is stored."""
        self._stopping = True
        for timer in self._timers:
            timer.cancel()
        for held in self._held.values():
            held.end("shutdown")
        # Those that are just being claimed see that it stops as soon as they are held.
        while self._advancing:
            await asyncio.wait(set(self._advancing))


def _take(turn_id: UUID, *, worker: str) -> tuple[Claim, Outlook | None] | None:
    """Claim a turn, and look at it while we are at the database."""
    claim = claims.claim(turn_id, worker=worker)
    if claim is None:
        return None
    try:
        return claim, look(claim)
    except (FenceLost, OperationalError):  # it is to be cancelled, or the database goes away: whoever runs it finds out
        return claim, None


def _answer_calls(claim: Claim, view: View) -> Outlook:
    claims.store_results(claim, view)
    return look(claim)


class _Telling:
    """Tells of the pieces of the answer as they come."""

    def __init__(self, claim: Claim, view: View) -> None:
        self._claim = claim
        self._message = sum(message["role"] == "assistant" for message in view.own)
        self._pieces = {kind: RedactedPieces() for kind in events.DELTAS}
        self._offsets = dict.fromkeys(events.DELTAS, 0)

    def __call__(self, delta: Delta) -> None:
        self._tell("reasoning.delta", self._pieces["reasoning.delta"].add(delta.reasoning))
        self._tell("message.delta", self._pieces["message.delta"].add(delta.content))

    def end(self) -> None:
        """The answer is whole."""
        for kind, pieces in self._pieces.items():
            self._tell(kind, pieces.end())

    def _tell(self, kind: str, text: str) -> None:
        if text:
            data = {"message": self._message, "offset": self._offsets[kind], "text": text}
            events.publish(self._claim.turn_id, kind, data, fence=self._claim.fence)
            self._offsets[kind] += len(text)


def _limit_met(claim: Claim, view: View) -> Limit | None:
    if claim.seconds_left() < time_for_last_answer():
        return Limit.TIME
    used = view.usage.prompt_tokens + view.usage.completion_tokens
    if claim.agent.max_turn_tokens is not None and used >= claim.agent.max_turn_tokens:
        return Limit.TOKENS
    return None


def _without_calls(completion: Completion) -> Completion:
    """What a model that is asked a last time, without tools, may say; some ask for them all the same."""
    return replace(completion, tool_calls=(), reasoning="")


def _backoff(retries: int) -> float:
    """Exponential, with jitter, so that turns that failed together do not come back together."""
    return min(RETRY_MOST, RETRY_FIRST * 2.0**retries) * random.uniform(0.75, 1.25)  # noqa: S311 -- no secret
