"""A lease: one worker at a time holds a row, for a limited time, and only its holder writes.

Every kind of work is a row with a lease. A claim raises the row's ``fence`` and sets ``lease_until``; each write passes
the fence, or changes nothing; a renewal moves ``lease_until`` on. What is due is found by a sweep, also if nobody was
notified of it. All times are the database's.
"""

import random
from collections.abc import Collection
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, Self, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.expressions import Combinable
from django.db.models.functions import Least

from nanohost.lib.clock import Now, from_now
from nanohost.lib.statements import Rows

LeasedT = TypeVar("LeasedT", bound="Leased")
RescheduledT = TypeVar("RescheduledT", bound="Rescheduled")

# Seconds for which what somebody was notified of is left to them: no longer than what somebody holds.
NOTIFIED_FOR = min(10.0, settings.TURN_LEASE_SECONDS)

# An expired lease is found at once, since its worker was notified and is gone; but by one sweep a second.
EXPIRED_AGAIN_AFTER = 1.0


class LeaseQuerySet(models.QuerySet[LeasedT]):
    """Rows that are held one at a time."""

    def open(self) -> Self:
        """Rows that still need a worker."""
        raise NotImplementedError

    def due(self) -> Self:
        """Rows that nobody works on and whose time has come."""
        raise NotImplementedError

    def claimable(self) -> Self:
        """Rows that may be claimed now."""
        return self.due()

    def held(self, row_id: "UUID | Combinable", fence: "int | Combinable") -> Self:
        """The row, if whoever claimed it with this fence still holds it."""
        return self.filter(pk=row_id, fence=fence, status=self.model.LEASED)

    def renew(self) -> int:
        """Renew the leases of these rows, as far as they are held; returns of how many."""
        lease = settings.TURN_LEASE_SECONDS
        return self.filter(status=self.model.LEASED).update(**self.model.renewed(lease=lease))

    def release(self, **changes: Any) -> int:
        """Let go of these rows, as at a shutdown: the next sweep finds them. Returns how many they are. ``changes``:
        what else of them changes."""
        return self.update(**{"status": self.model.QUEUED} | RELEASED | changes)

    def find(self, *, limit: int, leaving_out: Collection[UUID] = ()) -> list[UUID]:
        """Claimable rows that nobody was notified of lately, those first that wait longest; they are marked as
        notified now."""
        # Most sweeps find nothing, which they learn without a transaction, and by a statement that is written once.
        if not first_overdue(self.model)():
            return []
        rows = self.overdue()
        if leaving_out:
            rows = rows.exclude(pk__in=leaving_out)
        with transaction.atomic():
            # Another sweeper's rows are passed over, which also keeps two from waiting for each other.
            locked = rows.select_for_update(skip_locked=True)
            found = list(locked.values_list("pk", flat=True)[:limit])
            self.model._default_manager.filter(pk__in=found).update(notified_at=Now())
        return found

    def overdue(self) -> Self:
        """Claimable rows that nobody was notified of lately, those first that wait longest."""
        not_notified = Q(notified_at=None) | Q(notified_at__lt=from_now(-NOTIFIED_FOR))
        again = Q(notified_at=None) | Q(notified_at__lt=from_now(-EXPIRED_AGAIN_AFTER))
        return self.claimable().filter(not_notified | self.model.expired() & again).order_by("notified_at")

    def expire_all(self) -> None:
        """Whoever holds any of these is dead, and so is whoever was notified: all of them are found at once."""
        self.filter(status=self.model.LEASED).update(lease_until=from_now(-1))
        self.open().update(notified_at=None)

    def overlooked(self, *, seconds: float, limit: int) -> list[UUID]:
        """Claimable rows that no worker has taken within so long: there is none for them, or all are full."""
        then = from_now(-seconds)
        waits = ~Q(status=self.model.LEASED) | Q(lease_until__lt=then)
        rows = self.claimable().filter(waits, Q(notified_at__lt=then) | Q(notified_at=None, created_at__lt=then))
        # In the order of the index that they are found by.
        return list(rows.order_by("notified_at").values_list("pk", flat=True)[:limit])


@cache
def first_overdue(model: "type[Leased]") -> Rows[Any]:
    """The statement for the id of the row that :meth:`LeaseQuerySet.find` finds first."""
    rows: Any = model._default_manager
    return Rows(lambda: rows.overdue().values_list("pk", flat=True)[:1])


class Leased(models.Model):
    """A row that one worker at a time holds. A subclass has a ``created_at`` and a ``status``: ``QUEUED`` of a row that
    nobody has begun, ``LEASED`` of one that is held."""

    QUEUED: ClassVar[str]
    LEASED: ClassVar[str]

    fence = models.PositiveIntegerField(
        default=0, help_text="Increased by each claim; only the latest holder may write."
    )
    worker = models.CharField(max_length=128, blank=True, help_text="The worker that claimed it last.")
    lease_until = models.DateTimeField(null=True, blank=True, help_text="No other worker may claim it before then.")
    # The column keeps its former name, which nodes of the release before still read beside new ones.
    notified_at = models.DateTimeField(
        null=True, blank=True, db_column="rung_at", help_text="When workers were last notified of it."
    )

    class Meta:
        abstract = True

    @classmethod
    def expired(cls) -> Q:
        """Whether the holder of a row has not renewed its lease in time."""
        return Q(status=cls.LEASED, lease_until__lt=Now())

    @classmethod
    def claimed(cls, *, worker: "str | Combinable", lease: "float | Combinable") -> dict[str, Any]:
        """What a claim changes. ``lease``: seconds, or an expression for a duration."""
        return {
            "status": cls.LEASED,
            "fence": F("fence") + 1,
            "worker": worker,
            "lease_until": from_now(lease),
        }

    @classmethod
    def renewed(cls, *, lease: "float | Combinable") -> dict[str, Any]:
        """What a renewal changes. ``lease``: seconds, or an expression for a duration."""
        return {"lease_until": from_now(lease)}


class Rescheduled(Leased):
    """A row that one worker at a time holds, and that may be rescheduled."""

    run_after = models.DateTimeField(null=True, blank=True, help_text="Not before then.")

    class Meta:
        abstract = True

    @classmethod
    def on_time(cls) -> Q:
        """Whether a row's time has come."""
        return Q(run_after=None) | Q(run_after__lte=Now())


class RescheduledQuerySet(LeaseQuerySet[RescheduledT]):
    """Rows that are held one at a time, and may be rescheduled."""

    def due(self) -> Self:
        """Rows that nobody works on and whose time has come."""
        return self.filter(Q(status=self.model.QUEUED) & self.model.on_time() | self.model.expired())

    def reschedule(self, wait: float, *, at_the_latest: "Combinable | None" = None, **changes: Any) -> int:
        """Let go of these rows for so many seconds; a sweep finds them as soon as these are over. Returns how many they
        are. ``at_the_latest``: a time by which they are due in any case. ``changes``: what else of them changes."""
        then: Combinable = from_now(wait)
        if at_the_latest is not None:
            then = Least(then, at_the_latest)
        # A sweep leaves alone for a while what somebody was notified of, and nobody is when the time has come.
        found = {"run_after": then, "notified_at": then - timedelta(seconds=NOTIFIED_FOR)}
        return self.update(**{"status": self.model.QUEUED, "lease_until": None} | found | changes)


# What letting go of a row changes, beside its status: the next sweep finds it.
RELEASED: dict[str, Any] = {"lease_until": None, "notified_at": None}


def rescheduled(wait: "float | Combinable") -> dict[str, Any]:
    """What rescheduling a row changes, beside its status, where whoever does so notifies workers when it
    is over: a sweep finds it only later. ``wait``: seconds, or an expression for a duration."""
    return {"lease_until": None, "run_after": from_now(wait), "notified_at": from_now(wait)}


def lease_length() -> timedelta:
    """How long a claim or a renewal holds a row."""
    return timedelta(seconds=settings.TURN_LEASE_SECONDS)


def backoff(failures: int, *, first: float, longest: float) -> float:
    """Seconds before the next try after so many ``failures``: exponential, with jitter, so that what failed together
    does not come back together."""
    return min(longest, first * 2.0 ** min(failures, 30)) * random.uniform(0.5, 1.0)  # noqa: S311 -- no secret
