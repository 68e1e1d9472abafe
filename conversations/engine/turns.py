"""Running turns. A worker advances a turn as far as it can: it claims it, steps, and stores every step before the next.

All turns of a process live on one event loop; what touches the database goes through a small pool of threads. No
thread, no connection and no transaction waits for a model.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import OperationalError

from agent import answer_schemas, llm, outages, tokens
from agent.errors import OUTAGES, AttachmentUnavailable, LlmBadResponse, LlmContextTooLong, LlmError, LlmRequestRefused
from agent.images import images_in
from agent.llm.base import Completion, Delta, ModelRequest
from agent.loop import AskCaller, CallModel, Finish, Limit, RunTools, next_step
from agent.spending import bills
from agent.spending.bills import Bill
from conversations import events, search
from conversations.attachments import store
from conversations.engine import caller, commands, deferred, doorbell, lease, snapshot, step_context, steps
from conversations.engine.consent import approvals, questions
from conversations.engine.deadlines import end_overdue_calls, time_for_last_answer
from conversations.engine.fallbacks import is_worth_another
from conversations.engine.lease import Claim
from conversations.engine.model_request import Asking, compact_to
from conversations.engine.paying import purse_of
from conversations.engine.results import answers_of
from conversations.engine.runner import Done, Runner
from conversations.engine.snapshot import Snapshot
from conversations.engine.step_context import StepContext
from conversations.engine.telling import Telling
from conversations.engine.tracing import end_call
from conversations.errors import FenceLost
from conversations.events.kinds import EventKind
from conversations.kinds import TURNS
from nanohost.lib import traces
from nanohost.lib.database import STORE_AT_A_STOP, Tries
from nanohost.lib.database_threads import DatabaseThreads
from nanohost.lib.lease import backoff
from nanohost.lib.logs import about
from nanohost.lib.redaction import redact_known_aside
from nanohost.lib.text import UNSTORABLE, duration

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Seconds before the first retry of a provider's error, at most; doubled each time, and never more than the last figure.
RETRY_FIRST, RETRY_MAX = 1.0, 60.0

# Turns whose workers died twice are poison turns, or stood beside one: one of them may be what kills workers, and those
# who are held beside it die with it each time. So few of them are held at once, and later each alone; the others are
# rescheduled by so many seconds.
MAX_POISON_TURNS = 8
RESCHEDULE_POISON = (1.0, 3.0)

# A model that was given all of a turn's time is stopped a little before its end: uvloop counts in milliseconds.
TIMERS_ARE_EARLY = 0.01


# An answer that is not in the form that was asked for is asked for again once.
MAX_INVALID_ANSWERS = 2

# Of what a provider wants to be sent back, as JSON; more than this is not kept.
MAX_THOUGHTS_CHARS = 1_000_000

# A claim, and what its first step is decided on, if that could be read.
Taken = tuple[Claim, StepContext | None]
Ending = Literal["", "cancelled", "taken over", "deadline", "shutdown"]


@dataclass
class _Held:
    claim: Claim
    task: "asyncio.Task[None]"
    ending: Ending = ""
    missed: int = 0
    span: traces.Span | None = None

    def end(self, why: Ending) -> None:
        """Stop the turn's task, which also closes its model's socket; ``why`` says what to store."""
        if not self.ending:
            self.ending = why
            self.task.cancel()


class TurnRunner(Runner):
    """The turns a process holds. Lives on one event loop; only :attr:`held` may be read from elsewhere."""

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        super().__init__(worker=worker, database=database)
        self._held: dict[UUID, _Held] = {}
        self._busy_with: set[UUID] = set()
        # What it was notified of meanwhile, and claimed, if it was.
        self._notified_meanwhile: dict[UUID, Taken | None] = {}
        # What is being claimed, what was and is on its way to the loop, and what is there.
        self._claiming: set[Future[None]] = set()
        self._coming: set[UUID] = set()
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
        return [*self._busy_with, *self._coming]

    def warm(self) -> None:
        llm.warm()  # which the loop must not wait for

    def describe(self) -> dict[str, Any]:
        providers = ",".join(llm.accesses())
        return {"turns_most": TURNS.places(), "provider": settings.LLM_PROVIDER, "providers": providers}

    def before_sweep(self) -> None:
        deferred.fire_due()
        approvals.expire_due()
        questions.expire_due()
        caller.expire_due()
        end_overdue_calls()
        search.take_in()

    def begin(self, row_id: UUID, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]) -> None:
        """Claim it before the event loop is involved, which saves one hand-over."""
        claiming = self.database.submit(partial(self.begin_here, row_id, loop=loop, then=then))
        self._claiming.add(claiming)

        def claimed(done: Future[None]) -> None:
            self._claiming.discard(done)
            if done.exception():
                then(done)

        claiming.add_done_callback(claimed)

    def begin_here(self, row_id: UUID, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]) -> None:
        if row_id in self._busy_with or row_id in self._coming:
            super().begin(row_id, loop=loop, then=then)
            return
        try:
            taken = claim_and_load(row_id, worker=self.worker)
        except OperationalError:
            super().begin(row_id, loop=loop, then=then)  # which tries again
            return
        if taken is None:
            nothing_done: Future[None] = Future()
            nothing_done.set_result(None)
            then(nothing_done)
        else:
            self.begin_claimed(taken, loop=loop, then=then)

    def begin_claimed(self, claimed: Taken, *, loop: asyncio.AbstractEventLoop, then: Callable[[Done], None]) -> None:
        turn_id = claimed[0].turn_id
        self._coming.add(turn_id)

        async def advance() -> None:
            self._coming.discard(turn_id)
            await self.advance(turn_id, claimed)

        loop.call_soon_threadsafe(lambda: loop.create_task(advance()).add_done_callback(then))

    async def advance(self, turn_id: UUID, taken: Taken | None = None) -> None:
        """Take a turn, unless it was ``taken`` already, and run it until it waits or ends; does nothing if it is not to
        be had.

        One that we are notified of while we are busy with it is looked at once more afterwards: the reason for that may
        have come too late to be seen. It is not claimed a second time, even if its lease ran out while the process
        stalled.
        """
        if turn_id in self._busy_with:
            self._notified_meanwhile[turn_id] = taken or self._notified_meanwhile.get(turn_id)
            return
        task = asyncio.current_task()
        assert task is not None
        self._advancing.add(task)
        task.add_done_callback(self._advancing.discard)
        self._busy_with.add(turn_id)
        try:
            await self._advance(turn_id, task, taken)
            while turn_id in self._notified_meanwhile:
                taken = self._notified_meanwhile.pop(turn_id)
                if taken or not self._stopping:
                    await self._advance(turn_id, task, taken)
        except OperationalError as error:
            logger.warning("the turn could not be stored (%s); a sweep finds it", type(error).__name__)
        finally:
            self._busy_with.discard(turn_id)
            self._notified_meanwhile.pop(turn_id, None)

    async def _advance(self, turn_id: UUID, task: "asyncio.Task[None]", taken: Taken | None = None) -> None:
        if taken is None:
            tries = Tries("a claim", seconds=settings.TURN_LEASE_SECONDS)
            taken = await self.database.store(tries, claim_and_load, turn_id, worker=self.worker)
        if taken is None:
            return
        claim, context = taken
        if not self._may_hold(claim):
            await self._reschedule_poison(claim)
            return
        if claim.fence == 1:  # later claims go on with it
            events.publish(turn_id, EventKind.TURN_STARTED, fence=claim.fence)
        held = self._held[turn_id] = _Held(claim, task)
        about_it: dict[str, object] = {"requestId": claim.request_id, "turn": turn_id}
        if traces.is_on:
            held.span = _begin_span(claim)
            about_it["traceId"] = traces.trace_id(claim.traceparent)
        with about(**about_it, conversation=claim.conversation_id):
            try:
                if self._stopping:
                    held.end("shutdown")
                await self._run(claim, context)
            except asyncio.CancelledError:
                await self._store_ending(held)
            except FenceLost:
                await self._cancel_or_let_go(claim)
            except OperationalError:
                raise
            except Exception:
                logger.exception("the turn stumbled over a fault of ours")
                await self._retry_or_fail(claim, code="turn_error", detail="An internal fault; see the log.")
            finally:
                if self._held.get(turn_id) is held:
                    del self._held[turn_id]
                if held.span:
                    _end_span(held.span, held)

    def _may_hold(self, claim: Claim) -> bool:
        """Whether this turn, if it may be a poison turn, may run beside those that are held."""
        if claim.attempts < 2 or claim.attempts > settings.TURN_MAX_ATTEMPTS:
            return True
        poison = [claim, *(held.claim for held in self._held.values() if held.claim.attempts >= 2)]
        alone = any(each.attempts >= min(3, settings.TURN_MAX_ATTEMPTS) for each in poison)
        return len(poison) <= (1 if alone else MAX_POISON_TURNS)

    async def _reschedule_poison(self, claim: Claim) -> None:
        """Leave what may be a poison turn to another worker, or to a later moment."""
        seconds = random.uniform(*RESCHEDULE_POISON)  # noqa: S311 -- no secret
        try:
            await self._stored(steps.reschedule, claim, seconds=seconds)
        except FenceLost:
            await self._stored(steps.cancel_if_asked, claim)
            return
        self._notify_in(claim.turn_id, seconds)

    async def _run(self, claim: Claim, context: StepContext | None) -> None:
        """Step until the turn waits or ends. A database that goes away in between is waited for: what is stored then
        tells how to go on."""
        tries = self._tries("a turn", claim)
        while True:
            try:
                return await self._go_on(claim, context)
            except OperationalError as error:
                wait, context = tries.wait_after(error), None
            await asyncio.sleep(wait)

    async def _go_on(self, claim: Claim, context: StepContext | None) -> None:
        if claim.attempts > settings.TURN_MAX_ATTEMPTS:
            detail = f"{claim.attempts} workers in a row died while they ran it."
            await self.database(steps.fail, claim, code="turn_crashed", detail=detail)
            return
        context = context or await self.database(step_context.load, claim)
        while context:
            context = await self._step(claim, context)

    async def _step(self, claim: Claim, context: StepContext) -> StepContext | None:
        """Take one step and store it; returns the context of the next one, or None when the turn waits or has ended."""
        if claim.seconds_left() <= 0:
            await self.database(steps.fail, claim, code="turn_timeout")
            return None
        stored = context.snapshot
        if stored.command:
            again = partial(self.database.store, self._tries("what became of a command", claim))
            await commands.carry_out(claim, context, self.database, stored=again)
            return None
        if len(stored.invalid_answers) >= MAX_INVALID_ANSWERS:
            wrong = stored.invalid_answers[-1]["wrong"]
            await self.database(steps.fail, claim, code="answer_not_valid", detail=wrong)
            return None
        limit = _limit_met(claim, stored)
        callers = claim.callers_tools
        step = next_step(stored.own, max_rounds=claim.max_rounds, limit=limit, callers_tools=callers)
        if isinstance(step, RunTools):
            return await self.database(answer_calls, claim, stored)
        if isinstance(step, AskCaller):
            await self._stored(steps.wait_for_caller, claim, step.calls)
            return None
        completion, keep_tokens, sent, bill = Completion(), None, None, bills.NOTHING
        if isinstance(step, CallModel):
            asking = Asking(context, step.limit)
            try:
                completion, bill = await self._ask(claim, stored, asking, step.limit)
            except LlmError as error:
                return await self._fall_back_or_wait(claim, context, error, sent=asking.record)
            keep_tokens, sent = compact_to(context, asking.request), asking.record
            told = [*stored.own, completion.as_message()]
            step = next_step(told, max_rounds=claim.max_rounds, limit=step.limit, callers_tools=callers)
        if isinstance(step, RunTools | AskCaller):
            met = step.limit if isinstance(step, RunTools) else None
            given: dict[str, Any] = {"limit": met, "before": stored.calls, "sent": sent, "bill": bill}
            given["number"] = stored.answers
            waits = await self._paid(steps.store_calls, claim, completion, **given, taint=context.taint)
            return None if waits else await self.database(step_context.load, claim)
        assert isinstance(step, Finish)
        reply = step.reply
        if sent and (form := claim.answer_format):
            # In a thread: a hostile answer may take a second. It is JSON alone, with no word of a limit that was met.
            checked = await asyncio.to_thread(answer_schemas.check, completion.content, form)
            if checked.wrong:
                return await self._keep_invalid(claim, context, completion, wrong=checked.wrong, sent=sent, bill=bill)
            reply = checked.text
            if reply != completion.content:
                await _publish_whole(claim, stored, replace(completion, content=reply))
        given = {"reply": reply, "has_called": stored.calls > 0, "sent": sent}
        given |= {"compact_to": keep_tokens, "summary_seq": stored.summary_seq}
        rounds = stored.rounds_of(callers) if callers else 0
        given["number"] = stored.answers
        await self._paid(steps.finish, claim, completion, **given, rounds=rounds, bill=bill, taint=context.taint)
        return None

    async def _keep_invalid(
        self, claim: Claim, context: StepContext, completion: Completion, *, wrong: str, sent: Any, bill: Bill
    ) -> StepContext:
        """After an answer that is not in the form that was asked for: what the next step is decided on, which asks for
        it again, once."""
        earlier = context.snapshot.invalid_answers
        await self._paid(steps.keep_invalid, claim, completion, earlier=earlier, wrong=wrong, sent=sent, bill=bill)
        _void_what_was_published(claim, context.snapshot)
        return await self.database(step_context.load, claim)

    async def _paid(self, store: Callable[..., T], claim: Claim, completion: Completion, **given: Any) -> T:
        """Store an answer. Of a turn that was lost or cancelled meanwhile nobody wants it, but it was paid for."""
        try:
            return await self._stored(store, claim, completion, **given)
        except FenceLost:
            await self._stored(steps.charge_lost, claim, given["bill"])
            raise

    async def _stored(
        self, store: Callable[Concatenate[Claim, P], T], claim: Claim, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Store the outcome of a step, also while the database is away: an answer was paid for."""
        return await self.database.store(self._tries("what became of a turn", claim), store, claim, *args, **kwargs)

    def _tries(self, what: str, claim: Claim) -> Tries:
        """As long as the turn has time, and for a while after: it is to end as it did."""
        seconds = STORE_AT_A_STOP if self._stopping else max(claim.seconds_left(), settings.TURN_LEASE_SECONDS)
        return Tries(what, seconds=seconds)

    async def _ask(
        self, claim: Claim, stored: Snapshot, asking: Asking, limit: Limit | None
    ) -> tuple[Completion, Bill]:
        """Ask the model, within its timeout and the turn's deadline, and what budgets have left; raises
        :class:`LlmError`."""
        asking.check()
        purse = purse_of(claim, self.database)
        held = self._held.get(claim.turn_id)
        while True:
            pictures = await pictures_of(asking.request)
            telling = _telling(claim, stored)
            offer = await purse.reserve(asking.request, estimated=asking.estimated)
            span = traces.begin(traces.of(held.span, "")) if held and held.span else None
            answered: tuple[Completion, Bill] | None = None
            error = "interrupted"
            try:
                seconds = min(settings.LLM_TIMEOUT_SECONDS, claim.seconds_left())
                work = claim.turn_id
                request = replace(offer.request, pictures=pictures) if pictures else offer.request
                completion = await llm.ask(request, seconds=seconds, on_delta=telling, work=work)
                bill = offer.bill(completion)
                answered, error = (completion, bill), ""
                break
            except LlmContextTooLong as failure:
                error = failure.code
                await purse.release(offer)
                if not asking.make_smaller():
                    raise
            except LlmRequestRefused as failure:
                error = failure.code
                await purse.release(offer)
                if not asking.put_into_words():
                    raise
            except BaseException as failure:
                error = failure.code if isinstance(failure, LlmError) else error
                await purse.release(offer)
                raise
            finally:
                if not answered:
                    telling.stop()
                if span:
                    end_call(span, claim.conversation_id, offer.request, answered, error)
                await outages.tell(self.database)
        await telling.end()
        tokens.correction.learn(
            offer.request.model, estimated=asking.estimated, reported=completion.usage.prompt_tokens
        )
        calls = () if stored.invalid_answers else completion.tool_calls
        # One that the caller has bounded may have used up its tokens before it said anything.
        is_bounded = completion.is_cut and asking.request.max_tokens is not None
        if not completion.content.strip() and not calls and not limit and not is_bounded:
            await self._stored(steps.charge, claim, completion, bill)
            raise LlmBadResponse("an empty answer")
        completion = await redacted_answer(completion)
        return (_without_calls(completion) if limit or stored.invalid_answers else completion), bill

    async def _fall_back_or_wait(
        self, claim: Claim, context: StepContext, error: LlmError, *, sent: dict[str, Any]
    ) -> StepContext | None:
        """After a provider's error: have the agent's next model asked, if it has one and trying again has not helped;
        what its first step is decided on is returned."""
        stored = context.snapshot
        if not (following := claim.model_after(context.model)) or not _is_worth_another(claim, stored, error):
            await self._give_up_or_wait(claim, stored, error, sent=sent)
            return None
        reason = f"{context.model} has failed: {error.code} ({error.detail})"
        logger.info("%s is asked in its place", following)
        await self._stored(steps.fall_back, claim, model=following, reason=reason, sent=sent)
        _void_what_was_published(claim, stored)
        return await self.database(step_context.load, claim)

    async def _give_up_or_wait(self, claim: Claim, stored: Snapshot, error: LlmError, *, sent: dict[str, Any]) -> None:
        """After a provider's error: wait in the database and try again, or fail with its code."""
        if claim.seconds_left() <= TIMERS_ARE_EARLY:
            await self._stored(steps.fail, claim, code="turn_timeout", sent=sent)
            return
        if not error.transient:
            await self._stored(steps.fail, claim, code=error.code, detail=error.detail, sent=sent)
            return
        await self._retry_or_fail(
            claim, code=error.code, detail=error.detail, stored=stored, wait=error.retry_after, sent=sent
        )

    async def _retry_or_fail(
        self,
        claim: Claim,
        *,
        code: str,
        detail: str,
        stored: Snapshot | None = None,
        wait: float | None = None,
        sent: dict[str, Any] | None = None,
    ) -> None:
        """Wait in the database and try again, while that may help; else fail. ``wait``: as the provider asks, in
        seconds."""
        try:
            stored = await self._stored(snapshot.load, claim) if stored is None else stored
            # Of one kind: what was counted in an outage is not held against an answer that makes no sense.
            before = stored.retries if (stored.retry_code in OUTAGES) == (code in OUTAGES) else 0
            seconds = _next_try(claim, stored, code, before, wait)
            if seconds is None:
                tried = f"; tried {before + 1} times in {duration(stored.retrying_for)}" if before else ""
                await self._stored(steps.fail, claim, code=code, detail=f"{detail}{tried}", sent=sent)
                return
            told = f"{detail}; it asks to wait {duration(wait)}" if wait else detail
            failed = steps.Failed(times=before + 1, code=code, detail=told)
            await self._stored(steps.wait_for_retry, claim, seconds=seconds, failed=failed, sent=sent)
        except FenceLost:
            await self._stored(steps.cancel_if_asked, claim)
            return
        self._notify_in(claim.turn_id, seconds)

    def _notify_in(self, turn_id: UUID, seconds: float) -> None:
        timer = asyncio.create_task(self._notify_later(turn_id, seconds))
        self._timers.add(timer)
        timer.add_done_callback(self._timers.discard)

    async def _notify_later(self, turn_id: UUID, seconds: float) -> None:
        """Notify on time. The sweeper would notify too, but only at its next round; this is lost with the process."""
        await asyncio.sleep(seconds + 0.01)
        try:
            await self.database(doorbell.notify, TURNS, turn_id)
        except OperationalError as error:
            logger.warning("a turn's workers could not be notified (%s); a sweep finds it", type(error).__name__)

    async def _store_ending(self, held: _Held) -> None:
        """Store why a task was stopped."""
        claim = held.claim
        try:
            if held.ending == "cancelled":
                await self._stored(steps.cancel_if_asked, claim)
            elif held.ending == "deadline":
                await self._stored(steps.fail, claim, code="turn_timeout")
            elif held.ending == "shutdown":
                await self._stored(steps.release, claim)
            else:
                logger.info("the turn was taken over or ended elsewhere; this worker stops")
        except FenceLost:
            await self._cancel_or_let_go(claim)

    async def _cancel_or_let_go(self, claim: Claim) -> None:
        if not await self._stored(steps.cancel_if_asked, claim):
            logger.info("the turn was taken over or ended elsewhere; this worker stops")

    async def watch(self) -> None:
        """Stop turns that are cancelled, taken over or past their deadline."""
        if not self._held:
            return
        looked_at = list(self._held.values())
        ours = await self.database(lease.still_held, [held.claim for held in looked_at])
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

    async def renew(self, database: DatabaseThreads) -> None:
        if self._held:
            await database(lease.renew, [held.claim for held in self._held.values()], worker=self.worker)

    async def stop(self) -> None:
        self._stopping = True
        for timer in self._timers:
            timer.cancel()
        for held in self._held.values():
            held.end("shutdown")
        # Those that are just being claimed see that it stops as soon as they are held.
        while claiming := set(self._claiming):
            await asyncio.wait([asyncio.wrap_future(each) for each in claiming])
        await asyncio.sleep(0)  # what they have handed over begins
        while self._advancing:
            await asyncio.wait(set(self._advancing))


def claim_and_load(turn_id: UUID, *, worker: str) -> Taken | None:
    """Claim a turn and load its step context in one visit to the database; if it has waited for its calls, their
    results are stored with the claim, where they can be."""
    try:
        claim = lease.claim(turn_id, worker=worker, answers_of=answers_of)
    except OperationalError:
        raise
    except Exception:
        # Whoever holds the turn meets the fault again, and then it is counted: the turn ends some day.
        logger.exception("the answers to a turn's calls could not be stored with its claim")
        claim = lease.claim(turn_id, worker=worker)
    return None if claim is None else (claim, step_context.as_claimed(claim))


def _begin_span(claim: Claim) -> traces.Span | None:
    """The span of what this process does for a turn. A claim that was made apart from its row has one below it."""
    span = traces.begin(claim.traceparent, at=claim.claimed_from)
    context = traces.of(span, claim.traceparent)
    traces.enter(context)
    if claim.claimed_from and (claimed := traces.begin(context, at=claim.claimed_from)):
        traces.end(claimed, traces.CLAIM, claim.turn_id, claim.fence, at=claim.claimed_at)
    return span


def _end_span(span: traces.Span, held: _Held) -> None:
    claim = held.claim
    told = (claim.agent.name, claim.conversation_id, claim.turn_id, claim.fence)
    traces.end(span, traces.RUN, *told, about=claim.agent.name, error=held.ending.replace(" ", "_"))


def answer_calls(claim: Claim, stored: Snapshot) -> StepContext:
    steps.store_results(claim, stored)
    return step_context.load(claim)


def _telling(claim: Claim, stored: Snapshot) -> Telling:
    return Telling(partial(events.publish, claim.turn_id, fence=claim.fence), message=stored.answers)


def _void_what_was_published(claim: Claim, stored: Snapshot) -> None:
    """The pieces of the answer that were published are void."""
    events.publish(claim.turn_id, EventKind.MESSAGE_RESET, {"message": stored.answers}, fence=claim.fence)


async def _publish_whole(claim: Claim, stored: Snapshot, completion: Completion) -> None:
    """Publish the whole answer, as it is to be stored, in place of its pieces."""
    _void_what_was_published(claim, stored)
    telling = _telling(claim, stored)
    telling(Delta(content=completion.content, reasoning=completion.reasoning))
    await telling.end()


def _limit_met(claim: Claim, stored: Snapshot) -> Limit | None:
    if claim.seconds_left() < time_for_last_answer():
        return Limit.TIME
    used = stored.usage.prompt_tokens + stored.usage.completion_tokens
    most = claim.options.most_tokens(claim.agent.max_turn_tokens)
    if most is not None and used >= most:
        return Limit.TOKENS
    return None


def _without_calls(completion: Completion) -> Completion:
    """What a model that is asked a last time, without tools, may say; some ask for them all the same."""
    return replace(completion, tool_calls=())


async def pictures_of(request: ModelRequest) -> dict[str, str]:
    """The bytes of the pictures that a model is to be sent. They are read in a thread that is not the database's: a
    storage may be far away."""
    references = list(images_in(request.messages))
    if not references:
        return {}
    try:
        return await asyncio.to_thread(store.pictures, references)
    except Exception as error:  # each storage has errors of its own
        logger.warning("a picture could not be read from the storage (%s)", type(error).__name__)
        raise AttachmentUnavailable(f"a picture could not be read ({type(error).__name__})") from None


async def redacted_answer(completion: Completion) -> Completion:
    """An answer without the secrets that are known. What a provider wants back as it is, it is not sent back then."""
    redacted = replace(
        completion,
        content=await redact_known_aside(completion.content),
        reasoning=await redact_known_aside(completion.reasoning),
    )
    return redacted if await _is_fit(completion.thoughts) else replace(redacted, thoughts=())


async def _is_fit(thoughts: tuple[dict[str, Any], ...]) -> bool:
    """Whether these can be kept as they are: no database refuses them, they are not too large, and hold no secret."""
    if not thoughts:
        return True
    try:
        whole = json.dumps(thoughts, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    if len(whole) > MAX_THOUGHTS_CHARS or "\\u0000" in whole or UNSTORABLE.search(whole):
        return False
    return await redact_known_aside(whole) == whole


def _is_worth_another(claim: Claim, stored: Snapshot, error: LlmError) -> bool:
    """Whether to ask another model in place of one that has failed."""
    if claim.seconds_left() <= TIMERS_ARE_EARLY:
        return False
    return is_worth_another(error, retries=stored.retries, retrying_for=stored.retrying_for)


def _next_try(claim: Claim, stored: Snapshot, code: str, before: int, wait: float | None) -> float | None:
    """Seconds until the next try of what has failed so often ``before``; None if there is to be none.

    An outage is waited for until LLM_RETRY_SECONDS have passed since its first failure, or the turn's time is up: near
    the end the waits become shorter, so that the last try is not lost. A provider that asks for a longer wait than
    there is time for is not asked again. What is no outage is tried again TURN_MAX_ATTEMPTS times.
    """
    retrying_for = stored.retrying_for if before else 0.0
    left = min(claim.seconds_left(), settings.LLM_RETRY_SECONDS - retrying_for)
    if left < RETRY_FIRST or (code not in OUTAGES and before >= settings.TURN_MAX_ATTEMPTS):
        return None
    seconds = min(backoff(before, first=RETRY_FIRST, longest=RETRY_MAX), left / 2)
    if wait is not None:
        # Not earlier than our own: a provider that says "in 0.01 s" each time would be asked without end.
        seconds = max(seconds, wait * random.uniform(1.0, 1.1))  # noqa: S311 -- no secret
    return seconds if seconds < left else None
