"""The overview's figures: counted hour by hour, right after what comes late, quick after a month."""

import random
import re
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.models import Turn, Worker
from conversations.statuses import TurnStatus
from nanohost.console import dashboard, figures
from nanohost.console.figures import HOUR, hour_of, percentile
from nanohost.console.models import Hour, Total
from nanohost.lib.ids import new_id
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
DAY, WEEK, MONTH = dashboard.WINDOWS

migration = import_module("nanohost.console.migrations.0002_finer_times")


@pytest.fixture(autouse=True)
def half_past(monkeypatch):
    """Half an hour into an hour: the one before is settled."""
    monkeypatch.setattr(timezone, "now", lambda: NOW)


@pytest.fixture
def ended(conversation):
    """Store a turn that was asked for so many hours ago: ``ended(3, took=2.5, status="failed")``."""

    def store(hours_ago, *, took=1.0, status=TurnStatus.SUCCEEDED, model="m", tokens=(10, 5)):
        asked = NOW - hours_ago * HOUR
        turn = Turn.objects.create(
            conversation=conversation,
            owner=conversation.owner,
            number=Turn.objects.count() + 1,
            status=status,
            model=model,
            request_id="r",
            prompt_tokens=tokens[0],
            completion_tokens=tokens[1],
        )
        done = asked + timedelta(seconds=took) if status in ("succeeded", "failed", "cancelled") else None
        Turn.objects.filter(pk=turn.pk).update(created_at=asked, ended_at=done)
        return turn

    return store


def called(hours_ago, status=CallStatus.SUCCESS):
    call = ToolCall.objects.create(
        conversation_id=new_id(), turn_id=new_id(), agent="a", call_id="c", position=0, tool_name="time", status=status
    )
    ToolCall.objects.filter(pk=call.pk).update(created_at=NOW - hours_ago * HOUR)
    return call


def count():
    figures.refresh(seconds=60)


def show(window=DAY):
    count()
    return dashboard.overview(window)


def outcomes(shown):
    return {each["status"]: each["count"] for each in shown["outcomes"]}


def test_outcomes_tokens_and_calls_are_those_of_the_window(ended):
    ended(1)
    ended(30, status="failed", model="n", tokens=(7, 3))
    ended(24 * 20, status="cancelled")
    called(1)
    called(30, CallStatus.REJECTED)
    for window, expected in [(DAY, (1, 0, 0)), (WEEK, (1, 1, 0)), (MONTH, (1, 1, 1))]:
        shown = show(window)
        assert tuple(outcomes(shown).values()) == expected
        assert shown["turns"] == sum(expected)
    assert {each["name"]: (each["prompt_tokens"], each["completion_tokens"]) for each in shown["models"]} == {
        "m": (20, 10),
        "n": (7, 3),
    }
    assert {each["status"]: each["count"] for each in shown["calls"]} == {"SUCCESS": 1, "REJECTED": 1}


def test_what_ends_late_is_counted_where_it_was_asked_for(ended):
    turn = ended(5, status="running")
    assert outcomes(show())["succeeded"] == 0
    Turn.objects.filter(pk=turn.pk).update(status="succeeded", ended_at=NOW)
    assert outcomes(show())["succeeded"] == 1
    assert Hour.objects.get(hour=hour_of(NOW - 5 * HOUR)).settled
    ended(5)  # its hour is settled: nobody looks at it again
    assert outcomes(show())["succeeded"] == 1


def test_a_turn_of_a_settled_hour_that_is_taken_up_again_is_counted_when_it_ends(ended):
    turn = ended(5, status="failed")
    count()
    Turn.objects.filter(pk=turn.pk).update(status="queued", ended_at=None)
    count()
    Turn.objects.filter(pk=turn.pk).update(status="succeeded", ended_at=NOW)
    assert outcomes(show()) == {"succeeded": 1, "failed": 1, "cancelled": 0}


def test_counting_again_counts_nothing_twice_and_what_is_deleted_has_happened(ended):
    ended(0)
    called(0)
    for _ in range(3):
        count()
    Turn.objects.all().delete()
    count()
    assert outcomes(show())["succeeded"] == 1
    total = Total.objects.get()
    assert (total.turns["m"]["succeeded"], total.calls) == (1, {"SUCCESS": 1})


def test_the_sum_is_that_of_the_hours(ended):
    for hours_ago in (0, 1, 7, 50):
        ended(hours_ago, took=hours_ago + 0.5)
        called(hours_ago)
    count()
    total = Total.objects.get()
    assert total.turns == figures.total_of(hour.turns for hour in Hour.objects.all())
    assert total.turns["m"]["succeeded"] == total.calls["SUCCESS"] == 4
    assert Hour.objects.count() == 4


def test_counting_that_was_cut_short_goes_on_where_it_was_and_leaves_no_gap(ended):
    for hours_ago in (1, 9, 20):
        ended(hours_ago)
    for counted in (1, 2, 3, 3):
        figures.refresh(seconds=0)
        assert Total.objects.get().turns["m"]["succeeded"] == counted
    assert outcomes(show())["succeeded"] == 3


def test_what_is_not_counted_yet_is_said(ended):
    for hours_ago in range(1, 24):
        ended(hours_ago)
    figures.refresh(seconds=0)
    assert dashboard.overview(DAY)["missing_before"] == hour_of(NOW - HOUR)
    assert show()["missing_before"] is None


def test_strangers_names_of_models_are_bounded(ended):
    for number in range(30):
        ended(1, model=f"model-{number}")
    shown = show()
    assert len(shown["models"]) == figures.MAX_MODELS["hour"] + 1
    assert sum(each["turns"] for each in shown["models"]) == 30


def test_no_time_is_shown_that_no_turn_took(ended):
    for took in [200] * 10 + [301, 304]:
        ended(1, took=took)
    shown = show()
    assert shown["p50"] == pytest.approx(200, rel=0.1)
    assert 301 / 1.1 <= shown["p95"] <= 304
    (model,) = shown["models"]
    assert (model["p50"], model["p95"]) == (shown["p50"], shown["p95"])


@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_a_percentile_is_off_by_a_tenth_at_most(ended, spread):
    chosen = random.Random(spread)
    took = sorted(chosen.lognormvariate(3, spread) for _ in range(99))
    for number, seconds in enumerate(took):
        ended(1 + number % 3, took=seconds)
    shown = show()
    assert shown["p50"] == pytest.approx(took[49], rel=0.1)
    assert shown["p95"] == pytest.approx(took[94], rel=0.1)


def test_where_nothing_was_answered_there_is_no_percentile(ended):
    ended(1, status="failed")
    assert show()["p50"] is None
    assert percentile({}, 0.5) is None


def test_hours_that_an_earlier_release_counted_are_counted_again(ended):
    ended(3, took=2)
    count()
    row = Hour.objects.get(hour=hour_of(NOW - 3 * HOUR))
    before = Total.objects.get().turns["m"]["succeeded"]
    del row.turns["m"]["took"], row.turns["m"]["longest"]
    row.save()
    Total.objects.update(turns={"m": {"succeeded": before}})
    migration.count_again(apps, None)
    assert show()["p50"] == 2
    assert Total.objects.get().turns["m"]["succeeded"] == before


def test_what_waits_and_who_works_is_of_this_moment(ended):
    ended(0.5, status="queued")
    for name, queues in [("a", "turns,compaction"), ("b", "tools"), ("c", "turns")]:
        Worker.objects.create(name=name, version="0", turns_most=1, heartbeat_at=Now(), queues=queues)
    Worker.objects.filter(name="c").update(heartbeat_at=Now() - HOUR)
    shown = show()
    assert shown["queued"] == 1
    assert shown["queue"].oldest_seconds == 1800
    assert shown["queue"].workers == {
        "turns": 1,
        "tools": 1,
        "compaction": 1,
        "deliveries": 0,
        "listeners": 0,
        "replays": 0,
    }


def test_each_figure_leads_to_its_rows(admin_client, ended):
    ended(1)
    ended(2, status="failed")
    ended(0, status="queued")
    called(1)
    count()
    shown = admin_client.get("/admin/").context["overview"]
    linked = [(each["link"], each["count"]) for each in [*shown["outcomes"], *shown["calls"], *shown["open"]]]
    linked += [(each["link"], each["turns"] + 1) for each in shown["models"]]  # and the one that is open
    linked += [(shown["queued_link"], shown["queued"]), (shown["turns_link"], shown["turns"] + 1)]
    for link, rows in linked:
        answer = admin_client.get(link)
        assert answer.status_code == 200, link
        assert answer.context["cl"].result_count == rows, link


def test_no_figure_stands_in_the_overview_without_a_link(admin_client, ended):
    ended(0, status="queued")
    for number in range(25):
        ended(1, model=f"model-{number}")
    called(1)
    count()
    shown = admin_client.get("/admin/").content.decode()
    cards = "".join(re.findall(r'<section class="card.*?</section>', shown, re.DOTALL))
    assert "(others)" in cards
    left = re.sub(r"<a .*?</a>|<h2>.*?</h2>|<td>model-\d+</td>|<[^>]*>", " ", cards, flags=re.DOTALL)
    assert re.findall(r"\S*\d\S*", left) == ["(p50);", "95", "(p95)", "p50", "p95"]  # words, not figures


def test_workers_lead_to_those_that_live_and_listen(admin_client):
    for name, queues in [("a", "turns,compaction"), ("b", "tools"), ("c", "turns")]:
        Worker.objects.create(name=name, version="0", turns_most=1, heartbeat_at=Now(), queues=queues)
    Worker.objects.filter(name="c").update(heartbeat_at=Now() - HOUR)
    shown = admin_client.get("/admin/").context["overview"]
    found = {}
    for each in shown["workers"]:
        rows = admin_client.get(each["link"]).context["cl"].queryset
        found[each["queue"]] = [row.name for row in rows]
        assert each["count"] == len(found[each["queue"]])
    assert found == {
        "turns": ["a"],
        "tools": ["b"],
        "compaction": ["a"],
        "deliveries": [],
        "listeners": [],
        "replays": [],
    }


def test_each_bar_leads_to_its_turns(admin_client, ended):
    ended(1)
    ended(2, status="failed")
    bars = [bar for bar in show()["charts"][0]["bars"] if bar["parts"]]
    assert [[part["status"] for part in bar["parts"]] for bar in bars] == [["failed"], ["succeeded"]]
    for bar in bars:
        assert admin_client.get(bar["link"]).context["cl"].result_count == 1


def test_charts_have_axes_a_zone_and_the_same_as_a_table(admin_client, ended):
    ended(1, took=4)
    ended(2, status="failed")
    called(1, CallStatus.REJECTED)
    turns, times, _, _, tokens, calls = show()["charts"]
    assert turns["ticks"] == ["4", "3", "2", "1", "0"]
    assert (turns["zone"], turns["times"][0]) == ("UTC", "13:00")
    assert [row["values"] for row in turns["rows"]][-3:] == [["0", "1", "0"], ["1", "0", "0"], ["0", "0", "0"]]
    assert times["rows"][-1]["values"] == ["–", "–"]
    assert times["rows"][-2]["values"][0] != "–"
    assert tokens["rows"][-2]["values"] == ["10", "5"]
    (bar,) = [each for each in calls["bars"] if each["parts"]]
    assert bar["told"].startswith("1 rejected")
    assert admin_client.get(bar["link"]).context["cl"].result_count == 1


def chart(shown, begins):
    (found,) = [each for each in shown["charts"] if each["title"].startswith(begins)]
    return found


def test_errors_are_drawn_by_code_and_lead_to_their_turns(admin_client, ended):
    for hours_ago, code in [(1, "provider_error"), (1, "provider_error"), (2, "turn_timeout"), (30, "turn_timeout")]:
        turn = ended(hours_ago, status="failed")
        Turn.objects.filter(pk=turn.pk).update(error_code=code)
    ended(1)
    errors = chart(show(), "Failed turns per hour, by error code")
    assert [each["name"] for each in errors["series"]] == ["provider_error", "turn_timeout"]
    assert [row["values"] for row in errors["rows"]][-3:] == [["0", "1"], ["2", "0"], ["0", "0"]]
    assert errors["ticks"][0] == "4"
    (late, early) = [bar for bar in errors["bars"] if bar["parts"]][::-1]
    assert (late["told"], early["told"]) == ("2 provider_error", "1 turn_timeout")

    def listed(address):
        return admin_client.get(address).context["cl"].result_count

    assert (listed(late["link"]), listed(early["link"])) == (2, 1)
    assert [listed(each["link"]) for each in errors["series"]] == [2, 1]
    assert errors["compared"] == "200 % more than in the period before"
    assert listed(errors["compared_link"]) == 1


def test_of_many_error_codes_the_rarest_are_drawn_together(ended):
    for number in range(7):
        for _ in range(7 - number):
            turn = ended(1, status="failed")
            Turn.objects.filter(pk=turn.pk).update(error_code=f"code_{number}")
    errors = chart(show(), "Failed turns")
    assert [each["name"] for each in errors["series"]] == [*(f"code_{number}" for number in range(5)), "others"]
    assert errors["rows"][-2]["values"] == ["7", "6", "5", "4", "3", "3"]


def test_hours_that_were_counted_before_there_were_codes_are_drawn_as_others(ended):
    ended(3, status="failed")
    count()
    row = Hour.objects.get(hour=hour_of(NOW - 3 * HOUR))
    del row.turns["m"]["errors"], row.turns["m"]["waited"], row.turns["m"]["longest_wait"]
    row.save()
    shown = show()
    assert chart(shown, "Failed turns")["rows"][-4]["values"] == ["1"]
    assert chart(shown, "Queue age")["rows"][-4]["values"] == ["–", "–", "–"]


def test_a_turn_that_failed_between_two_counts_is_drawn_by_its_code_alone(ended):
    ended(3, status="failed")
    count()
    row = Hour.objects.get(hour=hour_of(NOW - 3 * HOUR))
    row.turns["m"]["errors"] = {"late": 2}
    row.save()
    errors = chart(show(), "Failed turns")
    assert [each["name"] for each in errors["series"]] == ["late"]
    assert errors["rows"][-4]["values"] == ["2"]
    assert {part["height"] > 0 for bar in errors["bars"] for part in bar["parts"]} == {True}


def test_the_age_of_the_queue_is_drawn_also_of_those_that_nobody_has_taken_up(admin_client, ended):
    for hours_ago, waited in [(1, 2), (1, 40), (2, 7), (26, 3)]:
        turn = ended(hours_ago)
        begun = NOW - hours_ago * HOUR + timedelta(seconds=waited)
        Turn.objects.filter(pk=turn.pk).update(started_at=begun)
    ended(5, status="queued")
    age = chart(show(), "Queue age per hour")
    assert [each["name"] for each in age["series"]] == ["p50", "p95", "longest"]
    p50, p95, longest = age["rows"][-2]["values"]
    assert [float(each.removesuffix(" s")) for each in (p50, p95)] == pytest.approx([2, 40], rel=0.1)
    assert longest == "40 s"
    assert age["rows"][-6]["values"] == ["–", "–", "5.0 h"]
    assert age["compared"].endswith("; 3.0 s in the period before")
    assert admin_client.get(age["bars"][-2]["link"]).context["cl"].result_count == 2


def test_each_chart_is_compared_with_the_period_before_and_can_be_reached_by_keyboard(admin_client, ended):
    ended(1)
    ended(30)
    shown = show()
    told = admin_client.get("/admin/").content.decode()
    for each in shown["charts"]:
        assert each["compared"]
        assert f'<a href="{each["compared_link"]}">'.replace("&", "&amp;") in told
        for bar in each["bars"]:
            assert f'aria-label="{bar["since"]}: {bar["told"]}"' in told
        assert f"<title>{each['bars'][-1]['since']}" in told


def test_a_period_is_compared_with_the_one_before(admin_client, ended):
    assert show()["change"] == "none in the period before"
    for hours_ago in (1, 2, 3, 30, 31):
        ended(hours_ago)
    shown = show()
    assert shown["change"] == "50 % more than in the period before"
    assert admin_client.get(shown["change_link"]).context["cl"].result_count == 2


@pytest.mark.parametrize("window", ["24 hours", "7 days", "30 days", "nonsense", ""])
def test_the_overview_opens_with_whatever_models_are_called(admin_client, ended, window):
    ended(1, model="<script>alert('1')</script>")
    count()
    shown = admin_client.get("/admin/", {"window": window}).content.decode()
    assert "<script>alert" not in shown
    assert "&lt;script&gt;" in shown


def test_an_empty_host_has_an_overview(admin_client):
    assert b"Response time" in admin_client.get("/admin/").content


def test_whoever_may_see_no_turn_sees_no_figures(client, owner):
    owner.is_staff = True
    owner.save()
    client.force_login(owner)
    answer = client.get("/admin/")
    assert answer.status_code == 200
    assert "overview" not in answer.context


def test_the_overview_s_queries_do_not_grow_with_its_rows(admin_client, ended):
    ended(1)
    count()
    with CaptureQueriesContext(connection) as few:
        admin_client.get("/admin/?window=30+days")
    for number in range(20):
        ended(number, model=f"m{number}")
    count()
    with CaptureQueriesContext(connection) as many:
        admin_client.get("/admin/?window=30+days")
    assert len(many) <= len(few) <= 48
