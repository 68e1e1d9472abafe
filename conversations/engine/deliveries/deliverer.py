"""The deliveries that a worker process sends, on its event loop; see :mod:`conversations.deliveries.outbox`."""

import asyncio
import logging
from collections.abc import Callable, Collection
from uuid import UUID

from django.db import OperationalError

from conversations.channels import sending
from conversations.deliveries import emails, outbox, webhooks
from conversations.deliveries.outbox import Hold, Outcome
from conversations.engine import sweeper
from conversations.engine.deliveries import undelivered
from conversations.engine.deliveries.typing_marks import TypingMarks
from conversations.engine.own_thread import in_own_thread
from conversations.engine.runner import Runner
from conversations.engine.tracing import context_of
from conversations.kinds import DELIVERIES
from conversations.models import Delivery
from nanohost.lib import traces
from nanohost.lib.database import STORE_AT_A_STOP, Tries
from nanohost.lib.database_threads import DatabaseThreads

logger = logging.getLogger(__name__)

# How each channel sends: without the database, in a thread.
SENDERS: dict[str, Callable[[Delivery], Outcome]] = {
    Delivery.Channel.WEBHOOK: webhooks.send,
    Delivery.Channel.EMAIL: emails.send,
    Delivery.Channel.CHAT: sending.send,
}

# Seconds for which a process that stops waits for answers, and tries to store one while the database is away.
WAIT_AT_A_STOP, STORE_SECONDS = 1.0, 60.0


def turn_of(delivery: Delivery) -> str:
    """The turn that a delivery tells of, or that has said it; empty: none."""
    told = delivery.turn_id or (delivery.data.get("turnId") if isinstance(delivery.data, dict) else None)
    return str(told or "")


class Deliverer(Runner):
    """Sends deliveries, each a task of its own. Lives on one event loop."""

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        super().__init__(worker=worker, database=database)
        self._working: set[asyncio.Task[None]] = set()
        self._held: dict[UUID, Hold] = {}
        self._marks = TypingMarks(worker=worker, database=database)
        self._stopping = False

    @property
    def held(self) -> Collection[UUID]:
        return list(self._held)

    async def advance(self, delivery_id: UUID) -> None:
        """Send a delivery; then, as long as there are some, others that nobody had room for. Does nothing if it is not
        claimable."""
        task = asyncio.current_task()
        assert task is not None
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        try:
            next_id: UUID | None = delivery_id
            while next_id:
                hold = await self.database(outbox.claim, next_id, worker=self.worker)
                if hold is None:
                    return
                await self._deliver(hold)
                if self._stopping:
                    return
                found = await self.database(sweeper.find, DELIVERIES, wanted=1, held=self.held)
                next_id = found[0] if found else None
        except OperationalError as error:
            logger.warning("a delivery must wait: the database is away (%s); a sweep finds it", type(error).__name__)

    async def _deliver(self, hold: Hold) -> None:
        self._held[hold.id] = hold
        try:
            outcome = await self._attempt(hold)
            if outcome.error:
                logger.info("delivery %s of %s: %s", hold.id, hold.delivery.kind, outcome.error)
            seconds = STORE_AT_A_STOP if self._stopping else STORE_SECONDS
            await self.database.store(Tries("a delivery", seconds=seconds), undelivered.settle, hold, outcome)
        except asyncio.CancelledError:
            # Its thread may still get through to the receiver, who knows the next one by its id.
            let_go: Callable[[Hold], object] = outbox.release
            if hold.delivery.account_id and not sending.may_be_sent_again(hold.delivery):
                let_go = undelivered.leave_in_doubt
            await self.database.store(Tries("a delivery", seconds=STORE_AT_A_STOP), let_go, hold)
        finally:
            self._held.pop(hold.id, None)

    async def _attempt(self, hold: Hold) -> Outcome:
        if hold.delivery.attempts > outbox.MAX_ATTEMPTS:
            return Outcome(error="Its workers died, again and again.", is_final=True)
        since = hold.in_doubt_for
        if since is not None and not sending.may_be_sent_again(hold.delivery, after=since):
            return Outcome(error="An attempt ended in the middle: it may have arrived.", in_doubt=True)
        span = await self._begin_span(hold.delivery) if traces.is_on else None
        try:
            outcome = await in_own_thread(lambda: SENDERS[hold.delivery.channel](hold.delivery))
        except Exception as error:
            logger.exception("a delivery stumbled over a fault of ours")
            outcome = Outcome(error=f"A fault of the host: {type(error).__name__}.", may_have_arrived=True)
        if span:
            row, failed = hold.delivery, str(outcome.status or "failed") if outcome.error else ""
            told = (row.pk, row.kind, row.attempts, outcome.status, turn_of(row))
            traces.end(span, traces.DELIVERY, *told, about=row.channel, error=failed)
        return outcome

    async def _begin_span(self, delivery: Delivery) -> traces.Span | None:
        """The span of an attempt, below what its turn was asked by; webhooks are told of it in a header."""
        turn_id = turn_of(delivery)
        context = await self.database(context_of, turn_id) if turn_id else ""
        span = traces.begin(context)
        delivery.traceparent = traces.of(span, context)
        return span

    async def watch(self) -> None:
        self._marks.go_on()

    async def renew(self, database: DatabaseThreads) -> None:
        if self._held:
            await database(outbox.renew, self.held, worker=self.worker)

    async def stop(self) -> None:
        self._stopping = True
        await self._marks.stop()
        if self._working:
            await asyncio.wait(set(self._working), timeout=WAIT_AT_A_STOP)
        for task in self._working:
            task.cancel()
        while self._working:
            await asyncio.wait(set(self._working))
