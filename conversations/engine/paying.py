"""Paying for the model calls of turns, compactions and replays: each is reserved before it, and has a bill after it.

Where no budget applies, nothing is asked of the database but the prices and budgets there are, once a second; and each
time while the provider is left alone.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from django.conf import settings
from django.db import OperationalError
from django.utils import timezone

from agent import llm, outages, tokens
from agent.errors import LlmError
from agent.llm.base import Completion, ModelRequest
from agent.llm.breaker import breaker
from agent.models import Agent
from agent.spending import book, budgets
from agent.spending.bills import Bill, Reserved, bill_of
from agent.spending.budgets import Estimate, Payer
from agent.spending.prices import Price
from conversations.engine.lease import Claim
from conversations.engine.tracing import end_call
from nanohost.lib import traces
from nanohost.lib.database_threads import DatabaseThreads
from nanohost.lib.ids import new_id

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a model may be asked: the request, its answer bounded where a budget applies, and what was reserved."""

    request: ModelRequest
    call_id: UUID
    price: Price | None
    reserved: Reserved | None

    def bill(self, completion: Completion) -> Bill:
        """What the answer costs."""
        return bill_of(completion, model=self.request.model, price=self.price, reserved=self.reserved)


class Purse:
    """Pays for one piece of work. ``work_id``: the turn or the compaction. ``api_key_id``: what it was asked with."""

    def __init__(
        self,
        database: DatabaseThreads,
        *,
        work_id: UUID,
        conversation_id: UUID,
        owner_id: int,
        agent: Agent,
        api_key_id: int | None = None,
    ) -> None:
        self.database = database
        self.work_id, self.conversation_id = work_id, conversation_id
        self._agent = agent
        self._payer = Payer(owner_id=owner_id, agent_id=agent.pk, api_key_id=api_key_id)

    async def reserve(self, request: ModelRequest, *, estimated: int) -> Offer:
        """Reserve what a call may use. ``estimated``: tokens of the prompt, by an estimate that is not corrected.

        Raises :class:`agent.errors.BudgetExceeded`, :class:`agent.errors.ModelNotPriced` and
        :class:`agent.errors.NoProvider`.
        """
        choice = llm.choose(request.model, request.provider)
        known = book.fresh()
        if breaker.rests(choice.provider.name):  # but somebody may want it asked, just now
            known = await self.database(book.read_again)
        elif known is None:
            known = await self.database(book.read)
        now = timezone.now()
        price, limits = known.price_of((request.model, choice.model), now), budgets.limits_on(known, self._payer)
        call_id = new_id()
        if not limits:
            return Offer(request=request, call_id=call_id, price=price, reserved=None)
        bound = min(self._agent.answer_tokens(), request.max_tokens or self._agent.answer_tokens())
        estimate = Estimate(
            model=request.model,
            prompt_tokens=int(estimated * max(tokens.correction.ratio(request.model), 1.0)),
            completion_tokens=bound,
        )
        offered = replace(request, max_tokens=bound)
        if reserved := budgets.take_ahead(limits, estimate, price=price):
            return Offer(request=offered, call_id=reserved.call_id, price=price, reserved=reserved)
        try:
            reserved = await self.database(
                budgets.reserve,
                limits,
                estimate,
                price=price,
                call_id=call_id,
                work_id=self.work_id,
                conversation_id=self.conversation_id,
            )
        except BaseException:  # such as a cancellation, after which it may be stored all the same
            await self._give_back(call_id)
            raise
        return Offer(request=offered, call_id=call_id, price=price, reserved=reserved)

    async def release(self, offer: Offer) -> None:
        """Give back what was reserved for a call that has no answer."""
        if offer.reserved:
            await self._give_back(offer.call_id)

    async def _give_back(self, call_id: UUID) -> None:
        try:
            await self.database(budgets.release, call_id)
        except OperationalError as error:
            logger.warning("a reservation could not be released (%s); it ends with its lease", type(error).__name__)


def purse_of(claim: Claim, database: DatabaseThreads) -> Purse:
    """What pays for a turn."""
    return Purse(
        database,
        work_id=claim.turn_id,
        conversation_id=claim.conversation_id,
        owner_id=claim.owner_id,
        agent=claim.agent,
        api_key_id=claim.api_key_id,
    )


async def ask(
    purse: Purse, request: ModelRequest, *, estimated: int, pictures: Mapping[str, str] | None = None
) -> tuple[Completion, Bill]:
    """Ask a model within what may be spent; what was reserved is given back if it does not answer. Its answer is to be
    charged, whatever is made of it. ``pictures``: as :class:`ModelRequest` has them. Raises what
    :meth:`Purse.reserve` does, and :class:`LlmError`."""
    offer = await purse.reserve(request, estimated=estimated)
    asked = replace(offer.request, pictures=pictures) if pictures else offer.request
    span = traces.begin(traces.current())
    answered: tuple[Completion, Bill] | None = None
    error = "interrupted"
    try:
        completion = await llm.ask(asked, seconds=settings.LLM_TIMEOUT_SECONDS, work=purse.work_id)
        answered, error = (completion, offer.bill(completion)), ""
        return answered
    except BaseException as failure:
        error = failure.code if isinstance(failure, LlmError) else error
        await purse.release(offer)
        raise
    finally:
        if span:
            end_call(span, purse.conversation_id, offer.request, answered, error)
        await outages.tell(purse.database)
