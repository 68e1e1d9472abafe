"""Chat completions, as the unmodified ``openai`` package asks for them and reads them."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx2
import openai
import pytest
from pydantic import BaseModel

from conversations.openai_api.parameters import REFUSED
from tests.support.api_client import key_of, rows, start, stored_at_rest
from tests.support.hosts import KEY, Host
from tests.support.openai_client import async_openai_client, openai_client, refusal, strictly
from tests.support.scripts import script

MODEL = "default"


def user(said: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": said}]


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[openai.OpenAI]:
    with openai_client(host, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def with_time(host: Host) -> None:
    host.allow("time")  # as it is at first


class Weather(BaseModel):
    city: str
    degrees: int


def test_an_answer_has_the_form_that_was_asked_for(client):
    told = script({"say": '{"city": "Oslo", "degrees": 3}'})
    answer = client.chat.completions.parse(model=MODEL, messages=user(told), response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Oslo", degrees=3)


def test_an_answer_in_another_form_is_none(client):
    told = script({"say": "Cold."}, {"say": "Cold."})
    with pytest.raises(openai.APIStatusError) as failed:
        client.chat.completions.parse(model=MODEL, messages=user(told), response_format=Weather)
    assert "JSON" in refusal(failed.value, 502, "answer_not_valid")


def turn_of(host: Host, completion_id: str) -> dict[str, Any]:
    (turn,) = rows(host, "SELECT * FROM conversations_turn WHERE id = ?", completion_id.split("-")[1])
    return turn


# --- an answer ---------------------------------------------------------------------------------------------------


def test_a_completion_is_a_turn(client, host):
    answer = strictly(client.chat.completions.create(model=MODEL, messages=user("Hello")))
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (
        "You said: Hello",
        "assistant",
        "stop",
    )
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    turn = turn_of(host, answer.id)
    assert (turn["status"], turn["request_id"]) == ("succeeded", answer._request_id)
    assert abs(answer.created - time.time()) < 60


def test_the_array_is_the_transcript(client):
    messages = [
        {"role": "system", "content": "Speak plainly."},
        *user("My name is Anna."),
        {"role": "assistant", "content": "Hello Anna."},
        *user("And now?"),
    ]
    few = client.chat.completions.create(model=MODEL, messages=messages[-1:]).usage.prompt_tokens
    many = client.chat.completions.create(model=MODEL, messages=messages).usage.prompt_tokens
    assert many > few


def test_the_asynchronous_package_has_the_same(host):
    async def ask() -> Any:
        async with async_openai_client(host) as client:
            return await client.chat.completions.create(model=MODEL, messages=user("Hello"))

    assert strictly(asyncio.run(ask())).choices[0].message.content == "You said: Hello"


def test_its_conversation_is_not_listed(client, host):
    with host.client() as api:
        before = [row["conversationId"] for row in api.get("/conversations").json()["results"]]
        answer = client.chat.completions.create(model=MODEL, messages=user("Hello"))
        assert [row["conversationId"] for row in api.get("/conversations").json()["results"]] == before
        turn = api.get(f"/turns/{UUID(answer.id.split('-')[1])}").json()
    assert turn["assistantMessage"] == "You said: Hello"


def test_a_word_to_the_host_is_none_here(client):
    assert client.chat.completions.create(model=MODEL, messages=user("/help")).choices[0].message.content == (
        "You said: /help"
    )


def test_texts_come_in_parts_as_well(client):
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == "You said: Hello\nthere"


def test_an_answer_without_more_tokens_ends_with_length(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=user(script({"say": "one two three four five six"})), max_completion_tokens=3
    )
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("length", "one two ")


def test_tools_of_the_host_run_unseen(client, host, with_time):
    answer = strictly(client.chat.completions.create(model=MODEL, messages=user("What time is it?")))
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert choice.message.content.startswith("The tool says: ")
    (call,) = host.sql("SELECT status FROM tools_toolcall WHERE turn_id = ?", UUID(answer.id.split("-")[1]))
    assert call["status"] == "SUCCESS"


def test_a_plain_model_has_no_tools_of_the_host(client, with_time):
    answer = client.chat.completions.create(model=f"{MODEL}:plain", messages=user("What time is it?"))
    assert answer.model == f"{MODEL}:plain"
    assert answer.choices[0].message.content == "You said: What time is it?"


def test_no_tool_is_offered_with_the_choice_none(client, with_time):
    answer = client.chat.completions.create(model=MODEL, messages=user("What time is it?"), tool_choice="none")
    assert answer.choices[0].message.content == "You said: What time is it?"


def test_what_was_said_before_a_tool_was_called_is_part_of_the_answer(client, with_time):
    steps = script({"say": "Let me see.", "call": [{"name": "time"}]}, {"say": "It is late."})
    answer = client.chat.completions.create(model=MODEL, messages=user(steps))
    assert answer.choices[0].message.content == "Let me see.\n\nIt is late."
    assert "".join(pieces(client, steps)) == answer.choices[0].message.content


# --- a stream ----------------------------------------------------------------------------------------------------


def pieces(client: openai.OpenAI, said: str, **more: Any) -> list[str]:
    stream = client.chat.completions.create(model=MODEL, messages=user(said), stream=True, **more)
    return [
        each.choices[0].delta.content
        for each in map(strictly, stream)
        if each.choices and each.choices[0].delta.content
    ]


def test_a_stream_has_the_role_the_words_and_the_end(client):
    steps = script({"say": "one two three", "pace": 0})
    chunks = [
        strictly(chunk) for chunk in client.chat.completions.create(model=MODEL, messages=user(steps), stream=True)
    ]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    first, *words, last = (chunk.choices[0] for chunk in chunks)
    assert (first.delta.role, first.delta.content, first.finish_reason) == ("assistant", "", None)
    # Redis may carry some of them together.
    assert "".join(word.delta.content for word in words) == "one two three"
    assert (last.delta.content, last.finish_reason) == (None, "stop")
    assert all(chunk.usage is None for chunk in chunks)


def test_a_last_chunk_tells_the_usage_if_that_is_wanted(client):
    wanted = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=user("Hello"), stream=True, stream_options=wanted)
    )
    *others, last = map(strictly, chunks)
    assert last.choices == []
    assert last.usage.total_tokens > 0
    assert all(chunk.choices and chunk.usage is None for chunk in others)


def test_the_stream_on_the_wire_ends_with_done(host):
    with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}) as raw:
        body = {"model": MODEL, "messages": user("Hello"), "stream": True}
        answer = raw.post(f"{host.address}/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *lines, end, nothing = answer.text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    assert all(line.startswith("data: {") for line in lines)


def test_the_asynchronous_package_streams_as_well(host):
    async def words() -> list[str]:
        async with async_openai_client(host) as client:
            steps = script({"say": "one two", "pace": 0})
            stream = await client.chat.completions.create(model=MODEL, messages=user(steps), stream=True)
            return [each.choices[0].delta.content or "" async for each in stream]

    assert "".join(asyncio.run(words())) == "one two"


def test_progress_is_told_to_who_wants_it(client, with_time):
    steps = script({"think": "Hm.", "call": [{"name": "time"}]}, {"say": "Late."})
    for wanted in (False, True):
        stream = client.chat.completions.create(
            model=MODEL, messages=user(steps), stream=True, stream_options={"include_progress": wanted}
        )
        told = [getattr(each.choices[0].delta, "reasoning_content", None) for each in stream]
        assert any(told) is wanted
    assert {"Hm.", "\n[time runs]\n", "\n[time: SUCCESS]\n"} <= set(told)


def test_the_packages_own_helper_gathers_a_stream(client):
    with client.chat.completions.stream(model=MODEL, messages=user("Hello")) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "You said: Hello"


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_a_failure_of_the_model_is_an_error_that_is_not_tried_again(client, host):
    steps = script({"fail": "request_refused"})
    failed = "SELECT count(*) AS n FROM conversations_turn WHERE error_code = 'llm_request_refused'"
    (before,) = host.sql(failed)
    with pytest.raises(openai.InternalServerError) as told:
        client.with_options(max_retries=2).chat.completions.create(model=MODEL, messages=user(steps))
    refusal(told.value, 502, "llm_request_refused")
    assert told.value.response.headers["x-should-retry"] == "false"
    assert host.sql(failed)[0]["n"] == before["n"] + 1


def test_a_failure_in_a_stream_is_told_in_it(client):
    steps = script({"fail": "request_refused", "after": 1, "say": "one two", "pace": 0})
    stream = client.chat.completions.create(model=MODEL, messages=user(steps), stream=True)
    with pytest.raises(openai.APIError) as told:
        list(stream)
    assert told.value.code == "llm_request_refused"


def test_an_answer_that_is_begun_anew_goes_on_where_it_says_the_same(client):
    steps = script({"fail": "unavailable", "times": 1, "after": 2, "say": "one two three", "pace": 0})
    assert "".join(pieces(client, steps)) == "one two three"


CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TWICE = {"role": "assistant", "tool_calls": [CALL, CALL]}


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        *(({name: "x"}, "unsupported_parameter", name) for name in REFUSED),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"logprobs": True}, "unsupported_parameter", "logprobs"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format"),
        ({"response_format": "json"}, "invalid_value", "response_format"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"temperature": True}, "invalid_value", "temperature"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"stop": ["a"] * 5}, "invalid_value", "stop"),
        ({"stream": "yes"}, "invalid_value", "stream"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"on_busy": "wait"}}, "invalid_value", "metadata.on_busy"),
        ({"model": 7}, "invalid_value", "model"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": ["Hello"]}, "invalid_value", "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user", "content": " "}]}, "invalid_value", "messages[0].content"),
        ({"messages": [{"role": "system", "content": "x"}]}, "invalid_value", "messages"),
        ({"messages": [*user("x"), {"role": "assistant", "content": "y"}]}, "invalid_value", "messages"),
        (
            {"messages": [*user("x"), {"role": "tool", "tool_call_id": "a", "content": "y"}]},
            "invalid_value",
            "messages",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "unsupported_content_type",
            "messages[0].content[0]",
        ),
        (
            {"messages": [*user("x"), TWICE, {"role": "tool", "tool_call_id": "a", "content": "y"}]},
            "invalid_value",
            "messages",
        ),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "invalid_value", "tool_choice"),
        ({"tool_choice": "sometimes"}, "invalid_value", "tool_choice"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_name_and_stored_nowhere(client, host, changes, code, param):
    before = stored_at_rest(host)
    body = {"model": MODEL, "messages": user("Hello")} | changes
    with pytest.raises(openai.BadRequestError) as told:
        client.post("/chat/completions", body=body, cast_to=object)
    refusal(told.value, 400, code, param)
    assert stored_at_rest(host) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 1, "logprobs": False, "modalities": ["text"], "response_format": {"type": "text"}, "logit_bias": {}},
        {"user": "anna", "safety_identifier": "x", "prompt_cache_key": "y", "service_tier": "auto", "store": True},
        {"never": {"heard": "of"}, "temperature": None},
    ],
)
def test_what_changes_nothing_is_taken(client, changes):
    body = {"model": MODEL, "messages": user("Hello")} | changes
    assert client.post("/chat/completions", body=body, cast_to=object)


def test_a_model_that_there_is_not(client):
    with pytest.raises(openai.NotFoundError) as told:
        client.chat.completions.create(model="nobody", messages=user("Hello"))
    refusal(told.value, 404, "model_not_found", "model")
    with pytest.raises(openai.NotFoundError) as told:
        client.responses.create(model="nobody", input="Hello")
    refusal(told.value, 404, "model_not_found", "model")


def test_json_that_is_none_is_told_so(host):
    with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}) as raw:
        answer = raw.post(f"{host.address}/v1/chat/completions", content=b"{")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_a_key_needs_the_scope_chat(host):
    with (
        openai_client(host, key_of(host, "of reading", ["read"])) as reader,
        pytest.raises(openai.PermissionDeniedError) as told,
    ):
        reader.chat.completions.create(model=MODEL, messages=user("Hello"))
    refusal(told.value, 403, "missing_scope")


# --- conversations that stay -------------------------------------------------------------------------------------


def test_a_conversation_that_is_named_is_gone_on_with(client, host):
    with host.client() as api:
        conversation_id = start(api)
        headers = {"X-Conversation-Id": conversation_id}
        for said in ("One", "Two"):
            array = [*user("Zero"), {"role": "assistant", "content": "Made up."}, *user(said)]
            raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=array, extra_headers=headers)
            assert raw.headers["x-conversation-id"] == conversation_id
        client.chat.completions.create(
            model=MODEL, messages=user("Three"), metadata={"conversation_id": f"conv_{UUID(conversation_id).hex}"}
        )
        said = [row["content"] for row in api.get(f"/conversations/{conversation_id}/messages").json()["results"]]
    assert said == ["One", "You said: One", "Two", "You said: Two", "Three", "You said: Three"]


@pytest.mark.parametrize("named", ["nonsense", "00000000-0000-7000-8000-000000000000", "theirs", "transient"])
def test_a_conversation_that_is_not_mine_is_not_found(client, host, named):
    if named == "theirs":
        with host.client(key_of(host, "another one")) as api:
            named = start(api)
    if named == "transient":
        answer = client.chat.completions.create(model=MODEL, messages=user("Hello"))
        named = str(UUID(str(turn_of(host, answer.id)["conversation_id"])))
    with pytest.raises(openai.NotFoundError) as told:
        client.chat.completions.create(model=MODEL, messages=user("x"), extra_headers={"X-Conversation-Id": named})
    refusal(told.value, 404, "conversation_not_found")


def test_a_busy_conversation_may_be_refused(client, host):
    with host.client() as api:
        conversation_id = start(api)
        api.post(f"/conversations/{conversation_id}/turns", json={"message": script({"sleep": 20, "say": "x"})})
        wanted = {"conversation_id": conversation_id, "on_busy": "reject"}
        with pytest.raises(openai.ConflictError) as told:
            client.chat.completions.create(model=MODEL, messages=user("Now?"), metadata=wanted)
        refusal(told.value, 409, "conversation_busy")
        assert told.value.response.headers["x-should-retry"] == "false"
        answer = client.chat.completions.create(
            model=MODEL, messages=user("Now!"), metadata=wanted | {"on_busy": "interrupt"}
        )
    assert answer.choices[0].message.content == "You said: Now!"


# --- the same once more ------------------------------------------------------------------------------------------


def count_turns(host: Host) -> int:
    (found,) = host.sql("SELECT count(*) AS n FROM conversations_turn")
    return found["n"]


def test_an_idempotency_key_makes_one_turn(client, host):
    headers = {"Idempotency-Key": "once"}
    first = client.chat.completions.create(model=MODEL, messages=user("Once"), extra_headers=headers)
    before = count_turns(host)
    again = client.chat.completions.create(model=MODEL, messages=user("Once"), extra_headers=headers)
    assert (again.id, again.choices) == (first.id, first.choices)
    assert count_turns(host) == before
    with pytest.raises(openai.ConflictError) as told:
        client.chat.completions.create(model=MODEL, messages=user("Twice"), extra_headers=headers)
    refusal(told.value, 409, "idempotency_conflict")
    assert told.value.response.headers["x-should-retry"] == "false"


def test_a_retry_of_the_package_is_the_same_turn(client, host):
    steps = script({"sleep": 1.5, "say": "Here I am."})
    before = count_turns(host)
    impatient = client.with_options(timeout=1.0, max_retries=3)
    answer = impatient.chat.completions.create(model=MODEL, messages=user(steps))
    assert answer.choices[0].message.content == "Here I am."
    assert count_turns(host) == before + 1
    for count in ("0", "no number"):
        again = client.chat.completions.create(
            model=MODEL, messages=user(steps), extra_headers={"x-stainless-retry-count": count}
        )
        assert again.id != answer.id, "who asks anew, without a retry, has an answer of its own"


def test_another_keys_retry_is_not_mine(client, host):
    mine = client.chat.completions.create(model=MODEL, messages=user("Mine"))
    retry = {"x-stainless-retry-count": "1"}
    with openai_client(host, key_of(host, "who asks the same")) as other:
        theirs = other.chat.completions.create(model=MODEL, messages=user("Mine"), extra_headers=retry)
    assert theirs.id != mine.id
    assert client.chat.completions.create(model=MODEL, messages=user("Mine"), extra_headers=retry).id == mine.id
