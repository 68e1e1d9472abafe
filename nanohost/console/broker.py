"""The broker's own view: how many notifications wait there."""

from typing import Any

from django.conf import settings

from conversations.kinds import KINDS

# To connect, and to answer: a page that says that the broker is silent shall say so within a second.
PATIENCE_SECONDS = 0.4


class BrokerAway(Exception):
    """It does not answer, or answers with an error."""


def waiting_notifications() -> dict[str, int] | None:
    """How many notifications wait, by queue; None without a broker: an embedded host takes its own itself.

    Raises :class:`BrokerAway`.
    """
    if not settings.REDIS_URL:
        return None
    import redis  # an embedded host never loads it: 8 MB
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    options: dict[str, Any] = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    queues = [kind.queue for kind in KINDS]
    try:
        with (
            redis.Redis.from_url(
                settings.REDIS_URL,
                socket_timeout=PATIENCE_SECONDS,
                socket_connect_timeout=PATIENCE_SECONDS,
                retry=Retry(NoBackoff(), 0),
            ) as client,
            client.pipeline(transaction=False) as asked,
        ):
            for queue in queues:
                # Celery's list for a queue is called like it, since there is but one priority.
                asked.llen(options.get("global_keyprefix", "") + queue)
            return dict(zip(queues, asked.execute(), strict=True))
    except (redis.RedisError, OSError) as error:
        raise BrokerAway(type(error).__name__) from None
