"""Notices about a budget, once a period: that most of it is used, and that it refuses."""

from typing import Any

from django.db import transaction
from django.db.models import F
from django.dispatch import Signal

from agent.spending.models import BudgetPeriod
from nanohost.accounts import audit
from nanohost.lib.clock import Now

# Of a hundred.
WARN_AT = 80

# Sent with ``event`` and ``facts``, in the transaction: apps above this one tell others of it.
told = Signal()

WARNING, EXCEEDED = "budget.warning", "budget.exceeded"


def is_mostly_used(spent: int, amount: int) -> bool:
    """Whether a warning is due."""
    return 100 * spent >= WARN_AT * amount


def mostly_used(period_id: int) -> None:
    """Warn of it, unless that was done before; in the transaction of a settlement."""
    due = BudgetPeriod.objects.filter(pk=period_id, warned_at=None, spent__gte=F("budget__amount") * WARN_AT / 100)
    if due.exists() and BudgetPeriod.objects.filter(pk=period_id, warned_at=None).update(warned_at=Now()):
        warn(WARNING, _period(period_id))


def exceeded(period_id: int) -> None:
    """Tell that the budget has refused a call, unless that was told before."""
    with transaction.atomic():
        if BudgetPeriod.objects.filter(pk=period_id, exceeded_at=None).update(exceeded_at=Now()):
            warn(EXCEEDED, _period(period_id))


def _period(period_id: int) -> BudgetPeriod:
    return BudgetPeriod.objects.select_related("budget").get(pk=period_id)


def warn(event: str, period: BudgetPeriod) -> None:
    """Tell of a budget, in the transaction in which it came so far: whoever is to hear of it is told here.

    ``event``: :data:`WARNING` or :data:`EXCEEDED`; each is told once a period.
    """
    facts = told_of(period)
    audit.record(event, about=period.budget, after=facts, by=audit.HOST)
    told.send(BudgetPeriod, event=event, facts=facts)


def told_of(period: BudgetPeriod) -> dict[str, Any]:
    """A period of a budget, as those are told of it who are told: money in millionths of the currency."""
    budget = period.budget
    return {
        "budget": budget.name,
        "whose": budget.whose,
        "subject": budget.subject_id,
        "measure": budget.measure,
        "every": budget.every,
        "start": period.start.isoformat(),
        "spent": period.spent,
        "amount": budget.amount,
    }
