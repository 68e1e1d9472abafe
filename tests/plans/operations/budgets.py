"""Budgets."""

from collections.abc import Callable
from datetime import timedelta

from django.utils import timezone

from agent.llm.base import Usage
from agent.spending import book, budgets
from agent.spending.bills import Bill
from agent.spending.models import Budget, BudgetPeriod
from conversations import taint
from conversations.engine import inbox
from nanohost.lib.ids import new_id
from tests.plans.operations.common import READING, operation, the_long_one


def a_budget() -> Budget:
    """One with a year behind it, beside others."""
    every = [Budget(name=f"{n}", whose="host", measure="tokens", every="day", amount=10**9) for n in range(100)]
    made = Budget.objects.bulk_create(every)
    days = [timezone.localdate() - timedelta(days=day) for day in range(100)]
    BudgetPeriod.objects.bulk_create(BudgetPeriod(budget=each, start=day) for each in made for day in days)
    return made[-1]


def reserved() -> Bill:
    """Of a budget of which others have reserved as well."""
    limit = next(each for each in book.read().limits if each.id == a_budget_id())
    estimate = budgets.Estimate(model="m", prompt_tokens=1, completion_tokens=1)
    for _ in range(50):
        ids = {name: new_id() for name in ("call_id", "work_id", "conversation_id")}
        made = budgets.reserve([limit], estimate, price=None, **ids)
    return Bill(reserved=made, counted=Usage(prompt_tokens=9 * 10**8))


def a_budget_id() -> int:
    latest = Budget.objects.order_by("-pk").first()
    assert latest
    return latest.pk


@operation("budgets.reserve")
def reserve() -> Callable[[], object]:
    a_budget()
    book.forget()
    reserved()
    return reserved


@operation("budgets.settle")
def settle() -> Callable[[], object]:
    a_budget()
    book.forget()
    bill = reserved()
    return lambda: budgets.settle(bill)


@operation("budgets.used_up")
def used_up() -> Callable[[], object]:
    a_budget()
    book.forget()
    limits = book.read().limits[-3:]
    return lambda: budgets.used_up(limits, timezone.now(), with_rest=set())


@operation("taint.last_before", READING)
def last_mark() -> Callable[[], object]:
    conversation = the_long_one()
    return lambda: taint.last_before(conversation.pk, conversation.next_seq)


@operation("inbox.begin_anew")
def begin_anew() -> Callable[[], object]:
    conversation = the_long_one()
    return lambda: inbox.begin_anew(conversation_id=conversation.pk)
