"""The sweeper: finds what nobody was notified of, or whose worker is gone. It runs in every worker, and at every start.

What it finds, its own worker takes, without the doorbell: with a broker that is away, work goes on, a sweep later. It
changes nothing but when workers were notified; so any number of sweepers may run, and what two of them find is claimed
once.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from django.db import transaction

from conversations.engine import doorbell
from conversations.kinds import KINDS, Kind
from nanohost.lib.clock import Now

# Rows that a sweep finds of a kind, at most.
MAX_FOUND = 200

# A sweep notifies of what is due every few seconds: what was notified of before then, nobody had room for.
OVERLOOKED_AFTER = timedelta(seconds=30)


def find(kind: Kind, *, wanted: int = MAX_FOUND, held: Collection[UUID] = ()) -> Sequence[UUID]:
    """Rows that are due and that nobody was notified of lately, marked as notified; no more than a worker has room for.

    While all workers are full, notifications wait at the broker, and what is found would only have to wait as well.
    What the asking worker holds, though its lease ran out, is left for others to find.
    """
    found: list[UUID] = kind.rows.find(limit=min(wanted, MAX_FOUND), leaving_out=held)
    return found


def overlooked() -> Mapping[Kind, Sequence[UUID]]:
    """Due rows that no worker has taken within ``OVERLOOKED_AFTER``, at most ``MAX_FOUND`` of each kind."""
    seconds = OVERLOOKED_AFTER.total_seconds()
    return {kind: kind.rows.overlooked(seconds=seconds, limit=MAX_FOUND) for kind in KINDS}


def notify_again() -> int:
    """Notify workers of overlooked rows; returns of how many."""
    with transaction.atomic():
        found = overlooked()
        for kind, ids in found.items():
            kind.rows.filter(pk__in=ids).update(notified_at=Now())
            for row_id in ids:
                doorbell.notify(kind, row_id)
    return sum(map(len, found.values()))
