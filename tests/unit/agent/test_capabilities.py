"""Who can be given a JSON Schema for an answer."""

import pytest

from agent.answer_schemas import AnswerFormat
from agent.llm.capabilities import takes_schema
from agent.llm.providers import PROVIDERS

pytestmark = pytest.mark.shapeless(reason="a table knows no database")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}
OPEN = {"type": "object", "properties": {"city": {"type": "string"}}}


def takes(provider, model, schema=CITY, *, with_tools=False):
    wanted = AnswerFormat(schema=schema)
    return takes_schema(PROVIDERS[provider], model, wanted, with_tools=with_tools)


@pytest.mark.parametrize(
    ("model", "does"),
    [
        ("claude-opus-4-5", True),
        ("claude-sonnet-4-5-20250929", True),
        ("claude-haiku-4-5-latest", True),
        ("claude-opus-5", True),
        ("claude-opus-4-1-20250805", False),
        ("claude-opus-4-20250514", False),
        ("claude-3-7-sonnet-latest", False),
        ("claude-3-5-haiku-20241022", False),
        ("claude-next", False),
        ("model-1", False),
    ],
)
def test_claude_takes_one_from_4_5_on(model, does):
    assert takes("anthropic", model) is does


def test_claude_is_told_apart_at_a_gateway_too():
    assert takes("openrouter", "anthropic/claude-sonnet-4.5")
    assert not takes("openrouter", "anthropic/claude-3.5-sonnet")
    assert takes("openrouter", "openai/gpt-4.1-mini")


@pytest.mark.parametrize(
    "schema",
    [
        OPEN,
        {"type": "object"},
        None,
        CITY | {"properties": {"city": {"type": "string", "minLength": 1}}},
        CITY | {"properties": {"within": {"$ref": "#"}}},
        CITY | {"properties": {"days": {"type": "array", "items": OPEN}}},
    ],
)
def test_claude_takes_closed_ones_without_what_it_does_not_know(schema):
    assert not takes("anthropic", "claude-opus-4-5", schema)
    assert takes("openai", "gpt-4.1-mini", schema)


@pytest.mark.parametrize("model", ["gpt-3.5-turbo", "gpt-4", "gpt-4-turbo", "gpt-4-0613", "openai/gpt-4", "o1-mini"])
def test_old_models_of_openai_take_none(model):
    assert not takes("openai", model)
    assert takes("openai", model, None)  # any JSON object, though


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1", "gpt-5", "gpt-4o-mini", "o3", "gpt-oss-120b", "gpt-41"])
def test_newer_ones_do(model):
    assert takes("openai", model)


def test_some_take_none_while_tools_are_offered():
    assert [takes("groq", "gpt-oss-120b", with_tools=each) for each in (False, True)] == [True, False]
    assert [takes("openai", "gpt-4.1", with_tools=each) for each in (False, True)] == [True, True]


def test_whose_row_says_no_takes_none():
    for row in (PROVIDERS["deepseek"], PROVIDERS["custom"]):
        assert not takes_schema(row, "gpt-4.1", AnswerFormat(schema=CITY), with_tools=False)


def test_a_name_of_a_megabyte_is_read_in_no_time():
    assert not takes("anthropic", "claude-" * 150_000)
    assert takes("openai", "gpt-4." * 150_000)
