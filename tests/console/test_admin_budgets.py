"""Budgets and prices in the admin: made, changed, shown with what is left, audited."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent.spending.models import Budget, BudgetPeriod, ModelPrice, Reservation
from nanohost.accounts.models import ApiKey, AuditEntry
from nanohost.console.roles import OPERATOR, VIEWER, sync_roles
from nanohost.lib.clock import from_now
from nanohost.lib.ids import new_id
from tests.support.factories import OwnerFactory
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

ADD, LIST = reverse("admin:agent_budget_add"), reverse("admin:agent_budget_changelist")
PRICES = reverse("admin:agent_modelprice_changelist")

HOUSE = {"name": "house", "whose": "host", "measure": "money", "every": "month", "limit": "25.5", "is_on": "on"}


def make(client: Client, **fields: object) -> str:
    """What is wrong with it; empty where it was made."""
    answer = client.post(ADD, {**HOUSE, **fields})
    return "" if answer.status_code == 302 else answer.content.decode()


def budget(**given: object) -> Budget:
    return Budget.objects.create(
        **{"name": "house", "whose": "host", "measure": "tokens", "every": "day", "amount": 1000} | given
    )


def of(role: str) -> Client:
    sync_roles()
    user = OwnerFactory(username=role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


def test_a_budget_is_made_and_changed_with_its_limit_as_people_write_it(admin_client):
    assert not make(admin_client)
    row = Budget.objects.get()
    assert (row.amount, row.whose, row.measure) == (25_500_000, "host", "money")
    page = reverse("admin:agent_budget_change", args=[row.pk])
    assert 'value="25.5"' in admin_client.get(page).content.decode()
    assert admin_client.post(page, {"name": "house", "limit": "0.000001"}).status_code == 302
    row.refresh_from_db()
    assert (row.amount, row.is_on, row.every) == (1, False, "month")
    entries = AuditEntry.objects.filter(object_type="agent.budget").order_by("id")
    assert [each.action for each in entries] == ["budget.made", "budget.changed"]
    assert {each.actor for each in entries} == {"user admin"}
    assert '"amount": 25500000' in entries[1].before
    assert '"whose"' not in entries[1].before, "what stays is not told"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"whose": "agent"}, "Say which one: the budget is for an agent."),
        ({"whose": "key", "owner": "own"}, "Leave this empty"),
        ({"measure": "tokens", "limit": "1.5"}, "There are no parts of tokens."),
        ({"limit": "-1"}, "greater than or equal to 0"),
        ({"limit": "0.0000001"}, "no more than 6 decimal places"),
    ],
)
def test_what_makes_no_sense_is_refused_and_said(admin_client, owner, wrong, said):
    if wrong.get("owner"):
        wrong = wrong | {"owner": owner.pk}
    assert said in make(admin_client, **wrong)
    assert not Budget.objects.exists()


def test_each_kind_has_whom_it_is_for(admin_client, owner, agent):
    key, _ = ApiKey.objects.issue(owner=owner)
    for whose, field, row in (("agent", "agent", agent), ("owner", "owner", owner), ("key", "api_key", key)):
        assert not make(admin_client, whose=whose, **{field: row.pk}, measure="tokens", limit="10")
    assert [each.subject_id for each in Budget.objects.order_by("id")] == [agent.pk, owner.pk, key.pk]


def test_the_list_shows_what_is_used_reserved_and_left(admin_client):
    row = budget()
    today = BudgetPeriod.objects.create(budget=row, start=timezone.localdate(), spent=300)
    BudgetPeriod.objects.create(budget=row, start=timezone.localdate() - timedelta(days=1), spent=777)
    for seconds, amount in ((60, 150), (-1, 500)):
        ids = {"call_id": new_id(), "work_id": new_id(), "conversation_id": new_id()}
        Reservation.objects.create(period=today, amount=amount, lease_until=from_now(seconds), **ids)
    page = admin_client.get(LIST).content.decode()
    told = "300 tokens used, 150 tokens reserved"
    for said in ('<progress max="1000" value="450"', told, "550 tokens", "1,000 tokens a day"):
        assert said in page
    detail = admin_client.get(reverse("admin:agent_budget_change", args=[row.pk])).content.decode()
    assert "777 tokens" in detail


def test_a_budget_is_deleted_and_told_of(admin_client):
    row = budget()
    BudgetPeriod.objects.create(budget=row, start=timezone.localdate(), spent=300)
    page = reverse("admin:agent_budget_delete", args=[row.pk])
    assert admin_client.post(page, {"post": "yes"}).status_code == 302
    assert not BudgetPeriod.objects.exists()
    assert AuditEntry.objects.filter(action="budget.deleted", object_name="house").count() == 1


def test_viewers_see_operators_switch_and_neither_changes():
    row = budget()
    page = reverse("admin:agent_budget_change", args=[row.pk])
    switch = {"action": "switch_off", "_selected_action": row.pk}
    viewer, operator = of(VIEWER), of(OPERATOR)
    for client in (viewer, operator):
        assert client.get(LIST).status_code == 200
        assert client.get(page).status_code == 200
        assert client.post(page, {"name": "mine", "limit": 10**9}).status_code == 403
        assert client.get(ADD).status_code == 403
    viewer.post(LIST, switch)
    assert Budget.objects.get().is_on
    operator.post(LIST, switch)
    assert not Budget.objects.get().is_on
    assert AuditEntry.objects.get(action="budget.changed").actor == f"user {OPERATOR}"


def test_a_price_is_added_changed_and_told_of(admin_client):
    given = {"model": "new", "prompt": "1.25", "cached_prompt": "", "completion": "10", "currency": "USD"}
    given |= {"valid_from_0": "2026-03-04", "valid_from_1": "00:00:00"}
    add = reverse("admin:agent_modelprice_add")
    assert admin_client.post(add, given).status_code == 302
    row = ModelPrice.objects.get(model="new")
    assert (str(row.prompt), row.cached_prompt) == ("1.250000", None)
    assert "This host reckons in USD" in admin_client.post(add, given | {"currency": "EUR"}).content.decode()
    assert "already exists" in admin_client.post(add, given).content.decode()
    change = reverse("admin:agent_modelprice_change", args=[row.pk])
    assert admin_client.post(change, given | {"prompt": "2"}).status_code == 302
    entry = AuditEntry.objects.get(action="price.changed")
    assert (entry.before, entry.after) == ('{"prompt": "1.250000"}', '{"prompt": "2"}')
    assert "new" in admin_client.get(PRICES).content.decode()


def test_what_a_turn_and_its_calls_have_cost_is_on_their_pages(admin_client, say):
    ModelPrice.objects.create(model="mock", prompt=2000, completion=10_000, valid_from=from_now(-60))
    (turn,) = settle([say("Hello")])
    cost = f"{turn.cost / 1_000_000:.6f}".rstrip("0")
    transcript = admin_client.get(reverse("admin:conversations_conversation_transcript", args=[turn.conversation_id]))
    assert transcript.content.decode().count(f"cost {cost} USD") == 3, "of the conversation, the turn and the call"
    for page in (
        reverse("admin:conversations_turn_change", args=[turn.pk]),
        reverse("admin:conversations_conversation_change", args=[turn.conversation_id]),
        reverse("admin:conversations_turn_sent", args=[turn.pk]),
    ):
        assert f"{cost} USD" in admin_client.get(page).content.decode()
