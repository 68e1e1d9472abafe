"""How often a key may be used: so many times in any minute, counted where every web process sees it.

Without Redis there is one process, which counts by itself. While Redis is away each process counts for itself, too:
nobody is shut out for that, and nobody is let in without a limit.
"""

import logging
import math
import time
from functools import cache
from typing import Any

from django.conf import settings

from nanohost.accounts.errors import RateLimited
from nanohost.accounts.models import ApiKey

logger = logging.getLogger(__name__)

# Seconds for which a Redis that failed is left alone, so that not every request waits for it.
LEFT_ALONE_SECONDS = 5.0

_failed_at = -LEFT_ALONE_SECONDS


def count(key: ApiKey) -> None:
    """Count a request; raises :class:`RateLimited` if it is one too many, which then does not count."""
    most = key.requests_per_minute
    if most is None:
        return
    seconds = _seconds_too_early(key.pk, most)
    if seconds > 0:
        wait = math.ceil(seconds)
        detail = f"This key may be used {most} times a minute; it may be used again in {wait} s."
        raise RateLimited(detail, headers={"Retry-After": str(wait)})


def _seconds_too_early(key_id: int, most: int) -> float:
    """Until there is room for the request; 0 if it is let in."""
    global _failed_at
    if settings.REDIS_URL and time.monotonic() - _failed_at > LEFT_ALONE_SECONDS:
        from redis.exceptions import RedisError  # an embedded host never loads it: 8 MB

        try:
            return _asked(shared_storage(settings.REDIS_URL), key_id, most)
        except RedisError as error:
            _failed_at = time.monotonic()
            logger.warning("requests cannot be counted in Redis (%s); each process counts its own", error)
    return _asked(own_storage(), key_id, most)


def _asked(limiter: Any, key_id: int, most: int) -> float:
    from limits import RateLimitItemPerMinute

    limit = RateLimitItemPerMinute(most)
    if limiter.hit(limit, str(key_id)):
        return 0.0
    free_at: float = limiter.get_window_stats(limit, str(key_id)).reset_time
    return max(free_at - time.time(), 0.001)


# The library is loaded by the first key that has a limit: it takes a process 4 MB.


@cache
def own_storage() -> Any:
    from limits.storage import MemoryStorage
    from limits.strategies import MovingWindowRateLimiter

    return MovingWindowRateLimiter(MemoryStorage())


@cache
def shared_storage(url: str) -> Any:
    from limits.storage import RedisStorage
    from limits.strategies import MovingWindowRateLimiter

    timeouts: dict[str, Any] = {"socket_timeout": 1, "socket_connect_timeout": 1}
    prefix = f"{settings.EVENTS_PREFIX}requests"
    return MovingWindowRateLimiter(RedisStorage(url, key_prefix=prefix, **timeouts))
