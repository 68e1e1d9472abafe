"""Answers in a form that was asked for: given to a provider or asked for in words, validated, asked for again once."""

import json
from typing import Any

import pytest

from agent import answer_schemas, llm
from agent.errors import LlmRequestRefused
from agent.models import Agent
from conversations import events
from conversations.engine import inbox, model_request, turn_control
from conversations.errors import IdempotencyConflict
from conversations.events import answers
from conversations.models import Message, Turn
from conversations.statuses import TurnStatus
from tests.support.dialects import Dialects, message, refused, text
from tests.support.openai_server import call, completion, failure
from tests.support.retrying import let_pass
from tests.support.scripts import script
from tests.support.working import advance, settle

pytestmark = pytest.mark.django_db(transaction=True)

# Its properties are not in the order of the alphabet, nor of their lengths, as a database's JSON would have them.
SCHEMA = {
    "type": "object",
    "properties": {"thought": {"type": "string"}, "city": {"type": "string"}},
    "required": ["thought", "city"],
    "additionalProperties": False,
}
FORM = json.dumps({"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}})
FITS = '{"thought": "Cold.", "city": "Oslo"}'
INVALID = '{"thought": "Cold."}'


@pytest.fixture
def of_agent(agent, conversation) -> Any:
    """The agent's answers have this schema."""
    agent.answer_schema = json.dumps(SCHEMA)
    agent.full_clean(exclude=["retention"])
    agent.save_version(by="anna")
    conversation.agent.refresh_from_db()
    return agent


def said(turn: Turn) -> list[tuple[str, str]]:
    return [(each.role, each.content) for each in Message.objects.filter(turn=turn).order_by("seq")]


def told(turn: Turn) -> list[Any]:
    """What can be told of its model's calls; fails if there is a doubt."""
    found = []
    for made in model_request.calls_of(turn):
        again = model_request.build_again(turn.conversation, turn.model, made.record, turn=turn)
        assert again.doubts == []
        found.append([again.request.messages, again.request.tools])
    return found


def received(model: Any) -> list[Any]:
    return [[request.body["messages"], request.body.get("tools", [])] for request in model.requests]


# --- given, or in words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["turn", "agent"])
def test_a_schema_is_given_to_a_provider_that_takes_one(model, say, request, of):
    if of == "agent":
        request.getfixturevalue("of_agent")
    model.answer(completion(FITS))
    (turn,) = settle([say("How is Oslo?", response_format=FORM if of == "turn" else "")])
    assert (turn.status, said(turn)[-1]) == (TurnStatus.SUCCEEDED, ("assistant", FITS))
    (sent,) = model.requests
    given = sent.body["response_format"]["json_schema"]
    assert list(given["schema"]["properties"]) == ["thought", "city"]
    assert given["strict"] is True
    assert "JSON Schema" not in sent.body["messages"][0]["content"]
    (made,) = model_request.calls_of(turn)
    assert made.record["schema"] == "given"
    assert told(turn) == received(model)


def test_whoever_takes_none_is_asked_in_words(settings, model, say):
    settings.LLM_PROVIDER = "deepseek"
    llm.forget_clients()
    model.answer(completion(f"```json\n{FITS}\n```"))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert said(turn)[-1] == ("assistant", FITS)
    (sent,) = model.requests
    assert "response_format" not in sent.body
    assert json.dumps(SCHEMA) in sent.body["messages"][0]["content"]
    (made,) = model_request.calls_of(turn)
    assert made.record["schema"] == "words"
    assert told(turn) == received(model)


def test_a_provider_that_refuses_the_schema_is_asked_in_words(model, say):
    model.answer(failure(400, message="Invalid schema for response_format"), completion(FITS))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert turn.status == TurnStatus.SUCCEEDED
    assert ["response_format" in request.body for request in model.requests] == [True, False]
    assert [made.record["schema"] for made in model_request.calls_of(turn)] == ["words"]
    assert told(turn) == received(model)[1:]


def test_what_it_refuses_for_another_reason_fails_as_before(model, say):
    model.answer(*[failure(404)] * 2)
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, LlmRequestRefused.code)


def test_any_json_object(model, say):
    model.answer(completion("[1]"), completion('{"a": 1}'))
    (turn,) = settle([say("How is Oslo?", response_format='{"type": "json_object"}')])
    assert said(turn)[-1] == ("assistant", '{"a": 1}')
    assert [request.body["response_format"] for request in model.requests] == [{"type": "json_object"}] * 2
    assert all("JSON" in request.body["messages"][0]["content"] for request in model.requests)
    assert told(turn) == received(model)


def test_a_turn_may_ask_for_text_whatever_its_agent_says(model, say, of_agent):
    model.answer(completion("Cold."))
    (turn,) = settle([say("How is Oslo?", response_format=answer_schemas.PLAIN_TEXT)])
    assert said(turn)[-1] == ("assistant", "Cold.")
    assert "response_format" not in model.requests[0].body


def test_a_command_has_no_form(say, of_agent):
    (turn,) = settle([say("/help")])
    assert turn.status == TurnStatus.SUCCEEDED


# --- asked for again ---------------------------------------------------------------------------------------------


def test_an_answer_that_does_not_fit_is_asked_for_again_with_what_was_wrong(model, say, conversation):
    model.answer(completion(INVALID), completion(FITS), completion("It is cold."))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert (turn.status, turn.model_calls) == (TurnStatus.SUCCEEDED, 2)
    first, second = (request.body["messages"] for request in model.requests)
    assert second[: len(first)] == first
    answer, correction = second[len(first) :]
    assert answer == {"role": "assistant", "content": INVALID}
    assert "missing: city" in correction["content"]
    # Both are in the record and paid for; the transcript has the second alone, and so have later prompts.
    assert said(turn) == [("user", "How is Oslo?"), ("assistant", FITS)]
    assert (turn.prompt_tokens, turn.completion_tokens) == (24, 10)
    calls = model_request.calls_of(turn)
    assert [each.record.get("again") for each in calls] == [None, 1]
    assert (calls[0].invalid["content"], calls[0].invalid["usage"]["prompt"]) == (INVALID, 12)
    assert told(turn) == received(model)
    settle([say("And now?")])
    assert INVALID not in json.dumps(model.requests[-1].body)


def test_twice_and_the_turn_fails_with_what_was_wrong(model, say):
    model.answer(completion("Cold."), completion(INVALID))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert (turn.status, turn.error_code) == (TurnStatus.FAILED, "answer_not_valid")
    assert (len(model.requests), turn.model_calls, turn.prompt_tokens) == (2, 2, 24)
    assert said(turn) == [("user", "How is Oslo?")]
    assert [each["content"] for each in turn.invalid_answers] == ["Cold.", INVALID]
    answer = answers.current(turn.pk, request_id="r")
    assert (answer.status, answer.body["code"]) == (502, "answer_not_valid")
    assert "missing: city" in answer.body["detail"]
    assert told(turn) == received(model)


def test_the_second_try_is_offered_no_tools_and_calls_none(model, say, tool_settings):
    tool_settings("time")
    model.answer(
        completion(None, tool_calls=[call("time")]),
        completion(INVALID),
        completion(FITS, tool_calls=[call("time", call_id="call_2")]),
    )
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert [role for role, _ in said(turn)] == ["user", "assistant", "tool", "assistant"]
    assert ["tools" in request.body for request in model.requests] == [True, True, False]
    assert all("response_format" in request.body for request in model.requests)
    assert [made.invalid is not None for made in model_request.calls_of(turn)] == [False, True, False]
    assert told(turn) == received(model)


def test_words_beside_a_tool_call_have_no_form(model, say, tool_settings):
    tool_settings("time")
    model.answer(completion("I look.", tool_calls=[call("time")]), completion(FITS))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert turn.status == TurnStatus.SUCCEEDED
    assert turn.invalid_answers is None


def test_a_worker_that_goes_on_asks_again_as_it_would_have_been(model, say):
    """The first answer is stored before the second is asked for: it is neither lost nor asked for twice."""
    model.answer(completion(INVALID), failure(503), completion(FITS))
    turn = advance(say("How is Oslo?", response_format=FORM))
    assert turn.status == TurnStatus.WAITING
    assert [each["content"] for each in turn.invalid_answers] == [INVALID]
    let_pass(turn)
    turn = advance(turn)
    assert (turn.status, turn.model_calls, len(model.requests)) == (TurnStatus.SUCCEEDED, 2, 3)
    assert model.requests[1].body == model.requests[2].body


def test_an_empty_answer_is_asked_for_as_ever(model, say):
    model.answer(completion(INVALID), completion(" "))
    turn = advance(say("How is Oslo?", response_format=FORM))
    assert (turn.status, turn.retry_code) == (TurnStatus.WAITING, "llm_bad_response")


def test_a_long_answer_is_kept_and_shown_in_part(model, say):
    model.answer(completion("x" * 100_000), completion(FITS))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert turn.status == TurnStatus.SUCCEEDED
    assert len(turn.invalid_answers[0]["content"]) < 21_000
    assert told(turn) == received(model)


# --- beside other things -----------------------------------------------------------------------------------------


def test_at_a_limit_the_answer_is_json_alone(model, say, agent, conversation, tool_settings):
    tool_settings("time")
    agent.max_tool_rounds = 0
    agent.save()
    conversation.agent.refresh_from_db()
    model.answer(completion(None, tool_calls=[call("time")]), completion("None."), completion(FITS))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert (turn.status, said(turn)[-1]) == (TurnStatus.SUCCEEDED, ("assistant", FITS))
    assert [made.record.get("limit") for made in model_request.calls_of(turn)] == [None, "tool_rounds", "tool_rounds"]
    assert told(turn) == received(model)


def test_readers_forget_what_did_not_fit(model, say, listening):
    model.answer(completion(INVALID), completion(FITS))
    turn = say("How is Oslo?", response_format=FORM)
    heard = listening(lambda: settle([turn]))
    kinds = [kind for kind, _ in heard if kind.startswith("message")]
    reset = kinds.index("message.reset")
    assert "".join(each["text"] for kind, each in heard[: heard_at(heard, reset)] if kind == "message.delta") == INVALID
    assert "".join(each["text"] for kind, each in heard[heard_at(heard, reset) :] if kind == "message.delta") == FITS


def heard_at(heard: list[Any], number: int) -> int:
    """The place of the event of this number among those of messages."""
    return [at for at, (kind, _) in enumerate(heard) if kind.startswith("message")][number]


@pytest.fixture
def listening(monkeypatch) -> Any:
    """What is told of a turn while something is done."""

    def listen(do: Any) -> list[tuple[str, Any]]:
        heard: list[tuple[str, Any]] = []
        tell = events.transport().publish

        def publish(turn_id: Any, kind: Any, data: Any, *, fence: Any = None) -> None:
            heard.append((str(kind), data))
            tell(turn_id, kind, data, fence=fence)

        monkeypatch.setattr(events.transport(), "publish", publish)
        do()
        return heard

    return listen


def test_readers_are_told_an_answer_anew_that_stood_in_a_fence(model, say, listening):
    model.answer(completion(f"```json\n{FITS}\n```"))
    turn = say("How is Oslo?", response_format=FORM)
    heard = listening(lambda: settle([turn]))
    at = [kind for kind, _ in heard].index("message.reset")
    assert [each["text"] for kind, each in heard[at:] if kind == "message.delta"] == [FITS]


@pytest.fixture
def providers(settings) -> Any:
    running = Dialects(key="sk-test-0123456789abcdef").start()
    settings.LLM_PROVIDER, settings.LLM_MODEL_DEFAULT = "auto", "groq/large"
    settings.LLM_BASE_URLS = {name: running.url_of(name) for name in ("groq", "anthropic", "deepseek")}
    settings.GROQ_API_KEY = settings.ANTHROPIC_API_KEY = settings.DEEPSEEK_API_KEY = running.key
    yield running
    running.stop()
    llm.forget_clients()


@pytest.mark.parametrize(
    ("other", "answer", "how"),
    [
        ("deepseek/deepseek-chat", completion(FITS), "words"),
        ("claude-opus-4-5", message(text(FITS)), "given"),
        ("claude-opus-4-1", message(text(FITS)), "words"),
    ],
)
def test_a_further_model_is_asked_in_its_own_way(providers, say, agent, conversation, other, answer, how):
    agent.fallback_models = [other]
    agent.save()
    conversation.agent.refresh_from_db()
    providers.answer(completion(INVALID), refused("groq", 413), answer)
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert (turn.status, turn.fallback_model) == (TurnStatus.SUCCEEDED, other)
    assert [made.record["schema"] for made in model_request.calls_of(turn)] == ["given", "given", how]
    assert [made.invalid is not None for made in model_request.calls_of(turn)] == [True, False, False]
    # What was wrong with the first model's answer, the second is told, too.
    assert "missing: city" in json.dumps(providers.requests[-1].body)
    assert [request.broken for request in providers.requests] == [""] * 3


def test_the_form_is_part_of_what_an_idempotency_key_stands_for(say):
    turn = say("Hello", idempotency_key="one", response_format=FORM)
    assert say("Hello", idempotency_key="one", response_format=FORM).pk == turn.pk
    for other in ("", '{"type": "json_object"}'):
        with pytest.raises(IdempotencyConflict):
            say("Hello", idempotency_key="one", response_format=other)


def test_a_failed_turn_is_asked_again_in_the_same_form(model, say):
    model.answer(completion("Cold."), completion("Cold."), completion(FITS))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    (again,) = settle([inbox.ask_again(turn, request_id="r")])
    assert (again.status, again.response_format) == (TurnStatus.SUCCEEDED, FORM)


def test_a_turn_that_is_cancelled_between_the_two_pays_for_the_first(model, say, monkeypatch):
    model.answer(completion(INVALID), failure(503))
    turn = advance(say("How is Oslo?", response_format=FORM))
    turn_control.cancel_turn(turn)
    turn.refresh_from_db()
    assert (turn.status, turn.prompt_tokens) == (TurnStatus.CANCELLED, 12)


def test_the_scripted_model_follows_its_script(say):
    (turn,) = settle([say(script({"say": "Cold."}, {"say": FITS}), response_format=FORM)])
    assert (turn.status, said(turn)[-1]) == (TurnStatus.SUCCEEDED, ("assistant", FITS))


def test_without_a_script_it_answers_in_the_form_that_is_asked_for(say):
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    assert turn.invalid_answers is None
    assert json.loads(said(turn)[-1][1]) == {"thought": "You said: How is Oslo?", "city": "You said: How is Oslo?"}


def test_what_an_agent_s_answers_are_is_part_of_its_version(of_agent):
    before = of_agent.version
    of_agent.answer_schema = ""
    of_agent.save_version(by="anna")
    assert Agent.objects.get(pk=of_agent.pk).version == before + 1
    assert of_agent.versions.first().changed == "answer_schema"
