"""What the spans of a turn tell: that it was claimed, and what its model calls used, cost and said."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.spending import book
from agent.spending.models import ModelPrice
from conversations.models import Turn
from nanohost.lib import traces
from nanohost.lib.clock import from_now
from tests.support.openai_server import call, completion
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

Spans = Callable[[traces.Kind], list[dict[str, Any]]]


@pytest.fixture
def spans() -> Iterator[Spans]:
    """The attributes of the spans of a kind that have ended, with ``parent`` and ``id``."""
    traces.configure(on=True, sampler="always_on", share=1.0, most=1_000)
    traces.ended.clear()

    def of(wanted: traces.Kind) -> list[dict[str, Any]]:
        found = [each for each in traces.ended if each[2] is wanted]
        return [
            {**dict(zip(kind.keys, values, strict=True)), "id": span[1], "parent": span[2], "error": error}
            for span, _, kind, _, error, values in found
        ]

    yield of
    traces.configure(on=False, sampler="parentbased_always_on", share=1.0, most=0)
    traces.ended.clear()
    traces.enter("")


def asked(say: Any, model: Any) -> Turn:
    """A turn that has called a tool and answered, for two prompts of nine tokens and two answers of three."""
    used = {"prompt_tokens": 9, "completion_tokens": 3}
    asks = completion(None, tool_calls=[call("time", "{}")], finish_reason="tool_calls", usage=used)
    model.answer(asks, completion("Noon.", usage=used))
    (turn,) = settle([say("What time is it?")])
    return turn


def test_a_turn_s_claims_stand_below_what_is_done_for_it(say, model, tool_settings, spans):
    tool_settings("time")
    turn = asked(say, model)
    runs, claims = spans(traces.RUN), spans(traces.CLAIM)
    assert [each["nanohost.turn.fence"] for each in claims] == [each["nanohost.turn.fence"] for each in runs] == [1, 2]
    assert [each["parent"] for each in claims] == [each["id"] for each in runs]
    assert {each["nanohost.turn.id"] for each in claims} == {turn.pk}
    assert {each["parent"] for each in runs} == {turn.traceparent[36:52]}


def test_a_model_call_tells_its_model_tokens_cost_and_finish_reason(agent, say, model, tool_settings, spans):
    tool_settings("time")
    ModelPrice.objects.create(model=agent.own_model(), prompt=2, completion=10, valid_from=from_now(-60))
    book.forget()
    turn = asked(say, model)
    first, last = spans(traces.CHAT)
    for each, finish in ((first, "tool_calls"), (last, "stop")):
        assert each["gen_ai.request.model"] == turn.model
        assert (each["gen_ai.usage.input_tokens"], each["gen_ai.usage.output_tokens"]) == (9, 3)
        assert each["nanohost.cost.millionths"] == 9 * 2 + 3 * 10
        assert each["gen_ai.response.finish_reasons"] == (finish,)
        assert not each["error"]
    assert turn.cost == first["nanohost.cost.millionths"] + last["nanohost.cost.millionths"]


@pytest.mark.parametrize("wanted", [True, False])
def test_what_was_said_is_told_only_where_it_is_logged_as_well(say, model, tool_settings, spans, settings, wanted):
    tool_settings("time")
    settings.LOG_CONTENT = wanted
    asked(say, model)
    last = spans(traces.CHAT)[-1]
    sent, said = last["gen_ai.input.messages"], last["gen_ai.output.messages"]
    if wanted:
        assert "What time is it?" in json.dumps(sent)
        assert said[0]["content"] == "Noon."
    else:
        assert (sent, said) == (None, None)
