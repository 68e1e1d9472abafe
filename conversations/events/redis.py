"""Events over Redis: a stream a turn for what is kept, and channels that tell of it at once.

Publishing goes through one thread a process, which sends what has gathered in one go: a publisher is never held up by a
Redis that is away, and pieces of one message that gather meanwhile become one piece. While Redis is away events are
dropped, the oldest first.

Following is one task's, which alone touches the connection that hears: it subscribes, and it reads. Whatever ends that
connection, another is made. A process that follows listens to itself as well, by a word that it sends all the way
round: that nothing is heard may else mean that nothing happens.
"""

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import redis
import redis.asyncio
from django.conf import settings
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff

from conversations.events import KEPT_SECONDS, MAX_KEPT, Event, Subscriber, Success
from conversations.events.kinds import DELTAS, EventKind
from nanohost.lib.ids import new_id

logger = logging.getLogger(__name__)

# Events that wait for the publishing thread at most.
MAX_WAITING = 20_000
# Seconds for which a turn's start waits for something to be told with it: a model's first word may come at once.
STARTED_WAITS = 0.005
# Seconds between two tries at a Redis that failed.
AGAIN_AFTER = 1.0
# Seconds before another connection is made to follow by, after one that has ended: doubled while none lasts.
HEAR_AGAIN_FIRST, HEAR_AGAIN_MOST = 0.05, 2.0
# Seconds to wait for a subscription.
CONFIRMED_WITHIN = 2.0
# Seconds between two words to oneself, and without one until one takes oneself for deaf.
WORD_SECONDS, DEAF_AFTER = 1.0, 5.0

# KEYS: the turn's stream, its hash of attempts. ARGV: kind, data, fence or "", message or "", channel, kept, seconds,
# the kind of a reset.
# The same as conversations.events.Attempts.admit, where Redis alone can decide: between processes.
_PUBLISH = """
local fence, message = tonumber(ARGV[3]), tonumber(ARGV[4])
local function tell(kind, data)
  local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[6], '*', 'k', kind, 'd', data)
  redis.call('PUBLISH', ARGV[5], id .. ' ' .. kind .. ' ' .. data)
end
if fence then
  local latest = tonumber(redis.call('HGET', KEYS[2], 'fence') or '0')
  if fence < latest then return 0 end
  if message then
    local begun = tonumber(redis.call('HGET', KEYS[2], 'message') or '-1')
    if fence > latest and begun == message then tell(ARGV[8], '{"message":' .. ARGV[4] .. '}') end
    redis.call('HSET', KEYS[2], 'fence', fence, 'message', message)
  else
    redis.call('HSET', KEYS[2], 'fence', fence)
  end
  redis.call('EXPIRE', KEYS[2], ARGV[7])
end
tell(ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[7])
return 1
"""

# A success that is longer is not told along with its turn's end: whoever waits for it reads the rows.
MAX_TOLD_BYTES = 64 * 1024

_Waiting = tuple[UUID, EventKind, dict[str, Any], int | None]
_Ended = tuple[UUID, Success | None]
# To oneself.
_Word = tuple[str]
_Outgoing = _Waiting | _Ended | _Word


class RedisTransport:
    """See :class:`conversations.events.Transport`."""

    def __init__(self) -> None:
        self._prefix = settings.EVENTS_PREFIX
        self._waiting: deque[_Outgoing] = deque(maxlen=MAX_WAITING)
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._publisher: threading.Thread | None = None
        self._starting = threading.Lock()
        self._subscriber: Subscriber | None = None
        self._async: redis.asyncio.Redis | None = None
        self.own_channel = f"{self._prefix}self:{new_id().hex}"
        self._following: list[asyncio.Task[None]] = []
        # The turns to be subscribed to; and by channel, whether the server has confirmed it.
        self.subscribed: set[UUID] = set()
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        self._wanted_changed = asyncio.Event()
        self.is_connected = False
        self._heard_at: float | None = None

    # --- publishing ----------------------------------------------------------------------------------------------

    def publish(self, turn_id: UUID, kind: EventKind, data: dict[str, Any], *, fence: int | None) -> None:
        self._send((turn_id, kind, data, fence))

    def publish_end(self, turn_id: UUID, success: Success | None) -> None:
        self._send((turn_id, success))

    def flush(self, *, timeout: float) -> None:
        self._idle.wait(timeout)

    def _send(self, outgoing: _Outgoing) -> None:
        self._idle.clear()
        self._waiting.append(outgoing)
        self._wake.set()
        if self._publisher is None:
            with self._starting:
                if self._publisher is None:
                    self._publisher = threading.Thread(target=self._publish_all, name="events", daemon=True)
                    self._publisher.start()

    def _publish_all(self) -> None:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1)
        failed = False
        while True:
            self._wake.wait()
            self._wake.clear()
            batch = self._gathered()
            if batch and all(each[1:2] == (EventKind.TURN_STARTED,) for each in batch):
                self._wake.wait(STARTED_WAITS)
                self._wake.clear()
                batch += self._gathered()
            try:
                if batch:
                    self._send_batch(client, batch)
                if failed:
                    logger.info("events of turns can be told again")
                failed = False
            except Exception as error:  # whatever it is, those that follow are told
                if not failed:
                    logger.warning("events of turns cannot be told (%s); whoever waits looks at the rows", error)
                failed = True
                time.sleep(AGAIN_AFTER)  # noqa: TID251 -- a server is away
            if not self._waiting:
                self._idle.set()

    def _gathered(self) -> list[_Outgoing]:
        """All that waits, with pieces of one message put together."""
        batch: list[_Outgoing] = []
        for _ in range(len(self._waiting)):
            outgoing = self._waiting.popleft()
            if batch and (joined := joined_pieces(batch[-1], outgoing)):
                batch[-1] = joined
            else:
                batch.append(outgoing)
        return batch

    def _send_batch(self, client: "redis.Redis", batch: Sequence[_Outgoing]) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for outgoing in batch:
                if len(outgoing) == 1:
                    pipeline.publish(self.own_channel, outgoing[0])
                    continue
                if len(outgoing) == 2:
                    pipeline.publish(f"{self._prefix}ended", as_end(*outgoing))
                    continue
                turn_id, kind, data, fence = outgoing
                key = self._key(turn_id)
                message = data["message"] if kind in DELTAS else ""
                # Its text each time: before each batch a server would be asked for a script that is registered.
                pipeline.eval(
                    _PUBLISH,
                    2,
                    key,
                    f"{key}:attempts",
                    kind,
                    json.dumps(data, ensure_ascii=False, separators=(",", ":")),
                    "" if fence is None else fence,
                    message,
                    key,
                    MAX_KEPT,
                    KEPT_SECONDS,
                    EventKind.MESSAGE_RESET,
                )
            pipeline.execute()

    # --- following -----------------------------------------------------------------------------------------------

    async def attach(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._async = redis.asyncio.Redis.from_url(
            settings.REDIS_URL,
            socket_timeout=2,
            socket_connect_timeout=1,
            decode_responses=True,
            # A connection that was cut is made again at once: by itself, the client would wait for a second and more.
            retry=Retry(ConstantBackoff(0.05), 3),
        )
        self._heard_at = time.monotonic()
        self._following = [asyncio.create_task(self._follow()), asyncio.create_task(self._speak_to_oneself())]

    async def subscribe(self, turn_id: UUID) -> Sequence[Event]:
        assert self._async is not None
        key = self._key(turn_id)
        self.subscribed.add(turn_id)
        self._wanted_changed.set()
        try:
            if self.is_connected:
                # What is kept is read once the subscription is confirmed: between the two, nothing gets lost.
                await asyncio.wait_for(asyncio.shield(self._confirmation(key)), CONFIRMED_WITHIN)
            kept = await self._async.xrange(key)
        except (redis.RedisError, TimeoutError) as error:
            raise OSError(str(error) or "no answer in time") from None
        rows: list[tuple[str, dict[str, str]]] = kept  # type: ignore[assignment]  # as decode_responses makes them
        return [Event(event_id, fields["k"], json.loads(fields["d"])) for event_id, fields in rows]

    async def unsubscribe(self, turn_id: UUID) -> None:
        self.subscribed.discard(turn_id)
        self._wanted_changed.set()

    async def detach(self) -> None:
        self._subscriber = None
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        if self._async:
            await self._async.aclose()

    def is_deaf(self) -> bool:
        return self._heard_at is not None and time.monotonic() - self._heard_at > DEAF_AFTER

    def _confirmation(self, channel: str) -> "asyncio.Future[None]":
        """Done once the server has confirmed that this connection is subscribed to it."""
        return self._confirmed.setdefault(channel, asyncio.get_running_loop().create_future())

    async def _speak_to_oneself(self) -> None:
        """By the way that all events take, from the publishing thread on."""
        while True:
            self._send(("are you there?",))
            await asyncio.sleep(WORD_SECONDS)

    async def _follow(self) -> None:
        """For as long as it is attached: follow by one connection, and when that ends, whyever, by another."""
        failed, wait = False, HEAR_AGAIN_FIRST
        while True:
            began = time.monotonic()
            try:
                await self._follow_by_one_connection()
            except Exception as error:
                if self._heard_at is not None and self._heard_at > began:  # it was of use
                    failed, wait = False, HEAR_AGAIN_FIRST
                if not failed:
                    logger.warning("events of turns cannot be heard (%s); whoever waits looks at the rows", error)
                failed = True
            finally:
                self.is_connected, self._confirmed = False, {}
            await asyncio.sleep(wait)
            wait = min(2 * wait, HEAR_AGAIN_MOST)

    async def _follow_by_one_connection(self) -> None:
        """Subscribe and read, until it raises: a connection that was lost is not made again in here, for then nobody
        would know what was missed."""
        client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL,
            # Reads block: a channel may be silent for hours.
            socket_timeout=None,
            socket_connect_timeout=1,
            socket_keepalive=True,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0, supported_errors=()),
        )
        pubsub, subscribed = client.pubsub(), set[str]()
        changed, reading = asyncio.create_task(self._wanted_changed.wait()), None
        began = time.monotonic()
        try:
            while True:
                self._wanted_changed.clear()
                subscribed = await self._bring_up_to_date(pubsub, subscribed)
                reading = asyncio.create_task(self._read(pubsub))
                while not changed.done():
                    await asyncio.wait((reading, changed), timeout=WORD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    if reading.done():
                        await reading  # which raises
                    if self.is_deaf() and time.monotonic() - began > DEAF_AFTER:
                        raise TimeoutError("it is silent")
                # Between two messages: what has arrived in part stays with the connection.
                await _ended(reading)
                changed = asyncio.create_task(self._wanted_changed.wait())
        finally:
            await _ended(*filter(None, (reading, changed)))
            with contextlib.suppress(Exception):
                await pubsub.aclose()  # type: ignore[no-untyped-call]
            with contextlib.suppress(Exception):
                await client.aclose()

    async def _read(self, pubsub: Any) -> None:
        while True:
            if message := await pubsub.get_message(timeout=None):
                self._heard(message["type"], message["channel"], message["data"])

    async def _bring_up_to_date(self, pubsub: Any, subscribed: set[str]) -> set[str]:
        """Subscribe to what is wanted, and no longer to what is not; returns what is."""
        wanted = {f"{self._prefix}ended", self.own_channel, *map(self._key, self.subscribed)}
        if new := wanted - subscribed:
            await pubsub.subscribe(*new)
        if old := subscribed - wanted:
            await pubsub.unsubscribe(*old)
            for channel in old:
                self._confirmed.pop(channel, None)
        return wanted

    def _heard(self, what: str, channel: str, data: Any) -> None:
        if self._subscriber is None:
            return
        if what == "subscribe":
            self._is_confirmed(channel)
        if what != "message":
            return
        if channel == self.own_channel:
            self._heard_at = time.monotonic()
        elif channel == f"{self._prefix}ended":
            turn_id, _, success = data.partition(" ")
            self._subscriber.ended(UUID(turn_id), json.loads(success) if success else None)
        else:
            event_id, kind, text = data.split(" ", 2)
            turn_id = UUID(channel.rpartition(":")[2])
            if turn_id in self.subscribed:  # the server may still send after it was asked to send no more
                self._subscriber.on_event(turn_id, Event(event_id, kind, json.loads(text)))

    def _is_confirmed(self, channel: str) -> None:
        if not (confirmation := self._confirmation(channel)).done():
            confirmation.set_result(None)
        if channel == f"{self._prefix}ended":
            self.is_connected = True
            logger.info("events of turns are heard")
            if self._subscriber:
                self._subscriber.missed_some()

    def _key(self, turn_id: UUID) -> str:
        return f"{self._prefix}turn:{turn_id.hex}"


async def _ended(*tasks: "asyncio.Task[Any]") -> None:
    """End them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def as_end(turn_id: UUID, success: Success | None) -> str:
    told = json.dumps(success, ensure_ascii=False, separators=(",", ":")) if success else ""
    return f"{turn_id.hex} {told}" if told and len(told.encode()) <= MAX_TOLD_BYTES else turn_id.hex


def joined_pieces(before: _Outgoing, after: _Outgoing) -> _Waiting | None:
    """Two pieces of one message as one, or None if they are not."""
    if len(before) != 4 or len(after) != 4:
        return None
    turn_id, kind, data, fence = before
    if kind not in DELTAS or (turn_id, kind, fence) != (after[0], after[1], after[3]):
        return None
    more = after[2]
    if data["message"] != more["message"] or data["offset"] + len(data["text"]) != more["offset"]:
        return None
    return turn_id, kind, data | {"text": data["text"] + more["text"]}, fence
