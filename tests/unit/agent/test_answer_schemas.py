"""The form of an answer: how it is read, which schemas are taken, and how answers are held against them."""

import json
import time

import pytest

from agent import answer_schemas
from agent.answer_schemas import (
    MAX_ANSWER_CHARS,
    MAX_PATTERN_CHARS,
    MAX_SCHEMA_CHARS,
    MAX_SCHEMA_DEPTH,
    AnswerFormat,
    InvalidFormat,
    check,
    check_schema,
    read,
    read_schema,
    stored,
)

pytestmark = pytest.mark.shapeless(reason="a form of answers knows no database")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"$ref": "#/$defs/day"}}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1}},
}


def asked(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, **more}}


def wrong(answer, schema=CITY):
    return check(answer if isinstance(answer, str) else json.dumps(answer), AnswerFormat(schema=schema)).wrong


# --- reading -----------------------------------------------------------------------------------------------------


def test_the_three_kinds():
    assert read({"type": "text"}) is None
    assert read({"type": "json_object"}) == AnswerFormat()
    whole = read(asked(CITY, strict=True, description="The weather."))
    assert whole == AnswerFormat(name="weather", description="The weather.", schema=CITY, strict=True)
    assert answer_schemas.as_response_format(whole) == asked(CITY, description="The weather.", strict=True)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "type is one of"),
        ([], "type is one of"),
        ({}, "type is one of"),
        ({"type": "xml"}, "type is one of"),
        ({"type": []}, "type is one of"),
        ({"type": "text", "json_schema": {}}, "json_schema: there is no such field"),
        ({"type": "json_schema"}, "a name and a schema is needed"),
        ({"type": "json_schema", "json_schema": {"schema": CITY}}, "json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": CITY}}, "json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a\n", "schema": CITY}}, "json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "json_schema.schema: an object is needed"),
        (asked(CITY, strict="yes"), "json_schema.strict: true or false"),
        (asked(CITY, description=7), "json_schema.description"),
        (asked(CITY, extra=1), "json_schema.extra: there is no such field"),
        (asked({"type": "strin"}), "json_schema.schema.type: this is not a JSON Schema"),
    ],
)
def test_what_is_none_is_told_what_to_change(value, words):
    with pytest.raises(InvalidFormat) as raised:
        read(value)
    assert words in str(raised.value)


def test_the_agent_s_schema_counts_where_the_turn_says_nothing():
    of_agent = json.dumps(CITY)
    assert stored("", "", "default") is None
    assert stored("", of_agent, "default").schema == CITY
    assert stored("", of_agent, "a.name").name == "answer"
    assert stored(answer_schemas.PLAIN_TEXT, of_agent, "default") is None
    assert stored(json.dumps({"type": "json_object"}), of_agent, "default") == AnswerFormat()


def test_an_agent_s_schema_is_strict_if_it_can_be():
    strict = {**CITY, "required": ["city", "days"]}
    assert stored("", json.dumps(strict), "default").strict is True
    assert stored("", json.dumps(CITY), "default").strict is None


# --- which schemas are taken -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "an object is needed"),
        (True, "an object is needed"),
        ({"type": "strin"}, "schema.type: this is not a JSON Schema"),
        ({"properties": {"a": {"minimum": "1"}}}, "schema.properties.a.minimum: this is not a JSON Schema"),
        ({"$ref": "https://example.org/schema"}, "schema.$ref: it has to point into this schema"),
        ({"$ref": "file:///etc/passwd"}, "schema.$ref: it has to point into this schema"),
        ({"$ref": "#/$defs/none"}, "schema.$ref: it has to point into this schema"),
        ({"$ref": "#"}, "it refers to itself without end"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "it refers to itself without end"),
        ({"anyOf": [{"$id": "https://example.org"}]}, "schema.anyOf.0.$id: not supported"),
        ({"$dynamicRef": "#a"}, "schema.$dynamicRef: not supported"),
        ({"items": {"patternProperties": {"(a+)+$": {}}}}, "schema.items.patternProperties: not supported"),
        ({"pattern": "(?=a)b"}, "look-around"),
        ({"pattern": r"(a)\1"}, "backreferences"),
        ({"pattern": "(((a{1,100}){1,100}){1,100}){1,100}"}, "very large repetitions"),
        ({"pattern": "a" * (MAX_PATTERN_CHARS + 1)}, f"{MAX_PATTERN_CHARS} characters at most"),
        ({"pattern": "("}, "no regular expression"),
        ({"title": "a" * MAX_SCHEMA_CHARS}, f"{MAX_SCHEMA_CHARS} are allowed"),
        ({"const": "\x00"}, "a null character"),
        ({"const": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_a_schema_that_is_none_or_may_do_harm_is_refused(schema, words):
    with pytest.raises(InvalidFormat) as raised:
        check_schema(schema)
    assert words in str(raised.value)


def nested(levels):
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def test_a_schema_has_a_bound_of_depth():
    check_schema(nested(MAX_SCHEMA_DEPTH - 2))
    for levels in (MAX_SCHEMA_DEPTH - 1, 5000):
        with pytest.raises(InvalidFormat, match="nested deeper"):
            check_schema(nested(levels))


def test_what_a_person_wrote_is_json_or_told_why_not():
    assert read_schema(json.dumps(CITY)) == CITY
    for text in ("{", "{'a': 1}", '{"a": 1, "a": 2}', "[" * 100_000, "x" * 1_000_000, '{"a": NaN}'):
        with pytest.raises(InvalidFormat):
            read_schema(text[: 2 * MAX_SCHEMA_CHARS])
    with pytest.raises(InvalidFormat, match="1000000 characters"):
        read_schema("x" * 1_000_000)


def test_a_recursive_schema_is_fine_where_it_ends():
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}
    check_schema(tree)
    assert wrong({"left": {"left": {}}}, tree) == ""
    assert "left.left" in wrong({"left": {"left": 7}}, tree)


# --- holding answers against one ---------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ['{"city": "Oslo"}', ' {"city": "Oslo", "days": [1, 2]}\n'])
def test_one_that_fits_stays_as_it_is(answer):
    checked = check(answer, AnswerFormat(schema=CITY))
    assert (checked.wrong, checked.text) == ("", answer)


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```", " ```JSON\n{}```\n"])
def test_a_code_fence_around_it_is_taken_off(fence):
    answer = '{"city": "Oslo"}'
    assert check(fence.replace("{}", answer), AnswerFormat(schema=CITY)).text == answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("It is Oslo.", "It is no JSON"),
        ("", "It is no JSON"),
        ('{"city": "Oslo"} Good luck!', "It is no JSON"),
        ('```python\n{"city": "Oslo"}\n```', "It is no JSON"),
        ('{"city": "Oslo", "city": "Rome"}', "stands twice"),
        ('{"city": NaN}', "NaN is not JSON"),
        ({}, "missing: city"),
        ({"city": 7}, "city: expected string, got 7 (number)"),
        ({"city": "Oslo", "days": [1, 0]}, "days.1: 0 is less than the minimum of 1"),
        ({"city": "Oslo", "country": "Norway"}, 'unknown property "country" (string); there are: city, days'),
        ([], "expected object"),
        ("[" * 100_000, "nested too deeply"),
        (f"{'[' * 100}{']' * 100}", "nested too deeply"),
        ("1" * 5000, "It is no JSON"),
    ],
)
def test_what_is_wrong_is_said_in_words(answer, words):
    assert words in wrong(answer)


def test_several_things_are_told_at_once_and_not_too_many():
    told = wrong({"city": 7, "days": [0] * 1000})
    assert "city" in told
    assert "days.0" in told
    assert len(told) < 500


def test_any_object_will_do_where_no_schema_is_given():
    assert check("{}", AnswerFormat()).wrong == ""
    assert "expected object" in check("[]", AnswerFormat()).wrong


def test_a_secret_in_it_is_not_quoted():
    assert "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789" not in wrong(
        {"city": ["sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"]}
    )


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "string", "pattern": "^[A-Z]{3}$"}, "OSL", True),
        ({"type": "string", "pattern": "^[A-Z]{3}$"}, "oslo", False),
        ({"pattern": "b"}, "abc", True),
        ({"pattern": "b"}, 7, True),
        ({"additionalProperties": {"type": "integer"}, "properties": {"a": {}}}, {"a": "x", "b": 1}, True),
        ({"additionalProperties": {"type": "integer"}, "properties": {"a": {}}}, {"b": "x"}, False),
        ({"enum": ["a", 1]}, 1.0, True),
        ({"enum": ["a", 1]}, True, False),
        ({"uniqueItems": True}, [1, True], True),
        ({"uniqueItems": True}, [{"a": 1}, {"a": 1.0}], False),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, 3, False),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "a", False),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], False),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}}, None, True),
    ],
)
def test_the_keywords_mean_what_the_standard_says(schema, value, fits):
    check_schema(schema)
    assert (wrong(json.dumps(value), schema) == "") is fits


EXPONENTIAL = {
    "$defs": {
        "a": {
            "anyOf": [
                {"minItems": 1, "items": {"$ref": "#/$defs/a"}},
                {"minItems": 1, "maxItems": 1, "items": {"$ref": "#/$defs/a"}},
            ]
        }
    },
    "type": "array",
    "items": {"$ref": "#/$defs/a"},
    "minItems": 1,
}
HOSTILE = {
    "a backtracking pattern": ({"pattern": "(a+)+$"}, f'"{"a" * (MAX_ANSWER_CHARS - 10)}b"'),
    "a pattern of many states": ({"pattern": "(?:[ab]{0,30}a[ab]{0,300}){3}c"}, f'"{"ab" * 240_000}"'),
    "alternatives within alternatives": (EXPONENTIAL, f"{'[' * 60}{']' * 60}"),
    "many alternatives of a large value": ({"anyOf": [{"type": "null"}] * 1000}, json.dumps([["x" * 9] * 40_000])),
    "many names": ({"items": {"required": [str(at) for at in range(2000)]}}, json.dumps([{}] * 100_000)),
    "many items": ({"items": {"type": "integer"}, "uniqueItems": True}, json.dumps(list(range(70_000)))),
    "many kinds": ({"items": {"enum": list(range(3000))}}, json.dumps([9999] * 80_000)),
    "a megabyte": ({}, f'"{"x" * 1_000_000}"'),
    "a megabyte of fences": ({}, "```" * 350_000),
    "a megabyte of blanks": ({}, " " * 1_000_000),
    "a megabyte of brackets": ({}, "[" * 1_000_000),
}


@pytest.mark.parametrize(("schema", "answer"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_schema_or_answer_takes_seconds_at_most(schema, answer):
    check_schema(schema)
    began = time.process_time()
    assert wrong(answer, schema)
    assert time.process_time() - began < 5
