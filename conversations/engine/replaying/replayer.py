"""The replays that a worker process works on, on its event loop; see :mod:`conversations.engine.replaying.replays`."""

import asyncio
import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.conf import settings

from agent import llm, tokens
from agent.errors import LlmBadResponse, LlmError
from agent.llm.base import Completion, ModelRequest, Usage, with_unique_ids
from agent.loop import CallModel, ChatMessage, Finish, Limit, RunTools, next_step
from agent.prompt import shown_result, with_last_word
from conversations.engine.leased_runner import LeasedRunner
from conversations.engine.paying import Purse, ask
from conversations.engine.replaying import grading, replays
from conversations.engine.replaying.frozen import Frozen, answer_unrecorded, freeze
from conversations.engine.replaying.replays import Hold
from conversations.engine.turns import pictures_of, redacted_answer
from conversations.errors import CannotReplay, FenceLost
from nanohost.lib import traces
from nanohost.lib.logs import about
from tools import gate

logger = logging.getLogger(__name__)


class Replayer(LeasedRunner[Hold]):
    """Works on replays, each a task of its own. Lives on one event loop."""

    noun = "a replay"

    def warm(self) -> None:
        llm.warm()  # which the loop must not wait for

    def claim_row(self, row_id: UUID) -> Hold | None:
        return replays.claim(row_id, worker=self.worker)

    def renew_row(self, hold: Hold) -> bool:
        return replays.renew(hold)

    def release_row(self, hold: Hold) -> None:
        replays.release(hold)

    def about(self, hold: Hold) -> AbstractContextManager[None]:
        return about(turn=hold.row.turn_id)

    async def work(self, hold: Hold) -> None:
        span = traces.begin(context := traces.accepted("")) if traces.is_on else None
        if span:
            traces.enter(traces.of(span, context))
        try:
            await self._work(hold)
        except FenceLost:
            logger.info("somebody else has taken or ended a replay, or it was deleted")
        except Exception:
            logger.exception("a replay stumbled over a fault of ours")
            detail = "The server failed; the failure is logged."
            await self.stored(replays.fail, hold, code="turn_error", detail=detail)
        finally:
            if span:
                traces.end(span, traces.REPLAY, hold.id, hold.row.turn_id)
        if hold.row.run_id:
            await self._settle(hold.row.run_id)

    async def _settle(self, run_id: UUID) -> None:
        """Store the report of the run if this was the last of it. If it cannot be stored now, a system job does it."""
        try:
            await self.database(grading.settle, run_id)
        except Exception:
            logger.exception("a run's report could not be stored")

    async def _work(self, hold: Hold) -> None:
        if hold.row.failures >= replays.MAX_FAILURES:
            detail = f"Its workers died, or its provider failed, {replays.MAX_FAILURES} times."
            await self.stored(replays.fail, hold, code="turn_crashed", detail=detail)
            return
        try:
            frozen = await self.database(freeze, hold.row)
            replay = _Replay(self, hold, frozen)
            result = await replay.run()
            grades = await replay.grade(result["words"])
        except CannotReplay as error:
            await self.stored(replays.fail, hold, code=error.code, detail=str(error))
        except LlmError as error:
            logger.warning("a replay has failed: %s", error.code)
            told: dict[str, Any] = {"code": error.code, "detail": error.detail}
            if error.transient:
                await self.stored(replays.reschedule, hold, **told, seconds=error.retry_after)
            else:
                await self.stored(replays.fail, hold, **told)
        else:
            await self.stored(replays.finish, hold, result, grades)

    async def charge(self, hold: Hold, completion: Completion, bill: Any) -> None:
        """Store what an answer has cost."""
        await self.stored(replays.charge, hold, completion, bill)


@dataclass
class _Replay:
    """One replay under way: the loop over a copy of what the turn was asked."""

    runner: Replayer
    hold: Hold
    frozen: Frozen
    used: Usage = field(default_factory=Usage)
    cost: int | None = 0
    ms: int = 0
    answers: int = 0
    calls: list[dict[str, str]] = field(default_factory=list)

    async def run(self) -> dict[str, Any]:
        """Take steps until it is done; returns what came of it. Raises :class:`LlmError`."""
        until = asyncio.get_running_loop().time() + settings.TURN_TIMEOUT_SECONDS
        own = list(self.frozen.own)
        while True:
            step = next_step(own, max_rounds=self.frozen.max_rounds, limit=self._limit(until))
            match step:
                case CallModel(limit=limit):
                    own.append(await self._ask(own, limit))
                case RunTools(calls=calls, limit=limit):
                    own += [await self._answered(call, limit) for call in calls]
                case Finish(reply=reply):
                    return self._result(reply)

    def _limit(self, until: float) -> Limit | None:
        if asyncio.get_running_loop().time() > until:
            return Limit.TIME
        most = self.frozen.agent.max_turn_tokens
        return Limit.TOKENS if most and self.used.prompt_tokens + self.used.completion_tokens >= most else None

    def _result(self, reply: str) -> dict[str, Any]:
        return {
            "words": reply,
            "calls": self.calls,
            "promptTokens": self.used.prompt_tokens,
            "completionTokens": self.used.completion_tokens,
            "cost": self.cost,
            "ms": self.ms,
            "modelCalls": self.answers,
            "doubts": self.frozen.doubts,
        }

    async def _answered(self, call: dict[str, Any], limit: Limit | None) -> ChatMessage:
        """A call with its answer: from the record, or in place of running it."""
        answer, source = self.frozen.record.answer(call) if not limit else None, "record"
        if limit:
            refused = gate.Refused(f"limit:{limit}", f"The turn's limit was met: {limit}.")
            answer, source = refused.outcome().result, "refused"
        elif answer is None:
            answer = await self.runner.database(answer_unrecorded, self.frozen, call)
            source = "refused" if '"status": "REJECTED"' in answer else "simulated"
        function = call["function"]
        self.calls.append(
            {"name": function["name"], "arguments": function["arguments"], "answer": answer, "source": source}
        )
        return {"role": "tool", "tool_call_id": call["id"], "content": answer}

    async def _ask(self, own: list[ChatMessage], limit: Limit | None) -> ChatMessage:
        completion, cost = await self._pay_for(self._request(own, limit))
        self._count(completion, cost)
        if limit:
            completion = replace(completion, tool_calls=())
        if not completion.content.strip() and not completion.tool_calls and not limit:
            raise LlmBadResponse("an empty answer")
        return self._as_message(await redacted_answer(completion), own)

    async def _pay_for(self, request: ModelRequest) -> tuple[Completion, int | None]:
        await self.runner.database(replays.check_run, self.hold)
        estimated = tokens.estimated_tools(request.tools) + sum(map(tokens.estimated_message, request.messages))
        pictures = await pictures_of(request)
        completion, bill = await ask(self._purse(), request, estimated=estimated, pictures=pictures)
        await self.runner.charge(self.hold, completion, bill)
        return completion, bill.cost

    async def grade(self, words: str) -> list[dict[str, Any]] | None:
        """Hold the answer against the graders of its run; None if it is of none."""
        run = self.hold.row.run
        if run is None:
            return None
        expected = self.hold.row.expected or {}
        found = []
        for grader in run.graders:
            if grader["kind"] == grading.JUDGE:
                wanted = expected.get("words", self.frozen.original)
                request = grading.judging(grader, self.frozen.own, wanted=wanted, words=words)
                completion, _ = await self._pay_for(request)
                found.append(grading.verdict_of((await redacted_answer(completion)).content))
            else:
                found.append(
                    await asyncio.to_thread(grading.grade, grader, words, expected, original=self.frozen.original)
                )
        return found

    def _count(self, completion: Completion, cost: int | None) -> None:
        self.used += completion.usage
        self.cost = None if cost is None or self.cost is None else self.cost + cost
        self.ms += completion.took_ms
        self.answers += 1

    def _as_message(self, completion: Completion, own: list[ChatMessage]) -> ChatMessage:
        taken = {call["id"] for each in own for call in each.get("tool_calls", ())}
        calls = with_unique_ids(completion.tool_calls, taken=taken, fresh=lambda: f"call_{len(own)}_{len(taken)}")
        return replace(completion, tool_calls=calls).as_message()

    def _request(self, own: list[ChatMessage], limit: Limit | None) -> ModelRequest:
        """The turn's first request, with what was said since."""
        first = self.frozen.request
        since = [
            each | {"content": shown_result(each["content"], settings.TOOL_RESULT_PROMPT_CHARS)}
            if each["role"] == "tool"
            else each
            for each in own[len(self.frozen.own) :]
        ]
        if since:  # a choice of a tool was for the first
            first = replace(first, tool_choice="", must_call=False)
        if not limit:
            return replace(first, messages=[*first.messages, *since])
        system, *rest = first.messages
        last = system | {"content": with_last_word(str(system["content"]), limit)}
        return replace(first, messages=[last, *rest, *since], tools=[])

    def _purse(self) -> Purse:
        return Purse(
            self.runner.database,
            work_id=self.hold.id,
            conversation_id=self.frozen.conversation_id,
            owner_id=self.frozen.owner_id,
            agent=self.frozen.agent,
        )
