"""Replays in the console: who may begin them, and what is shown of them."""

import json

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from conversations.engine.replaying import replay_sets
from conversations.engine.replaying.frozen import Changes
from conversations.models import Replay, ReplayRun, ReplaySet
from nanohost.accounts.models import AuditEntry
from nanohost.console.roles import ADMIN, OPERATOR, ROLES, VIEWER, sync_roles
from tests.support.console_client import HOSTILE, client_of, page
from tests.support.factories import OwnerFactory
from tests.support.replaying import run
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clients(db):
    sync_roles()
    return {role: client_of(role) for role in ROLES}


def asking(turn, **given):
    chosen = {"action": "replay_turns", "_selected_action": [str(turn.pk)]}
    return chosen | ({"confirmed": "yes", "unrecorded": "refuse"} | given if given else {})


def test_operators_replay_turns_and_everybody_who_reads_them_sees_both(clients, say):
    (turn,) = settle([say(f"Hello {HOSTILE}")])
    turns = page("conversations_turn")
    clients[VIEWER].post(turns, asking(turn, model="other"))
    assert not Replay.objects.exists()
    asked = clients[OPERATOR].post(turns, asking(turn)).content.decode()
    assert "no tool runs" in asked
    for wrong in ({"temperature": "3"}, {"version": "99"}, {"unrecorded": "run"}):
        assert clients[OPERATOR].post(turns, asking(turn, **wrong)).status_code == 400, wrong
    answer = clients[OPERATOR].post(turns, asking(turn, model="other", temperature="0.5", tools=" time, echo"))
    row = Replay.objects.get()
    assert answer.url == page("conversations_replay", "change", row.pk)
    assert (row.asked_by, row.changes) == (
        f"of {OPERATOR}",
        {"model": "other", "temperature": 0.5, "tools": ["time", "echo"]},
    )
    run(row.pk)
    for role in (VIEWER, OPERATOR, ADMIN):
        told = clients[role].get(answer.url).content.decode()
        assert "side by side" in told.lower()
        assert "other" in told
        assert HOSTILE not in told
        assert clients[role].get(page("conversations_replay")).status_code == 200


def test_a_turn_that_has_not_ended_is_not_replayed(clients, say):
    answer = clients[OPERATOR].post(page("conversations_turn"), asking(say("Hello"), model="m"), follow=True)
    assert "none of them has ended" in answer.content.decode()
    assert not Replay.objects.exists()


def put(turns, **given):
    return {"action": "collect_turns", "_selected_action": [str(turn.pk) for turn in turns], **given}


def test_turns_are_put_into_a_set_that_is_replayed_from_its_page_and_compared_over_time(clients, say):
    first, second = settle([say(f"one {HOSTILE}"), say("two")])
    turns = page("conversations_turn")
    clients[VIEWER].post(turns, put([first], confirmed="yes", name="flowers"))
    assert not ReplaySet.objects.exists()
    assert "Put into a set" in clients[OPERATOR].post(turns, put([first])).content.decode()
    assert clients[OPERATOR].post(turns, put([first], confirmed="yes", name="")).status_code == 400
    for turn in (first, second):
        answer = clients[OPERATOR].post(turns, put([turn], confirmed="yes", name="flowers"))
    of_set = ReplaySet.objects.get()
    assert answer.url == page("conversations_replayset", "change", of_set.pk)
    assert of_set.cases.count() == 2
    chosen = {"action": "replay_sets", "_selected_action": [str(of_set.pk)]}
    sets = page("conversations_replayset")
    clients[VIEWER].post(sets, chosen | {"confirmed": "yes", "unrecorded": "refuse"})
    assert not ReplayRun.objects.exists()
    assert "no tool runs" in clients[OPERATOR].post(sets, chosen).content.decode()
    assert clients[OPERATOR].post(sets, chosen | {"confirmed": "yes", "unrecorded": "run"}).status_code == 400
    started = clients[OPERATOR].post(sets, chosen | {"confirmed": "yes", "unrecorded": "refuse"})
    run(*ReplayRun.objects.get().replays.values_list("pk", flat=True))
    ReplaySet.objects.update(graders=[{"kind": "contains", "texts": ["nowhere"]}])
    again = replay_sets.start(ReplaySet.objects.get(), Changes(model="other"), by="anna")
    run(*again.replays.values_list("pk", flat=True))
    for role in (VIEWER, OPERATOR, ADMIN):
        told = clients[role].get(page("conversations_replayrun", "change", again.pk)).content.decode()
        assert "0 better, 2 worse" in told
        assert "It does not contain" in told
        assert "0 of 2" in told
        assert started.url in told  # the run before, and the one over time
        assert HOSTILE not in told


def test_a_run_is_exported_at_any_time_by_those_who_read_what_was_said(clients, say):
    turns = settle([say("one"), say("two")])
    of_set = replay_sets.create("flowers", cases=[(turn, None) for turn in turns])
    earlier, later = (replay_sets.start(of_set, Changes(model=name), by="anna") for name in ("a", "b"))
    for each in (earlier, later):
        run(*each.replays.values_list("pk", flat=True))
    address = page("conversations_replayrun", "export", earlier.pk)
    assert address in clients[VIEWER].get(page("conversations_replayrun", "change", earlier.pk)).content.decode()
    answer = clients[VIEWER].get(address)
    lines = [json.loads(line) for line in answer.getvalue().splitlines()]
    assert [(each["turnId"], each["model"]) for each in lines] == [(str(turn.pk), "a") for turn in turns]
    assert all(each["replay"]["words"] and each["original"]["words"] for each in lines)
    assert AuditEntry.objects.get(action="evaluation.exported").object_id == str(earlier.pk)
    assert clients[VIEWER].get(page("conversations_replayrun", "export", turns[0].pk)).status_code == 404
    person = OwnerFactory(is_staff=True)
    person.user_permissions.add(Permission.objects.get(codename="view_replayrun"))
    client = Client()
    client.force_login(person)
    assert client.get(address).status_code == 403
    shown = client.get(page("conversations_replayrun", "change", earlier.pk))
    assert shown.status_code == 200
    assert address not in shown.content.decode()
    assert AuditEntry.objects.filter(action="evaluation.exported").count() == 1


def test_a_set_is_made_of_json_lines_and_its_mistakes_are_told(clients, say):
    (turn,) = settle([say("one")])
    line = f'{{"turn": "{turn.pk}", "contain": ["one"]}}'
    add = page("conversations_replayset", "add")
    given = {
        "name": "lines",
        "graders": '[{"kind": "contains"}]',
        "max_tokens": "5000",
        "lines": line,
        "min_passed": "0.9",
    }
    assert clients[OPERATOR].post(add, given).status_code == 403
    for wrong, told in (
        ({"graders": '[{"kind": "nice"}]'}, "A grader is an object"),
        ({"graders": "7"}, "Graders are a list"),
        ({"lines": f"{line}\n7"}, "Case 2"),
        ({"max_tokens": "-1"}, "greater than or equal to 0"),
    ):
        answer = clients[ADMIN].post(add, given | wrong)
        assert told in answer.content.decode(), wrong
    assert not ReplaySet.objects.exists()
    assert clients[ADMIN].post(add, given).status_code == 302
    of_set = ReplaySet.objects.get()
    assert (of_set.max_tokens, of_set.cases.get().expected) == (5000, {"contains": ["one"]})
    assert "already" in clients[ADMIN].post(add, given).content.decode()
    told = clients[VIEWER].get(page("conversations_replayset", "change", of_set.pk)).content.decode()
    assert str(turn.pk) in told
