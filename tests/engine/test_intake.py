"""The intake is paused: new turns are refused or held, what was taken in is worked off, and all of it goes on later."""

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from conversations.engine import deferred, inbox, intake, lease, steps, turn_control
from conversations.engine.sweeper import find
from conversations.errors import IntakePaused
from conversations.kinds import TURNS
from conversations.models import DeferredMessage, IntakePause, Turn
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.accounts.models import WIDE, ApiKey
from nanohost.lib.clock import from_now
from nanohost.lib.errors import NotFound
from scheduler import series, ticking
from scheduler.models import RunState, ScheduleRun
from tests.support.hosts import KEY
from tests.support.scraping import scrape
from tests.support.working import advance, settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def client(owner):
    ApiKey.objects.register(KEY, owner=owner, **WIDE)
    return Client(headers={"Authorization": f"Bearer {KEY}"})


@pytest.fixture
def post(client, conversation):
    """``post("turns", {"message": "Hello"}, Idempotency-Key="k")``."""

    def send(what, body, **headers):
        address = f"/api/v1/conversations/{conversation.pk}/{what}"
        return client.post(address, json.dumps(body), content_type="application/json", headers=headers)

    return send


@pytest.fixture
def paused(db):
    assert intake.pause(by="anna", because="deploying 0.2")


# --- what clients are told ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["chat", "turns", "messages"])
def test_a_new_turn_is_refused_and_nothing_is_stored(post, conversation, paused, what):
    body = {"message": "Hello"}
    before = type(conversation).objects.get(pk=conversation.pk).next_turn
    answer = post(what, body)
    assert answer.status_code == 503
    assert answer["Retry-After"] == str(inbox.RETRY_AFTER_SECONDS)
    assert answer["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["status"]) == ("intake_paused", 503)
    assert "again later" in problem["detail"]
    assert "deploying" not in answer.content.decode(), "why is for people of the house"
    assert Turn.objects.count() == 0
    assert type(conversation).objects.get(pk=conversation.pk).next_turn == before


def test_what_is_refused_is_no_error_of_the_server(post, paused, caplog):
    assert post("chat", {"message": "Hello"}).status_code == 503
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_stream_is_refused_before_it_begins(post, paused):
    assert post("chat", {"message": "Hello", "stream": True}).status_code == 503


def test_a_request_whose_turn_exists_gets_its_answer(post, say):
    first = post("turns", {"message": "Hello"}, **{"Idempotency-Key": "k"})
    intake.pause(by="anna", because="x")
    again = post("turns", {"message": "Hello"}, **{"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["turnId"]) == (202, first.json()["turnId"])
    settle([Turn.objects.get()])
    answered = post("chat", {"message": "Hello"}, **{"Idempotency-Key": "k"})
    assert (answered.status_code, answered.json()["assistantMessage"]) == (200, "You said: Hello")


def test_all_else_is_served(client, post, conversation, paused):
    assert client.get(f"/api/v1/conversations/{conversation.pk}/messages").status_code == 200
    assert client.post("/api/v1/conversations", "{}", content_type="application/json").status_code == 201
    assert post("messages", {"message": "a note", "trigger": False}).status_code == 202
    assert "intake" not in client.get("/health/ready").content.decode()


def test_a_conversation_that_is_gone_is_not_found_paused_or_not(say, conversation, paused):
    conversation.delete()
    with pytest.raises(NotFound):
        say("Hello", while_paused="refuse")


# --- what was taken in is worked off, what comes of itself waits ----------------------------------------------------


def test_what_was_taken_in_is_worked_off(say):
    turns = [say("one"), say("two")]
    claim = lease.claim(turns[0].pk, worker="worker")
    intake.pause(by="anna", because="x")
    assert (str(intake.left()), intake.left().drained) == ("1 running, 0 waiting, 1 queued", False)
    steps.release(claim)
    assert {turn.status for turn in settle(turns)} == {TurnStatus.SUCCEEDED}
    assert intake.left().drained


def test_a_schedules_run_is_held_and_begins_when_the_intake_is_resumed(owner, paused):
    schedule = series.create(owner_id=owner.pk, agent="default", prompt="Hello", every_seconds=60)
    assert ticking.tick(now=schedule.next_at) == 1
    run, turn = ScheduleRun.objects.get(), Turn.objects.get()
    assert (run.state, run.turn_id, turn.status) == (RunState.FIRED, turn.pk, TurnStatus.QUEUED)
    assert turn.waiting_for == WaitingFor.INTAKE
    Turn.objects.update(notified_at=None)
    assert find(TURNS) == []
    assert advance(turn).status == TurnStatus.QUEUED
    assert (intake.left().held, intake.left().drained) == (1, True)
    intake.resume(by="anna")
    assert find(TURNS) == [turn.pk]
    turn = advance(turn)
    assert (turn.status, turn.waiting_for) == (TurnStatus.SUCCEEDED, "")
    ticking.tick(now=schedule.next_at)
    assert ScheduleRun.objects.get().ended_at


def test_a_message_with_a_time_is_held(conversation, paused):
    deferred.put(conversation, kind=deferred.Kind.WAKE, content="Hello", run_after=timezone.now(), request_id="r")
    DeferredMessage.objects.update(run_after=from_now(-1))
    deferred.fire_due()
    assert Turn.objects.get().waiting_for == WaitingFor.INTAKE


def test_one_that_is_held_is_let_in_also_if_it_was_stored_as_the_intake_was_resumed(say):
    """It has seen the pause; nobody looks for it once more after the resume."""
    turn = say("Hello")
    Turn.objects.update(waiting_for=WaitingFor.INTAKE)
    assert advance(turn).status == TurnStatus.SUCCEEDED


def test_what_was_held_counts_as_taken_in_at_the_next_pause(say, paused):
    """Or it would be held again, and whatever was taken in behind it would never be worked off."""
    held = say("Hello")
    intake.resume(by="anna")
    behind = say("after the resume", while_paused="refuse")
    intake.pause(by="anna", because="once more")
    assert (str(intake.left()), intake.left().drained) == ("0 running, 0 waiting, 2 queued", False)
    settle([held, behind])
    assert intake.left().drained


def test_a_held_turn_can_be_cancelled(say, paused):
    turn = say("Hello")
    turn_control.cancel_turn(turn)
    turn.refresh_from_db()
    assert (turn.status, turn.waiting_for) == (TurnStatus.CANCELLED, "")


def test_whoever_can_come_back_is_refused(say, paused):
    with pytest.raises(IntakePaused):
        say("Hello", while_paused="refuse")


# --- the switch -------------------------------------------------------------------------------------------------------


def test_a_second_pause_leaves_the_first_as_it_is(paused):
    assert not intake.pause(by="bert", because="another reason")
    assert IntakePause.objects.get().paused_by == "anna"
    assert intake.resume(by="bert")
    assert not intake.resume(by="bert")
    assert intake.current_pause() is None


def test_prometheus_is_told(say):
    assert scrape()["nanohost_intake_paused",] == 0
    intake.pause(by="anna", because="x")
    assert scrape()["nanohost_intake_paused",] == 1
    say("held")
    Turn.objects.update(created_at=timezone.now() - timedelta(hours=1))
    assert scrape()["nanohost_queue_oldest_seconds",] == 0, "nobody is to be woken for what waits on purpose"


def test_the_command_pauses_tells_and_resumes(say, capsys):
    def run(*arguments):
        call_command("intake", *arguments)
        return capsys.readouterr().out

    assert "accepted" in run("status")
    turn = say("Hello")
    told = run("pause", "--because", "deploying 0.2", "--by", "anna")
    assert "by anna: deploying 0.2" in told
    assert "0 running, 0 waiting, 1 queued" in told
    assert "drained" not in told
    with pytest.raises(CommandError, match="not drained"):
        call_command("intake", "status", "--wait", "0.01")
    capsys.readouterr()
    settle([turn])
    assert run("status", "--wait", "5").endswith("drained\n")
    assert "already" in run("pause", "--because", "again")
    assert "again" in run("resume")
    assert "not paused" in run("resume")
    with pytest.raises(CommandError, match="say why"):
        call_command("intake", "pause", "--because", " ")
