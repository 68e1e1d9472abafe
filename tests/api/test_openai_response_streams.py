"""Responses as streams: their events, and coming back to them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx2
import openai
import pytest

from conversations.openai_api import ids
from conversations.openai_api.items import pair_of, told_call
from conversations.openai_api.response_events import ResponseWire, Stretch
from tests import shapes
from tests.support.hosts import KEY, Host
from tests.support.openai_client import async_openai_client, openai_client, strictly
from tests.support.responses import kinds, told, whole
from tests.support.scripts import script
from tests.support.wait import wait_until

MODEL = "default"
WORDS = script({"say": "one two three", "pace": 0.1})
OF_A_MESSAGE = [
    *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"),
    "output_item.done",
]
OF_A_CALL = [
    *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done"),
    *("mcp_call.completed", "output_item.done"),
]


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[openai.OpenAI]:
    with openai_client(host, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def with_time(host: Host) -> None:
    host.allow("time")  # as it is at first


def streamed(client: openai.OpenAI, given: Any, **more: Any) -> list[Any]:
    return told(client.responses.create(model=MODEL, input=given, stream=True, **more))


def told_again(client: openai.OpenAI, response_id: str, **more: Any) -> list[Any]:
    return told(client.responses.retrieve(response_id, stream=True, **more))


def is_consistent(events: list[Any]) -> Any:
    """What holds of every stream; returns its last response."""
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[0].response.output == []
    ids = {each.response.id for each in events if hasattr(each, "response")}
    assert len(ids) == 1
    added = [each.output_index for each in events if each.type == "response.output_item.added"]
    done = [each.output_index for each in events if each.type == "response.output_item.done"]
    assert added == list(range(len(added)))
    assert sorted(done) == added
    return events[-1].response


# --- events ------------------------------------------------------------------------------------------------------


def test_a_stream_has_the_events_in_their_order(client):
    events = streamed(client, WORDS)
    assert kinds(events) == ["created", "in_progress", *OF_A_MESSAGE, "completed"]
    deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert deltas[0] == "one "
    assert "".join(deltas) == "one two three"
    response = is_consistent(events)
    assert response.output_text == "one two three"
    assert whole(client.responses.retrieve(response.id)) == response
    (item,) = [each.item for each in events if each.type == "response.output_item.done"]
    assert item == response.output[0]


def test_on_the_wire_each_event_is_named_and_the_end_told(host):
    with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}) as raw:
        body = {"model": MODEL, "input": "Hello", "stream": True}
        answer = raw.post(f"{host.address}/v1/responses", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, end, nothing = answer.text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    for event in events:
        name, data = event.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


def test_thoughts_and_tools_are_streamed(client, with_time):
    steps = script({"think": "Hm, hm.", "say": "Wait.", "call": [{"name": "time"}], "pace": 0}, {"say": "Late."})
    events = streamed(client, steps)
    of_thoughts = ["output_item.added", "reasoning_text.delta", "reasoning_text.done", "output_item.done"]
    expected = ["created", "in_progress", *of_thoughts, *OF_A_MESSAGE, *OF_A_CALL, *OF_A_MESSAGE, "completed"]
    assert kinds(events) == expected
    response = is_consistent(events)
    items = [each.item for each in events if each.type == "response.output_item.done"]
    assert items == response.output
    assert [each.phase for each in items if each.type == "message"] == ["commentary", "final_answer"]


def test_a_call_that_is_refused_is_streamed_as_failed(client, with_time):
    events = streamed(client, script({"call": [{"name": "no_such"}]}, {"say": "So be it."}))
    assert "mcp_call.failed" in kinds(events)
    assert is_consistent(events).output[0].error.type == "mcp_tool_execution_error"


def test_pairs_are_streamed_if_they_are_wanted(client, with_time):
    steps = script({"call": [{"name": "time"}]}, {"say": "Late."})
    events = streamed(client, steps, metadata={"tool_items": "function_call"})
    response = is_consistent(events)
    assert [each.type for each in response.output] == ["function_call", "function_call_output", "message"]
    assert [each.item for each in events if each.type == "response.output_item.done"] == response.output


def test_the_packages_own_helper_gathers_a_stream(client, with_time):
    steps = script({"think": "Hm.", "say": "Wait.", "call": [{"name": "time"}]}, {"say": "Late."})
    with client.responses.stream(model=MODEL, input=steps) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Wait.Late."


def test_the_asynchronous_package_streams_as_well(host):
    async def events() -> list[Any]:
        async with async_openai_client(host) as client:
            stream = await client.responses.create(model=MODEL, input=WORDS, stream=True)
            found = [each async for each in stream]
            again = await client.responses.retrieve(found[-1].response.id, stream=True)
            return [found, [each async for each in again]]

    found, again = (told(each) for each in asyncio.run(events()))
    assert is_consistent(found).output_text == "one two three"
    assert again == found


def test_an_answer_that_is_begun_anew_has_a_new_item(client):
    steps = script({"fail": "unavailable", "times": 1, "after": 2, "say": "one two three", "pace": 0.2})
    events = streamed(client, steps)
    response = is_consistent(events)
    # How much of the first attempt was told is the network's affair; the next test says what becomes of it.
    *voids, item = [each.item for each in events if each.type == "response.output_item.done"]
    assert all(each.status == "incomplete" and "one two three".startswith(each.content[0].text) for each in voids)
    assert (item.status, item.content[0].text) == ("completed", "one two three")
    assert len({each.id for each in (*voids, item)}) == len(voids) + 1
    assert response.output == [item]
    with client.responses.stream(model=MODEL, input=steps) as stream:
        assert stream.get_final_response().output_text == "one two three"


def test_what_was_told_of_an_answer_that_is_begun_anew_ends_as_incomplete():
    wire = ResponseWire(head={"status": "in_progress"}, row_id=uuid4(), turn_id=uuid4(), stretch=Stretch())
    told = wire.begin({}, last_id="")
    told += wire.event("message.delta", {"message": 0, "text": "one two "})
    told += wire.event("message.reset", {"message": 0})
    told += wire.event("message.delta", {"message": 0, "text": "one "})
    events = [json.loads(line.removeprefix("data: ")) for line in told.decode().splitlines() if line[:5] == "data:"]
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    (void,) = [each for each in events if each["type"] == "response.output_item.done"]
    assert (void["item"]["status"], void["item"]["content"][0]["text"]) == ("incomplete", "one two ")
    first, second = [each for each in events if each["type"] == "response.output_item.added"]
    assert (first["output_index"], second["output_index"]) == (void["output_index"], 1)
    assert first["item"]["id"] == void["item"]["id"] != second["item"]["id"]


@pytest.mark.parametrize("has_pairs", [True, False])
def test_a_call_whose_end_was_missed_is_told_to_its_end_once(has_pairs):
    """Events may be lost; the response has what they would have told."""
    wire = ResponseWire(
        head={"status": "in_progress"}, row_id=uuid4(), turn_id=uuid4(), stretch=Stretch(), has_pairs=has_pairs
    )
    row_id = uuid4()
    said = wire.begin({}, last_id="")
    said += wire.event("tool.started", {"callId": "c", "toolName": "time", "toolCallId": str(row_id)})
    call = told_call(ids.shown(ids.HOSTS_CALL, row_id), "time", "", "SUCCESS", "noon")
    said += wire.end("turn.completed", {"status": "completed", "output": pair_of(call) if has_pairs else [call]})
    events = [
        json.loads(line.removeprefix("data: ")) for line in said.decode().splitlines() if line.startswith("data: {")
    ]
    done = [each for each in events if each["type"] == "response.output_item.done"]
    assert [each["output_index"] for each in done] == list(range(1 + has_pairs))
    assert [each["item"] for each in done] == events[-1]["response"]["output"]


def test_a_failure_ends_the_stream_as_failed(client):
    events = streamed(client, script({"fail": "request_refused", "after": 1, "say": "one two", "pace": 0}))
    response = is_consistent(events)
    assert (events[-1].type, response.status) == ("response.failed", "failed")
    assert response.error.code == "server_error"
    assert "llm_request_refused" in response.error.message


def test_an_answer_without_more_tokens_ends_as_incomplete(client):
    events = streamed(client, script({"say": "one two three four five", "pace": 0}), max_output_tokens=3)
    assert (events[-1].type, is_consistent(events).incomplete_details.reason) == (
        "response.incomplete",
        "max_output_tokens",
    )


def test_what_is_not_stored_is_streamed_as_well(client):
    assert is_consistent(streamed(client, WORDS, store=False)).output_text == "one two three"


# --- coming back -------------------------------------------------------------------------------------------------


def test_a_stream_is_told_again_and_from_any_event_on(client):
    events = streamed(client, WORDS)
    response_id = events[-1].response.id
    assert told_again(client, response_id) == events
    for number in range(len(events)):
        assert told_again(client, response_id, starting_after=number) == events[number + 1 :]
    with client.responses.stream(response_id=response_id, starting_after=3) as stream:
        assert stream.get_final_response().output_text == "one two three"


def test_a_response_in_the_background_is_followed_while_it_runs(client):
    steps = script({"say": "one two three four", "pace": 0.2})
    stream = client.responses.create(model=MODEL, input=steps, stream=True, background=True)
    seen = []
    for event in stream:
        seen.append(strictly(event, but={"store", "presence_penalty", "frequency_penalty"}))
        if event.type == "response.output_text.delta":
            break
    stream.close()
    assert kinds(seen)[:3] == ["created", "queued", "in_progress"]
    response_id = seen[0].response.id
    assert client.responses.retrieve(response_id).status == "in_progress"
    rest = told_again(client, response_id, starting_after=seen[-1].sequence_number)
    assert is_consistent(seen + rest).output_text == "one two three four"


def test_a_cancelled_response_ends_as_failed_with_its_status(client):
    stream = client.responses.create(
        model=MODEL, input=script({"say": "one two three", "pace": 5}), stream=True, background=True
    )
    events = []
    for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta":
            assert client.responses.cancel(event_id := events[0].response.id).id == event_id
    assert (events[-1].type, events[-1].response.status) == ("response.failed", "cancelled")
    assert is_consistent(told(events)).output == []


def forget_events(host: Host) -> None:
    """Lose what is kept of the events of turns: an embedded host keeps them as long as it runs."""
    if shapes.shape() == shapes.PRODUCTION:
        host.forget_events()
    host.kill()
    host.start()


def test_numbers_outlive_the_events_and_everything_that_was_running(mortal):
    with openai_client(mortal, max_retries=0) as client:
        events = streamed(client, script({"think": "Hm.", "say": "one two three four", "pace": 0.1}))
    response = events[-1].response
    forget_events(mortal)
    with openai_client(mortal, max_retries=0) as client:
        again = told_again(client, response.id)
        assert len(again) < len(events)
        assert (again[-1].sequence_number, again[-1].response) == (events[-1].sequence_number, response)
        assert [each.item for each in again if each.type == "response.output_item.done"] == response.output
        (last,) = told_again(client, response.id, starting_after=events[-2].sequence_number)
        assert last == events[-1]
        assert told_again(client, response.id, starting_after=events[-1].sequence_number) == []


def test_a_reader_comes_back_after_everything_was_killed(mortal):
    with openai_client(mortal, max_retries=0) as client:
        steps = script({"say": "one two three four five six", "pace": 0.3})
        stream = client.responses.create(model=MODEL, input=steps, stream=True, background=True)
        seen = []
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta" and event.delta.startswith("three"):
                break
    mortal.kill()
    mortal.start()
    with openai_client(mortal, max_retries=0) as client:
        response_id = seen[0].response.id
        rest = told_again(client, response_id, starting_after=seen[-1].sequence_number)
        assert rest[0].sequence_number > seen[-1].sequence_number
        assert rest[-1].response.output_text == "one two three four five six"
        wait_until(lambda: client.responses.retrieve(response_id).status == "completed")
