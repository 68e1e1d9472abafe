"""Deferred messages: those with a time, those that only ride along, and notes."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from conversations.attachments import store
from conversations.attachments.parts import SentFile
from conversations.engine import deferred, retention
from conversations.errors import IdempotencyConflict, ModelNotAllowed
from conversations.models import Attachment, AttachmentUse, Conversation, DeferredMessage, DeferredState, Turn
from nanohost.lib.erasing import Erased
from tests.support.api_client import chat, eventually, key_of, problem, stored
from tests.support.hosts import KEY
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

CAT = SentFile(name="cat.txt", data=b"I am a cat.")
DOG = SentFile(name="dog.txt", data=b"I am a dog.")
PAST, FUTURE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def put(conversation):
    def store(content="Wake up.", kind=deferred.Kind.WAKE, **options):
        return deferred.put(conversation, kind=kind, content=content, request_id="request-1", **options)

    return store


def settled():
    deferred.fire_due()
    return settle(list(Turn.objects.all()))


def test_it_makes_its_turn_once_its_time_has_come(put):
    message = put(run_after=FUTURE)
    assert settled() == []
    DeferredMessage.objects.update(run_after=PAST)
    (turn,) = settled()
    assert turn.messages.last().content == "You said: Wake up."
    deferred.fire_due()
    message.refresh_from_db()
    assert (message.state, message.tries, message.turn_id) == (DeferredState.DONE, 1, turn.pk)
    assert Turn.objects.count() == 1


def test_its_files_come_with_it_and_stay_as_long_as_it_does(put):
    message = put(files=[CAT], run_after=FUTURE)
    Attachment.objects.update(used_at=PAST)
    assert store.collect() == 0
    DeferredMessage.objects.update(run_after=PAST)
    (turn,) = settled()
    said = turn.messages.order_by("seq").first()
    assert (said.attachments, said.tainted_by) == (message.attachments, "the file cat.txt")
    assert "I am a cat." in turn.messages.last().content
    erase(turn.conversation_id)
    assert (store.collect(), Attachment.objects.count()) == (1, 0)


def erase(conversation_id):
    """All that was said, as retention does it."""
    with transaction.atomic():
        retention.erase_messages(conversation_id, before=None, rows=1000, erased=Erased())


def test_the_same_key_with_other_files_is_another_message(put):
    first = put(files=[CAT], run_after=FUTURE, idempotency_key="k")
    assert put(files=[CAT], run_after=FUTURE, idempotency_key="k").pk == first.pk
    with pytest.raises(IdempotencyConflict):
        put(files=[DOG], run_after=FUTURE, idempotency_key="k")
    assert (DeferredMessage.objects.count(), Attachment.objects.count()) == (1, 1)


@pytest.mark.parametrize("kind", [deferred.Kind.CONTEXT, deferred.Kind.NOTE])
def test_files_ride_along_and_taint(put, say, kind):
    put("Look at this.", kind=kind, files=[CAT])
    (turn,) = settle([say("And?")])
    first, second = turn.messages.order_by("seq")[:2]
    assert ([each["name"] for each in first.attachments], second.attachments) == (["cat.txt"], None)
    assert (first.tainted_by, second.tainted_by) == ("the file cat.txt", None)
    assert turn.conversation.tainted_at_seq == first.seq
    assert AttachmentUse.objects.filter(message_id=first.pk).exists()


def test_what_looks_like_a_command_is_none_of_a_message_that_rides_along(put, say):
    put("/new look", kind=deferred.Kind.CONTEXT, files=[CAT])
    (turn,) = settle([say("And?")])
    assert turn.messages.first().content == "/new look"


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
            deferred.fire_due()
        finally:
            connection.close()

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Turn.objects.count() == 1
    assert DeferredMessage.objects.get().tries == 1


def test_a_turn_that_fails_is_tried_again_ever_later_and_five_times_in_all(put):
    message = put('{"script": [{"fail": "auth"}]}', run_after=PAST)
    waits = []
    for _ in range(5):
        settled()
        began = datetime.now(UTC)
        deferred.fire_due()
        message.refresh_from_db()
        waits.append([(message.run_after - moment).total_seconds() for moment in (began, datetime.now(UTC))])
        DeferredMessage.objects.filter(state=DeferredState.WAITING).update(run_after=PAST)
    assert (message.state, message.tries, Turn.objects.count()) == (DeferredState.FAILED, 5, 5)
    # Each twice as long as the one before, and up to half of it less.
    assert all(most >= wait / 2 and least <= wait for wait, (most, least) in zip((5, 10, 20, 40), waits, strict=False))


@pytest.mark.parametrize("kind", deferred.Kind)
def test_one_for_a_model_that_is_not_offered_is_refused(put, settings, kind):
    with pytest.raises(ModelNotAllowed):
        put(kind=kind, model="large", run_after=FUTURE)
    assert not DeferredMessage.objects.exists()
    assert Conversation.objects.get().set_aside == 0
    settings.LLM_MODELS = ["gpt-4.1-mini", "large"]
    message = put(kind=kind, model="large", run_after=FUTURE, idempotency_key="k")
    settings.LLM_MODELS = []
    assert put(kind=kind, model="large", run_after=FUTURE, idempotency_key="k") == message


def test_one_that_cannot_be_said_keeps_no_other_from_it(put, settings):
    settings.LLM_MODELS = ["gpt-4.1-mini", "gone"]
    bad, good = put(model="gone", run_after=PAST), put(run_after=PAST + timedelta(days=1))
    settings.LLM_MODELS = []
    settled()
    bad.refresh_from_db()
    good.refresh_from_db()
    assert (bad.state, good.state) == (DeferredState.FAILED, DeferredState.FIRED)


def test_one_that_stumbles_keeps_no_other_from_it(put, caplog):
    bad, good = put(run_after=PAST), put(run_after=PAST + timedelta(days=1))

    def fail_for_the_first(execute, sql, params, *rest):
        if sql.startswith("INSERT") and any(str(bad.pk) in str(each) for each in params or ()):
            raise RuntimeError("as a fault of ours")
        return execute(sql, params, *rest)

    with connection.execute_wrapper(fail_for_the_first):
        deferred.fire_due()
    states = {message.pk: message.state for message in DeferredMessage.objects.all()}
    assert states == {bad.pk: DeferredState.WAITING, good.pk: DeferredState.FIRED}
    assert "could not be said" in caplog.text


def test_outcomes_are_seen_however_many_are_still_open(put, monkeypatch):
    monkeypatch.setattr(deferred, "MAX_FOUND", 1)
    held, done = put(run_after=PAST), put(run_after=PAST + timedelta(days=1))
    deferred.fire_due()
    deferred.fire_due()
    done.refresh_from_db()
    Turn.objects.filter(pk=done.turn_id).update(status="succeeded", ended_at=datetime.now(UTC))
    deferred.fire_due()
    states = {message.pk: message.state for message in DeferredMessage.objects.all()}
    assert states == {held.pk: DeferredState.FIRED, done.pk: DeferredState.DONE}


def test_context_wakes_nobody_and_comes_before_the_next_message(put, say):
    put("The door is open.", kind=deferred.Kind.CONTEXT)
    put("It rains.", kind=deferred.Kind.NOTE)
    put("Not yet.", kind=deferred.Kind.CONTEXT, run_after=FUTURE)
    assert settled() == []
    settle([say("/status")])
    assert DeferredMessage.objects.filter(state=DeferredState.WAITING).count() == 3
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
    assert put(kind=deferred.Kind.CONTEXT, idempotency_key="c") == put(kind=deferred.Kind.CONTEXT, idempotency_key="c")
    assert Conversation.objects.get().set_aside == 1


# --- cancelled -----------------------------------------------------------------------------------------------------


def state_of(message):
    return DeferredMessage.objects.get(pk=message.pk).state


def test_one_that_is_cancelled_makes_no_turn(put):
    message = put(run_after=PAST)
    assert deferred.cancel(message)
    assert settled() == []
    assert (state_of(message), deferred.cancel(message)) == (DeferredState.CANCELLED, False)


def test_one_that_is_cancelled_rides_along_with_nothing(put, say):
    gone, stays = put("gone", kind=deferred.Kind.CONTEXT), put("stays", kind=deferred.Kind.NOTE)
    assert deferred.cancel(gone)
    assert Conversation.objects.get().set_aside == 1
    (turn,) = settle([say("Hello")])
    said = turn.messages.filter(role="user").order_by("seq").values_list("content", flat=True)
    assert list(said) == ["[note] stays", "Hello"]
    assert (deferred.cancel(stays), state_of(stays), Conversation.objects.get().set_aside) == (
        False,
        DeferredState.DONE,
        0,
    )


def test_one_that_is_cancelled_while_others_look_is_not_said(put):
    """Whoever looks has found it due; it is cancelled just before the next statement."""
    message, done = put(run_after=PAST), []

    def cancel_once_found(execute, sql, params, *rest):
        if done == ["found"] and sql.startswith(("SELECT", "INSERT", "UPDATE")):
            done.append("cancelled")
            assert deferred.cancel(message)
        found = execute(sql, params, *rest)
        if not done and sql.startswith("SELECT") and "latermessage" in sql and "JOIN" in sql:
            done.append("found")
        return found

    with connection.execute_wrapper(cancel_once_found):
        deferred.fire_due()
    assert done == ["found", "cancelled"]
    assert (state_of(message), Turn.objects.count()) == (DeferredState.CANCELLED, 0)


def test_of_those_who_make_its_turn_and_those_who_cancel_it_one_is_first(put):
    messages = [put(f"message {number}", run_after=PAST) for number in range(6)]
    together, answers = threading.Barrier(3), {}

    def act(what):
        together.wait()
        try:
            what()
        finally:
            connection.close()

    def cancel():
        for message in messages:
            answers[message.pk] = deferred.cancel(message)

    threads = [threading.Thread(target=act, args=(each,)) for each in (cancel, deferred.fire_due, deferred.fire_due)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {message.pk: True for message in messages}
    for message in DeferredMessage.objects.all():
        turns = Turn.objects.filter(messages__content=message.content)
        assert [turn.status for turn in turns] == (["cancelled"] if message.turn_id else [])
        assert message.state == DeferredState.CANCELLED


def test_one_whose_turn_is_open_takes_it_along_and_one_that_was_answered_stays(put):
    running, answered = put(run_after=PAST), put(run_after=PAST + timedelta(days=1))
    deferred.fire_due()
    answered.refresh_from_db()
    Turn.objects.filter(pk=answered.turn_id).update(status="succeeded", ended_at=datetime.now(UTC))
    assert (deferred.cancel(running), deferred.cancel(answered)) == (True, False)
    deferred.fire_due()
    assert (state_of(running), state_of(answered)) == (DeferredState.CANCELLED, DeferredState.DONE)
    assert sorted(Turn.objects.values_list("status", flat=True)) == ["cancelled", "succeeded"]


def test_one_that_waits_to_be_tried_again_is_not(put):
    message = put('{"script": [{"fail": "auth"}]}', run_after=PAST)
    settled()
    deferred.fire_due()
    assert state_of(message) == DeferredState.WAITING
    assert deferred.cancel(message)
    DeferredMessage.objects.update(run_after=PAST)
    settled()
    assert Turn.objects.count() == 1


def test_one_of_a_conversation_that_is_gone_is_not_cancelled(put):
    message = put(run_after=FUTURE)
    Conversation.objects.all().delete()
    assert not deferred.cancel(message)


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


def test_messages_to_come_are_listed_and_cancelled(host, api, conversation_id):
    address = f"/conversations/{conversation_id}/deferred"
    assert api.get(address).json() == {"next": None, "previous": None, "results": []}
    first = send(api, conversation_id, runAfter="2100-01-01T00:00:00Z", model="gpt-4.1-mini").json()
    second = send(api, conversation_id, trigger=False).json()
    assert first == {
        "messageId": first["messageId"],
        "conversationId": conversation_id,
        "kind": "wake",
        "state": "waiting",
        "message": "Remember me.",
        "attachments": [],
        "model": "gpt-4.1-mini",
        "runAfter": "2100-01-01T00:00:00Z",
        "turnId": None,
        "createdAt": first["createdAt"],
    }
    assert second["model"] is None
    assert api.get(address).json()["results"] == [second, first]
    page = api.get(f"{address}?limit=1").json()
    assert page["results"] + api.get(page["next"]).json()["results"] == [second, first]
    for message in (first, second):
        one = f"/deferred/{message['messageId']}"
        assert api.get(one).json() == message
        with host.client(key_of(host, f"not-theirs-{message['messageId']}")) as other:
            problem(other.post(f"{one}/cancel", json={}), 404, "not_found")
            problem(other.get(one), 404, "not_found")
            problem(other.get(address), 404, "not_found")
        problem(api.post(f"{one}/cancel", json={"now": True}), 400, "invalid_request")
        assert api.get(one).json() == message
        assert api.post(f"{one}/cancel").json() == message | {"state": "cancelled"}
        assert api.post(f"{one}/cancel", json={}).json() == message | {"state": "cancelled"}
    assert api.get(address).json()["results"] == []
    chat(api, conversation_id, "Hello")
    messages = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    assert [each["content"] for each in messages] == ["Hello", "You said: Hello"]


def test_nothing_that_shows_one_shows_a_key_of_the_host(api, conversation_id):
    shown = [send(api, conversation_id, trigger=False, message=f"The key is {KEY}.")]
    shown.append(api.get(f"/conversations/{conversation_id}/deferred"))
    shown.append(api.get(f"/deferred/{shown[0].json()['messageId']}"))
    shown.append(api.post(f"/deferred/{shown[0].json()['messageId']}/cancel"))
    assert [("The key is [redacted]" in each.text, KEY in each.text) for each in shown] == [(True, False)] * 4


@pytest.mark.parametrize("more", [{}, {"runAfter": "2100-01-01T00:00:00Z"}])
def test_a_note_that_is_to_wake_is_refused_and_says_what_to_do(host, api, conversation_id, more):
    before = stored(host)
    told = problem(send(api, conversation_id, onWake=True, trigger=True, **more), 400, "invalid_request")
    assert "leave trigger out" in told["detail"]
    assert (stored(host), api.get(f"/conversations/{conversation_id}/deferred").json()["results"]) == (before, [])
    assert send(api, conversation_id, onWake=True, trigger=False, **more).json()["kind"] == "note"


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
