"""What the doorbell rings. Each task looks at one row and makes one domain call."""

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from celery import Task, shared_task
from celery.worker.strategy import default
from django.conf import settings

from conversations.engine import worker

logger = logging.getLogger(__name__)


def pass_on(task: Any, app: Any, consumer: Any) -> Callable[..., None]:
    """How a worker follows a ring (Celery's name for it is a strategy): it is heard, and its task is called, no more.

    Celery's own makes a request of each message, traces it, and signals six times: two thirds of what a ring costs. Its
    monitoring lives off that, so who has switched that on gets it.
    """
    if settings.WORKER_EVENTS:
        return default(task, app, consumer)

    def hear(message: Any, *_: Any) -> None:
        message.ack_log_error(logger, consumer.connection_errors)
        try:
            arguments, *_ = message.decode()
            task.run(*arguments)
        except Exception:
            logger.exception("a ring for %s could not be followed", task.name)

    return hear


class Ring(Task):  # type: ignore[type-arg]  # the stubs' is generic, Celery's is not
    """A task that only hands over what it is rung for."""

    Strategy = "conversations.tasks:pass_on"


@shared_task(base=Ring)
def advance_turn(turn_id: str) -> None:
    """Look at a turn: hand it to this process's loop, which claims it if it is to be had."""
    worker.runtime().take_turn(UUID(turn_id))


@shared_task(base=Ring)
def run_tool_call(call_id: str) -> None:
    """Look at a tool call: run it if it is to be had."""
    worker.runtime().take_call(UUID(call_id))


@shared_task(base=Ring)
def compact(compaction_id: str) -> None:
    """Look at a compaction: hand it to this process's loop, which claims it if it is to be had."""
    worker.runtime().take_compaction(UUID(compaction_id))
