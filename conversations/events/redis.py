"""News over Redis: a stream a turn for what is kept, and channels that tell of it at once.

Publishing goes through one thread a process, which sends what has gathered in one go: a publisher is never held up by a
Redis that is away, and pieces of one message that gather meanwhile become one piece. While Redis is away news are
dropped, the oldest first.
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

from conversations.events import DELTAS, KEPT_SECONDS, MOST_KEPT, Answer, Event, Follower

logger = logging.getLogger(__name__)

# News that wait for the publishing thread at most.
MOST_WAITING = 20_000
# Seconds between two tries at a Redis that failed.
AGAIN_AFTER = 1.0
# Seconds to wait for a subscription.
CONFIRMED_WITHIN = 2.0

# KEYS: the turn's stream, its hash of attempts. ARGV: kind, data, fence or "", message or "", channel, kept, seconds.
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
    if fence > latest and begun == message then tell('message.reset', '{"message":' .. ARGV[4] .. '}') end
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

# An answer that is longer is not told along with its turn's end: whoever waits for it reads the rows.
MOST_TOLD_BYTES = 64 * 1024

_Waiting = tuple[UUID, str, dict[str, Any], int | None]
_Ended = tuple[UUID, Answer | None]


class RedisTransport:
    """See :class:`conversations.events.Transport`."""

    def __init__(self) -> None:
        self._prefix = settings.EVENTS_PREFIX
        self._waiting: deque[_Waiting | _Ended] = deque(maxlen=MOST_WAITING)
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._publisher: threading.Thread | None = None
        self._starting = threading.Lock()
        self._follower: Follower | None = None
        self._async: redis.asyncio.Redis | None = None
        self._pubsub: Any = None
        self._subscribed: set[UUID] = set()
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        self._listening: asyncio.Task[None] | None = None

    # --- publishing ----------------------------------------------------------------------------------------------

    def publish(self, turn_id: UUID, kind: str, data: dict[str, Any], *, fence: int | None) -> None:
        self._send((turn_id, kind, data, fence))

    def publish_end(self, turn_id: UUID, answer: Answer | None) -> None:
        self._send((turn_id, answer))

    def flush(self, *, timeout: float) -> None:
        self._idle.wait(timeout)

    def _send(self, news: _Waiting | _Ended) -> None:
        self._idle.clear()
        self._waiting.append(news)
        self._wake.set()
        if self._publisher is None:
            with self._starting:
                if self._publisher is None:
                    self._publisher = threading.Thread(target=self._publish_all, name="events", daemon=True)
                    self._publisher.start()

    def _publish_all(self) -> None:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1)
        script, failed = client.register_script(_PUBLISH), False
        while True:
            self._wake.wait()
            self._wake.clear()
            batch = self._gathered()
            try:
                if batch:
                    self._send_batch(client, script, batch)
                if failed:
                    logger.info("news of turns can be told again")
                failed = False
            except (redis.RedisError, OSError) as error:
                if not failed:
                    logger.warning("news of turns cannot be told (%s); whoever waits looks at the rows", error)
                failed = True
                time.sleep(AGAIN_AFTER)
            if not self._waiting:
                self._idle.set()

    def _gathered(self) -> list[_Waiting | _Ended]:
        """All that waits, with pieces of one message put together."""
        batch: list[_Waiting | _Ended] = []
        for _ in range(len(self._waiting)):
            news = self._waiting.popleft()
            if batch and (joined := _joined(batch[-1], news)):
                batch[-1] = joined
            else:
                batch.append(news)
        return batch

    def _send_batch(self, client: "redis.Redis", script: Any, batch: Sequence[_Waiting | _Ended]) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for news in batch:
                if len(news) == 2:
                    pipeline.publish(f"{self._prefix}ended", _as_end(*news))
                    continue
                turn_id, kind, data, fence = news
                key = self._key(turn_id)
                message = data["message"] if kind in DELTAS else ""
                script(
                    keys=[key, f"{key}:attempts"],
                    args=[
                        kind,
                        json.dumps(data, ensure_ascii=False, separators=(",", ":")),
                        "" if fence is None else fence,
                        message,
                        key,
                        MOST_KEPT,
                        KEPT_SECONDS,
                    ],
                    client=pipeline,
                )
            pipeline.execute()

    # --- following -----------------------------------------------------------------------------------------------

    async def attach(self, follower: Follower) -> None:
        self._follower = follower
        self._async = redis.asyncio.Redis.from_url(
            settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=1, decode_responses=True
        )
        self._listening = asyncio.create_task(self._listen())

    async def subscribe(self, turn_id: UUID) -> Sequence[Event]:
        assert self._async is not None
        key = self._key(turn_id)
        self._subscribed.add(turn_id)
        try:
            if self._pubsub is not None:
                # What is kept is read once the subscription is confirmed: between the two, nothing gets lost.
                confirmed = self._confirmed.setdefault(key, asyncio.get_running_loop().create_future())
                await self._pubsub.subscribe(key)
                await asyncio.wait_for(asyncio.shield(confirmed), CONFIRMED_WITHIN)
            kept = await self._async.xrange(key)
        except (redis.RedisError, TimeoutError) as error:
            raise OSError(str(error) or "no answer in time") from None
        finally:
            self._confirmed.pop(key, None)
        rows: list[tuple[str, dict[str, str]]] = kept  # type: ignore[assignment]  # as decode_responses makes them
        return [Event(event_id, fields["k"], json.loads(fields["d"])) for event_id, fields in rows]

    async def unsubscribe(self, turn_id: UUID) -> None:
        self._subscribed.discard(turn_id)
        if self._pubsub is not None:
            with contextlib.suppress(redis.RedisError, OSError):
                await self._pubsub.unsubscribe(self._key(turn_id))

    async def detach(self) -> None:
        self._follower = None
        if self._listening:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._async:
            await self._async.aclose()

    async def _listen(self) -> None:
        """Subscribed for as long as it is attached; after each silence, the follower is told that it may have missed
        something."""
        # Reads block: a channel may be silent for hours, and a Redis that is gone is noticed by the socket.
        client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL,
            socket_timeout=None,
            socket_connect_timeout=1,
            socket_keepalive=True,
            decode_responses=True,
        )
        failed = False
        while True:
            pubsub = client.pubsub()
            try:
                await pubsub.subscribe(f"{self._prefix}ended", *[self._key(turn_id) for turn_id in self._subscribed])
                self._pubsub = pubsub
                if failed:
                    logger.info("news of turns are heard again")
                failed = False
                if self._follower:
                    self._follower.missed_some()
                async for message in pubsub.listen():
                    self._heard(message["type"], message["channel"], message["data"])
            except (redis.RedisError, OSError) as error:
                if not failed:
                    logger.warning("news of turns cannot be heard (%s); whoever waits looks at the rows", error)
                failed = True
                await asyncio.sleep(AGAIN_AFTER)
            finally:
                self._pubsub = None
                with contextlib.suppress(redis.RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _heard(self, what: str, channel: str, data: Any) -> None:
        if what == "subscribe" and (confirmed := self._confirmed.get(channel)) and not confirmed.done():
            confirmed.set_result(None)
        if what != "message" or self._follower is None:
            return
        if channel == f"{self._prefix}ended":
            turn_id, _, answer = data.partition(" ")
            self._follower.ended(UUID(turn_id), json.loads(answer) if answer else None)
        else:
            event_id, kind, text = data.split(" ", 2)
            turn_id = UUID(channel.rpartition(":")[2])
            self._follower.happened(turn_id, Event(event_id, kind, json.loads(text)))

    def _key(self, turn_id: UUID) -> str:
        return f"{self._prefix}turn:{turn_id.hex}"


def _as_end(turn_id: UUID, answer: Answer | None) -> str:
    told = json.dumps(answer, ensure_ascii=False, separators=(",", ":")) if answer else ""
    return f"{turn_id.hex} {told}" if told and len(told.encode()) <= MOST_TOLD_BYTES else turn_id.hex


def _joined(before: _Waiting | _Ended, after: _Waiting | _Ended) -> _Waiting | None:
    """Two pieces of one message as one, or None if they are not."""
    if len(before) == 2 or len(after) == 2:
        return None
    turn_id, kind, data, fence = before
    if kind not in DELTAS or (turn_id, kind, fence) != (after[0], after[1], after[3]):
        return None
    more = after[2]
    if data["message"] != more["message"] or data["offset"] + len(data["text"]) != more["offset"]:
        return None
    return turn_id, kind, data | {"text": data["text"] + more["text"]}, fence
