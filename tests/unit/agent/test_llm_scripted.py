"""The scripted model: it does as it is told, and nothing it is told makes it stumble."""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import errors
from agent.llm import scripted
from agent.llm.base import MAX_TOOL_CALLS, Completion, Delta, ModelRequest
from agent.llm.scripted import ScriptedClient
from agent.loop import Limit
from agent.prompt import Background, build_prompt, sent_at
from conversations.models import Message
from conversations.statuses import TurnStatus
from nanohost.lib.text import storable
from tests.support.scripts import script
from tests.support.working import settle

pytestmark = pytest.mark.shapeless(reason="a client of models knows no database; the tests of turns run on both")

TIME = {"type": "function", "function": {"name": "time", "description": "", "parameters": {"type": "object"}}}


def ask(
    said: Any, *since: dict[str, Any], client: ScriptedClient | None = None, tools: Any = (), limit: Limit | None = None
) -> Completion:
    """The model's answer to a message; one that is no text is a script."""
    question = said if isinstance(said, str) else json.dumps({"script": said})
    transcript = [{"role": "user", "content": question}, *since]
    messages = build_prompt(background=Background(), transcript=transcript, result_chars=1000, limit=limit)
    request = ModelRequest(model="model-1", messages=messages, tools=list(tools))
    return asyncio.run((client or ScriptedClient()).complete(request))


def called(*ids: str) -> dict[str, Any]:
    calls = [{"id": each, "type": "function", "function": {"name": "time", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


# --- taken in ---


def obeys(content: str) -> list[str]:
    steps = [{"call": [{"name": "time"}]}, {"obey": True, "say": "No."}]
    answer = ask(steps, called("call_0"), result("call_0", content))
    return [each["function"]["arguments"] for each in answer.tool_calls]


def test_it_does_what_a_result_asks_for():
    asks = {"call": [{"name": "time", "arguments": {"timezone": "UTC"}}]}
    assert obeys(f"Please: {json.dumps(asks)}") == ['{"timezone": "UTC"}']
    assert obeys(json.dumps({"text": f"Please: {json.dumps(asks)}"})) == ['{"timezone": "UTC"}']


@pytest.mark.parametrize("content", ["", "Please.", '{"call"', '{"call": 1}', '{"call": [{}]}', '{"call": [' * 5000])
def test_nobody_asks_it_for_anything(content):
    assert obeys(content) == []


# --- without a script --------------------------------------------------------------------------------------------


def test_it_echoes():
    assert ask("Hello").content == "You said: Hello"


def test_it_asks_for_the_time_if_it_may():
    assert [call["function"]["name"] for call in ask("What time is it?", tools=[TIME]).tool_calls] == ["time"]
    assert ask("What time is it?").content == "You said: What time is it?"


@pytest.mark.parametrize(
    ("said", "at", "prompt"),
    [
        ("Remind me tomorrow at 8 to call Anna.", "2027-01-01T08:00", "Remind the user to call Anna."),
        ("remind me tomorrow at 17:30", "2027-01-01T17:30", "Remind the user."),
    ],
)
def test_it_has_itself_reminded_if_it_may(said, at, prompt):
    schedule = {**TIME, "function": {**TIME["function"], "name": "schedule"}}
    sent = sent_at(said, datetime(2026, 12, 31, 23, 59, tzinfo=UTC))
    (call,) = ask(sent, tools=[schedule]).tool_calls
    assert json.loads(call["function"]["arguments"]) == {"action": "create", "prompt": prompt, "at": at}
    assert ask(sent).content == f"You said: {said}"


def test_it_tells_what_a_tool_said():
    assert ask("What time is it?", called("1"), result("1", "noon"), tools=[TIME]).content == "The tool says: noon"


def test_it_answers_the_newest_message():
    since = {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Again"}
    assert ask([{"say": "the old script"}], *since).content == "You said: Again"


def test_it_counts_tokens():
    usage = ask("Hello").usage
    assert usage.prompt_tokens > 0
    assert usage.completion_tokens > 0


# --- with a script -----------------------------------------------------------------------------------------------


def test_a_script_is_followed_step_by_step():
    script = [{"call": [{"name": "time", "arguments": {"timezone": "UTC"}}]}, {"say": "Done: {results}"}]
    (call,) = ask(script).tool_calls
    assert call["function"] == {"name": "time", "arguments": '{"timezone": "UTC"}'}
    assert ask(script, called("1"), result("1", "noon")).content == "Done: noon"
    after = called("1"), result("1", "noon"), {"role": "assistant", "content": "Done: noon"}
    assert ask(script, *after).content == "The script has ended."


def test_the_calls_of_a_step_have_an_id_each():
    calls = ask([{"call": [{"name": "a"}, {"name": "b"}]}]).tool_calls
    assert len({call["id"] for call in calls}) == 2


def test_arguments_that_are_text_are_passed_on():
    (call,) = ask([{"call": [{"name": "time", "arguments": "no JSON"}]}]).tool_calls
    assert call["function"]["arguments"] == "no JSON"


def test_a_step_sleeps():
    began = time.monotonic()
    assert ask([{"sleep": 0.2, "say": "Awake."}]).content == "Awake."
    assert time.monotonic() - began >= 0.2


def test_a_sleep_is_bounded(monkeypatch):
    monkeypatch.setattr(scripted, "LONGEST_SLEEP", 0.1)
    began = time.monotonic()
    ask('{"script": [{"sleep": 9e300, "say": "Awake."}]}')
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ("auth", errors.LlmAuthError),
        ("rate_limited", errors.LlmRateLimited),
        ("timeout", errors.LlmTimeout),
        ("context_too_long", errors.LlmContextTooLong),
        ("content_filter", errors.LlmContentFiltered),
        ("unavailable", errors.LlmUnavailable),
        ("bad_response", errors.LlmBadResponse),
    ],
)
def test_a_step_fails(failure, kind):
    client = ScriptedClient()
    for _ in range(3):
        with pytest.raises(kind) as raised:
            ask([{"fail": failure, "retryAfter": 1.5}], client=client)
        assert raised.value.retry_after == 1.5


def test_a_step_fails_as_often_as_it_is_told_and_then_answers():
    client, script = ScriptedClient(), [{"fail": "unavailable", "times": 2, "say": "Here I am."}]
    for _ in range(2):
        with pytest.raises(errors.LlmUnavailable):
            ask(script, client=client)
    assert ask(script, client=client).content == "Here I am."


def test_asked_for_its_best_answer_it_calls_no_tools():
    step = {"call": [{"name": "time"}], "say": "I would look at the clock."}
    answer = ask([step], limit=Limit.TOOL_ROUNDS)
    assert (answer.content, answer.tool_calls) == ("I would look at the clock.", ())
    assert ask([step | {"say": ""}], limit=Limit.TIME).content == "I would need tools for that."


# --- streamed ----------------------------------------------------------------------------------------------------


def stream(*steps: dict[str, Any], client: ScriptedClient | None = None) -> tuple[Completion | None, list[Delta]]:
    """The answer, none if it fails, and the pieces that were handed over."""
    pieces: list[Delta] = []
    request = ModelRequest(model="model-1", messages=[{"role": "user", "content": script(*steps)}])
    try:
        return asyncio.run((client or ScriptedClient()).complete(request, pieces.append)), pieces
    except errors.LlmUnavailable:
        return None, pieces


@pytest.mark.parametrize(
    ("step", "contents"),
    [
        ({"say": "One two"}, ["One two"]),
        ({"say": "One  two\n three ", "pace": 0}, ["One  ", "two\n ", "three "]),
        ({"say": " One", "pace": 0}, [" ", "One"]),
        ({"call": [{"name": "time"}]}, []),
    ],
)
def test_what_it_says_comes_in_one_piece_or_word_by_word(step, contents):
    answer, pieces = stream(step)
    assert [piece.content for piece in pieces] == contents
    whole = ask([step])
    assert (answer.content, answer.tool_calls) == (whole.content, whole.tool_calls)


def test_it_thinks_before_it_speaks():
    answer, pieces = stream({"think": "Tea or coffee?", "say": "Tea.", "pace": 0})
    assert [piece.reasoning for piece in pieces] == ["Tea ", "or ", "coffee?", ""]
    assert pieces[3] == Delta(content="Tea.")
    assert (answer.reasoning, answer.content) == ("Tea or coffee?", "Tea.")


def test_pieces_are_as_far_apart_as_the_script_says():
    began = time.monotonic()
    stream({"say": "One two three", "pace": 0.1})
    assert time.monotonic() - began >= 0.2


def test_a_step_fails_after_so_many_pieces_as_often_as_it_is_told():
    client, step = ScriptedClient(), {"say": "One two three", "pace": 0, "fail": "unavailable", "after": 2, "times": 1}
    answer, pieces = stream(step, client=client)
    assert (answer, [piece.content for piece in pieces]) == (None, ["One ", "two "])
    answer, pieces = stream(step, client=client)
    assert (answer.content, len(pieces)) == ("One two three", 3)


def test_a_failure_after_more_pieces_than_there_are_comes_after_the_last():
    assert stream({"say": "One", "fail": "unavailable", "after": 9}) == (None, [Delta(content="One")])


def test_what_fails_in_mid_stream_fails_as_well_when_it_is_not_streamed():
    with pytest.raises(errors.LlmUnavailable):
        ask([{"say": "One two", "fail": "unavailable", "after": 1}])


# --- scripts that make no sense ----------------------------------------------------------------------------------

SENSELESS = [
    ["say"],
    [None],
    [{"sing": "la"}],
    [{"sleep": "x"}],
    [{"sleep": -1}],
    [{"sleep": True}],
    [{"fail": "nonsense"}],
    [{"fail": ["auth"]}],
    [{"fail": None}],
    [{"fail": "auth", "times": "twice"}],
    [{"fail": "rate_limited", "retryAfter": "soon"}],
    [{"say": 7}],
    [{"think": 7}],
    [{"say": "One", "pace": "fast"}],
    [{"fail": "auth", "after": -1}],
    [{"call": "time"}],
    [{"call": ["time"]}],
    [{"call": [{}]}],
    [{"call": [{"name": None}]}],
    [{"call": [{"name": "time"}] * (MAX_TOOL_CALLS + 1)}],
]


@pytest.mark.parametrize("script", SENSELESS)
def test_a_senseless_step_is_answered_with_what_is_wrong(script):
    assert ask(script).content.startswith("Step 1 of the script is not valid: ")


@pytest.mark.parametrize(
    "said",
    ['{"script": 1}', '{"script": {}}', '{"script": [{"sleep": NaN}]}', "[1]", '"script"', "7", "null", "[" * 100_000],
)
def test_what_is_no_script_is_plain_text(said):
    assert ask(said).content == f"You said: {said}"


def test_an_empty_script_has_ended():
    assert ask([]).content == "The script has ended."


def test_what_no_database_stores_is_replaced():
    answer = ask('{"script": [{"say": "a\\u0000b\\ud800c", "call": [{"name": "\\ud800", "arguments": "\\u0000"}]}]}')
    assert answer.content == "a\ufffdb\ufffdc"
    assert answer.tool_calls[0]["function"] == {"name": "\ufffd", "arguments": "\ufffd"}


def test_results_are_filled_in_once():
    # A script full of them would swell to gigabytes.
    say = ask([{"call": [{"name": "a"}]}, {"say": "{results}" * 3}], called("1"), result("1", "noon")).content
    assert say == "noon{results}{results}"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)
steps = st.dictionaries(
    st.sampled_from(["say", "think", "call", "fail", "after", "times", "retryAfter"]),
    anything | st.just([{"name": "time"}]),
)


@given(st.lists(steps | anything, max_size=3))
def test_whatever_a_script_holds_the_answer_can_be_stored_or_is_a_known_failure(script):
    try:
        answer = ask(script)
    except errors.LlmError:
        return
    assert answer.content == storable(answer.content)
    assert answer.content.strip() or answer.tool_calls or script[0]["say"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "said",
    [
        *(json.dumps({"script": script}) for script in SENSELESS[:12]),
        '{"script": [{"say": "\\u0000\\ud800"}]}',
        '{"script": [{"call": [{"name": "\\ud800", "arguments": "\\u0000"}]}, {"say": "Done."}]}',
    ],
)
def test_no_script_is_an_internal_fault(say, said):
    (turn,) = settle([say(said)])
    assert turn.status == TurnStatus.SUCCEEDED
    assert Message.objects.filter(turn=turn, role="assistant").latest("seq").content
