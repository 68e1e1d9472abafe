"""Tools of the caller in responses: calls of functions, and the request that brings what they gave."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import openai
import pytest

from tests.support.api_client import key_of, rows, stored_at_rest
from tests.support.hosts import Host
from tests.support.openai_client import openai_client, refusal, strictly
from tests.support.responses import kinds, told, whole
from tests.support.scripts import script

MODEL = "default"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
ASKS = {
    "call": [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "weather", "arguments": {"city": "Bergen"}}]
}
STEPS = script({"say": "Let me ask.", **ASKS}, {"say": "I hear: {results}"})


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[openai.OpenAI]:
    with openai_client(host, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def with_time(host: Host) -> None:
    host.allow("time")  # as it is at first


def ask(client: openai.OpenAI, given: Any = STEPS, **more: Any) -> Any:
    return whole(client.responses.create(**{"model": MODEL, "input": given, "tools": [WEATHER]} | more))


def calls(response: Any) -> list[Any]:
    return [each for each in response.output if each.type == "function_call"]


def outputs(response: Any, *given: str) -> list[Any]:
    """What the tools gave, in the order of the calls."""
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": output}
        for call, output in zip(calls(response), given, strict=False)
    ]


def turn_of(host: Host, response: Any) -> dict[str, Any]:
    (turn,) = rows(
        host,
        "SELECT t.* FROM conversations_turn t JOIN conversations_response r ON r.turn_id = t.id WHERE r.id = ?",
        str(UUID(response.id[5:])),
    )
    return turn


def test_a_response_asks_for_calls_and_the_next_one_goes_on_with_the_same_turn(client, host):
    first = ask(client)
    assert (first.status, [each.type for each in first.output]) == (
        "completed",
        ["message", "function_call", "function_call"],
    )
    assert first.output[0].phase == "commentary"
    assert [json.loads(call.arguments) for call in calls(first)] == [{"city": "Oslo"}, {"city": "Bergen"}]
    assert first.tools[0].name == "weather"
    waiting = turn_of(host, first)
    assert (waiting["status"], waiting["waiting_for"]) == ("waiting", "caller")
    second = ask(client, outputs(first, "rain", "sun"), previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("I hear: rain; sun", first.id)
    turn = turn_of(host, second)
    assert (turn["id"], turn["status"]) == (waiting["id"], "succeeded")
    assert first.usage.input_tokens + second.usage.input_tokens == turn["prompt_tokens"], "each tells its own"
    assert whole(client.responses.retrieve(first.id)) == first
    assert whole(client.responses.retrieve(second.id)) == second


@pytest.mark.parametrize("brings", ["everything", "outputs alone"])
def test_without_a_response_before_it_the_calls_say_whose_turn_it_is(client, host, brings):
    first = ask(client)
    said = [{"role": "user", "content": STEPS}, *[each.model_dump(exclude_none=True) for each in first.output]]
    given = outputs(first, "rain", "sun")
    second = ask(client, [*said, *given] if brings == "everything" else given)
    assert second.output_text == "I hear: rain; sun"
    assert turn_of(host, second)["id"] == turn_of(host, first)["id"]


def test_what_is_not_stored_goes_on_as_well(client):
    first = ask(client, store=False)
    said = [{"role": "user", "content": STEPS}, *[each.model_dump(exclude_none=True) for each in first.output]]
    assert ask(client, [*said, *outputs(first, "rain", "sun")], store=False).output_text == "I hear: rain; sun"


def test_in_a_conversation_the_turn_goes_on(client, host):
    made = client.conversations.create()
    first = ask(client, conversation=made.id)
    second = ask(client, outputs(first, "rain", "sun"), conversation=made.id)
    assert (second.output_text, second.conversation.id) == ("I hear: rain; sun", made.id)
    items = [strictly(each) for each in client.conversations.items.list(made.id, order="asc")]
    kinds = ["message", "message", "function_call", "function_call", *["function_call_output"] * 2, "message"]
    assert [each.type for each in items] == kinds
    assert [each.id for each in items[1:4]] == [each.id for each in first.output]


def test_several_rounds(client):
    steps = [{"call": [{"name": "weather"}]}] * 4
    answer = ask(client, script(*steps, {"say": "Enough: {results}"}))
    for number in range(4):
        answer = ask(client, outputs(answer, str(number)), previous_response_id=answer.id)
    assert answer.output_text == "Enough: 0; 1; 2; 3"


def test_of_a_mixed_batch_the_hosts_calls_run_first(client, with_time):
    first = ask(client, script({"call": [{"name": "time"}, {"name": "weather"}]}, {"say": "{results}"}))
    assert [each.type for each in first.output] == ["mcp_call", "function_call"]
    assert first.output[0].status == "completed"
    second = ask(client, outputs(first, "rain"), previous_response_id=first.id)
    assert second.output_text.endswith("; rain")
    branch = ask(client, "And else?", previous_response_id=second.id)
    assert branch.output_text == "You said: And else?"


def test_calls_are_streamed(client, host):
    events = told(client.responses.create(model=MODEL, input=STEPS, tools=[WEATHER], stream=True))
    of_a_call = [
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
    ]
    assert kinds(events)[-9:] == [*of_a_call, *of_a_call, "completed"]
    first = events[-1].response
    assert [each.item for each in events if each.type == "response.output_item.done"] == first.output
    given = outputs(first, "rain", "sun")
    more: Any = {"model": MODEL, "input": given, "tools": [WEATHER], "previous_response_id": first.id}
    later = told(client.responses.create(stream=True, **more))
    assert kinds(later)[:3] == ["created", "in_progress", "output_item.added"]
    assert [each.sequence_number for each in later] == list(range(len(later)))
    assert later[-1].response.output_text == "I hear: rain; sun"
    for response, whole_stream in ((first, events), (later[-1].response, later)):
        assert told(client.responses.retrieve(response.id, stream=True)) == whole_stream, "each tells its own part"


def test_the_packages_own_helper_gathers_calls(client):
    with client.responses.stream(model=MODEL, input=STEPS, tools=[WEATHER]) as stream:
        assert [each.name for each in calls(stream.get_final_response())] == ["weather", "weather"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_model_can_be_made_to_call(client, choice):
    answer = ask(client, "Hello", tool_choice=choice, model=f"{MODEL}:plain")
    assert calls(answer)[0].name == "weather"
    assert answer.to_dict()["tool_choice"] == choice
    for free in ("auto", "none"):
        answer = ask(client, "Hello", tool_choice=free)
        assert (calls(answer), answer.tool_choice) == ([], free)


def test_a_name_that_the_host_has_as_well_is_refused(client, with_time):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "Hello", tools=[WEATHER | {"name": "time"}])
    refusal(refused.value, 400, "invalid_value", "tools")


# --- what may come instead ---------------------------------------------------------------------------------------


def test_the_same_outputs_once_more_are_the_same_response(client, host):
    first = ask(client)
    second = ask(client, outputs(first, "rain", "sun"), previous_response_id=first.id)
    before = stored_at_rest(host)
    assert ask(client, outputs(first, "rain", "sun"), previous_response_id=first.id) == second
    assert stored_at_rest(host) == before


def test_other_outputs_are_a_branch(client, host):
    first = ask(client)
    ask(client, outputs(first, "rain", "sun"), previous_response_id=first.id)
    other = ask(client, outputs(first, "snow", "ice"), previous_response_id=first.id)
    assert other.output_text == "I hear: snow; ice"
    assert turn_of(host, other)["id"] != turn_of(host, first)["id"]
    on = ask(client, "And?", previous_response_id=other.id)
    said = [each.type for each in client.responses.input_items.list(on.id, order="asc")]
    expected = ["message", "message", "function_call", "function_call", *["function_call_output"] * 2]
    assert said == [*expected, "message", "message"]


def test_outputs_that_do_not_fit_are_refused(client, host):
    first = ask(client)
    some = outputs(first, "rain", "sun")
    for given, code, message in (
        (some[:1], "invalid_value", f"No tool output found for function call {calls(first)[1].call_id}."),
        ("And now?", "invalid_value", f"No tool output found for function call {calls(first)[0].call_id}."),
        (
            [*some, {"type": "function_call_output", "call_id": "x", "output": "y"}],
            "unknown_call",
            f"No tool call found for function call output with call_id {calls(first)[0].call_id}.",
        ),
        ([*some, {"role": "user", "content": "And?"}], "invalid_value", None),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, given, previous_response_id=first.id)
        told_why = refusal(refused.value, 400, code, "input")
        assert message is None or told_why == message
    assert turn_of(host, first)["waiting_for"] == "caller"


def test_in_a_conversation_a_new_message_has_to_interrupt(client, host):
    made = client.conversations.create()
    first = ask(client, conversation=made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "And now?", conversation=made.id)
    assert "No tool output found for function call call_" in refusal(refused.value, 400, "invalid_value", "input")
    answer = ask(client, "And now?", conversation=made.id, metadata={"on_busy": "interrupt"})
    assert answer.output_text == "You said: And now?"
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, outputs(first, "rain", "sun"), conversation=client.conversations.create().id)
    refusal(refused.value, 400, "unknown_call", "input")


def test_another_owners_outputs_do_not_reach_my_turn(client, host):
    first = ask(client)
    with openai_client(host, key_of(host, "an eavesdropper of responses"), max_retries=0) as other:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(other, outputs(first, "rain", "sun"))
        refusal(refused.value, 400, "unknown_call", "input")
    assert turn_of(host, first)["waiting_for"] == "caller"


def test_a_response_that_waits_for_its_caller_is_cancelled(client, host):
    first = ask(client)
    assert whole(client.responses.cancel(first.id)).status == "completed"
    client.responses.delete(first.id)
    (found,) = host.sql("SELECT count(*) AS n FROM conversations_response WHERE id = ?", UUID(first.id[5:]))
    assert found["n"] == 0


def test_the_caller_comes_back_after_everything_was_killed(mortal):
    with openai_client(mortal, max_retries=0) as client:
        first = ask(client)
    mortal.kill()
    mortal.start()
    with openai_client(mortal, max_retries=0) as client:
        second = ask(client, outputs(first, "rain", "sun"), previous_response_id=first.id)
        assert second.output_text == "I hear: rain; sun"
