"""The hub: all subscriptions of a web process to the ends and events of turns.

Lives on one event loop. Events come from the transport; since it may drop some, the rows of all turns that are waited
for are looked at every two seconds, and at once when events may have been missed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from uuid import UUID

from conversations.events import Event, Success, transport
from conversations.events.wire import as_sse

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


class Subscription:
    """A subscription to a turn and its events, shared by all its readers."""

    def __init__(self) -> None:
        # Whether there is a row of it to be looked at.
        self.exists = False
        self.ended = False
        # How often that was told: of a turn that waits for its caller, and goes on, once for each part.
        self.ends = 0
        # How it has succeeded, if that was told with its end.
        self.success: Success | None = None
        self.subscribers = 0
        self.events: list[tuple[Event, bytes]] = []
        # Has the kept events, and those to come, once it is done.
        self.loading: asyncio.Task[None] | None = None
        # Whether events may have been lost since the kept events were asked for.
        self.is_stale = False
        self._early: list[Event] | None = []
        self._wakers: set[asyncio.Future[bool]] = set()

    def on_event(self, event: Event) -> None:
        """Take an event; those that have come before the kept ones were loaded wait for them."""
        if self._early is not None:
            self._early.append(event)
            return
        if not self.events or event.place > self.events[-1][0].place:
            self.events.append((event, as_sse(event.kind, event.data, event.id)))
            self.wake()

    def expect_kept(self) -> None:
        """From now on, hold back what comes until the kept events are taken."""
        self._early = self._early or []

    def take_kept(self, kept: "Sequence[Event]") -> None:
        """Take the kept events, then those that came meanwhile."""
        early, self._early = self._early or [], None
        for event in (*kept, *early):
            self.on_event(event)

    def goes_on(self) -> None:
        """What was told was not the end: a part of the turn had come to its end, and somebody waits for a later one."""
        self.ended, self.success = False, None

    def wake(self) -> None:
        """Wake all who wait, to look again."""
        wakers, self._wakers = self._wakers, set()
        for waker in wakers:
            _settle(waker, True)

    async def changed(self, *, seconds: float | None = None) -> bool:
        """Return at the next change; False if there was none within so many seconds."""
        loop = asyncio.get_running_loop()
        waker: asyncio.Future[bool] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _settle, waker, False)
        self._wakers.add(waker)
        try:
            return await waker
        finally:
            self._wakers.discard(waker)
            if timer:
                timer.cancel()


def _settle(waker: "asyncio.Future[bool]", is_change: bool) -> None:
    if not waker.done():
        waker.set_result(is_change)


class Hub:
    """See the module. ``still_open`` tells which of some turns have not ended, by their rows."""

    def __init__(self, still_open: Callable[[list[UUID]], Awaitable[set[UUID]]]) -> None:
        self._still_open = still_open
        self._subscriptions: dict[UUID, Subscription] = {}
        self._attached: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        # Unsubscriptions that are on their way.
        self._unsubscribing: dict[UUID, asyncio.Task[None]] = {}

    async def attach(self) -> None:
        """Attach to the transport; later calls change nothing."""
        if self._attached is None:
            self._attached = asyncio.create_task(transport().attach(self))
        if not self._attached.done():
            await self._attached

    async def detach(self) -> None:
        """Detach from the transport."""
        if self._attached:
            await transport().detach()

    @contextlib.contextmanager
    def subscribed(self, turn_id: UUID) -> Iterator[Subscription]:
        """Hear of the turn's end, which may not even exist yet."""
        subscription = self._subscriptions.setdefault(turn_id, Subscription())
        subscription.subscribers += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield subscription
        finally:
            subscription.subscribers -= 1
            if not subscription.subscribers:
                del self._subscriptions[turn_id]
                if subscription.loading:
                    self._unsubscribing[turn_id] = asyncio.create_task(self._unsubscribe(turn_id, subscription.loading))

    async def _unsubscribe(self, turn_id: UUID, loading: "asyncio.Task[None]") -> None:
        """Subscribe no longer. A subscription that is on its way is not cut short, and who comes meanwhile waits for
        this: so the transport is told of one thing after the other."""
        await asyncio.wait((loading,))
        try:
            await transport().unsubscribe(turn_id)
        finally:
            if self._unsubscribing.get(turn_id) is asyncio.current_task():
                del self._unsubscribing[turn_id]

    async def load(self, turn_id: UUID, subscription: Subscription) -> None:
        """Subscribe to the turn's events, and load those that are kept."""
        if subscription.loading is None:
            unsubscribing = self._unsubscribing.get(turn_id)  # of those who were subscribed before
            subscription.loading = asyncio.create_task(self._load(turn_id, subscription, after=unsubscribing))
        await asyncio.shield(subscription.loading)

    def look(self) -> None:
        """Look at the rows now."""
        self._look_now.set()

    def wake_all(self) -> None:
        """Wake all who wait, to look again."""
        for subscription in list(self._subscriptions.values()):
            subscription.wake()

    # --- what the transport tells --------------------------------------------------------------------------------

    def on_event(self, turn_id: UUID, event: Event) -> None:
        if subscription := self._subscriptions.get(turn_id):
            subscription.on_event(event)

    def ended(self, turn_id: UUID, success: Success | None = None) -> None:
        if subscription := self._subscriptions.get(turn_id):
            subscription.ended, subscription.success = True, success or subscription.success
            subscription.ends += 1
            subscription.wake()

    def missed_some(self) -> None:
        for turn_id, subscription in self._subscriptions.items():
            subscription.is_stale = True
            if subscription.loading and subscription.loading.done():
                subscription.loading = asyncio.create_task(self._load(turn_id, subscription))
        self.look()

    # --- looking -------------------------------------------------------------------------------------------------

    async def _load(
        self, turn_id: UUID, subscription: Subscription, *, after: "asyncio.Task[None] | None" = None
    ) -> None:
        if after:
            await asyncio.wait((after,))
        subscription.expect_kept()
        kept: Sequence[Event] = []
        while True:
            subscription.is_stale = False
            try:
                kept = await transport().subscribe(turn_id)
            except OSError as error:
                logger.warning("the kept events of a turn cannot be read (%s)", error)
            if not subscription.is_stale:
                break
        subscription.take_kept(kept)

    async def _look(self) -> None:
        """Look at the rows of all turns that are waited for, while there are any."""
        while self._subscriptions:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), LOOK_SECONDS)
            self._look_now.clear()
            # Who joins while the rows are read is looked at next time.
            looked_at = [
                turn_id
                for turn_id, subscription in self._subscriptions.items()
                if subscription.exists and not subscription.ended
            ]
            if not looked_at:
                continue
            try:
                still_open = await self._still_open(looked_at)
            except Exception:
                logger.exception("the rows of turns that are waited for cannot be read; it is tried again")
                await asyncio.sleep(1)
                self.look()
                continue
            for turn_id in set(looked_at) - still_open:
                self.ended(turn_id)
