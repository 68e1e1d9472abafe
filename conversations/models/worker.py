"""Workers: one row for each process that runs work."""

from typing import Any, Literal, Self

from django.conf import settings
from django.db import models
from django.db.models import ExpressionWrapper, Q

from conversations.kinds import TOOLS, TURNS, Kind
from nanohost.lib.clock import from_now

# LLM_PROVIDER's word for the model that nanohost brings along.
SCRIPTED = "mock"


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Look-ups that say what they mean."""

    def alive(self) -> Self:
        """Workers that have not ended and were heard of within three heartbeats."""
        return self.filter(Worker.is_heard())

    def with_life(self) -> Self:
        """Each with ``is_alive``, by the database's clock, which also stamps the heartbeats."""
        return self.annotate(is_alive=ExpressionWrapper(Worker.is_heard(), output_field=models.BooleanField()))

    def working_on(self, kind: Kind) -> Self:
        """Workers that listen to its queue."""
        return self.filter(queues__regex=rf"(^|,){kind.queue}(,|$)")

    def sandboxes(self) -> list[str]:
        """The sandboxes of those that run tools and are alive: each that there is, once."""
        return sorted(set(self.alive().working_on(TOOLS).exclude(sandbox="").values_list("sandbox", flat=True)))

    def scripted(self) -> Literal["", "some", "all"]:
        """Of the workers that run turns and are alive, who answers them by the scripted model. Only workers know; web
        nodes are given neither a key nor an address."""
        providers = set(self.alive().working_on(TURNS).values_list("provider", flat=True))
        if SCRIPTED not in providers:
            return ""
        return "some" if len(providers) > 1 else "all"


class Worker(models.Model):
    """One row a worker process: readiness, and who is dead, are read from it."""

    # Three of them fit in a lease, so that one that is late loses no turn.
    HEARTBEAT_SECONDS = min(5.0, settings.TURN_LEASE_SECONDS / 3)
    SILENT_SECONDS = 3 * HEARTBEAT_SECONDS

    name = models.CharField(max_length=128, unique=True, help_text="host:pid:start")
    version = models.CharField(max_length=32)
    queues = models.CharField(max_length=200, db_default="turns,tools", help_text="Its queues, separated by commas.")
    started_at = models.DateTimeField(auto_now_add=True)
    heartbeat_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When it shut down cleanly.")
    turns_most = models.PositiveIntegerField(help_text="The most turns it can hold.")
    pool_used = models.PositiveIntegerField(
        null=True, help_text="Connections of its database pool that were in use. Empty: it has no pool, as on SQLite."
    )
    pool_most = models.PositiveIntegerField(null=True, help_text="How many connections its pool may open.")
    pool_waiting = models.PositiveIntegerField(null=True, help_text="Threads that waited for one.")
    provider = models.CharField(max_length=32, blank=True, db_default="", default="", help_text="Its LLM_PROVIDER.")
    providers = models.CharField(
        max_length=255,
        blank=True,
        db_default="",
        default="",
        help_text="The providers that it has a key or an address of, separated by commas.",
    )
    sandbox = models.CharField(
        max_length=100, blank=True, db_default="", default="", help_text="The sandbox its tools run in."
    )

    objects = WorkerQuerySet.as_manager()

    class Meta:
        ordering = ["-heartbeat_at"]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def is_heard(cls) -> Q:
        """Whether a worker has not ended, and was heard of lately."""
        return Q(**cls.heard_since(from_now(-cls.SILENT_SECONDS)))

    @staticmethod
    def heard_since(then: Any) -> dict[str, Any]:
        """The same as filters, for a link to a list of workers. ``then``: :attr:`SILENT_SECONDS` ago."""
        return {"ended_at__isnull": True, "heartbeat_at__gt": then}

    @property
    def told_pool(self) -> str:
        """The use of its database pool at its last heartbeat, in a few words."""
        if self.pool_most is None:
            return "none"
        waiting = f", {self.pool_waiting} waiting" if self.pool_waiting else ""
        return f"{self.pool_used} of {self.pool_most}{waiting}"
