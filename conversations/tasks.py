"""The Celery tasks that receive notifications. Each looks at one row and makes one domain call."""

import logging
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from celery import Task, shared_task
from celery.worker.strategy import default
from django.conf import settings

from conversations.engine import worker
from conversations.engine.doorbell import ROW
from conversations.kinds import KINDS, Kind

logger = logging.getLogger(__name__)


def pass_on(task: Any, app: Any, consumer: Any) -> Callable[..., None]:
    """How a worker consumes a notification (Celery calls it a strategy): acknowledge it, and call its task.

    Celery's own strategy makes a request of each message, traces it and sends six signals, which is two thirds of what
    a notification costs. Its monitoring needs that, so with WORKER_EVENTS Celery's own is used.
    """
    if settings.WORKER_EVENTS:
        return default(task, app, consumer)

    def follow(read: Callable[[], Iterable[str]]) -> None:
        try:
            task.run(*read())
        except Exception:
            logger.exception("a notification of %s could not be followed", task.name)

    def hear(message: Any, *_: Any) -> None:
        message.ack_log_error(logger, consumer.connection_errors)
        follow(lambda: message.decode()[0])

    def hear_at_once(headers: dict[str, Any]) -> bool:
        if ROW not in headers:  # an older version's
            return False
        follow(lambda: [headers[ROW]])
        return True

    if consumer.connection.transport.driver_type == "redis":  # then it is nanohost.lib.broker's
        consumer.connection.transport.heard_by[task.name] = hear_at_once
    return hear


class Notification(Task):  # type: ignore[type-arg]  # the stubs' is generic, Celery's is not
    """A task that only hands over what it is notified of."""

    Strategy = "conversations.tasks:pass_on"


def _make_task(kind: Kind) -> None:
    @shared_task(base=Notification, name=kind.task)
    def look(row_id: str) -> None:
        worker.runtime().take(kind, UUID(row_id), wait=kind.is_waited_for)


for _kind in KINDS:
    _make_task(_kind)
