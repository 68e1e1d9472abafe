"""kombu's transport over Redis for a worker that outlives what stands in its queues, and a Redis that takes no writes.

By itself, one message that is no JSON ends whoever takes it from the queue; and a replica (a primary that was demoted)
is connected to five times a second, each time with a traceback.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any

from kombu.transport import redis
from redis.exceptions import ResponseError

logger = logging.getLogger(__name__)

# Seconds for which a Redis that refuses to be asked is left alone. Longer would keep a worker from stopping.
LEFT_ALONE_SECONDS = 1.0


_Channel: Any = redis.Channel  # of which the stubs know little


class Channel(_Channel):  # type: ignore[misc]
    """See the module."""

    _refused_by: type[ResponseError] | None = None
    _kept_client: Any = None

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """A client to ask Redis by: the channel's, which costs as much to make as ten questions to it."""
        if not client and self._kept_client is None:
            self._kept_client = self._create_client()
        yield client or self._kept_client

    def _disconnect_pools(self) -> None:
        self._kept_client = None  # the next one has new connections
        super()._disconnect_pools()

    def _brpop_read(self, **options: Any) -> Any:
        """Take what the queues hold; False if that was nothing."""
        try:
            taken = super()._brpop_read(**options)
        except Empty:
            self._refused_by = None
            raise
        except self.connection_errors:
            raise
        except ResponseError as error:
            self._leave_alone(error)
            raise Empty from None
        except Exception as error:  # whatever stood there is gone from the queue
            logger.warning("a message in a queue is no notification and was dropped (%s)", type(error).__name__)
            return True
        self._refused_by = None
        return taken

    def _leave_alone(self, error: ResponseError) -> None:
        """Ask again in a while, by a new connection: the name may lead to another server by then."""
        if type(error) is not self._refused_by:
            logger.warning("the broker refuses to be read (%s); workers find due work by sweeping", error)
        self._refused_by = type(error)
        self.client.connection.disconnect()
        time.sleep(LEFT_ALONE_SECONDS)  # noqa: TID251 -- a server is away


class Transport(redis.Transport):
    """See the module. ``heard_by``: by a task's name, what is given the headers of its messages at once, and tells
    whether that was enough: to make a message of each, and to have Celery look up what is to be done with it, costs
    twice as much as all else of it."""

    Channel = Channel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heard_by: dict[str, Callable[[dict[str, Any]], bool]] = {}

    def _deliver(self, message: Any, queue: str | None) -> None:
        headers = message.get("headers") or {}  # what is no task's, such as a worker's answer to another, may have none
        hear = self.heard_by.get(headers.get("task", ""))
        if not hear or not hear(headers):
            super()._deliver(message, queue)
