"""Replays in the console: who may begin them, and what is shown of them."""

import pytest

from conversations.models import Replay
from nanohost.console.roles import ADMIN, OPERATOR, ROLES, VIEWER, sync_roles
from tests.support.console_client import HOSTILE, client_of, page
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
    answer = clients[OPERATOR].post(turns, asking(turn, model="other", temperature="0.5"))
    row = Replay.objects.get()
    assert answer.url == page("conversations_replay", "change", row.pk)
    assert (row.asked_by, row.changes) == (f"of {OPERATOR}", {"model": "other", "temperature": 0.5})
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
