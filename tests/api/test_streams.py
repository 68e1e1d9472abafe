"""Streams: what happens in a turn, told while it happens, without loss or repeat, wherever it is asked for."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx2
import pytest

from tests import shapes
from tests.support.api_client import chat, eventually, key_of, problem, start, turns_of
from tests.support.hosts import Host
from tests.support.scripts import script
from tests.support.sse import Told, events_of, say, streaming, text_of

POEM = " ".join(f"word{number}" for number in range(40))
SLOWLY = script({"say": POEM, "pace": 0.02})


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[httpx2.Client]:
    with host.client() as client:
        yield client


def kinds(events: list[Told]) -> list[str]:
    return [event.kind for event in events]


@pytest.mark.parametrize("asked_by", [{"headers": {"Accept": "text/event-stream"}}, {}])
def test_a_chat_is_answered_with_its_events_when_that_is_asked_for(client, asked_by):
    body = {"message": "Hello"} if asked_by else {"message": "Hello", "stream": True}
    with streaming(client, "POST", f"/conversations/{start(client)}/chat", json=body, **asked_by) as told:
        events = list(told)
    in_order = list(dict.fromkeys(kinds(events)))  # on a busy machine, what is said comes in two pieces
    assert in_order == ["turn.queued", "turn.started", "message.delta", "turn.completed"]
    assert text_of(events) == "You said: Hello" == events[-1].data["assistantMessage"]
    assert events[-1].id == "end"
    assert len({event.id for event in events}) == len(events)


def test_the_last_event_is_what_a_chat_would_have_been_answered_with(client):
    conversation_id = start(client)
    last = say(client, conversation_id, "Hello")[-1].data
    plain = chat(client, conversation_id, "Hello").json()
    assert last.keys() == plain.keys()
    assert last["assistantMessage"] == plain["assistantMessage"]


@pytest.mark.parametrize("odd", ["yes", "false", "true", 1, 0, None, []])
def test_stream_is_true_or_false_and_nothing_like_it(client, odd):
    answer = client.post(f"/conversations/{start(client)}/chat", json={"message": "Hello", "stream": odd})
    assert list(problem(answer, 400, "invalid_request")["errors"]) == ["stream"]


def test_a_chat_that_asks_for_no_stream_is_answered_as_ever(client):
    answer = client.post(f"/conversations/{start(client)}/chat", json={"message": "Hello", "stream": False})
    assert answer.json()["assistantMessage"] == "You said: Hello"


def test_a_new_turn_is_told_from_its_beginning_whatever_was_seen_of_another(client):
    url, headers = f"/conversations/{start(client)}/chat", {"Last-Event-ID": "end"}
    with streaming(client, "POST", url, json={"message": "Hello", "stream": True}, headers=headers) as told:
        assert next(told).kind == "turn.queued"


def test_pieces_come_while_the_model_speaks(client):
    conversation_id = start(client)
    with streaming(
        client, "POST", f"/conversations/{conversation_id}/chat", json={"message": SLOWLY, "stream": True}
    ) as told:
        events = [next(told) for _ in range(4)]
        (turn,) = client.get(f"/conversations/{conversation_id}/turns").json()["results"]
        assert turn["status"] == "running"
        events += told
    assert text_of(events) == POEM
    assert kinds(events).count("message.delta") > 5


def test_what_the_model_thinks_is_told_apart(client):
    events = say(client, start(client), script({"think": "Tea or coffee?", "say": "Tea.", "pace": 0}))
    assert "".join(event.data["text"] for event in events if event.kind == "reasoning.delta") == "Tea or coffee?"
    assert text_of(events) == "Tea."


FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": {"required": ["city"], "type": "object"}}}


def test_an_answer_that_does_not_fit_is_told_and_then_voided(client):
    conversation_id, fits = start(client), '{"city": "Oslo"}'
    asked = script({"say": "It is cold in Oslo.", "pace": 0}, {"say": fits, "pace": 0})
    events = say(client, conversation_id, asked, response_format=FORM)
    in_order = list(dict.fromkeys(kinds(events)))
    assert in_order == ["turn.queued", "turn.started", "message.delta", "message.reset", "turn.completed"]
    assert text_of(events) == fits == events[-1].data["assistantMessage"]
    assert text_of(events_of(client, events[0].data["turnId"])) == fits
    asked = script({"say": "Cold."}, {"say": "Very cold."})
    last = say(client, conversation_id, asked, response_format=FORM)[-1]
    assert (last.kind, last.data["code"]) == ("turn.failed", "answer_not_valid")
    assert "It is no JSON" in last.data["detail"]


def test_tools_are_told_of_when_they_start_and_when_they_have_ended(client):
    calls = [{"name": "time", "arguments": {}}, {"name": "echo", "arguments": {"value": 1}}]
    events = say(client, start(client), script({"say": "I look.", "call": calls}, {"say": "Done."}))
    about_calls = [
        (event.kind, event.data["toolName"], event.data.get("status")) for event in events if "callId" in event.data
    ]
    assert sorted(about_calls) == [
        ("tool.finished", "echo", "REJECTED"),
        ("tool.finished", "time", "SUCCESS"),
        ("tool.started", "time", None),
    ]
    assert (text_of(events, 0), text_of(events, 1)) == ("I look.", "Done.")
    assert kinds(events)[-1] == "turn.completed"


def test_what_an_agent_says_in_mid_turn_is_told_once_live_and_again(client, host):
    host.manage("tools", "allow", "message")
    call = {"name": "message", "arguments": {"content": "I have begun."}}
    live = say(client, start(client), script({"call": [call]}, {"say": "Done."}))
    for events in (live, events_of(client, live[0].data["turnId"])):
        said = [event.data for event in events if event.kind == "message.said"]
        assert [(each["destination"], each["text"]) for each in said] == [("origin", "I have begun.")]


@pytest.mark.parametrize(
    ("step", "kind", "code"),
    [({"fail": "auth"}, "turn.failed", "llm_auth"), ({"sleep": 60}, "turn.cancelled", "turn_cancelled")],
)
def test_a_turn_without_an_answer_ends_with_its_problem(client, step, kind, code):
    with streaming(
        client, "POST", f"/conversations/{start(client)}/chat", json={"message": script(step), "stream": True}
    ) as told:
        first = next(told)
        if code == "turn_cancelled":
            assert next(told).kind == "turn.started"
            client.post(f"/turns/{first.data['turnId']}/cancel")
        last = list(told)[-1]
    assert (last.kind, last.data["code"]) == (kind, code)


def test_a_reader_that_was_cut_off_goes_on_where_it_was(client):
    whole = say(client, start(client), SLOWLY)
    turn_id = whole[0].data["turnId"]
    for index, event in enumerate(whole[:-1]):
        assert events_of(client, turn_id, event.id) == whole[index + 1 :]
    by_query = client.get(f"/turns/{turn_id}/events", params={"last_event_id": whole[3].id}).text
    assert by_query == client.get(f"/turns/{turn_id}/events", headers={"Last-Event-ID": whole[3].id}).text


def test_a_reader_that_is_cut_off_at_random_while_it_reads_sees_the_exact_sequence(client):
    dice = random.Random(7)
    turn = client.post(f"/conversations/{start(client)}/turns", json={"message": SLOWLY}).json()
    seen: list[Told] = []
    while not seen or seen[-1].id != "end":
        headers = {"Last-Event-ID": seen[-1].id} if seen else {}
        with streaming(client, "GET", f"/turns/{turn['turnId']}/events", headers=headers) as told:
            for _ in range(dice.randint(1, 6)):
                if (event := next(told, None)) is None:
                    break
                seen.append(event)
    assert text_of(seen) == POEM
    assert len({event.id for event in seen}) == len(seen)
    assert kinds(seen)[:2] == ["turn.queued", "turn.started"]


def test_who_has_seen_the_end_has_nothing_more_to_come_for(client):
    turn_id = say(client, start(client), "Hello")[0].data["turnId"]
    assert client.get(f"/turns/{turn_id}/events", headers={"Last-Event-ID": "end"}).status_code == 204


@pytest.mark.parametrize("last_id", ["1-1", "99999999999999-0", "nonsense", "-", "1-x", "٣-1", "9" * 5000])
def test_who_names_an_event_that_is_not_kept_is_told_again_from_the_beginning(client, last_id):
    turn_id = say(client, start(client), "Hello")[0].data["turnId"]
    events = events_of(client, turn_id, last_id.encode())
    assert kinds(events) == ["turn.reset", "turn.started", "message.delta", "turn.completed"]
    assert text_of(events) == "You said: Hello"


def test_when_the_events_are_gone_the_rows_tell(mortal):
    with mortal.client() as client:
        calls = [{"name": "time", "arguments": {}}]
        whole = say(client, start(client), script({"say": "I look.", "call": calls}, {"say": POEM, "pace": 0}))
    lose_the_events(mortal)
    with mortal.client() as client:
        again = events_of(client, whole[0].data["turnId"])
        resumed = events_of(client, whole[0].data["turnId"], whole[2].id)
        begun = events_of(client, whole[0].data["turnId"], "0-0")
        # Of what the rows tell, a reader may be cut off anywhere too.
        for index in range(1, len(again)):
            seen = again[:index] + events_of(client, whole[0].data["turnId"], again[index - 1].id)
            assert (text_of(seen, 0), text_of(seen, 1)) == ("I look.", POEM)
    assert [kind for kind in kinds(whole) if kind != "message.delta"] == [
        kind for kind in kinds(again) if kind != "message.delta"
    ]
    assert [(text_of(events, 0), text_of(events, 1)) for events in (whole, again)] == [("I look.", POEM)] * 2
    assert again[-1].data == whole[-1].data
    assert kinds(resumed) == ["turn.reset", *kinds(again)[1:]]
    assert kinds(begun) == kinds(again)[1:], "who was told only that it waits has nothing to forget"


def lose_the_events(host: Host) -> None:
    if shapes.shape() == shapes.EMBEDDED:
        host.stop()
        host.start()
    else:
        host.forget_events()


def test_a_reader_sees_a_new_attempt_after_a_crash_and_the_whole_answer(mortal):
    """Production loses its worker alone, and the reader stays; embedded, the reader comes back with the host."""
    slowly = script({"say": POEM, "pace": 0.1})
    with mortal.client() as client:
        turn = client.post(f"/conversations/{start(client)}/turns", json={"message": slowly}).json()
    seen: list[Told] = []
    with mortal.client() as client, streaming(client, "GET", f"/turns/{turn['turnId']}/events") as told:
        seen += [next(told) for _ in range(4)]
        assert seen[-1].kind == "message.delta"
        mortal.kill("worker")
        mortal.start()
        with suppress(httpx2.HTTPError):
            seen += told
    if seen[-1].id != "end":
        with mortal.client() as client:
            seen += events_of(client, turn["turnId"], seen[-1].id)
    assert any(kind in ("message.reset", "turn.reset") for kind in kinds(seen))
    assert text_of(seen) == POEM == seen[-1].data["assistantMessage"]


def test_a_providers_failure_in_mid_answer_is_followed_by_a_reset(client):
    events = say(
        client,
        start(client),
        script({"fail": "unavailable", "after": 2, "times": 1, "say": "One two three", "pace": 0}),
    )
    assert "message.reset" in kinds(events)
    assert text_of(events) == "One two three" == events[-1].data["assistantMessage"]


def test_a_process_that_stops_ends_its_streams_and_the_turn_goes_on(mortal):
    with mortal.client() as client:
        conversation_id = start(client)
        body = {"message": script({"sleep": 2, "say": "done"}), "stream": True}
        with streaming(client, "POST", f"/conversations/{conversation_id}/chat", json=body) as told:
            assert next(told).kind == "turn.queued"
            mortal.terminate()
            assert [event for event in told if event.id == "end"] == []
    mortal.stop()
    mortal.start()
    eventually(lambda: turns_of(mortal, conversation_id)[0]["status"] == "succeeded")


def revoke(host: Host, key: str) -> None:
    host.sql("UPDATE accounts_apikey SET revoked_at = CURRENT_TIMESTAMP WHERE prefix = ?", key.split("_")[1])


def test_a_revoked_key_ends_its_streams_and_the_turn_goes_on(host):
    key = key_of(host, "stream-revoked")
    with host.client(key) as client:
        conversation_id = start(client)
        body = {"message": script({"sleep": 5, "say": "done"}), "stream": True}
        with streaming(client, "POST", f"/conversations/{conversation_id}/chat", json=body) as told:
            assert next(told).kind == "turn.queued"
            revoke(host, key)
            assert [event for event in told if event.id == "end"] == []
    eventually(lambda: turns_of(host, conversation_id)[0]["status"] == "succeeded")


def test_who_waits_with_a_key_that_is_revoked_is_told_no_answer(host):
    key = key_of(host, "waits-revoked")
    with host.client(key) as client, ThreadPoolExecutor(1) as pool:
        conversation_id = start(client)
        asked = pool.submit(chat, client, conversation_id, script({"sleep": 5, "say": "done"}))
        eventually(lambda: turns_of(host, conversation_id))
        revoke(host, key)
        problem(asked.result(), 401, "not_authenticated")
    eventually(lambda: turns_of(host, conversation_id)[0]["status"] == "succeeded")


def test_a_reader_that_goes_away_does_not_stop_the_turn(host, client):
    conversation_id = start(client)
    with host.client() as other:
        body = {"message": script({"say": POEM, "pace": 0.01}), "stream": True}
        with streaming(other, "POST", f"/conversations/{conversation_id}/chat", json=body) as told:
            turn_id = next(told).data["turnId"]
    events = events_of(client, turn_id)
    assert text_of(events) == POEM == events[-1].data["assistantMessage"]


def test_nobody_reads_another_owners_turn(host, client):
    turn_id = say(client, start(client), "Hello")[0].data["turnId"]
    with host.client(key_of(host, "stream-outsider")) as outsider:
        problem(outsider.get(f"/turns/{turn_id}/events"), 404, "not_found")


def test_a_deleted_turn_ends_its_streams(client):
    conversation_id = start(client)
    body = {"message": script({"sleep": 60}), "stream": True}
    with streaming(client, "POST", f"/conversations/{conversation_id}/chat", json=body) as told:
        first = next(told)
        assert first.kind == "turn.queued"
        client.delete(f"/conversations/{conversation_id}")
        last = list(told)[-1]
    assert (last.kind, last.data["code"]) == ("turn.failed", "not_found")
    for last_id in ("", "0-0", "end"):
        url = f"/turns/{first.data['turnId']}/events"
        problem(client.get(url, headers={"Last-Event-ID": last_id}), 404, "not_found")


def test_a_reader_that_does_not_read_holds_nobody_up(host, client):
    long = " ".join(["word"] * 20_000)
    conversation_id = start(client)
    with client.stream(
        "POST",
        f"/conversations/{conversation_id}/chat",
        json={"message": script({"say": long, "pace": 0}), "stream": True},
    ) as lazy:
        assert lazy.status_code == 200
        eventually(lambda: turns_of(host, conversation_id)[0]["status"] == "succeeded")
        turn_id = str(turns_of(host, conversation_id)[0]["id"])
        assert text_of(events_of(client, turn_id)) == long
        told = json.loads(list(lazy.iter_lines())[-2].removeprefix("data: "))
    assert told["assistantMessage"] == long
