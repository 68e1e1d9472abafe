"""Messages for later: those with a time, those that only ride along, and notes."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from conversations import later
from conversations.errors import IdempotencyConflict
from conversations.models import Conversation, LaterMessage, LaterState, Turn
from tests.http import chat, eventually, key_of, problem
from tests.work import settle

pytestmark = pytest.mark.django_db(transaction=True)

PAST, FUTURE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def put(conversation):
    def store(content="Wake up.", kind=later.Kind.WAKE, **options):
        return later.put(conversation, kind=kind, content=content, request_id="request-1", **options)

    return store


def settled():
    later.fire_due()
    return settle(list(Turn.objects.all()))


def test_it_makes_its_turn_once_its_time_has_come(put):
    message = put(run_after=FUTURE)
    assert settled() == []
    LaterMessage.objects.update(run_after=PAST)
    (turn,) = settled()
    assert turn.messages.last().content == "You said: Wake up."
    later.fire_due()
    message.refresh_from_db()
    assert (message.state, message.tries, message.turn_id) == (LaterState.DONE, 1, turn.pk)
    assert Turn.objects.count() == 1


def test_it_keeps_nobody_waiting_meanwhile(put, say):
    put(run_after=FUTURE)
    (turn,) = settle([say("Hello")])
    assert turn.status == "succeeded"


def test_however_many_look_one_turn_comes_of_it(put):
    put(run_after=PAST)
    barrier = threading.Barrier(6)

    def look():
        barrier.wait()
        try:
            later.fire_due()
        finally:
            connection.close()

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Turn.objects.count() == 1
    assert LaterMessage.objects.get().tries == 1


def test_a_turn_that_fails_is_tried_again_ever_later_and_five_times_in_all(put):
    message = put('{"script": [{"fail": "auth"}]}', run_after=PAST)
    waits = []
    for _ in range(5):
        settled()
        later.fire_due()
        message.refresh_from_db()
        waits.append((message.run_after - datetime.now(UTC)).total_seconds())
        LaterMessage.objects.filter(state=LaterState.WAITING).update(run_after=PAST)
    assert (message.state, message.tries, Turn.objects.count()) == (LaterState.FAILED, 5, 5)
    assert [round(wait / 5) for wait in waits[:4]] == [1, 2, 4, 8]


def test_one_that_cannot_be_said_keeps_no_other_from_it(put, settings):
    settings.LLM_MODELS = ["gpt-4.1-mini"]
    bad, good = put(model="gone", run_after=PAST), put(run_after=PAST + timedelta(days=1))
    settled()
    bad.refresh_from_db()
    good.refresh_from_db()
    assert (bad.state, good.state) == (LaterState.FAILED, LaterState.FIRED)


def test_one_that_stumbles_keeps_no_other_from_it(put, caplog):
    bad, good = put(run_after=PAST), put(run_after=PAST + timedelta(days=1))

    def fail_for_the_first(execute, sql, params, *rest):
        if sql.startswith("INSERT") and any(str(bad.pk) in str(each) for each in params or ()):
            raise RuntimeError("as a fault of ours")
        return execute(sql, params, *rest)

    with connection.execute_wrapper(fail_for_the_first):
        later.fire_due()
    states = {message.pk: message.state for message in LaterMessage.objects.all()}
    assert states == {bad.pk: LaterState.WAITING, good.pk: LaterState.FIRED}
    assert "could not be said" in caplog.text


def test_outcomes_are_seen_however_many_are_still_open(put, monkeypatch):
    monkeypatch.setattr(later, "MOST_FOUND", 1)
    held, done = put(run_after=PAST), put(run_after=PAST + timedelta(days=1))
    later.fire_due()
    later.fire_due()
    done.refresh_from_db()
    Turn.objects.filter(pk=done.turn_id).update(status="succeeded", ended_at=datetime.now(UTC))
    later.fire_due()
    states = {message.pk: message.state for message in LaterMessage.objects.all()}
    assert states == {held.pk: LaterState.FIRED, done.pk: LaterState.DONE}


def test_context_wakes_nobody_and_comes_before_the_next_message(put, say):
    put("The door is open.", kind=later.Kind.CONTEXT)
    put("It rains.", kind=later.Kind.NOTE)
    put("Not yet.", kind=later.Kind.CONTEXT, run_after=FUTURE)
    assert settled() == []
    settle([say("/status")])
    assert LaterMessage.objects.filter(state=LaterState.WAITING).count() == 3
    (turn,) = settle([say("What now?")])
    said = list(turn.messages.order_by("seq").values_list("content", flat=True))
    assert said == ["The door is open.", "[note] It rains.", "What now?", "You said: What now?"]
    (after,) = settle([say("And now?")])
    assert after.messages.count() == 2
    assert Conversation.objects.get().set_aside == 1


def test_the_same_key_gets_the_same_message(put):
    first = put(run_after=FUTURE, idempotency_key="k")
    assert put(run_after=FUTURE, idempotency_key="k").pk == first.pk
    with pytest.raises(IdempotencyConflict):
        put("Something else.", run_after=FUTURE, idempotency_key="k")
    assert put(kind=later.Kind.CONTEXT, idempotency_key="c") == put(kind=later.Kind.CONTEXT, idempotency_key="c")
    assert Conversation.objects.get().set_aside == 1


# --- over HTTP -----------------------------------------------------------------------------------------------------


def send(api, conversation_id, **body):
    return api.post(f"/conversations/{conversation_id}/messages", json={"message": "Remember me.", **body})


def test_at_its_time_a_message_is_answered(api, conversation_id):
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    answer = send(api, conversation_id, runAfter=soon)
    assert (answer.status_code, answer.json()["state"], answer.json()["kind"]) == (202, "waiting", "wake")
    (turn,) = eventually(lambda: api.get(f"/conversations/{conversation_id}/turns").json()["results"])
    assert (
        eventually(lambda: api.get(f"/turns/{turn['turnId']}").json()["assistantMessage"]) == "You said: Remember me."
    )


def test_a_message_that_wakes_nobody_rides_along(api, conversation_id):
    assert send(api, conversation_id, trigger=False).json()["kind"] == "context"
    assert send(api, conversation_id, onWake=True).json()["kind"] == "note"
    chat(api, conversation_id, "Hello")
    messages = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    assert [each["content"] for each in messages][:3] == ["Remember me.", "[note] Remember me.", "Hello"]


def test_without_a_time_it_makes_a_turn_at_once(api, conversation_id):
    answer = send(api, conversation_id)
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v1/turns/{answer.json()['turnId']}"


@pytest.mark.parametrize("body", [{"runAfter": "soon"}, {"trigger": "no"}, {"message": " "}, {"later": True}])
def test_what_makes_no_sense_is_refused(api, conversation_id, body):
    problem(send(api, conversation_id, **body), 400, "invalid_request")


def test_nobody_sends_to_a_conversation_of_others(host, api, conversation_id):
    with host.client(key_of(host, "mallory")) as other:
        for body in ({}, {"trigger": False}, {"onWake": True}, {"runAfter": "2000-01-01T00:00:00Z"}):
            problem(send(other, conversation_id, **body), 404, "not_found")
    chat(api, conversation_id, "Hello")
    messages = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    assert [each["content"] for each in messages] == ["Hello", "You said: Hello"]
