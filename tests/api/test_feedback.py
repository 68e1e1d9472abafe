"""Feedback on answers: who may give it, what becomes of it, and what is found by it."""

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.utils import timezone

from conversations.engine import retention
from conversations.feedback_models import Feedback
from conversations.models import ReplayRun
from nanohost.accounts.models import ApiKey
from nanohost.lib.erasing import Erased
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


def client_of(owner, *scopes):
    _, key = ApiKey.objects.issue(owner=owner, scopes=list(scopes or ("chat", "read")), agent_names=["*"])
    return Client(headers={"Authorization": f"Bearer {key}"})


def give(client, turn, **said):
    address = f"/api/v1/turns/{turn.pk}/feedback"
    return client.post(address, said, content_type="application/json", secure=True)


def test_feedback_stands_with_its_turn_until_it_is_changed_or_taken_back(say, owner):
    (turn,) = settle([say("Hello")])
    client = client_of(owner)
    address = f"/api/v1/turns/{turn.pk}/feedback"
    answer = give(client, turn, rating="up")
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert (told["turnId"], told["by"], told["rating"], told["comment"]) == (str(turn.pk), owner.username, "up", "")
    assert give(client, turn, rating="down", comment="Too short.").status_code == 200
    (row,) = client.get(address, secure=True).json()["results"]
    assert (row["rating"], row["comment"]) == ("down", "Too short.")
    said = client.get(f"/api/v1/conversations/{turn.conversation_id}/messages", secure=True).json()["results"]
    assert [(each["role"], each["feedback"]) for each in said] == [("USER", None), ("ASSISTANT", "down")]
    for _ in range(2):
        assert client.delete(address, secure=True).status_code == 204
    assert client.get(address, secure=True).json() == {"results": []}


def test_what_is_no_feedback_is_refused_and_changes_nothing(say, owner, outsider):
    (turn,) = settle([say("Hello")])
    client = client_of(owner)
    give(client, turn, rating="up", comment="Good.")
    for wrong in (
        *({}, {"rating": "5"}, {"rating": None}, {"rating": "up", "comment": 7}, {"rating": "up", "stars": 5}),
        *({"rating": "up", "comment": "x" * 2001}, {"rating": "up", "comment": "\0"}),
    ):
        assert give(client, turn, **wrong).status_code == 400, wrong
    refused = give(client, say("Wait"), rating="up")
    assert (refused.status_code, refused.json()["code"]) == (409, "turn_not_ended")
    assert give(client_of(owner, "read"), turn, rating="down").status_code == 403
    assert give(client_of(outsider), turn, rating="down").status_code == 404
    assert Feedback.objects.get().comment == "Good."


def test_turns_are_found_by_feedback_and_make_a_run(say, owner, capsys):
    good, bad, _ = settle([say("one"), say("two"), say("three")])
    client = client_of(owner)
    give(client, good, rating="up")
    give(client, bad, rating="down")
    for rating, turn in (("up", good), ("down", bad)):
        found = client.get(f"/api/v1/turns?feedback={rating}", secure=True).json()["results"]
        assert [each["turnId"] for each in found] == [str(turn.pk)]
    assert client.get("/api/v1/turns?feedback=fair", secure=True).status_code == 400
    call_command("evaluate", "complaints", "--filter", "feedback=down")
    assert list(ReplayRun.objects.get().replays.values_list("turn_id", flat=True)) == [bad.pk]


def test_feedback_goes_with_what_was_said(say, owner):
    (turn,) = settle([say("Hello")])
    give(client_of(owner), turn, rating="up", comment="Good.")
    of_all = {"before": timezone.now() + timedelta(hours=1), "rows": 100}
    with transaction.atomic():
        retention.erase_messages(turn.conversation_id, **of_all, erased=Erased())
    assert not Feedback.objects.exists()
