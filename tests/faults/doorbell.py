"""Reading the doorbell: the notifications that wait in the broker, and doing what a worker does when it hears one."""

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from celery import current_app
from kombu.exceptions import OperationalError


def purge() -> None:
    """Lose every notification, as a broker that is restarted does. One that is slow to answer is asked again."""
    for _ in range(10):
        with suppress(OperationalError):
            return _purge()
    return _purge()


def _purge() -> None:
    with current_app.connection_for_write() as broker:
        for queue in ("turns", "tools", "compaction", "deliveries", "listeners", "replays"):
            with broker.SimpleQueue(queue) as waiting:
                waiting.clear()


def notifications() -> Iterator[tuple[str, UUID]]:
    """Take the notifications that wait, one by one, with those that come meanwhile: ("turn" or "call", the row's
    id)."""
    with current_app.connection_for_read() as broker:
        queues = [("turn", broker.SimpleQueue("turns")), ("call", broker.SimpleQueue("tools"))]
        heard = True
        while heard:
            heard = False
            for kind, queue in queues:
                try:
                    message = queue.get_nowait()
                except queue.Empty:
                    continue
                message.ack()
                heard = True
                yield kind, UUID(message.payload[0][0])
        for _, queue in queues:
            queue.close()
