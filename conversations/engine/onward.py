"""How a turn goes on when a call that it waits for has ended."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from uuid import UUID

from django.db import OperationalError, connection, transaction

from conversations import events
from conversations.engine import doorbell, lease, step_context
from conversations.engine.lease import Claim
from conversations.engine.results import answers_of
from conversations.events.kinds import EventKind
from conversations.kinds import TURNS
from tools.models import ToolCall

logger = logging.getLogger(__name__)


class Onward:
    """Of one call: its turn's workers are notified; or the turn is claimed in the transaction that stores the call's
    outcome, if this process works on turns and has room for one."""

    def __init__(self) -> None:
        self._has_begun = False
        self._has_failed = False

    @contextmanager
    def storing(self, call: ToolCall) -> Iterator[None]:
        """Around the storing of an outcome. Only on SQLite, which lets one write at a time: elsewhere locks are taken
        in the order conversation, turn, call. Once the database has failed, the outcome is stored alone."""
        tries = connection.vendor == "sqlite" and not self._has_failed
        with doorbell.place(TURNS) if tries else nullcontext() as place:
            if place is None:
                yield
                return
            try:
                with transaction.atomic():
                    yield
                    claim = _claim(call.turn_id, worker=place.worker)
            except OperationalError:
                self._has_failed = True
                raise
            if claim:
                self._has_begun = True
                publish(call)
                place.begin((claim, step_context.as_claimed(claim)))

    def then(self, call: ToolCall) -> None:
        """Once the call has ended."""
        if not self._has_begun:
            publish(call)
            doorbell.notify(TURNS, call.turn_id)


def _claim(turn_id: UUID, *, worker: str) -> Claim | None:
    """Claim the turn, with what its calls have come to; a fault in that is no reason to lose the outcome of a call:
    whoever is notified meets it again."""
    try:
        return lease.claim(turn_id, worker=worker, answers_of=answers_of)
    except OperationalError:
        raise
    except Exception:
        logger.exception("a turn could not be claimed as its call ended")
        return None


def publish(call: ToolCall) -> None:
    """Publish how far the call is; of one that has ended, its start was published."""
    for kind, data in events.tool_events(call):
        if not (call.ended and kind == EventKind.TOOL_STARTED):
            events.publish(call.turn_id, kind, data)
