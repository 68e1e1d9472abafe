"""What was used and what it has cost: by model, agent, key, owner and day; in the console, over the API, as CSV."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from conversations.engine import inbox
from conversations.models import Compaction, Conversation, Turn
from nanohost.accounts.models import EVERY_AGENT, ApiKey
from nanohost.console import figures, uses
from nanohost.console.models import Hour, Use
from tests.support.factories import AgentFactory

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
TODAY = NOW.date()


@pytest.fixture(autouse=True)
def half_past(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOW)


def used(conversation, hours_ago=0.0, *, key=None, model="m", cost=100, tokens=(10, 4, 5), calls=1, at=None):
    """A turn that was asked for so long ago."""
    turn = Turn.objects.create(
        conversation=conversation,
        owner=conversation.owner,
        number=Turn.objects.count() + 1,
        status="succeeded",
        model=model,
        request_id="r",
        api_key_id=key,
        prompt_tokens=tokens[0],
        cached_tokens=tokens[1],
        completion_tokens=tokens[2],
        model_calls=calls,
        cost=cost,
    )
    Turn.objects.filter(pk=turn.pk).update(created_at=at or NOW - timedelta(hours=hours_ago), ended_at=NOW)
    return turn


def report(group_by="model", first=TODAY, last=TODAY, **whose):
    figures.refresh(seconds=60)
    return uses.report(group_by=group_by, first=first, last=last, **whose)


def lines(group_by, **options):
    return [(each.name, each.sums.turns, each.sums.cost) for each in report(group_by, **options).lines]


@pytest.fixture
def two(conversation, owner, outsider):
    """What two people have used, with two agents, two keys and two models."""
    first, _ = ApiKey.objects.issue(owner=owner)
    cook = AgentFactory(name="cook")
    kitchen = inbox.start_conversation(owner_id=outsider.pk, agent="cook", metadata={})
    used(conversation, key=first.pk, cost=300)
    used(conversation, key=first.pk, cost=50, model="large")
    used(kitchen, 1, cost=70)
    return first, cook


def test_it_is_added_up_by_each(two, owner, outsider):
    key, _ = two
    assert lines("model") == [("m", 2, 370), ("large", 1, 50)]
    assert lines("agent") == [("default", 2, 350), ("cook", 1, 70)]
    assert lines("owner") == [("owner", 2, 350), ("outsider", 1, 70)]
    assert lines("key") == [(str(key), 2, 350), ("", 1, 70)]
    assert lines("day") == [("2026-03-04", 3, 420)]
    assert report().total == uses.Sums(
        turns=3, calls=3, prompt_tokens=30, cached_tokens=12, completion_tokens=15, cost=420
    )


def test_what_is_not_known_is_unknown_and_never_nothing(conversation):
    used(conversation, model="dark", cost=None)
    used(conversation, model="dark", cost=None, calls=2)
    used(conversation, cost=7)
    dark, known = sorted(report().lines, key=lambda each: each.name)
    assert (dark.sums.cost, dark.sums.unpriced_calls, known.sums.cost) == (None, 3, 7)
    assert (report().total.cost, report().total.unpriced_calls) == (7, 3)
    assert report(first=TODAY - timedelta(days=9), last=TODAY - timedelta(days=8)).total.cost == 0


def test_summaries_count_without_a_turn_and_without_a_key(conversation):
    Compaction.objects.create(
        conversation=conversation, status="done", keep_tokens=0, model="m", model_calls=2, prompt_tokens=9, cost=30
    )
    Compaction.objects.update(created_at=NOW)
    (line,) = report("key").lines
    assert (line.name, line.sums.turns, line.sums.calls, line.sums.cost) == ("", 0, 2, 30)


def test_an_hour_is_counted_again_while_a_summary_of_it_is_open(conversation):
    used(conversation, 5)
    row = Compaction.objects.create(conversation=conversation, keep_tokens=0, cost=0)
    Compaction.objects.update(created_at=NOW - timedelta(hours=5))
    assert report().total.cost == 100
    Compaction.objects.filter(pk=row.pk).update(status="done", model="m", model_calls=1, cost=11)
    assert report().total.cost == 111
    assert not Hour.objects.filter(settled=False, hour__lt=NOW - timedelta(hours=2)).exists()


def test_what_is_deleted_has_been_used_all_the_same(conversation):
    used(conversation)
    before = report().total
    Conversation.objects.all().delete()
    assert report().total == before != uses.Sums()


def test_a_day_is_the_hosts_own_also_where_an_hour_is_cut_in_two(conversation, settings):
    settings.TIME_ZONE = "Asia/Kolkata"  # five hours and a half before UTC
    used(conversation, at=datetime(2026, 3, 3, 18, 29, tzinfo=UTC), cost=1)
    used(conversation, at=datetime(2026, 3, 3, 18, 30, tzinfo=UTC), cost=20)
    assert lines("day", first=TODAY - timedelta(days=1)) == [("2026-03-03", 1, 1), ("2026-03-04", 1, 20)]


def test_counting_twice_counts_once_and_writes_only_what_is_new(conversation):
    used(conversation)
    report()
    ids = list(Use.objects.values_list("pk", flat=True))
    assert report().total.turns == 1
    used(conversation)
    assert report().total.turns == 2
    assert list(Use.objects.values_list("pk", flat=True)) == ids


def test_lines_that_cost_least_are_left_out_but_not_from_the_sum(conversation):
    for number in range(5):
        used(conversation, model=f"m{number}", cost=number)
    found = report(most=2)
    assert ([each.name for each in found.lines], found.more, found.total.cost) == (["m4", "m3"], 3, 10)


def test_names_are_no_formulas_to_a_spreadsheet(conversation):
    for name in ("=1+1", "+1", "-1", "@x", "\t=1", " =1", "plain"):
        used(conversation, model=name, cost=1_500_000)
    written = uses.as_csv(report()).splitlines()
    assert written[0].startswith("model,turns,calls,unpriced_calls,prompt_tokens,")
    assert not [line for line in written[1:] if line.lstrip('" \t')[:1] in "=+-@"]
    assert "plain,1,1,0,10,4,5,1.500000,USD" in written


# --- over the API ------------------------------------------------------------------------------------------------


def ask(key: str, query: str = ""):
    figures.refresh(seconds=60)
    return Client(headers={"Authorization": f"Bearer {key}"}).get(f"/api/v1/usage{query}")


def test_a_key_sees_its_owners_use_and_an_admins_everybodys(two, owner):
    _, mine = ApiKey.objects.issue(owner=owner, agent_names=[EVERY_AGENT])
    _, admins = ApiKey.objects.issue(owner=owner, scopes=["admin"])
    said = ask(mine, "?group_by=owner").json()
    assert [(each["name"], each["cost"]) for each in said["results"]] == [("owner", "0.000350")]
    assert (said["groupBy"], said["to"], said["from"], said["currency"]) == (
        *("owner", "2026-03-04", "2026-02-03", "USD"),
    )
    said = ask(admins, "?group_by=owner").json()
    assert [each["name"] for each in said["results"]] == ["owner", "outsider"]
    assert (said["total"]["cost"], said["total"]["unpricedCalls"], said["more"]) == ("0.000420", 0, 0)


def test_a_key_sees_no_agent_that_it_may_not_name(owner):
    AgentFactory(name="cook")
    used(inbox.start_conversation(owner_id=owner.pk, agent="cook", metadata={}))
    _, usual = ApiKey.objects.issue(owner=owner)
    _, cooks = ApiKey.objects.issue(owner=owner, agent_names=["cook"])
    assert [len(ask(key).json()["results"]) for key in (usual, cooks)] == [0, 1]


def test_it_is_answered_as_csv(two, owner):
    _, key = ApiKey.objects.issue(owner=owner)
    answer = ask(key, "?group_by=day&from=2026-03-01&to=2026-03-04&format=csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.content.decode().splitlines()[1] == "2026-03-04,2,2,0,20,8,10,0.000350,USD"


@pytest.mark.parametrize(
    "query",
    [
        *("?group_by=colour", "?group_by=", "?format=xml", "?from=yesterday", "?to=2026-02-30", "?from=2026-03-05"),
        *("?from=2020-01-01", "?to=0001-01-01", "?from=%00", "?from=2026-03-04T00:00"),
    ],
)
def test_what_makes_no_sense_is_refused(owner, query):
    _, key = ApiKey.objects.issue(owner=owner)
    answer = ask(key, query)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


# --- in the console ----------------------------------------------------------------------------------------------


def test_the_page_shows_it_and_gives_a_file(admin_client, two):
    page = admin_client.get("/admin/usage/?group_by=agent").content.decode()
    assert "0.00042 USD" in page
    assert "cook" in page
    assert "by agent</a>" in page
    written = admin_client.get("/admin/usage/usage.csv?group_by=agent&window=today").content.decode()
    assert written.splitlines()[1].startswith("default,2,2,0,")


def test_the_page_is_for_those_who_may_see_turns(client, owner):
    owner.is_staff = True
    owner.save()
    client.force_login(owner)
    assert client.get("/admin/usage/").status_code == 403
    assert "/admin/usage/" not in client.get("/admin/").content.decode()


def test_a_cost_that_is_not_known_is_said_to_be(admin_client, conversation):
    used(conversation, cost=None)
    page = admin_client.get("/admin/usage/").content.decode()
    assert '<p class="figure" id="cost">unknown</p>' in page


def test_the_largest_are_drawn_day_by_day_and_the_others_together(admin_client, conversation):
    for number in range(7):
        used(conversation, 30 * (number % 2), model=f"<b>{number}", cost=100 * (number + 1))
    report()
    drawn = uses.by_day(group_by="model", first=TODAY - timedelta(days=1), last=TODAY, most=5)
    assert list(drawn) == [*(f"<b>{number}" for number in (6, 5, 4, 3, 2)), "others"]
    assert {day: sums.cost for day, sums in drawn["others"].items()} == {TODAY: 100, TODAY - timedelta(days=1): 200}
    page = admin_client.get("/admin/usage/?window=7+days").content.decode()
    assert "Cost per day, by model" in page
    assert "&lt;b&gt;6" in page
    assert "<b>6" not in page
    assert admin_client.get("/admin/usage/?group_by=day").content.decode().count('class="series-0"') > 1
