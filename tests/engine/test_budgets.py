"""Budgets: what is reserved before a model is asked, what is counted after it, and what is refused."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agent.errors import BudgetExceeded
from agent.llm.base import Completion, ModelRequest, Usage
from agent.spending import ahead, book, budgets, notices
from agent.spending.bills import Bill
from agent.spending.budgets import Estimate
from agent.spending.models import Budget, BudgetPeriod, ModelPrice, Reservation
from conversations.deliveries import endpoints
from conversations.engine import turn_control
from conversations.engine.paying import Purse
from conversations.engine.turns import TurnRunner
from conversations.errors import BudgetUsedUp
from conversations.events import answers
from conversations.models import Conversation, Delivery, Message, Turn
from conversations.statuses import TurnStatus
from nanohost.accounts.models import WIDE, ApiKey, AuditEntry
from nanohost.lib.clock import from_now
from nanohost.lib.database_threads import DatabaseThreads
from nanohost.lib.ids import new_id
from tests.support.compacting import compact
from tests.support.factories import AgentFactory, OwnerFactory
from tests.support.openai_server import completion
from tests.support.scripts import script
from tests.support.threads import in_threads
from tests.support.working import advance, settle

pytestmark = pytest.mark.django_db(transaction=True)

MUCH = 10**9


def budget(amount: int = MUCH, **given: Any) -> Budget:
    return Budget.objects.create(
        **{"name": "house", "whose": "host", "measure": "tokens", "every": "day", "amount": amount} | given
    )


def spent(of: Budget) -> int:
    return sum(of.periods.values_list("spent", flat=True))


def price(model: str = "mock", prompt: int = 2, completion: int = 10) -> ModelPrice:
    return ModelPrice.objects.create(model=model, prompt=prompt, completion=completion, valid_from=from_now(-60))


def reserve(amount: int, *, work: object = None, **options: Any) -> budgets.Reserved:
    """Of every budget of tokens there is."""
    estimate = Estimate(model="m", prompt_tokens=amount, completion_tokens=0)
    ids = {"call_id": new_id(), "work_id": work or new_id(), "conversation_id": new_id()}
    return budgets.reserve(book.read().limits, estimate, **{"price": None} | ids | options)


def take(amount: int) -> budgets.Reserved | None:
    """What was reserved ahead, of every budget of tokens there is."""
    estimate = Estimate(model="m", prompt_tokens=amount, completion_tokens=0)
    return budgets.take_ahead(book.read().limits, estimate, price=None)


def pass_through(amount: int, *, calls: int) -> list[budgets.Reserved]:
    """So many calls one after the other, each settled before the next; what was taken for them."""
    taken = []
    for _ in range(calls):
        taken.append(take(amount) or reserve(amount))
        budgets.settle_alone(bill(taken[-1], amount))
    return taken


def bill(reserved: budgets.Reserved, tokens: int) -> Bill:
    return Bill(reserved=reserved, counted=Usage(prompt_tokens=tokens))


# --- what a turn costs -------------------------------------------------------------------------------------------


def test_a_call_a_turn_and_a_conversation_have_their_cost(say, model):
    price("gpt-4.1-mini", prompt=2, completion=10).refresh_from_db()
    ModelPrice.objects.filter(model="gpt-4.1-mini").update(cached_prompt=1)
    book.forget()
    used = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
    for _ in range(2):
        model.answer(completion("Fine.", usage=used))
        (turn,) = settle([say("Hello")])
    assert (turn.cost, turn.cached_tokens, turn.model_calls) == (120 + 40 + 70, 40, 1)
    answer = Message.objects.get(turn=turn, role="assistant")
    counted = {"model": turn.model, "prompt": 100, "cached": 40, "completion": 7, "cost": 230}
    assert answer.usage == counted | {"provider": "openai", "why": "LLM_PROVIDER is openai"}
    assert Conversation.objects.get(pk=turn.conversation_id).cost == 460


def test_what_a_model_without_a_price_costs_is_not_known(say, model):
    ModelPrice.objects.all().delete()
    model.answer(completion("Fine."))
    (turn,) = settle([say("Hello")])
    assert (turn.status, turn.cost, turn.prompt_tokens) == (TurnStatus.SUCCEEDED, None, 12)
    assert Conversation.objects.get(pk=turn.conversation_id).cost is None


def test_each_call_of_a_turn_is_paid_for(say, tool_settings):
    tool_settings("time")
    price()
    (turn,) = settle([say(script({"call": [{"name": "time"}]}, {"say": "Noon"}))])
    calls = [each.usage["cost"] for each in Message.objects.filter(turn=turn, role="assistant")]
    assert len(calls) == 2
    assert turn.cost == sum(calls) == 2 * turn.prompt_tokens + 10 * turn.completion_tokens > 0


def test_an_answer_of_no_use_is_paid_for_as_well(say, model, settings):
    settings.TURN_MAX_ATTEMPTS = 1
    whole = budget()
    price("gpt-4.1-mini")
    model.answer(completion(""))
    turn = advance(say("Hello"))
    assert (turn.status, turn.retry_code) == (TurnStatus.WAITING, "llm_bad_response")
    assert (turn.prompt_tokens, turn.completion_tokens, turn.cost) == (12, 5, 74)
    assert (spent(whole), Reservation.objects.count()) == (17, 0)


# --- reserving, settling, releasing ------------------------------------------------------------------------------


def test_a_turn_is_reserved_before_and_settled_after_its_call(say, model):
    whole, seen = budget(), []
    model.answer(completion("Fine."))
    model.on_request = lambda _: seen.append(in_threads([lambda: Reservation.objects.get().amount]))
    (turn,) = settle([say("Hello")])
    assert (turn.status, seen[0][0] > 8000, spent(whole)) == (TurnStatus.SUCCEEDED, True, 17)
    assert not Reservation.objects.exists()


def test_where_a_budget_applies_an_answer_is_bounded_by_what_was_reserved(say, model, agent):
    agent.output_reserve = 300
    agent.save()
    model.answer(completion("Fine."), completion("Fine."))
    settle([say("Hello")])
    budget()
    settle([say("Hello")])
    assert [request.body.get("max_tokens") for request in model.requests] == [None, 300]


def test_a_turn_that_a_budget_has_no_room_for_fails_and_says_until_when(say, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    budget(1000, whose="host", every="month")
    (turn,) = settle([say("Hello", while_paused="hold")])
    assert (turn.status, turn.error_code, turn.model_calls) == (TurnStatus.FAILED, "budget_exceeded", 0)
    assert turn.error_detail.startswith("This host's monthly budget is too low for this. It starts over on ")
    assert turn.error_detail.endswith("-01 at 00:00 (Europe/Berlin).")
    assert not Reservation.objects.exists()


def test_a_model_without_a_price_is_not_asked_where_money_counts(say, model):
    ModelPrice.objects.all().delete()
    budget(measure="money")
    (turn,) = settle([say("Hello")])
    assert (turn.status, turn.error_code, model.requests) == (TurnStatus.FAILED, "model_not_priced", [])
    Budget.objects.update(measure="tokens")
    book.forget()
    model.answer(completion("Fine."))
    assert settle([say("Hello")])[0].status == TurnStatus.SUCCEEDED


def test_a_budget_in_money_counts_what_calls_cost(say):
    price()
    whole = budget(measure="money")
    (turn,) = settle([say("Hello")])
    assert spent(whole) == turn.cost > 0


def test_a_call_that_fails_leaves_nothing_reserved(say):
    whole = budget()
    turn = advance(say(script({"fail": "unavailable", "times": 1}, {"say": "Now"})))
    assert (turn.status, turn.retry_code) == (TurnStatus.WAITING, "llm_unavailable")
    assert (Reservation.objects.count(), spent(whole)) == (0, 0)


def test_a_cancelled_call_leaves_nothing_reserved(say):
    budget()
    turn = say(script({"sleep": 60, "say": "Late"}))

    async def cancel_in_the_midst() -> None:
        threads = DatabaseThreads(2)
        runner = TurnRunner(worker="worker-1", database=threads)
        running = asyncio.create_task(runner.advance(turn.pk))
        while not await threads(Reservation.objects.exists):
            await asyncio.sleep(0.01)
        await threads(turn_control.cancel_turn, await threads(Turn.objects.get, pk=turn.pk))
        await runner.watch()
        await running
        threads.close()

    asyncio.run(cancel_in_the_midst())
    turn.refresh_from_db()
    assert (turn.status, Reservation.objects.count()) == (TurnStatus.CANCELLED, 0)


def test_a_turn_that_is_taken_over_is_not_reserved_twice():
    budget(100)
    work = new_id()
    reserve(60, work=work)
    reserve(60, work=work)  # its first worker died, and the lease of what that had reserved is not over
    with pytest.raises(BudgetExceeded):
        reserve(60)
    reserve(40)


def test_what_a_dead_process_had_reserved_counts_until_its_lease_is_over(settings):
    budget(100)
    reserve(100)
    with pytest.raises(BudgetExceeded):
        reserve(1)
    lease = settings.LLM_TIMEOUT_SECONDS + settings.TURN_LEASE_SECONDS
    row = Reservation.objects.get()
    assert row.lease_until <= timezone.now() + timedelta(seconds=lease + 1)
    Reservation.objects.update(lease_until=from_now(-1))
    reserve(100)


def test_an_answer_that_comes_after_its_lease_counts_once():
    whole = budget(100)
    reserved = reserve(60)
    Reservation.objects.update(lease_until=from_now(-1))
    for _ in range(2):  # as where the answer to a commit was lost
        budgets.settle_alone(bill(reserved, 50))
    assert spent(whole) == 50


def test_an_answer_of_a_turn_that_was_lost_meanwhile_is_counted(say, model):
    whole, turn = budget(), say("Hello")

    model.answer(completion("Fine."))
    model.on_request = lambda _: in_threads([lambda: Turn.objects.filter(pk=turn.pk).update(fence=9)])
    advance(turn)
    turn.refresh_from_db()
    assert (turn.prompt_tokens, spent(whole), Reservation.objects.count()) == (0, 17, 0)


def test_of_two_budgets_the_second_refuses_and_the_first_has_nothing_reserved(say, owner):
    budget(), budget(100, whose="owner", owner=owner)
    (turn,) = settle([say("Hello", while_paused="hold")])
    assert turn.error_code == "budget_exceeded"
    assert turn.error_detail.startswith("Your daily budget")
    assert not Reservation.objects.exists()


def test_a_budget_counts_for_those_it_is_for(say, agent, owner, conversation):
    key, _ = ApiKey.objects.issue(owner=owner, **WIDE)
    mine = [
        budget(),
        budget(whose="agent", agent=agent),
        budget(whose="owner", owner=owner),
        budget(whose="key", api_key=key),
    ]
    other_key, _ = ApiKey.objects.issue(owner=owner, **WIDE)
    others = [
        budget(whose="agent", agent=AgentFactory()),
        budget(whose="owner", owner=OwnerFactory()),
        budget(whose="key", api_key=other_key),
        budget(is_on=False),
    ]
    settle([say("Hello", key=key)])
    assert all(spent(each) for each in mine)
    assert not any(spent(each) for each in others)


def test_a_provider_that_tells_no_usage_is_counted_by_an_estimate(say, model):
    whole = budget()
    model.answer(completion("Fine.", usage={}))
    (turn,) = settle([say("Hello")])
    assert (turn.prompt_tokens, turn.cost, spent(whole) > 10) == (0, None, True)


def test_compactions_are_paid_for_and_wait_while_there_is_no_budget(conversation, fill, owner):
    fill(50)
    price()
    small = budget(100, whose="owner", owner=owner)
    row = compact(conversation)
    assert (row.status, row.failures, row.error.partition(":")[0]) == ("queued", 0, "budget_exceeded")
    Budget.objects.update(amount=MUCH)
    row = compact(conversation)
    conversation.refresh_from_db()
    assert (row.status, row.model_calls > 0, Reservation.objects.count()) == ("done", True, 0)
    assert spent(small) == row.prompt_tokens + row.completion_tokens > 0
    assert conversation.cost == row.cost == 2 * row.prompt_tokens + 10 * row.completion_tokens


def test_what_new_has_a_model_archive_is_paid_for(say, fill):
    fill(10)
    price()
    whole = budget()
    (turn,) = settle([say("/new")])
    assert (turn.status, turn.model_calls) == (TurnStatus.SUCCEEDED, 1)
    assert spent(whole) == turn.prompt_tokens + turn.completion_tokens > 0
    assert turn.cost == 2 * turn.prompt_tokens + 10 * turn.completion_tokens


# --- days and months ---------------------------------------------------------------------------------------------


def test_a_budget_begins_anew_at_midnight_and_keeps_what_was(monkeypatch, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    daily, monthly = budget(100), budget(319, every="month", name="month")

    def at(moment: str) -> None:
        monkeypatch.setattr(timezone, "now", lambda: datetime.fromisoformat(moment))
        budgets.settle_alone(bill(reserve(80), 80))

    at("2026-03-28T22:59+00:00")
    with pytest.raises(BudgetExceeded):
        at("2026-03-28T22:59:59+00:00")
    at("2026-03-28T23:00+00:00")  # the day on which the clocks are changed
    with pytest.raises(BudgetExceeded, match=r"daily.*2026-03-30 at 00:00"):
        at("2026-03-29T21:59+00:00")
    at("2026-03-29T22:00+00:00")
    with pytest.raises(BudgetExceeded, match=r"monthly.*2026-04-01 at 00:00"):
        at("2026-03-30T22:00+00:00")
    at("2026-03-31T22:00+00:00")
    assert [str(each.start) for each in daily.periods.order_by("start")] == [
        *("2026-03-28", "2026-03-29", "2026-03-30", "2026-03-31", "2026-04-01")
    ]
    assert list(monthly.periods.order_by("start").values_list("spent", flat=True)) == [240, 80]


def test_what_was_reserved_before_midnight_is_settled_where_it_was_reserved(monkeypatch):
    whole = budget(100)
    monkeypatch.setattr(timezone, "now", lambda: datetime.fromisoformat("2026-03-04T23:59+00:00"))
    reserved = reserve(50)
    monkeypatch.setattr(timezone, "now", lambda: datetime.fromisoformat("2026-03-05T00:01+00:00"))
    budgets.settle_alone(bill(reserved, 40))
    assert [(str(each.start), each.spent) for each in whole.periods.all()] == [("2026-03-04", 40)]
    reserve(100)


def test_reservations_that_nobody_will_settle_are_deleted_some_day(monkeypatch):
    budget()
    reserve(1)
    Reservation.objects.update(lease_until=from_now(-100_000))
    monkeypatch.setattr(timezone, "now", lambda: datetime.fromisoformat("2036-03-04T12:00+00:00"))
    reserve(2)
    assert [each.amount for each in Reservation.objects.all()] == [2]


# --- at the door, and what people are told -----------------------------------------------------------------------


def test_who_has_nothing_left_is_told_before_anything_is_stored(say, conversation):
    whole = budget(100)
    BudgetPeriod.objects.create(budget=whole, start=timezone.localdate(), spent=100)
    with pytest.raises(BudgetUsedUp, match="This host's daily budget"):
        say("Hello", while_paused="refuse")
    assert not Turn.objects.exists()
    conversation.refresh_from_db()
    assert (conversation.next_turn, AuditEntry.objects.first().action) == (1, "budget.exceeded")
    assert say("/help", while_paused="refuse"), "commands cost nothing"
    BudgetPeriod.objects.update(start=timezone.localdate() - timedelta(days=1))
    assert say("Hello", while_paused="refuse")


def test_a_budget_with_something_left_is_asked_for_once_until_it_is_used_up(say, monkeypatch):
    monkeypatch.setattr(book, "FRESH_SECONDS", 3600)
    budget(100)

    def looks() -> int:
        with CaptureQueriesContext(connection) as asked:
            say("Hello", while_paused="refuse")
        return sum("agent_budgetperiod" in each["sql"] for each in asked.captured_queries)

    assert [looks(), looks()] == [1, 0]
    reserved = reserve(60)
    budgets.settle_alone(bill(reserved, 60))
    assert looks() == 0
    with pytest.raises(BudgetExceeded):
        reserve(41)
    assert [looks(), looks()] == [1, 0]
    budgets.settle_alone(bill(reserve(40), 40))
    with pytest.raises(BudgetUsedUp):
        say("Hello", while_paused="refuse")


def test_a_client_is_answered_with_402_and_told_whose_budget_it_is(conversation, owner, say):
    _, key = ApiKey.objects.issue(owner=owner, **WIDE)
    budget(1000, whose="owner", owner=owner)
    (turn,) = settle([say("Hello")])
    answer = answers.current(turn.pk, request_id="r")
    assert (answer.status, answer.body["code"], answer.body["turnId"]) == (402, "budget_exceeded", str(turn.pk))
    assert answer.body["detail"].startswith("Your daily budget is too low for this. It starts over on ")
    BudgetPeriod.objects.update(spent=1000)
    address, body = f"/api/v1/conversations/{conversation.pk}/chat", {"message": "Hello"}
    client = Client(headers={"Authorization": f"Bearer {key}"})
    told = client.post(address, body, content_type="application/json")
    assert (told.status_code, told.json()["code"], told.json()["detail"]) == (
        *(402, "budget_exceeded", answer.body["detail"]),
    )
    assert Turn.objects.count() == 1


def test_where_no_budget_applies_nothing_is_asked_of_the_database(conversation, agent, outsider):
    budget(whose="owner", owner=outsider)
    book.read()

    async def nobody(*_: object) -> None:
        raise AssertionError("the database was asked")

    ids: dict[str, Any] = {"work_id": new_id(), "conversation_id": conversation.pk}
    purse = Purse(nobody, **ids, owner_id=conversation.owner_id, agent=agent)  # type: ignore[arg-type]
    request = ModelRequest(model="m", messages=[{"role": "user", "content": "Hello"}])
    offer = asyncio.run(purse.reserve(request, estimated=10))
    asyncio.run(purse.release(offer))
    assert (offer.request, offer.reserved, offer.bill(Completion(content="Hi")).cost) == (request, None, 0)


def test_a_request_that_comes_again_is_given_its_turn_though_nothing_is_left(say):
    whole = budget()
    turn = say("Hello", idempotency_key="once", while_paused="refuse")
    BudgetPeriod.objects.create(budget=whole, start=timezone.localdate(), spent=MUCH)
    assert say("Hello", idempotency_key="once", while_paused="refuse").pk == turn.pk


def test_people_are_warned_once_a_period_and_told_once_that_it_refuses():
    endpoints.make(name="the shop", url="https://example.org/", kinds=["budget.warning", "budget.exceeded"])
    whole = budget(100)
    for used in (70, 9, 2, 2):
        budgets.settle_alone(bill(reserve(used), used))
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            reserve(50)
    of_budgets = AuditEntry.objects.filter(object_type="agent.budget")
    entries = list(of_budgets.order_by("id").values_list("action", "object_name", "actor"))
    assert entries == [("budget.warning", "house", "nanohost"), ("budget.exceeded", "house", "nanohost")]
    told = [(each.kind, each.data["budget"]) for each in Delivery.objects.order_by("pk")]
    assert told == [("budget.warning", "house"), ("budget.exceeded", "house")]
    period = whole.periods.get()
    assert (period.warned_at is not None, period.exceeded_at is not None) == (True, True)
    assert notices.told_of(period)["spent"] == 83


def test_a_budget_that_is_made_counts_at_once_and_one_that_is_deleted_no_more():
    assert book.read().limits == []
    whole = budget(100)
    (limit,) = book.read().limits
    reserve(10)
    whole.delete()
    assert book.read().limits == []
    estimate = Estimate(model="m", prompt_tokens=1000, completion_tokens=0)
    ids = {"call_id": new_id(), "work_id": new_id(), "conversation_id": new_id()}
    assert budgets.reserve([limit], estimate, price=None, **ids).shares == (), "as a process that has not heard of it"


def test_a_limit_that_is_lowered_counts_at_once():
    whole = budget(100)
    limits = book.read().limits
    Budget.objects.filter(pk=whole.pk).update(amount=10)
    estimate = Estimate(model="m", prompt_tokens=50, completion_tokens=0)
    ids = {"call_id": new_id(), "work_id": new_id(), "conversation_id": new_id()}
    with pytest.raises(BudgetExceeded):
        budgets.reserve(limits, estimate, price=None, **ids)


# --- reserved ahead ----------------------------------------------------------------------------------------------


def test_where_calls_follow_each_other_the_next_are_reserved_for_as_well(django_assert_num_queries):
    whole, other = budget(), budget(name="other")
    pass_through(8, calls=ahead.MIN_CALLS)
    waiting = Reservation.objects.count()
    assert waiting == 2 * ahead.MIN_CALLS, "each has a row for each budget"
    with django_assert_num_queries(0):
        reserved = take(8)
    assert {share.amount for share in reserved.shares} == {10}
    budgets.settle_alone(bill(reserved, 8))
    budgets.settle_alone(bill(reserved, 8))
    assert (spent(whole), spent(other), Reservation.objects.count()) == (8 * 5, 8 * 5, waiting - 2)
    alone = [each for each in pass_through(8, calls=100) if each.shares[0].amount == 8]
    assert len(alone) <= 100 / ahead.MAX_AHEAD + 3, "as many transactions"
    waiting = ahead.stock.withdraw([each.pk for each in whole.periods.all()])
    assert (spent(whole), Reservation.objects.count()) == (8 * 105, 2 * len(waiting))


def test_what_was_reserved_ahead_is_for_calls_that_fit_it(settings):
    budget()
    pass_through(8, calls=ahead.MIN_CALLS)
    assert take(11) is None
    Budget.objects.create(name="later", whose="host", measure="tokens", every="day", amount=MUCH)
    assert take(8) is None, "others apply by now"
    Budget.objects.filter(name="later").delete()
    book.forget()
    assert take(8)


def test_what_calls_have_outgrown_makes_room_for_larger_ones():
    """Each prompt of a conversation is longer than the one before."""
    whole = budget()
    taken = [pass_through(amount, calls=1)[0] for amount in range(100, 300, 2)]
    alone = [each for amount, each in zip(range(100, 300, 2), taken, strict=True) if each.shares[0].amount == amount]
    assert len(alone) < 20, "of a hundred"
    waiting = ahead.stock.withdraw([each.pk for each in whole.periods.all()])
    assert Reservation.objects.count() == len(waiting), "those that were too small are gone"
    assert spent(whole) == sum(range(100, 300, 2))


def test_what_was_reserved_ahead_is_not_taken_when_its_time_is_over_and_ends_with_its_lease(settings, monkeypatch):
    budget(10_000)
    monkeypatch.setattr(ahead, "SECONDS", 0.0)
    pass_through(8, calls=ahead.MIN_CALLS)
    assert take(8) is None
    lease = settings.LLM_TIMEOUT_SECONDS + settings.TURN_LEASE_SECONDS
    assert {each.work_id.int for each in Reservation.objects.all()} == {0}
    for row in Reservation.objects.all():
        assert timezone.now() + timedelta(seconds=lease - 5) < row.lease_until
    Reservation.objects.update(lease_until=from_now(-1))
    reserve(10_000 - 8 * ahead.MIN_CALLS)


def test_nobody_is_refused_for_what_his_own_process_has_reserved_ahead():
    whole = budget(2000)
    pass_through(8, calls=ahead.MIN_CALLS)
    assert Reservation.objects.count() == 3, "a fiftieth of what is left"
    left = 2000 - spent(whole)
    with pytest.raises(BudgetExceeded):
        reserve(left + 1)
    assert not Reservation.objects.exists()
    reserve(left)


def test_what_is_nearly_used_up_is_reserved_call_by_call():
    budget(300)
    pass_through(8, calls=ahead.MIN_CALLS + 4)
    assert not Reservation.objects.exists()


def test_a_budget_that_is_lowered_here_refuses_what_was_reserved_ahead():
    whole = budget(10_000)
    pass_through(8, calls=ahead.MIN_CALLS)
    whole.amount = 10
    whole.save()
    assert take(8) is None
    with pytest.raises(BudgetExceeded):
        reserve(8)


# --- many at once ------------------------------------------------------------------------------------------------


def test_of_200_at_once_as_many_pass_as_there_is_room_for():
    """Two budgets, whose rows each of them locks."""
    whole, other = budget(50 * 10), budget(55 * 10, name="other")
    reserve(0)  # the rows of the periods

    def use(number: int) -> bool:
        try:
            reserved = reserve(10)
        except BudgetExceeded:
            return False
        budgets.settle_alone(bill(reserved, 10 - number % 2))
        return True

    passed = [each for some in range(10) for each in in_threads([lambda n=n: use(n) for n in range(20)])]
    assert 490 <= spent(whole) <= 500
    assert spent(other) == spent(whole)
    assert sum(passed) >= 50
    assert not Reservation.objects.filter(amount__gt=0).exists()


def test_of_200_at_once_as_many_pass_as_there_is_room_for_though_some_are_reserved_ahead():
    whole = budget(150 * 10)
    reserve(0)  # the row of the period
    ahead_too = []

    def use(_: int) -> bool:
        try:
            reserved = take(10)
            ahead_too.append(bool(reserved))
            reserved = reserved or reserve(10)
        except BudgetExceeded:
            return False
        budgets.settle_alone(bill(reserved, 10))
        return True

    passed = [each for some in range(10) for each in in_threads([lambda n=n: use(n) for n in range(20)])]
    assert (sum(passed), spent(whole)) == (150, 1500)
    assert any(ahead_too)
    assert not Reservation.objects.filter(amount__gt=0).exists()


def test_what_is_reserved_at_once_never_passes_the_limit():
    budget(50)
    reserve(0)

    def take(_: int) -> bool:
        try:
            return bool(reserve(10))
        except BudgetExceeded:
            return False

    assert sum(in_threads([lambda n=n: take(n) for n in range(20)])) == 5
