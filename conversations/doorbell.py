"""The doorbell: tells workers to look at a row. The database is the queue; a lost ring costs seconds, not work."""

import logging
from uuid import UUID

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


def ring_for_turn(turn_id: UUID) -> None:
    """Have a worker look at a turn, once the current transaction has committed."""
    _after_commit("conversations.tasks.advance_turn", turn_id)


def ring_for_call(call_id: UUID) -> None:
    """Have a worker look at a tool call, once the current transaction has committed."""
    _after_commit("conversations.tasks.run_tool_call", call_id)


def _after_commit(task: str, row_id: UUID) -> None:
    # A worker that looks before the commit finds nothing, and nobody would look again until the sweeper does.
    transaction.on_commit(lambda: _publish(task, row_id))


def _publish(task: str, row_id: UUID) -> None:
    try:
        current_app.send_task(task, (str(row_id),), retry=False)
    except (OperationalError, OSError) as error:
        # The row is stored; the sweeper rings for it when the broker is back.
        logger.warning("doorbell unreachable (%s); the sweeper will ring for %s", type(error).__name__, row_id)
