"""The doorbell: tells workers to look at a row. The database is the queue; a lost notification costs seconds, no work.

A notification goes over the broker to any worker that is free. A process that works on rows of its kind, and has room,
takes it itself: that costs no message, and is what an embedded host always does. It may also claim a row in the
transaction that stores it (:func:`place`), which then needs no notification.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from uuid import UUID

from celery import current_app
from django.db import DatabaseError, connection, transaction
from kombu import Connection
from kombu.exceptions import OperationalError

from conversations.kinds import Kind
from nanohost.lib.clock import Now

logger = logging.getLogger(__name__)


class Place(Protocol):
    """Room for one row in this process."""

    worker: str

    def begin(self, claimed: Any) -> None:
        """Begin to work on a row that was claimed for it."""


class Here(Protocol):
    """What this process can do with rows of a kind itself."""

    def hear(self, row_id: UUID) -> bool:
        """Begin to work on a row, in a thread that is at the database; False if there is no room."""

    def place(self) -> AbstractContextManager[Place | None]:
        """Room for a row that is still to be stored, if there is any; it is left again unless work has begun."""


# In a message's headers: the row that a worker is to look at.
ROW = "row"

_here: dict[Kind, Here] = {}

# Seconds for which a broker that failed is left alone, so that not every caller waits for it.
LEFT_ALONE_SECONDS = 5.0


def notify(kind: Kind, row_id: UUID) -> None:
    """Have a worker look at a row, once the current transaction has committed."""
    # A worker that looks before the commit finds nothing, and nobody would look again until the sweeper does.
    transaction.on_commit(lambda: _publish(kind, row_id))


@contextmanager
def place(kind: Kind) -> Iterator[Place | None]:
    """Room in this process for a row that is stored inside, and claimed with it; None if there is none.

    Nor is there any within a transaction: it may take long to end, and if it is rolled back, nobody begins.
    """
    here = None if connection.in_atomic_block else _here.get(kind)
    if here is None:
        yield None
        return
    with here.place() as found:
        yield found


def answer_here(kind: Kind, here: Here) -> None:
    """Offer a kind's notifications to this process first."""
    _here[kind] = here


def answer_no_more() -> None:
    """Send every notification over the broker."""
    _here.clear()


class Broker:
    """Whether the broker can be reached. While it cannot, one caller at a time tries whether it can again."""

    def __init__(self) -> None:
        self.failed_at: float | None = None
        self._trying = threading.Lock()
        # Several threads may publish to Redis by one of kombu's connections at once.
        self._kept: Connection | None = None
        self._keeping = threading.Lock()

    def notify(self, kind: Kind, row_id: UUID) -> bool:
        """Publish; False if the broker did not accept it, or was not tried."""
        failed_at = self.failed_at  # read once: whoever tries at this moment may find that it is back
        if failed_at is None:
            return self._publish(kind, row_id)
        if time.monotonic() - failed_at < LEFT_ALONE_SECONDS or not self._trying.acquire(blocking=False):
            return False
        try:
            return self._publish(kind, row_id)
        finally:
            self._trying.release()

    def _publish(self, kind: Kind, row_id: UUID) -> bool:
        try:
            self._send(kind, str(row_id))
        except (OperationalError, OSError) as error:
            self.failed_at = time.monotonic()
            logger.warning("the doorbell cannot be reached (%s); workers find what is due by sweeping", error)
            return False
        if self.failed_at is not None:
            logger.info("the doorbell can be reached again")
            self.failed_at = None
        return True

    def _send(self, kind: Kind, row_id: str) -> None:
        """Send a task as Celery does (its protocol 2). Its ``send_task`` makes a request, routes and signals, which
        costs ten times as much; to take a producer from its pool and give it back costs as much as the rest."""
        kept = self._kept
        broker = kept or current_app.connection_for_write()
        try:
            channel: Any = broker.default_channel
            message = channel.prepare_message(
                json.dumps([[row_id], {}, {}]),
                content_type="application/json",
                content_encoding="utf-8",
                headers={"lang": "py", "task": kind.task, "id": row_id, "root_id": row_id, "retries": 0, ROW: row_id},
                properties={"correlation_id": row_id},
            )
            channel.basic_publish(message, exchange="", routing_key=kind.queue)
        except Exception as error:
            if kept is None:
                broker.release()
            elif self._kept is kept:
                self._kept = None  # others may be in the midst of it: it is not closed
            if isinstance(error, broker.connection_errors + broker.channel_errors):
                raise OperationalError(str(error)) from error
            raise
        if kept is None:
            with self._keeping:
                is_first = self._kept is None
                if is_first:
                    self._kept = broker
            if not is_first:
                broker.release()


shared = Broker()


def _publish(kind: Kind, row_id: UUID) -> None:
    here = _here.get(kind)
    if (here and here.hear(row_id)) or shared.notify(kind, row_id):
        return
    try:
        # Whoever stored it took workers for notified: the next sweep would pass it over.
        kind.rows.open().filter(pk=row_id).exclude(notified_at__gt=Now()).update(notified_at=None)
    except DatabaseError as error:
        logger.warning("%s stays marked as notified of (%s); it is swept later", row_id, type(error).__name__)
