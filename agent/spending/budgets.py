"""Budgets: reserved before each model call, settled with its answer, released where there is none.

Each reservation has a lease, and counts no longer than that: a process that dies between its reservation and its
settlement takes nothing with it. Locks of budgets are taken after all others, in the order of their periods' ids.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction
from django.db.models import BigIntegerField, Count, DurationField, F, Q, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from agent.errors import BudgetExceeded, ModelNotPriced
from agent.spending import ahead, book, notices
from agent.spending.ahead import stock
from agent.spending.bills import Bill, Reserved, Share
from agent.spending.book import Book, Limit
from agent.spending.models import Budget, BudgetPeriod, Reservation, Whose
from agent.spending.periods import Every
from agent.spending.prices import Price
from nanohost.lib.clock import Now, from_now
from nanohost.lib.ids import new_id
from nanohost.lib.statements import Delete, Given, Insert, Rows, Update

# Reservations whose lease is over for so many seconds are deleted: an answer that was late would have come by now.
FORGOTTEN_AFTER_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True)
class Payer:
    """Who asks a model: whose conversation it is, with which agent, and with which API key, if with one."""

    owner_id: int
    agent_id: int
    api_key_id: int | None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How large a call may become. ``completion_tokens``: what its answer is bounded by."""

    model: str
    prompt_tokens: int
    completion_tokens: int


def limits_on(known: Book, payer: Payer) -> list[Limit]:
    """The budgets that count what somebody asks, in the order of their ids."""
    return [limit for limit in known.limits if _is_for(limit, payer)]


def _is_for(limit: Limit, payer: Payer) -> bool:
    match limit.whose:
        case Whose.HOST:
            return True
        case Whose.AGENT:
            return limit.agent_id == payer.agent_id
        case Whose.OWNER:
            return limit.owner_id == payer.owner_id
        case _:
            return limit.api_key_id == payer.api_key_id


# --- reserving ---------------------------------------------------------------------------------------------------


_lock = Rows[tuple[int, int, bool]](
    lambda: (
        BudgetPeriod.objects.filter(pk=Given("period_id"), budget_id=Given("budget_id"), start=Given("start"))
        .order_by()
        .select_for_update(of=("self",))
        .values_list("spent", "budget__amount", "budget__is_on")
    )
)
# By others, and by the same work. Looked at under the lock of the period, and so with all that others have reserved.
_taken = Rows[tuple[int, int]](
    lambda: (
        Reservation.objects.filter(period_id=Given("period_id"), lease_until__gt=Now())
        .order_by()
        .values("period_id")
        .annotate(
            others=Coalesce(Sum("amount", filter=~Q(work_id=Given("work_id"))), 0),
            own=Count("pk", filter=Q(work_id=Given("work_id"))),
        )
        .values_list("others", "own")
    )
)
_insert = Insert(
    Reservation,
    *("call_id", "period_id", "amount", "work_id", "conversation_id"),
    lease_until=from_now(Given("lease", DurationField())),
)


class _Gone(Exception):
    """The row of a period was deleted, with its budget."""


class _Full(Exception):
    """A period has no room left. Its arguments: its id, and its budget."""


def take_ahead(limits: Sequence[Limit], estimate: Estimate, *, price: Price | None) -> Reserved | None:
    """What this process has reserved ahead for a call such as this; None if it has nothing. Without the database.

    Raises :class:`agent.errors.ModelNotPriced`.
    """
    tokens, money = _amounts(limits, estimate, price)
    made = stock.take(_scope(limits, timezone.now()), tokens=tokens, money=money)
    if made is None:
        return None
    return Reserved(call_id=made.call_id, shares=made.shares, prompt_tokens=estimate.prompt_tokens)


def reserve(
    limits: Sequence[Limit],
    estimate: Estimate,
    *,
    price: Price | None,
    call_id: UUID,
    work_id: UUID,
    conversation_id: UUID,
) -> Reserved:
    """Reserve what a call may use, of each of the budgets or of none: in one short transaction. Where many calls come,
    it reserves for some of the next as well.

    What the same work has reserved before counts no more: its call has failed, or whoever made it has died. Raises
    :class:`agent.errors.BudgetExceeded` and :class:`agent.errors.ModelNotPriced`.
    """
    tokens, money = _amounts(limits, estimate, price)
    wanted = [(limit, money if limit.is_money else tokens) for limit in limits]
    ids: dict[str, UUID] = {"call_id": call_id, "work_id": work_id, "conversation_id": conversation_id}
    for _ in range(3):  # with what was reserved ahead, without it, and once more if a row has gone meanwhile
        try:
            shares = _reserve(wanted, tokens=tokens, money=money, **ids)
            return Reserved(call_id=call_id, shares=shares, prompt_tokens=estimate.prompt_tokens)
        except _Gone:
            _known.clear()
        except _Full as full:
            period_id, limit = full.args
            book.note_no_rest()
            if withdrawn := stock.withdraw([period_id]):
                Reservation.objects.filter(call_id__in=withdrawn).delete()
                continue
            notices.exceeded(period_id)
            raise BudgetExceeded(told(limit, timezone.now())) from None
    raise BudgetExceeded("Its budgets change just now. Ask again.")


def _amounts(limits: Sequence[Limit], estimate: Estimate, price: Price | None) -> tuple[int, int]:
    """What a call may use at most: tokens, and millionths of the currency where a budget counts these."""
    tokens = estimate.prompt_tokens + estimate.completion_tokens
    if not any(limit.is_money for limit in limits):
        return tokens, 0
    if price is None:
        raise ModelNotPriced(f"What {estimate.model} costs is not known here, and a budget in money has to know it.")
    return tokens, price.most(prompt_tokens=estimate.prompt_tokens, completion_tokens=estimate.completion_tokens)


def _scope(limits: Sequence[Limit], now: datetime) -> ahead.Scope:
    return tuple((limit, limit.period(now).start) for limit in limits)


def _reserve(wanted: Sequence[tuple[Limit, int]], *, tokens: int, money: int, **ids: UUID) -> tuple[Share, ...]:
    scope = _scope([limit for limit, _ in wanted], timezone.now())
    starts = dict(scope)
    periods = [(_period_id(limit, starts[limit]), limit, amount) for limit, amount in wanted]
    shares: list[Share] = []
    full: _Full | None = None
    (more, outgrown), until = stock.wanted(scope, tokens=tokens, money=money), time.monotonic() + ahead.SECONDS
    lease = timedelta(seconds=settings.LLM_TIMEOUT_SECONDS + settings.TURN_LEASE_SECONDS)
    with transaction.atomic():
        for period_id, limit, amount in sorted((each for each in periods if each[0]), key=lambda each: each[0]):
            row = next(iter(_lock(period_id=period_id, budget_id=limit.id, start=starts[limit])), None)
            if row is None:
                raise _Gone
            if outgrown:
                Reservation.objects.filter(call_id__in=outgrown).delete()
                outgrown = []
            spent, most, is_on = row
            others, own = next(iter(_taken(period_id=period_id, work_id=ids["work_id"])), (0, 0))
            if own:
                Reservation.objects.filter(period_id=period_id, work_id=ids["work_id"]).update(lease_until=Now())
            left = most - spent - others - amount
            if is_on and left < 0:
                full = _Full(period_id, limit)
                break
            # One that is switched off just now is counted all the same, which refuses nothing.
            shares.append(Share(period_id, limit.is_money, amount, most))
            more = min(more, max(left, 0) // ahead.PART_OF_THE_REST // max(_larger(amount), 1))
        if full is None:
            for share in shares:
                _insert(period_id=share.period_id, amount=share.amount, lease=lease, **ids)
            made = _make_ahead(shares, more, until=until, lease=lease + timedelta(seconds=ahead.SECONDS))
    if full:
        raise full
    stock.add(scope, made)
    return tuple(shares)


# Of reservations that no work has taken yet.
_NOBODY = UUID(int=0)


def _make_ahead(shares: Sequence[Share], count: int, *, until: float, lease: timedelta) -> list[ahead.Made]:
    """Reserve for calls to come, in the caller's transaction."""
    larger = tuple(replace(share, amount=_larger(share.amount)) for share in shares)
    made = [ahead.Made(call_id=new_id(), shares=larger, until=until) for _ in range(count if shares else 0)]
    rows = [  # none, where the budgets have gone meanwhile
        {"call_id": each.call_id, "period_id": share.period_id, "amount": share.amount}
        for each in made
        for share in each.shares
    ]
    if rows:
        _insert.many([row | {"work_id": _NOBODY, "conversation_id": _NOBODY, "lease": lease} for row in rows])
    return made


def _larger(amount: int) -> int:
    return amount + amount // ahead.GROWTH


# The ids of the periods' rows, by budget and first day.
_known: dict[tuple[int, date], int] = {}


def _period_id(limit: Limit, start: date) -> int:
    """The row of the budget's period, made if there is none; 0 if the budget is gone."""
    if (limit.id, start) not in _known:
        if not Budget.objects.filter(pk=limit.id).exists():
            return 0
        row, is_new = BudgetPeriod.objects.get_or_create(budget_id=limit.id, start=start)
        if is_new:
            Reservation.objects.filter(lease_until__lt=from_now(-FORGOTTEN_AFTER_SECONDS)).delete()
            _known.clear()
        _known[limit.id, start] = row.pk
    return _known[limit.id, start]


# --- settling ----------------------------------------------------------------------------------------------------


_spend = Update(
    lambda: BudgetPeriod.objects.filter(pk=Given("period_id")),
    lambda: {"spent": F("spent") + Given("amount", BigIntegerField())},
    returning=("spent", "warned_at"),
)


_give_back = Delete(lambda: Reservation.objects.filter(call_id=Given("call_id")))


def settle(bill: Bill) -> None:
    """Count what an answer has cost, in place of what was reserved for it; in the transaction that stores the answer,
    after all its other locks. Each call is counted once, however often this is called for it."""
    reserved = bill.reserved
    if reserved is None or not release(reserved.call_id):
        return
    for share in reserved.shares:
        used = bill.counted
        amount = bill.counted_cost if share.is_money else used.prompt_tokens + used.completion_tokens
        for spent, warned_at in _spend(period_id=share.period_id, amount=amount):
            if spent >= share.most:
                book.note_no_rest()
            if warned_at is None and notices.is_mostly_used(spent, share.most):
                notices.mostly_used(share.period_id)


def settle_alone(bill: Bill) -> None:
    """The same, of an answer that nobody wants any more: it is to be paid for all the same."""
    with transaction.atomic():
        settle(bill)


def release(call_id: UUID) -> bool:
    """Give back what was reserved for a call; False if that was settled or given back before."""
    return bool(_give_back(call_id=call_id))


# --- at the door -------------------------------------------------------------------------------------------------


_used_up = Rows[int](
    lambda: (
        BudgetPeriod.objects.filter(
            budget_id=Given("budget_id"), start=Given("start"), budget__is_on=True, spent__gte=F("budget__amount")
        )
        .order_by()
        .values_list("pk", flat=True)
    )
)


def used_up(limits: Sequence[Limit], now: datetime, *, with_rest: set[tuple[int, date]]) -> Limit | None:
    """The first of these budgets of which nothing is left; None if each has something, which may not be enough.

    Those in ``with_rest``, of the book that the limits are in, had something a moment ago, and what this process has
    spent since has not used them up. Those that are found to have something join them.
    """
    for limit in limits:
        place = limit.id, limit.period(now).start
        if place in with_rest:
            continue
        for period_id in _used_up(budget_id=limit.id, start=place[1]):
            notices.exceeded(period_id)
            return limit
        with_rest.add(place)
    return None


_WORDS = {Whose.HOST: "This host's", Whose.AGENT: "This agent's", Whose.OWNER: "Your", Whose.KEY: "This API key's"}


def told(limit: Limit, now: datetime) -> str:
    """That a budget has no room left, in plain words, and when it has again."""
    renewed = limit.period(now).ends.astimezone(ZoneInfo(settings.TIME_ZONE))
    often = "daily" if limit.every == Every.DAY else "monthly"
    return (
        f"{_WORDS[Whose(limit.whose)]} {often} budget is too low for this."
        f" It starts over on {renewed:%Y-%m-%d} at {renewed:%H:%M} ({settings.TIME_ZONE})."
    )


# --- how they stand ----------------------------------------------------------------------------------------------


def standing(rows: Sequence[Budget], now: datetime) -> dict[int, tuple[int, int]]:
    """Of each of the budgets what is used of its present period, and what is reserved."""
    starts = {row.pk: row.period(now).start for row in rows}
    periods = BudgetPeriod.objects.filter(budget_id__in=list(starts), start__in=set(starts.values()))
    of = {row.budget_id: row for row in periods if row.start == starts[row.budget_id]}
    live = Reservation.objects.filter(period__in=[row.pk for row in of.values()], lease_until__gt=Now())
    reserved = dict(live.order_by().values("period_id").annotate(all=Sum("amount")).values_list("period_id", "all"))
    return {pk: (of[pk].spent, reserved.get(of[pk].pk, 0)) if pk in of else (0, 0) for pk in starts}


def mostly_used(now: datetime) -> list[tuple[Budget, int]]:
    """The budgets of which a warning is due, and what is used of each, in percent."""
    rows = list(Budget.objects.filter(is_on=True).select_related("agent", "owner", "api_key"))
    stands = standing(rows, now)
    shares = [(row, 100 * stands[row.pk][0] // max(row.amount, 1)) for row in rows]
    return [(row, share) for row, share in shares if share >= notices.WARN_AT or row.amount == 0]
