"""What model calls cost, to the millionth; and which price is a model's."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import import_module

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from agent.llm.answers import completion_of
from agent.llm.base import Completion, Usage
from agent.spending import book
from agent.spending.bills import bill_of
from agent.spending.models import ModelPrice
from agent.spending.money import as_money, told_money
from agent.spending.prices import Price, find
from nanohost.accounts.models import AuditEntry

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 4, tzinfo=UTC)

migration = import_module("agent.migrations.0009_prices_and_budgets")


def price(model: str = "m", prompt: str = "1", completion: str = "1", **more: object) -> Price:
    given = {"cached_prompt": prompt, "valid_from": NOW} | more
    given["cached_prompt"] = Decimal(str(given["cached_prompt"]))
    return Price(model=model, prompt=Decimal(prompt), completion=Decimal(completion), **given)


def found(name: str, *priced: str) -> str | None:
    match = find([price(each) for each in priced], name, provider="openai", now=NOW)
    return match.model if match else None


def test_a_call_costs_what_its_tokens_do_and_cached_ones_less():
    used = Usage(prompt_tokens=1000, completion_tokens=200, cached_tokens=400)
    assert price(prompt="2.5", cached_prompt="1.25", completion="10").cost(used) == 600 * 2.5 + 400 * 1.25 + 2000


def test_less_than_a_millionth_is_one():
    assert price(prompt="0.04").cost(Usage(prompt_tokens=1)) == 1
    assert price(prompt="0.1").cost(Usage(prompt_tokens=30)) == 3, "no rounding of ours: 0.1 is a tenth"


def test_what_a_call_may_cost_is_never_less_than_what_it_does():
    written = price(prompt="3", cached_prompt="0.3", completion="15", written_prompt=Decimal("3.75"))
    used = Usage(prompt_tokens=1000, cached_tokens=400, written_tokens=500)
    assert written.cost(used) == 300 + 120 + 1875
    dear = price(prompt="1", cached_prompt="3", completion="2")
    used = Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=10)
    assert dear.cost(used) == dear.most(prompt_tokens=10, completion_tokens=5) == 40


@pytest.mark.parametrize(
    ("name", "priced"),
    [
        ("gpt-4.1", "gpt-4.1"),
        ("gpt-4.1-2025-04-14", "gpt-4.1"),
        ("gpt-4.1-mini-2025-04-14", "gpt-4.1-mini"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("gemini-2.5-flash-001", "gemini-2.5-flash"),
        ("mistral-large-latest", "mistral-large"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("gpt-4.1-pro", None),
        ("gpt-4.12", None),
        ("gpt-4", None),
        ("openai/gpt-4.1", None),
        ("claude-sonnet-4-5-20250929", None),
    ],
)
def test_a_price_is_that_of_the_name_or_of_what_it_is_a_version_of(name, priced):
    known = ["gpt-4.1", "gpt-4.1-mini", "claude-sonnet-4", "gemini-2.5-flash", "mistral-large"]
    assert found(name, *known, "gpt-4o", "gpt-4o-2024-05-13") == priced


def test_a_price_counts_from_its_day_on_until_a_later_one_does():
    prices = [price(prompt=str(n), valid_from=NOW + timedelta(days=n)) for n in (3, 1, 2)]
    at = [find(prices, "m", provider="openai", now=NOW + timedelta(days=day)) for day in (0, 1, 2.5, 9)]
    assert [each and int(each.prompt) for each in at] == [None, 1, 2, 3]


def test_the_scripted_model_costs_nothing_unless_it_has_a_price():
    used = Usage(prompt_tokens=1000, completion_tokens=1000)
    assert find([price("gpt-4.1-mini")], "gpt-4.1-mini", provider="mock", now=NOW).cost(used) == 0
    assert find([price("mock")], "gpt-4.1-mini", provider="mock", now=NOW).cost(used) == 2000


def test_of_what_has_no_price_or_tells_no_usage_the_cost_is_not_known():
    told = Completion(usage=Usage(prompt_tokens=10, completion_tokens=10))
    assert bill_of(told, model="m", price=None, reserved=None).cost is None
    assert bill_of(Completion(content="words"), model="m", price=price(), reserved=None).cost is None
    assert bill_of(told, model="m", price=price(), reserved=None).cost == 20
    assert as_money(None) is None
    assert told_money(None, "USD") == "unknown"


def test_money_is_written_whole():
    assert [as_money(each) for each in (0, 1, 1_234_567)] == ["0.000000", "0.000001", "1.234567"]
    assert [told_money(each, "EUR") for each in (0, 1_500_000, 12_345_000_001)] == [
        *("0.00 EUR", "1.50 EUR", "12,345.000001 EUR")
    ]


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 8}}, 8),
        ({"prompt_tokens": 10, "prompt_cache_hit_tokens": 6}, 6),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 80}}, 10),
        ({"prompt_tokens": 10, "prompt_tokens_details": None}, 0),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": True}}, 0),
        ({"prompt_tokens": 10, "prompt_tokens_details": [8]}, 0),
    ],
)
def test_what_was_cached_is_read_as_providers_tell_it(usage, cached):
    assert completion_of({"choices": [{"message": {"content": "x"}}], "usage": usage}).usage.cached_tokens == cached


def test_the_first_prices_name_their_day_and_are_known():
    assert ModelPrice.objects.count() == len(migration.PRICES)
    rows = book.read().prices
    assert {each.valid_from.date() for each in rows} == {migration.AS_OF}
    (mini,) = [each for each in rows if each.model == "gpt-4.1-mini"]
    assert (mini.prompt, mini.cached_prompt, mini.completion) == (Decimal("0.4"), Decimal("0.1"), Decimal("1.6"))
    (turbo,) = [each for each in rows if each.model == "gpt-4-turbo"]
    assert turbo.cached_prompt == turbo.prompt


def test_prices_in_another_currency_do_not_count(settings):
    settings.CURRENCY = "EUR"
    assert not book.read().prices
    with pytest.raises(ValidationError, match="EUR"):
        ModelPrice(model="m", prompt=1, completion=1, currency="USD").full_clean()
    ModelPrice(model="m", prompt=1, completion=1, currency="EUR", valid_from=timezone.now()).full_clean()


def test_who_changes_a_price_is_told_in_the_audit_log():
    row = ModelPrice(model="m", prompt=Decimal(1), completion=Decimal(2))
    row.store()
    row.prompt = Decimal(3)
    row.store()
    row.store()
    row.remove()
    entries = AuditEntry.objects.order_by("id").values_list("action", "object_name")
    assert list(entries) == [("price.made", "m"), ("price.changed", "m"), ("price.deleted", "m")]
    assert not [each for each in book.read().prices if each.model == "m"], "this process knows at once"
