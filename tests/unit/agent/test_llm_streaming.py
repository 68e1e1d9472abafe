"""Streamed answers: put together to what would have been sent whole, however they are cut; and what breaks them."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent import errors, llm
from agent.llm.answers import StreamedAnswer, completion_of, parsed
from agent.llm.base import MAX_TOOL_CALLS, Completion, Delta, ModelRequest, Usage
from agent.llm.connections import MAX_RESPONSE_BYTES
from agent.llm.openai import OpenAIClient
from agent.llm.sse import EventParser
from nanohost.lib.text import storable
from tests.support.openai_server import (
    EVENT_STREAM,
    OpenAIServer,
    Reply,
    as_json,
    call,
    chunk,
    completion,
    endless,
    event,
    events,
    failure,
)
from tests.support.scripts import script

pytestmark = pytest.mark.shapeless(reason="a client of models knows no database; the tests of turns run on both")

SECRET = "the user's secret words"
END = chunk(finish_reason="stop")


def asked(said: str = SECRET) -> ModelRequest:
    return ModelRequest(model="model-1", messages=[{"role": "user", "content": said}])


@pytest.fixture(scope="module")
def running() -> Iterator[OpenAIServer]:
    server = OpenAIServer().start()
    yield server
    server.stop()


@pytest.fixture
def server(running: OpenAIServer, settings: Any) -> OpenAIServer:
    """The server, which the settings point to."""
    running.forget()
    settings.LLM_PROVIDER, settings.LLM_BASE_URL, settings.OPENAI_API_KEY = "openai", running.url, "a key"
    return running


def ask(said: str = SECRET, *, times: int = 1, on_delta: Callable[[Delta], None] | None = None) -> Completion:
    """The last answer, streamed, of one client."""
    return asyncio.run(asking(said, times, on_delta or (lambda delta: None)))


async def asking(said: str, times: int, on_delta: Callable[[Delta], None]) -> Completion:
    client = OpenAIClient(llm.accesses()["openai"])
    try:
        for _ in range(times):
            answer = await client.complete(asked(said), on_delta)
        return answer
    finally:
        await client.close()


def say(text: str) -> dict[str, Any]:
    return chunk({"content": text})


# --- what is sent ------------------------------------------------------------------------------------------------


def test_a_stream_is_asked_for_with_its_usage(server):
    ask()
    body = {"model": "model-1", "messages": asked().messages, "stream": True, "stream_options": {"include_usage": True}}
    assert [request.body for request in server.requests] == [body]


@pytest.mark.parametrize(
    "refusal",
    [
        failure(400, message="Unknown field: stream_options"),
        as_json({"detail": [{"loc": ["body", "stream_options", "include_usage"], "type": "extra_forbidden"}]}, 422),
    ],
)
def test_a_server_that_cannot_count_is_asked_without_and_from_then_on(server, refusal):
    server.answer(refusal)
    assert ask(times=2).content == f"You said: {SECRET}"
    assert ["stream_options" in request.body for request in server.requests] == [True, False, False]


def test_an_error_that_only_quotes_the_option_is_not_remembered(server):
    server.answer(*[failure(400, message="You said stream_options, which is rude.")] * 2)
    client_of_both = []

    async def twice() -> None:
        client = OpenAIClient(llm.accesses()["openai"])
        with pytest.raises(errors.LlmRequestRefused):
            await client.complete(asked(), client_of_both.append)
        await client.complete(asked(), client_of_both.append)
        await client.close()

    asyncio.run(twice())
    assert ["stream_options" in request.body for request in server.requests] == [True, False, True]


# --- what is handed over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        {"say": "One two  three\n", "pace": 0},
        {"think": "Let me see.", "say": "One 😀 two", "pace": 0},
        {"call": [{"name": "time", "arguments": {"timezone": "Europe/Berlin"}}, {"name": "time"}]},
        {"say": "I look.", "call": [{"name": "time", "arguments": "no JSON"}]},
    ],
)
def test_a_streamed_answer_is_the_same_as_a_whole_one(server, step):
    whole = asyncio.run(OpenAIClient(llm.accesses()["openai"]).complete(asked(script(step))))
    deltas: list[Delta] = []
    assert ask(script(step), on_delta=deltas.append) == whole
    assert "".join(delta.content for delta in deltas) == whole.content == step.get("say", "")
    assert "".join(delta.reasoning for delta in deltas) == whole.reasoning == step.get("think", "")
    assert whole.usage.completion_tokens > 0


def test_pieces_are_handed_over_as_they_arrive_and_not_at_the_end(server):
    seen = threading.Event()

    def body() -> Iterator[bytes]:
        yield event(say("One"))
        assert seen.wait(10), "the rest is not sent before the first piece was handed over"
        yield event(say(" two")) + event(END)

    server.answer(Reply(body=body(), headers=EVENT_STREAM))
    assert ask(on_delta=lambda delta: seen.set()).content == "One two"


def test_pieces_keep_their_order_and_empty_ones_are_left_out(server):
    opening = [chunk({"role": "assistant", "content": ""}), chunk({"content": None}), chunk()]
    server.answer(events(*opening, chunk({"reasoning": "Hm."}), say("a"), say("b"), say(""), END, "[DONE]"))
    deltas: list[Delta] = []
    ask(on_delta=deltas.append)
    assert [("".join(each.reasoning for each in deltas), "".join(each.content for each in deltas))] == [("Hm.", "ab")]
    assert all(each.reasoning or each.content for each in deltas)
    at_once: list[Delta] = []
    StreamedAnswer(at_once.append).feed(b"".join(map(event, (say("a"), chunk({"reasoning": "Hm."}), say("b")))))
    assert at_once == [Delta(content="ab", reasoning="Hm.")]  # what arrives together is one piece


def test_a_server_that_does_not_stream_gives_one_piece(server):
    answer = completion("The whole.", thought="Thoughts.").answer
    server.answer(as_json(answer), Reply(body=as_json(answer).body, headers=EVENT_STREAM))
    deltas: list[Delta] = []
    assert ask(times=2, on_delta=deltas.append).content == "The whole."
    assert deltas == [Delta(content="The whole.", reasoning="Thoughts.")] * 2


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}])
def test_a_stream_is_known_by_how_it_begins(server, headers):
    server.answer(Reply(body=[b"\n", b": a comment\n\n", event(say("Hi")), event(END)], headers=headers))
    assert ask().content == "Hi"


def test_what_on_delta_raises_ends_the_call_and_is_raised(server):
    server.answer(endless(event(say("more")), between=0.01))

    def stop(delta: Delta) -> None:
        raise ZeroDivisionError

    async def ask_in_vain() -> None:
        client = OpenAIClient(llm.accesses()["openai"])
        with pytest.raises(ZeroDivisionError):
            await client.complete(asked(), stop)
        # The client is not closed: the call has closed its connection.
        await asyncio.to_thread(server.wait_until, lambda: server.requests[0].disconnected_at)
        await client.close()

    asyncio.run(ask_in_vain())


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_the_model_thinks(server, name):
    message = {"role": "assistant", "content": "Four.", name: "Two and two"}
    server.answer(as_json({"choices": [{"message": message}]}), events(chunk({name: "Two and two"}), say("Four."), END))
    whole = asyncio.run(OpenAIClient(llm.accesses()["openai"]).complete(asked()))
    assert whole == Completion(content="Four.", reasoning="Two and two")
    assert ask() == Completion(content="Four.", reasoning="Two and two", model="model-1")


def test_thoughts_that_are_no_text_do_not_cost_the_answer(server):
    server.answer(events(chunk({"content": "Four.", "reasoning": {"effort": 1}}), END))
    assert ask() == Completion(content="Four.", model="model-1")


# --- where a stream ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        events(say("Hello"), END),
        events(say("Hello"), "[DONE]"),
        events(say("Hello"), END, hang_up=True),
        events(say("Hello"), "[DONE]", hang_up=True),
        events(say("Hello"), "[DONE]", say(" and more"), "no JSON"),
        Reply(body=[event(say("Hello")), event("[DONE]"), *[b": junk\n"] * 1000], headers=EVENT_STREAM),
    ],
)
def test_a_stream_is_whole_when_the_model_or_the_server_says_so(server, reply):
    server.answer(reply)
    assert ask().content == "Hello"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(headers=EVENT_STREAM),
        events(say("Hello")),
        events(say("Hello"), hang_up=True),
        events(say("Hello"), b'data: {"choices": [{"delta": {}, "finish_re'),
        events(say("Hello"), event(END)[:-1]),
        events(b": nothing but a comment\n\n"),
    ],
)
def test_a_stream_that_breaks_off_is_no_answer(server, reply):
    server.answer(reply)
    with pytest.raises(errors.LlmUnavailable, match="broke off"):
        ask()


def test_a_server_that_lingers_after_the_end_does_not_hold_the_answer(server, settings):
    settings.LLM_TIMEOUT_SECONDS = 600
    server.answer(
        Reply(body=[event(say("Hello")) + event(END) + event("[DONE]"), b""], headers=EVENT_STREAM, between=60)
    )

    async def patiently() -> Completion:
        async with asyncio.timeout(30):
            return await asking(SECRET, 1, lambda delta: None)

    assert asyncio.run(patiently()).content == "Hello"


def test_after_a_stream_the_connection_is_used_again(server):
    ask(times=3)
    assert len({request.connection for request in server.requests}) == 1


def test_a_model_that_falls_silent(server, settings):
    settings.LLM_TIMEOUT_SECONDS = 0.3
    server.answer(events(say("Hello"), END, between=30))
    with pytest.raises(errors.LlmTimeout):
        ask()
    server.wait_until(lambda: server.requests[0].disconnected_at)


def test_cancelling_in_mid_stream_closes_the_socket(server):
    server.answer(endless(event(say("more")), between=0.01))

    async def cancel() -> None:
        client, begun = OpenAIClient(llm.accesses()["openai"]), asyncio.Event()
        task = asyncio.create_task(client.complete(asked(), lambda delta: begun.set()))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        # The client is not closed, and has no task left that could.
        await asyncio.to_thread(server.wait_until, lambda: server.requests[0].disconnected_at)
        await client.close()

    asyncio.run(cancel())


# --- failures ----------------------------------------------------------------------------------------------------

WORDS = f"Words of the provider about {SECRET}"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": WORDS, "type": "server_error", "code": None}, errors.LlmUnavailable),
        ({"message": WORDS, "type": "invalid_request_error", "code": "rate_limit_exceeded"}, errors.LlmRateLimited),
        ({"message": WORDS, "type": "insufficient_quota", "code": "insufficient_quota"}, errors.LlmAuthError),
        ({"message": WORDS, "type": "BadRequestError", "code": 400}, errors.LlmRequestRefused),
        ({"message": WORDS, "code": 429}, errors.LlmRateLimited),
        ({"message": WORDS, "code": "502"}, errors.LlmUnavailable),
        ({"message": WORDS, "code": 504}, errors.LlmTimeout),
        ({"message": WORDS, "code": 401}, errors.LlmAuthError),
        ({"message": WORDS, "code": "content_filter"}, errors.LlmContentFiltered),
        ({"message": "The maximum context length is 8", "type": "invalid_request_error"}, errors.LlmContextTooLong),
        ({"message": "The maximum context length is 8"}, errors.LlmContextTooLong),
        ({"message": {"detail": WORDS}, "code": [WORDS]}, errors.LlmUnavailable),
        (WORDS, errors.LlmUnavailable),
        ([WORDS], errors.LlmUnavailable),
    ],
)
def test_an_error_in_the_answer_has_its_class_and_nothing_of_the_providers_words(server, error, kind):
    replies = [
        events({"error": error}),
        events(say("Hel"), {"error": error, "choices": []}, "[DONE]"),
        as_json({"error": error}),
    ]
    for reply in replies:
        server.answer(reply)
        with pytest.raises(errors.LlmError) as raised:
            ask()
        assert type(raised.value) is kind
        assert not [word for word in ("secret", "Words") if word in repr(raised.value) + raised.value.detail]


def test_an_error_as_older_servers_report_it(server):
    server.answer(events(say("Hel"), {"object": "error", "message": WORDS, "type": "BadRequestError", "code": 400}))
    with pytest.raises(errors.LlmRequestRefused):
        ask()


@pytest.mark.parametrize(
    "failing",
    [
        "auth",
        "rate_limited",
        "timeout",
        "context_too_long",
        "content_filter",
        "unavailable",
        "bad_response",
        "request_refused",
    ],
)
@pytest.mark.parametrize("after", [0, 2])
def test_each_failure_before_the_answer_and_within_it(server, failing, after):
    deltas: list[Delta] = []
    with pytest.raises(errors.LlmError) as raised:
        ask(script({"say": "One two three", "pace": 0, "fail": failing, "after": after}), on_delta=deltas.append)
    assert raised.value.code == f"llm_{failing}"
    assert "".join(delta.content for delta in deltas) == ("One two " if after else "")


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (events(say("Hal"), chunk(finish_reason="content_filter"), "[DONE]"), errors.LlmContentFiltered),
        (events(say("Hal"), chunk(finish_reason="error"), "[DONE]"), errors.LlmUnavailable),
        (Reply(status=500, body=[b'{"error": '], hang_up=True), errors.LlmUnavailable),
        (Reply(status=429, body=[b'{"error": '], hang_up=True), errors.LlmUnavailable),
        (Reply(status=401, body=[b"{}"], headers={"Content-Encoding": "gzip"}), errors.LlmBadResponse),
        (Reply(body=[b'{"choices": ['], hang_up=True), errors.LlmUnavailable),
        (events("no JSON"), errors.LlmBadResponse),
        (events("[" * 100_000), errors.LlmBadResponse),
        (events(b"data: \xff\xfe\n\n"), errors.LlmBadResponse),
        (events("7"), errors.LlmBadResponse),
        (events({"choices": 7}), errors.LlmBadResponse),
        (events({"choices": [None]}), errors.LlmBadResponse),
        (events({"choices": [{"delta": "words"}]}), errors.LlmBadResponse),
        (events(chunk({"content": ["a", "list"]}), END), errors.LlmBadResponse),
        (events(chunk({"tool_calls": {"a": 1}}), END), errors.LlmBadResponse),
        (events(chunk({"tool_calls": [{"index": [], "function": {"name": "time"}}]}), END), errors.LlmBadResponse),
        (events(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), END), errors.LlmBadResponse),
    ],
)
def test_a_stream_that_is_no_answer(server, reply, kind):
    server.answer(reply)
    with pytest.raises(errors.LlmError) as raised:
        ask()
    assert type(raised.value) is kind


# --- bounds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        event(say("x" * 10_000)),
        b"x" * 10_000,
        b"data: " + b"x" * 10_000,
        b"data: x\n" * 1000,
        b": hm\n" * 2000,
        b" " * 10_000,
    ],
)
def test_an_endless_stream_is_not_read_to_its_end(server, part):
    server.answer(Reply(body=endless(part).body, headers=EVENT_STREAM))
    with pytest.raises(errors.LlmBadResponse, match="larger"):
        ask()
    server.wait_until(lambda: server.requests[0].disconnected_at)
    # What lies in the sockets' buffers comes on top.
    assert server.requests[0].bytes_sent < MAX_RESPONSE_BYTES + 32_000_000


def test_calls_without_number_are_refused_when_there_are_too_many(server):
    calls = (
        chunk({"tool_calls": [{"index": index, "id": str(index), "function": {"name": "time"}}]})
        for index in range(10**9)
    )
    server.answer(Reply(body=(event(each) for each in calls), headers=EVENT_STREAM))
    with pytest.raises(errors.LlmBadResponse, match=f"more than {MAX_TOOL_CALLS}"):
        ask()


# --- tool calls as servers send them -----------------------------------------------------------------------------

HEAD, OTHER_HEAD = (
    {"id": each, "type": "function", "function": {"name": each, "arguments": ""}} for each in ("a", "b")
)


def bit(arguments: str, **more: Any) -> dict[str, Any]:
    return {"function": {"arguments": arguments}, **more}


@pytest.mark.parametrize(
    "pieces",
    [
        # As OpenAI does; side by side, too.
        [
            HEAD | {"index": 0},
            bit('{"x":', index=0),
            bit(" 1}", index=0),
            OTHER_HEAD | {"index": 1},
            bit("{}", index=1),
        ],
        [
            HEAD | {"index": 0},
            OTHER_HEAD | {"index": 1},
            bit('{"x":', index=0),
            bit("{}", index=1),
            bit(" 1}", index=0),
        ],
        # Without an index.
        [HEAD, bit('{"x":'), bit(" 1}"), OTHER_HEAD, bit("{}")],
        [HEAD, OTHER_HEAD, bit('{"x":', id="a"), bit("{}", id="b"), bit(" 1}", id="a")],
        [bit('{"x": 1}', id="a"), HEAD, bit("{}", id="b"), OTHER_HEAD],
        # An index that means nothing.
        [HEAD | {"index": 0}, bit('{"x": 1}', index=0), OTHER_HEAD | {"index": 0}, bit("{}", index=0)],
        [
            HEAD | {"index": 0},
            bit('{"x":', index=1),
            bit(" 1}", index=2),
            OTHER_HEAD | {"index": 3},
            bit("{}", index=4),
        ],
        # An id of its own for each piece.
        [HEAD | {"index": 0}, bit('{"x":', index=0, id="c"), bit(" 1}", index=0, id="d"), OTHER_HEAD | {"index": 1}],
        # The second one first.
        [OTHER_HEAD | {"index": 1}, HEAD | {"index": 0}, bit('{"x": 1}', index=0)],
    ],
)
def test_tool_calls_are_put_together(server, pieces):
    server.answer(events(*(chunk({"tool_calls": [piece]}) for piece in pieces), END))
    a, b = ask().tool_calls
    assert b["function"] == {"name": "b", "arguments": "{}"}
    assert a["function"]["arguments"] == '{"x": 1}'


def test_names_and_ids_may_be_repeated_and_names_be_cut(server):
    repeated = [
        {"index": 0, "id": "1", "function": {"name": "time", "arguments": each}} for each in ('{"x"', ": 1", "}")
    ]
    cut = [{"index": 1, "id": "2", "function": {"name": "ti"}}, {"index": 1, "function": {"name": "me"}}]
    server.answer(events(*(chunk({"tool_calls": [piece]}) for piece in [*repeated, *cut]), END))
    assert ask().tool_calls == (call("time", '{"x": 1}', "1"), call("time", "{}", "2"))


def test_calls_without_an_id_at_one_index_are_told_apart_by_their_names(server):
    pieces = [{"index": 0, "id": "", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    server.answer(events(chunk({"tool_calls": pieces}), END))
    assert [each["function"] for each in ask().tool_calls] == [
        {"name": "a", "arguments": "{}"},
        {"name": "b", "arguments": "{}"},
    ]


# --- however it is cut -------------------------------------------------------------------------------------------

# Surrogates too: what JSON escapes as a pair may be cut between the two.
texts = st.text(st.characters(exclude_categories=()) | st.sampled_from("\ud83d\ude00😀\x00é\r\n"), max_size=12)
names = st.text(min_size=1, max_size=6)
counts = st.none() | st.fixed_dictionaries({"prompt_tokens": st.integers(0, 99), "completion_tokens": st.just(1)})
calls = st.lists(st.builds(call, names, texts, names), max_size=3, unique_by=lambda called: called["id"])
messages = st.fixed_dictionaries({"content": texts, "reasoning_content": texts, "tool_calls": calls})
# Servers that send the pieces of their calls without an index, or with one that means nothing.
ONE_BY_ONE = ("in a row", "index 0")
manners = st.sampled_from(["OpenAI's", "names cut", "all repeated", "ids instead", *ONE_BY_ONE])


def cut(text: Any, chance: Random) -> list[Any]:
    """Text or bytes in pieces."""
    places = sorted(chance.randint(0, len(text)) for _ in range(chance.choice([0, 1, 3, 9])))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def in_halves(text: str) -> str:
    """With each character beyond U+FFFF as the two that UTF-16 and JSON's escapes make of it."""
    raw = text.encode("utf-16-le", "surrogatepass")
    return "".join(chr(int.from_bytes(raw[at : at + 2], "little")) for at in range(0, len(raw), 2))


def cut_name(name: str, chance: Random) -> list[str]:
    """A name in pieces; none is all that came before it, which is taken for the name, repeated."""
    pieces = [piece for piece in cut(name, chance) if piece]
    return [name] if any(piece == "".join(pieces[:at]) for at, piece in enumerate(pieces)) else pieces


def pieces_of_call(index: int, called: dict[str, Any], manner: str, chance: Random) -> list[dict[str, Any]]:
    """A tool call in pieces, in the manner of a kind of server."""
    name = called["function"]["name"]
    head = {"index": index, "id": called["id"], "type": "function", "function": {"name": name, "arguments": ""}}
    bits = [bit(piece, index=index) for piece in cut(in_halves(called["function"]["arguments"]), chance)]
    if manner == "names cut":
        first, *more = cut_name(name, chance)
        further = [{"index": index, "function": {"name": piece}} for piece in more]
        return [head | {"function": {"name": first}}, *further, *bits]
    if manner == "all repeated":
        return [head | {"function": {"name": name, **piece["function"]}} for piece in bits]
    if manner == "ids instead":
        return [{"id": called["id"], "function": piece["function"]} for piece in [head, *bits]]
    if manner == "in a row":
        return [{key: value for key, value in piece.items() if key != "index"} for piece in [head, *bits]]
    return [piece | {"index": 0} for piece in [head, *bits]] if manner == "index 0" else [head, *bits]


def deltas_of(message: dict[str, Any], manner: str, chance: Random) -> list[dict[str, Any]]:
    """A message in pieces, which come side by side."""
    rows = [
        [{key: piece} for piece in cut(in_halves(message[key]), chance)] for key in ("reasoning_content", "content")
    ]
    in_calls = [
        [{"tool_calls": [piece]} for piece in pieces_of_call(index, called, manner, chance)]
        for index, called in enumerate(message["tool_calls"])
    ]
    rows += [[piece for pieces in in_calls for piece in pieces]] if manner in ONE_BY_ONE else in_calls
    deltas = []
    while rows := [row for row in rows if row]:
        deltas.append(chance.choice(rows).pop(0))
    return deltas


def as_bytes(data: Any, chance: Random) -> bytes:
    """An event, in one of the ways that say the same."""
    line_end = chance.choice([b"\n", b"\r\n", b"\r"])
    if not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1]))
    before = chance.choice([b"", b": comment" + line_end, b"event: message" + line_end, line_end])
    # JSON in several lines becomes data in several lines.
    lines = [chance.choice([b"data: ", b"data:"]) + line.encode("utf-8", "surrogatepass") for line in data.split("\n")]
    return before + line_end.join(lines) + line_end * 2


@given(messages, manners, counts, st.sampled_from(["stop", "tool_calls", "length"]), st.randoms(use_true_random=True))
def test_however_an_answer_is_cut_it_is_put_together_to_the_same(message, manner, usage, finish_reason, chance):
    pieces = deltas_of(message, manner, chance)
    chunks = [*(chunk(delta, usage=None) for delta in pieces), chunk(finish_reason=finish_reason)]
    raw = b"".join(as_bytes(each, chance) for each in [*chunks, {"choices": [], "usage": usage}, "[DONE]"])
    if manner == "ids instead":  # then the order is that of their first pieces
        begun = [piece["id"] for delta in pieces for piece in delta.get("tool_calls", ())]
        message["tool_calls"].sort(key=lambda called: begun.index(called["id"]))
    answer = {"choices": [{"message": message, "finish_reason": finish_reason}], "model": "model-1", "usage": usage}
    whole = completion_of(parsed(json.dumps(answer).encode()))
    deltas: list[Delta] = []
    streamed = StreamedAnswer(deltas.append)
    for part in cut(raw, chance):
        streamed.feed(part)
    assert streamed.finish() == whole
    # Half a character at the very end of a text is no piece of it.
    assert "".join(delta.content for delta in deltas) in (whole.content, whole.content.removesuffix("\ufffd"))
    assert "".join(delta.reasoning for delta in deltas) in (whole.reasoning, whole.reasoning.removesuffix("\ufffd"))
    assert all(delta.content or delta.reasoning for delta in deltas)
    assert all(delta.content == storable(delta.content) for delta in deltas)


keys = st.sampled_from(
    [
        *(
            "choices",
            "delta",
            "content",
            "tool_calls",
            "function",
            "index",
            "id",
            "name",
            "arguments",
            "usage",
            "error",
        ),
        *("code", "message", "finish_reason", "model", "reasoning", "refusal", "object", "type", "prompt_tokens"),
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from(["error", "stop", "time"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


call_pieces = st.fixed_dictionaries(
    {},
    optional={"index": values, "id": values, "function": st.fixed_dictionaries({"name": values, "arguments": values})},
)
# Chunks of an answer with anything in any place of them; and what is no chunk at all.
nonsense = (
    st.builds(event, st.builds(lambda value: chunk({"tool_calls": [value]}), call_pieces))
    | st.builds(event, st.builds(chunk, values | st.fixed_dictionaries({"content": texts})))
    | st.builds(event, st.fixed_dictionaries({}, optional={"choices": values, "usage": values, "error": values}))
    | st.builds(event, st.just(END))
    | st.binary(max_size=30)
)


@given(st.lists(nonsense | st.just(b"data: [DONE]\n\n"), max_size=5))
@example([b"data: " + b"9" * 5000 + b"\n\n"])
@example([event({"choices": {"0": 1}})])
def test_whatever_arrives_it_is_an_answer_or_a_known_failure(parts):
    streamed = StreamedAnswer(lambda delta: None)
    try:
        for part in parts:
            streamed.feed(part)
        answer = streamed.finish()
    except errors.LlmError:
        return
    assert answer.content == storable(answer.content)
    assert all(isinstance(each["function"]["name"], str) for each in answer.tool_calls)


@given(values, st.binary(max_size=30))
def test_whatever_is_sent_whole_is_an_answer_or_a_known_failure(value, raw):
    for body in (json.dumps(value).encode(), json.dumps({"choices": [{"message": value}]}).encode(), raw):
        try:
            completion_of(parsed(body))
        except errors.LlmError:
            continue


# --- events ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: a\n\ndata:b\n\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"data: a\ndata: b\ndata\ndata:  c\n\n", [b"a\nb\n\n c"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b": comment\nevent: x\nid: 7\nretry: 1\ndatum: b\nDATA: c\n data: d\ndata: a\n\n", [b"a"]),
        (b"data\n\ndata:\n\n\n\nevent: x\n\n", []),
        (b"data: a\n\ndata: cut off\n", [b"a"]),
        ("data: é\u2028\x0b\x85\n\n".encode(), ["é\u2028\x0b\x85".encode()]),
    ],
)
def test_events_are_read_as_the_standard_has_it_wherever_they_are_cut(stream, data):
    for size in range(1, len(stream) + 1):
        parser = EventParser()
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [each for part in [*parts, b""] for each in parser.feed(part)] == data


def test_usage_counts_once_though_it_is_sent_with_each_chunk(server):
    counts = [{"prompt_tokens": 12, "completion_tokens": number} for number in range(4)]
    server.answer(events(*(say("x") | {"usage": usage} for usage in counts), END))
    assert ask().usage == Usage(prompt_tokens=12, completion_tokens=3)
