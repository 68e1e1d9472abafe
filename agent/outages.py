"""Providers that are left alone for a while, as rows: so that all processes know, and people see it.

What a process finds out by itself it keeps in memory (:mod:`agent.llm.breaker`); only what changes is written, which is
rare. Others read it with the prices, once a second while there is work; and before they leave a provider alone, since
somebody may want it asked.
"""

import logging
from collections.abc import Sequence

from django.db import OperationalError, transaction
from django.db.models import Case, F, When

from agent.llm.breaker import Change, breaker
from agent.models import ProviderOutage
from nanohost.lib.clock import Now, from_now
from nanohost.lib.database_threads import DatabaseThreads

logger = logging.getLogger(__name__)


async def tell(database: DatabaseThreads) -> None:
    """Tell others what this process has found out of providers, if it has found out anything."""
    if changes := breaker.take_changes():
        try:
            await database(record, changes)
            breaker.told(changes)
        except OperationalError as error:
            logger.warning("what became of a provider could not be stored (%s)", type(error).__name__)


def record(changes: Sequence[Change]) -> None:
    """Store what has changed. Of two processes that leave a provider alone, the later end counts."""
    for change in changes:
        if not change.seconds:
            logger.warning("the provider %s answers again", change.provider)
            ProviderOutage.objects.filter(provider=change.provider).update(until=None, ended_at=Now())
            continue
        logger.warning("the provider %s is left alone for %d s (%s)", change.provider, change.seconds, change.code)
        with transaction.atomic():
            ProviderOutage.objects.get_or_create(provider=change.provider)
            ProviderOutage.objects.filter(provider=change.provider).update(
                # An outage that goes on began when it did.
                since=Case(When(until__isnull=False, then=F("since")), default=Now()),
                until=from_now(change.seconds),
                ended_at=None,
                code=change.code,
                times=F("times") + 1,
            )


def ask_again(*, by: str) -> list[str]:
    """Have the providers that are left alone asked by whoever comes next; returns their names. ``by``: who wants it."""
    with transaction.atomic():
        rows = ProviderOutage.objects.filter(until__gt=Now()).select_for_update()
        names = sorted(rows.values_list("provider", flat=True))
        ProviderOutage.objects.filter(provider__in=names).update(until=Now())
    for name in names:
        logger.warning("the provider %s is to be asked again", name, extra={"by": by})
    return names
