"""The platforms that a worker process asks for what is new: one worker an account, by a lease in the database.

A worker that holds a listener asks, takes in what it is told, and stores from where it asks next, until it stops or
loses its lease. What was told and not taken in is told again, and taken in once, since each event is known by its id.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import OperationalError

from conversations.channel_models import Channel, Listener
from conversations.channels import accounts
from conversations.channels.base import Heard, Permanent, Platform, Retry, SecretNotSet
from conversations.channels.registry import NoSuchPlatform
from conversations.engine.channels import from_channels
from conversations.engine.own_thread import in_own_thread
from conversations.engine.runner import Runner
from nanohost.lib.clock import Now
from nanohost.lib.database import STORE_AT_A_STOP, Tries
from nanohost.lib.database_threads import DatabaseThreads
from nanohost.lib.errors import Problem
from nanohost.lib.ids import new_id
from nanohost.lib.lease import backoff
from nanohost.lib.redaction import redact_head
from nanohost.lib.text import storable

logger = logging.getLogger(__name__)

# Seconds before the next try: of the first failure, of many, and of what only people can mend.
FIRST_WAIT, LONGEST_WAIT, MENDED_BY_PEOPLE = 1.0, 300.0, 300.0
# Seconds that closing a connection may take.
CLOSED_WITHIN = 5.0
# An event over which the host stumbles so often is passed over.
MAX_FAILURES = 8
MAX_KEPT = 300


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A held listener. ``platform``: None while its channel cannot be spoken to, as ``error`` says."""

    id: UUID
    channel: Channel
    fence: int
    cursor: Mapping[str, Any]
    failures: int
    platform: Platform | None
    error: str = ""


def claim(listener_id: UUID, *, worker: str) -> Hold | None:
    """Claim a listener; None if it is not claimable."""
    claimed = Listener.claimed(worker=worker, lease=settings.TURN_LEASE_SECONDS)
    if Listener.objects.claimable().filter(pk=listener_id).update(run_after=None, **claimed) != 1:
        return None
    row = Listener.objects.select_related("channel__agent").filter(pk=listener_id).first()
    if row is None:
        return None
    given: dict[str, Any] = {"id": row.pk, "channel": row.channel, "fence": row.fence}
    given |= {"cursor": row.cursor, "failures": row.failures}
    try:
        return Hold(**given, platform=accounts.platform(row.channel))
    except NoSuchPlatform as error:
        return Hold(**given, platform=None, error=f"{error}.")


def renew(held: Collection[UUID], *, worker: str) -> None:
    """Renew the leases of what a worker holds."""
    Listener.objects.filter(pk__in=held, worker=worker).renew()


def still_held(held: Collection[Hold]) -> set[UUID]:
    """Which of these nobody has taken away: by changing their channels, or since their leases ran out."""
    fences = dict(Listener.objects.filter(pk__in=[each.id for each in held]).values_list("pk", "fence"))
    return {each.id for each in held if fences.get(each.id) == each.fence}


def take(hold: Hold, heard: Heard) -> Hold | None:
    """Take in what a platform has told, and store from where it is asked next; returns what is held then, None if it is
    held no more. Raises what the host cannot do for now. An event over which it stumbles again and again is passed over
    in the end, since others wait behind it."""
    for event in heard.events:
        try:
            from_channels.take(hold.channel, [event], request_id=f"req_{new_id().hex}")
        except (Problem, Retry, OperationalError):  # the host cannot take anything for now, or the platform give it
            raise
        except Exception:
            if hold.failures < MAX_FAILURES:
                raise
            logger.exception("an event of channel %s is passed over", hold.channel.name)
    stored = Listener.objects.held(hold.id, hold.fence).update(
        cursor=dict(heard.cursor), failures=0, error="", heard_at=Now()
    )
    return replace(hold, cursor=heard.cursor, failures=0) if stored else None


def reschedule(hold: Hold, error: str, *, seconds: float) -> None:
    """Let go of it for a while; a sweep finds it as soon as that is over."""
    held = Listener.objects.held(hold.id, hold.fence)
    held.reschedule(seconds, failures=hold.failures + 1, error=_words(error))


def release(hold: Hold) -> None:
    """Let go of it at a shutdown: whoever comes next takes it."""
    Listener.objects.held(hold.id, hold.fence).release()


def _words(error: str) -> str:
    return f"{' '.join(storable(redact_head(error, MAX_KEPT)).split()).rstrip('.')}."


class ListenerRunner(Runner):
    """Asks platforms, each a task of its own. Lives on one event loop."""

    def __init__(self, *, worker: str, database: DatabaseThreads) -> None:
        super().__init__(worker=worker, database=database)
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._holds: dict[UUID, Hold] = {}

    @property
    def held(self) -> Collection[UUID]:
        return list(self._holds)

    async def advance(self, listener_id: UUID) -> None:
        """Listen, until somebody else does or this process stops; does nothing if it is not claimable."""
        task = asyncio.current_task()
        assert task is not None
        if listener_id in self._tasks:
            return
        self._tasks[listener_id] = task
        try:
            hold = await self.database(claim, listener_id, worker=self.worker)
            if hold:
                await self._listen(hold)
        except OperationalError as error:
            logger.warning("a listener must wait: the database is away (%s)", type(error).__name__)
        finally:
            self._tasks.pop(listener_id, None)
            self._holds.pop(listener_id, None)

    async def _listen(self, hold: Hold) -> None:
        now: Hold | None = self._holds.setdefault(hold.id, hold)
        try:
            try:
                while now:
                    hold = self._holds[now.id] = now
                    now = await self._once(hold)
            finally:  # whoever listens next is not to find it connected
                await _close(hold.platform)
        except asyncio.CancelledError:
            await self.database.store(Tries("a listener", seconds=STORE_AT_A_STOP), release, hold)
        except Exception as error:
            told, seconds = _what_failed(error, hold)
            logger.warning("channel %s is asked again in %.0f s: %s", hold.channel.name, seconds, _words(told))
            await self.database.store(
                Tries("a listener", seconds=STORE_AT_A_STOP), reschedule, hold, told, seconds=seconds
            )

    async def _once(self, hold: Hold) -> Hold | None:
        """Ask once, and take in what is told; returns what is held then."""
        platform = hold.platform
        if platform is None:
            raise SecretNotSet(hold.error)
        heard = await in_own_thread(lambda: platform.ask(hold.cursor))
        now: Hold | None = await self.database(take, hold, heard)
        if now and heard.pause:
            await asyncio.sleep(heard.pause)
        return now

    async def watch(self) -> None:
        if not self._holds:
            return
        kept = await self.database(still_held, list(self._holds.values()))
        for listener_id in set(self._holds) - kept:
            if task := self._tasks.get(listener_id):
                task.cancel()

    async def renew(self, database: DatabaseThreads) -> None:
        if self._holds:
            await database(renew, self.held, worker=self.worker)

    async def stop(self) -> None:
        while self._tasks:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.wait(set(self._tasks.values()))


async def _close(platform: Platform | None) -> None:
    """Close what a platform has open, which takes a moment at most. Whoever is told to stop meanwhile is stopping."""
    if platform is None or type(platform).close is Platform.close:
        return
    with suppress(asyncio.CancelledError, TimeoutError):
        await asyncio.wait_for(in_own_thread(platform.close), CLOSED_WITHIN)


def _what_failed(error: Exception, hold: Hold) -> tuple[str, float]:
    """In words for people, and seconds before the next try."""
    wait = backoff(hold.failures, first=FIRST_WAIT, longest=LONGEST_WAIT)
    if isinstance(error, Retry):
        return str(error), max(wait, min(error.after, LONGEST_WAIT))
    if isinstance(error, Permanent | SecretNotSet):
        return str(error), MENDED_BY_PEOPLE
    if isinstance(error, Problem):
        return f"{error.title} {error.detail}", wait
    if not isinstance(error, OperationalError):
        logger.error("a listener stumbled over a fault of ours", exc_info=error)
    return f"A fault of the host: {type(error).__name__}", wait
