"""Tools of the caller: a completion that asks for them, and the next request, which brings what they gave."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import openai
import pytest

from tests.support.api_client import key_of, rows, start, stored_at_rest
from tests.support.hosts import Host
from tests.support.openai_client import openai_client, refusal, strictly
from tests.support.scripts import script
from tests.support.wait import wait_until

MODEL = "default"


def function(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "Weather.", "parameters": parameters}}


WEATHER = function("weather")
ASKS = {
    "call": [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "weather", "arguments": {"city": "Bergen"}}]
}


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[openai.OpenAI]:
    with openai_client(host, max_retries=0) as client:
        yield client


class Talk:
    """A client's array, and what it is answered."""

    def __init__(self, client: openai.OpenAI, said: str, **more: Any) -> None:
        self.client, self.more = client, {"model": MODEL, "tools": [WEATHER]} | more
        self.array: list[Any] = [{"role": "user", "content": said}]

    def ask(self, **more: Any) -> Any:
        """One completion; its message is appended."""
        self.answer = strictly(self.client.chat.completions.create(messages=self.array, **self.more | more))
        self.array.append(self.answer.choices[0].message.model_dump(exclude_none=True))
        return self.answer.choices[0]

    def give(self, *outputs: str, calls: Any = None) -> None:
        """What the tools gave, in the order of the calls."""
        calls = calls or self.array[-1]["tool_calls"]
        for call, output in zip(calls, outputs, strict=True):
            self.array.append({"role": "tool", "tool_call_id": call["id"], "content": output})


def turn_id_of(completion_id: str) -> str:
    return str(UUID(completion_id.split("-")[1]))


def turn_of(host: Host, completion_id: str) -> dict[str, Any]:
    (turn,) = rows(host, "SELECT * FROM conversations_turn WHERE id = ?", turn_id_of(completion_id))
    return turn


def test_the_turn_waits_for_the_caller_and_goes_on_with_what_the_tools_gave(client, host):
    talk = Talk(client, script(ASKS, {"say": "I hear: {results}"}))
    choice = talk.ask()
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "weather"]
    assert json.loads(choice.message.tool_calls[1].function.arguments) == {"city": "Bergen"}
    assert all(len(call.id) <= 40 for call in choice.message.tool_calls)
    first = talk.answer
    turn = turn_of(host, first.id)
    assert (turn["status"], turn["waiting_for"], turn["error_code"]) == ("waiting", "caller", "")
    talk.give("rain", "sun")
    choice = talk.ask()
    assert (choice.finish_reason, choice.message.content) == ("stop", "I hear: rain; sun")
    assert turn_id_of(talk.answer.id) == turn_id_of(first.id)
    assert talk.answer.id != first.id
    turn = turn_of(host, first.id)
    assert turn["status"] == "succeeded"
    usages = [first.usage, talk.answer.usage]
    assert sum(each.prompt_tokens for each in usages) == turn["prompt_tokens"], "each tells its own"


def test_several_rounds_are_bounded_by_the_caller_alone(client):
    steps = [{"call": [{"name": "weather"}]}] * 5
    talk = Talk(client, script(*steps, {"say": "Enough: {results}"}))
    for number in range(5):
        assert talk.ask().finish_reason == "tool_calls"
        talk.give(str(number))
    assert talk.ask().message.content == "Enough: 0; 1; 2; 3; 4"


@pytest.fixture(scope="module")
def with_time(host: Host) -> None:
    host.allow("time")  # as it is at first


def test_of_a_mixed_batch_the_hosts_calls_run_first_and_stay_unseen(client, host, with_time):
    both = {"call": [{"name": "time"}, {"name": "weather"}]}
    talk = Talk(client, script(both, {"say": "{results}"}))
    choice = talk.ask()
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"]
    (call,) = host.sql("SELECT status FROM tools_toolcall WHERE turn_id = ?", UUID(turn_id_of(talk.answer.id)))
    assert call["status"] == "SUCCESS"
    talk.give("rain")
    said = talk.ask().message.content
    assert said.endswith("; rain")
    assert len(said) > len("; rain"), "and the model was told what the host's tool gave"


def test_a_call_of_the_host_that_the_gate_refuses_beside_one_of_the_callers(client, with_time):
    both = {"call": [{"name": "no_such_tool"}, {"name": "weather"}]}
    talk = Talk(client, script(both, {"say": "{results}"}))
    assert [call.function.name for call in talk.ask().message.tool_calls] == ["weather"]
    talk.give("rain")
    assert "not_registered" in talk.ask().message.content


def test_a_name_that_the_host_has_as_well_is_refused(client, with_time):
    with pytest.raises(openai.BadRequestError) as told:
        Talk(client, "Hello", tools=[function("time")]).ask()
    refusal(told.value, 400, "invalid_value", "tools")
    talk = Talk(client, script({"call": [{"name": "time"}]}), tools=[function("time")], model=f"{MODEL}:plain")
    assert talk.ask().finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_model_can_be_made_to_call_and_only_once(client, choice):
    talk = Talk(client, "Hello", tool_choice=choice, model=f"{MODEL}:plain")
    assert talk.ask().message.tool_calls[0].function.name == "weather"
    talk.give("rain")
    talk.more["tool_choice"] = "auto"
    assert talk.ask().message.content == "The tool says: rain"


def test_calls_are_streamed(client):
    talk = Talk(client, script({"say": "Let me ask.", **ASKS}, {"say": "{results}", "pace": 0}))
    with client.chat.completions.stream(messages=talk.array, **talk.more) as stream:
        for event in stream:
            if event.type == "chunk":
                strictly(event.chunk)
        message = stream.get_final_completion().choices[0]
    assert (message.finish_reason, message.message.content) == ("tool_calls", "Let me ask.")
    talk.array.append(message.message.model_dump(exclude_none=True, exclude={"parsed"}))
    for call in talk.array[-1]["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
    talk.give("rain", "sun")
    chunks = client.chat.completions.create(messages=talk.array, stream=True, **talk.more)
    assert "".join(each.choices[0].delta.content or "" for each in map(strictly, chunks)) == "rain; sun"


# --- what may come instead ---------------------------------------------------------------------------------------


def test_the_same_outputs_once_more_are_the_same_answer(client, host):
    talk = Talk(client, script(ASKS, {"say": "{results}"}))
    talk.ask()
    talk.give("rain", "sun")
    asked = list(talk.array)
    talk.ask()
    before = stored_at_rest(host)
    again = client.chat.completions.create(messages=asked, **talk.more)
    assert (again.id, again.choices) == (talk.answer.id, talk.answer.choices)
    assert stored_at_rest(host) == before


def test_the_first_request_once_more_is_answered_with_the_calls_it_was(client):
    talk = Talk(client, script(ASKS, {"say": "{results}"}))
    headers = {"Idempotency-Key": "asks-for-tools"}
    first = client.chat.completions.create(messages=talk.array, extra_headers=headers, **talk.more)
    asked = list(talk.array)
    talk.array.append(first.choices[0].message.model_dump(exclude_none=True))
    talk.give("rain", "sun")
    talk.ask()
    again = client.chat.completions.create(messages=asked, extra_headers=headers, **talk.more)
    assert (again.id, again.choices) == (first.id, first.choices)


def test_missing_outputs_are_refused(client, host):
    talk = Talk(client, script(ASKS, {"say": "{results}"}))
    talk.ask()
    talk.give("rain", calls=talk.array[-1]["tool_calls"][:1])
    with pytest.raises(openai.BadRequestError) as told:
        talk.ask()
    missing = talk.array[1]["tool_calls"][1]["id"]
    assert refusal(told.value, 400, "invalid_value", "messages") == f"No tool output found for function call {missing}."
    # Nor does it help to leave out the call itself.
    talk.array[1]["tool_calls"] = talk.array[1]["tool_calls"][:1]
    with pytest.raises(openai.BadRequestError) as told:
        talk.ask()
    assert missing in refusal(told.value, 400, "output_missing")
    assert turn_of(host, talk.answer.id)["waiting_for"] == "caller"


def test_outputs_of_calls_that_nobody_made_are_a_transcript_of_somebody_elses(client):
    calls = [{"id": "call_elsewhere", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    array = [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_elsewhere", "content": "rain"},
    ]
    answer = strictly(client.chat.completions.create(model=MODEL, messages=array, tools=[WEATHER]))
    assert answer.choices[0].message.content == "The tool says: rain"


def test_another_owners_outputs_do_not_reach_my_turn(client, host):
    talk = Talk(client, script(ASKS, {"say": "{results}"}))
    talk.ask()
    talk.give("rain", "sun")
    with openai_client(host, key_of(host, "an eavesdropper")) as other:
        theirs = other.chat.completions.create(messages=talk.array, **talk.more)
    assert turn_id_of(theirs.id) != turn_id_of(talk.answer.id)
    assert turn_of(host, talk.answer.id)["waiting_for"] == "caller"


def test_who_says_something_else_behind_the_outputs_has_a_turn_of_its_own(client, host):
    talk = Talk(client, script(ASKS, {"say": "{results}"}))
    talk.ask()
    waiting = talk.answer.id
    talk.give("rain", "sun")
    talk.array.append({"role": "user", "content": "Never mind."})
    assert talk.ask().message.content == "You said: Never mind."
    assert turn_of(host, waiting)["status"] == "cancelled"


def test_in_a_conversation_that_stays_a_new_message_has_to_interrupt(client, host):
    with host.client() as api:
        conversation_id = start(api)
        metadata = {"conversation_id": conversation_id}
        talk = Talk(client, script(ASKS, {"say": "{results}"}), metadata=metadata)
        talk.ask()
        waiting = talk.answer.id
        other = Talk(client, "And now?", metadata=metadata)
        with pytest.raises(openai.BadRequestError) as told:
            other.ask()
        assert "No tool output found for function call call_" in refusal(told.value, 400, "invalid_value", "messages")
        other.more["metadata"] = metadata | {"on_busy": "interrupt"}
        assert other.ask().message.content == "You said: And now?"
        assert turn_of(host, waiting)["status"] == "cancelled"
        talk.give("rain", "sun")
        with pytest.raises(openai.BadRequestError) as told:
            talk.ask()
        refusal(told.value, 400, "unknown_call", "messages")


def test_in_a_conversation_that_stays_the_turn_goes_on(client, host):
    with host.client() as api:
        conversation_id = start(api)
        talk = Talk(client, script(ASKS, {"say": "{results}"}), metadata={"conversation_id": conversation_id})
        talk.ask()
        talk.give("rain", "sun")
        assert talk.ask().message.content == "rain; sun"
        messages = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    assert [row["role"] for row in messages] == ["USER", "ASSISTANT", "TOOL", "TOOL", "ASSISTANT"]


def test_a_turn_that_waits_for_its_caller_can_be_followed_and_cancelled(client, host):
    talk = Talk(client, script(ASKS, {"say": "{results}"}))
    talk.ask()
    turn_id = turn_id_of(talk.answer.id)
    with host.client() as api:
        assert api.get(f"/turns/{turn_id}").json()["status"] == "waiting"
        with api.stream("GET", f"/turns/{turn_id}/events") as events:
            lines = events.iter_lines()
            assert any("turn.queued" in line for line in lines)
            assert api.post(f"/turns/{turn_id}/cancel").json()["status"] == "cancelled"
            assert any("turn.cancelled" in line for line in lines)
    talk.give("rain", "sun")
    # The array says all there is to say: it is gone on from.
    assert talk.ask().finish_reason in ("stop", "tool_calls")


def test_turns_that_wait_for_callers_take_no_place_of_the_keys(client, host):
    key = key_of(host, "of one at a time")
    host.sql("UPDATE accounts_apikey SET turns_at_once = 1 WHERE prefix = ?", key.split("_")[1])
    with openai_client(host, key, max_retries=0) as narrow:
        for _ in range(3):
            assert Talk(narrow, script(ASKS)).ask().finish_reason == "tool_calls"


# --- and in between ----------------------------------------------------------------------------------------------


def test_the_caller_comes_back_after_everything_was_killed(mortal):
    mortal.allow("time")
    with openai_client(mortal, max_retries=0) as client:
        both = {"call": [{"name": "time"}, {"name": "weather"}]}
        talk = Talk(client, script(both, {"say": "{results}"}))
        assert talk.ask().finish_reason == "tool_calls"
    mortal.kill()
    mortal.start()
    with openai_client(mortal, max_retries=0) as client:
        talk.client = client
        talk.give("rain")
        assert talk.ask().message.content.endswith("; rain")


def test_a_worker_that_is_killed_with_the_outputs_loses_none(mortal):
    with openai_client(mortal, max_retries=0) as client:
        talk = Talk(client, script(ASKS, {"sleep": 3, "say": "{results}"}))
        talk.ask()
        talk.give("rain", "sun")
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=1).chat.completions.create(messages=talk.array, **talk.more)
        wait_until(lambda: turn_of(mortal, talk.answer.id)["status"] == "running")
    mortal.kill()
    mortal.start()
    with openai_client(mortal, max_retries=0) as client:
        talk.client = client
        assert talk.ask().message.content == "rain; sun"
