"""A model's arguments: what is mended, what is refused, and what the model is told."""

import json
import time
from datetime import date
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from nanohost.lib import redaction
from tools.arguments import MAX_DEPTH, InvalidArguments, read_arguments
from tools.schemas import arguments_schema

pytestmark = pytest.mark.shapeless(reason="pure functions")


class Place(BaseModel):
    city: str
    floor: int = 0
    inside: list["Place"] = []


def everything(
    count: int = 0,
    share: float = 0,
    wanted: bool = False,
    name: str = "",
    maybe: int | None = None,
    either: int | str = "",
    sizes: list[int] = [],  # noqa: B006 -- a signature, which nobody calls
    place: Place | None = None,
    extra: dict[str, int] = {},  # noqa: B006 -- as above
    kind: Literal["a", "b"] = "a",
    day: date | None = None,
) -> None:
    """Do nothing."""


SCHEMA = arguments_schema(everything)


def read(**arguments: Any) -> dict[str, Any]:
    return read_arguments(SCHEMA, json.dumps(arguments))


def refusal(**arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as refused:
        read(**arguments)
    return str(refused.value).removeprefix("The arguments do not fit the tool's schema: ")


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ({"count": "5"}, {"count": 5}),
        ({"count": "-12"}, {"count": -12}),
        ({"share": "0.5"}, {"share": 0.5}),
        ({"share": "3"}, {"share": 3}),
        ({"wanted": "true"}, {"wanted": True}),
        ({"maybe": "5"}, {"maybe": 5}),
        ({"sizes": "[1, 2]"}, {"sizes": [1, 2]}),
        ({"sizes": ["1", 2]}, {"sizes": [1, 2]}),
        ({"sizes": '["1"]'}, {"sizes": [1]}),
        ({"place": '{"city": "Ulm"}'}, {"place": {"city": "Ulm"}}),
        ({"place": {"city": "5", "floor": "5"}}, {"place": {"city": "5", "floor": 5}}),
        ({"place": {"city": "Ulm", "inside": '[{"city": "7", "floor": "7"}]'}}, None),
        ({"extra": {"a": "1"}}, {"extra": {"a": 1}}),
    ],
)
def test_a_text_becomes_what_its_schema_asks_for(sent, taken):
    assert read(**sent) == (taken or {"place": {"city": "Ulm", "inside": [{"city": "7", "floor": 7}]}})


def test_all_arguments_as_one_text_are_read():
    assert read_arguments(SCHEMA, json.dumps(json.dumps({"count": 5}))) == {"count": 5}


@pytest.mark.parametrize(
    "sent",
    [
        {"name": "5"},
        {"name": "true"},
        {"name": '{"a": 1}'},
        {"either": "5"},
        {"count": 5, "share": 1.5, "wanted": True, "maybe": None},
        {"place": None},
    ],
)
def test_what_fits_is_left_as_it_is(sent):
    assert read(**sent) == sent


@pytest.mark.parametrize(
    "sent",
    [
        {"count": "five"},
        {"count": "5.5"},
        {"count": "5.0"},
        {"count": " 5"},
        {"count": "05"},
        {"count": "1e3"},
        {"count": "9" * 5000},
        {"count": True},
        {"count": 1.5},
        {"count": None},
        {"count": [5]},
        {"name": 5},
        {"name": None},
        {"wanted": 1},
        {"wanted": "yes"},
        {"wanted": "True"},
        {"share": "1e999"},
        {"share": "NaN"},
        {"share": "true"},
        {"maybe": "null"},
        {"maybe": ""},
        {"sizes": "1, 2"},
        {"sizes": 1},
        {"place": "[]"},
        {"place": '{"city": 5}'},
        {"kind": "c"},
    ],
)
def test_nothing_else_is_cast(sent):
    refusal(**sent)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"count": "five"}, 'count: expected integer, got "five" (string).'),
        ({"maybe": []}, "maybe: expected integer or null, got [] (array)."),
        ({"kind": "c"}, 'kind: expected one of ["a", "b"], got "c" (string).'),
        ({"place": {"floor": 1}}, "place: missing: city."),
        ({"sizes": [1, None]}, "sizes.1: expected integer, got null."),
        ({"coutn": 5}, 'unknown argument "coutn" (string) (did you mean count?); there are: count, share,'),
        ({"zzz": 5}, 'unknown argument "zzz" (string); there are: count,'),
        ({"count": None, "name": 1}, "count: expected integer, got null; name: expected string, got 1 (number)."),
    ],
)
def test_the_model_is_told_what_to_change(sent, told):
    assert refusal(**sent).startswith(told)


def test_what_the_model_is_told_is_bounded():
    assert len(refusal(count="x" * 10_000, **{f"unknown_{number}": 1 for number in range(1000)})) < 3000


def test_a_text_of_json_may_not_hide_depth():
    deep = "[" * 5_000 + "]" * 5_000
    assert "expected" in refusal(sizes=deep)
    nested: Any = {"city": "x"}
    for _ in range(MAX_DEPTH):
        nested = {"city": "x", "inside": [nested]}
    with pytest.raises(InvalidArguments, match=f"deeper than {MAX_DEPTH}"):
        read(place=nested)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["city", "floor", "inside", "x"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), json_values | json_values.map(json.dumps)))
def test_whatever_is_read_fits_and_reading_it_again_changes_nothing(sent):
    try:
        taken = read(**sent)
    except InvalidArguments:
        return
    assert read(**taken) == taken
    # Only texts were changed.
    assert {
        name: value for name, value in sent.items() if not isinstance(value, str | list | dict)
    }.items() <= taken.items()


def hang(tree: "Tree | Branch | None" = None) -> None:
    """Do nothing."""


class Tree(BaseModel):
    left: "Tree | Branch | None" = None


class Branch(BaseModel):
    left: "Branch | Tree | None" = None
    size: int


def test_alternatives_in_alternatives_do_not_multiply_the_work():
    value: Any = {"left": "no"}
    for _ in range(8):
        value = {"left": value}
    with pytest.raises(InvalidArguments):
        read_arguments(arguments_schema(hang), json.dumps({"tree": value}))


@pytest.mark.parametrize("number", ["1e400", "-1e999", "1" + "0" * 5000])
@pytest.mark.parametrize("form", ['{{"share": {}}}', '{{"share": "{}"}}', '{{"sizes": [{}]}}', '{{"count": {}}}'])
def test_a_number_beyond_all_numbers_is_refused(number, form):
    with pytest.raises(InvalidArguments):
        read_arguments(SCHEMA, form.format(number))


@pytest.mark.parametrize("text", ["5 ", " 5", "\n5", "0x5", "05", "+5", "5.", "1_0", "", "½", "٥"])
def test_a_text_that_is_no_number_to_the_letter_stays_a_text(text):
    assert "share: expected number" in refusal(share=text)
    assert "count: expected integer" in refusal(count=text)


@pytest.mark.parametrize("raw", ['{"count": 1, "count": 2}', '{"place": {"city": "Ulm", "floor": 1, "city": "Bonn"}}'])
def test_a_key_that_stands_twice_is_refused(raw):
    with pytest.raises(InvalidArguments, match="stands twice in an object"):
        read_arguments(SCHEMA, raw)
    with pytest.raises(InvalidArguments):
        read_arguments(SCHEMA, json.dumps({"place": raw}))


def taking(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


def test_many_items_are_told_apart_in_little_time():
    schema = taking(type="array", uniqueItems=True)
    many = [{"a": number} for number in range(5000)]
    began = time.process_time()
    assert read_arguments(schema, json.dumps({"a": many})) == {"a": many}
    with pytest.raises(InvalidArguments, match="twice"):
        read_arguments(schema, json.dumps({"a": [*many, many[17]]}))
    assert time.process_time() - began < 5  # a minute, where each is compared with each other


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, True, "1", [1], {"1": 1}, None, 0, False], True),
        ([1, 1.0], False),
        ([[1], [1.0]], False),
        ([[1], [True]], True),
        ([{"a": 1, "b": []}, {"b": [], "a": 1}], False),
        ([{"a": [1]}, {"a": [True]}], True),
        (["a", "a"], False),
        ([None, None], False),
        ([[], {}], True),
    ],
)
def test_items_are_equal_where_json_schema_says_so(items, unique):
    schema = taking(type="array", uniqueItems=True)
    assert jsonschema.Draft202012Validator(schema).is_valid({"a": items}) == unique  # the library agrees
    if unique:
        assert read_arguments(schema, json.dumps({"a": items})) == {"a": items}
        return
    with pytest.raises(InvalidArguments, match="a: an item occurs in it twice"):
        read_arguments(schema, json.dumps({"a": items}))


@pytest.mark.parametrize(
    "schema",
    [
        taking(type="number", multipleOf=0.1),
        taking(anyOf=[{"type": "number", "multipleOf": 0.1}, {"type": "null"}]),
    ],
)
def test_a_number_too_large_to_be_divided_is_refused(schema):
    with pytest.raises(InvalidArguments, match="too large"):
        read_arguments(schema, '{"a": 1' + "0" * 400 + "}")


@pytest.mark.parametrize(
    "sent",
    [
        {"count": "sk-0123456789canary"},
        {"sizes": {"url": "http://user:canary@example.org/"}},
        {"place": [{"password": "canary"}]},
        {"extra": {"password": "canary"}},
        {"extra": {"Cookie": ["id=canary"]}},
        {"kind": "Bearer 0123456789canary"},
        {"sk-0123456789canary": 1},
        {"extra": {"sk-0123456789canary": "x"}},
        {"day": {"headers": [["Cookie", "id=canary"]]}},
    ],
)
def test_a_refusal_repeats_no_secret(sent):
    told = refusal(**sent)
    assert "canary" not in told
    assert "[redacted]" in told or "unknown argument" in told


@pytest.mark.parametrize("before", [60, 90, 95, 280, 295])
def test_a_refusal_repeats_no_half_of_a_secret(before):
    secret = "sk-" + "0123456789canary" * 4
    for sent in (
        {"count": "x" * before + f" {secret}"},
        {"x" * before + f" {secret}": 1},
        {"sizes": {"a" * before: secret}},
    ):
        assert "canary" not in refusal(**sent)
        assert "sk-0" not in refusal(**sent)
    with pytest.raises(InvalidArguments) as refused:
        read_arguments(SCHEMA, f'{{"{"x" * before} {secret}": 1, "{"x" * before} {secret}": 2}}')
    assert "sk-0" not in str(refused.value)


@pytest.mark.parametrize(
    ("rules", "value"),
    [
        ({"type": "integer"}, "eyJ-" * 250_000),
        ({"type": "string", "pattern": "^x"}, "eyJ-" * 250_000),
        ({"type": "integer"}, ["eyJ-"] * 250_000),
        ({"additionalProperties": {"type": "integer"}}, {"eyJ-" * 250_000: "x"}),
        ({"additionalProperties": False}, {"eyJ-" * 250_000: "x"}),
    ],
    ids=["text", "pattern", "list", "path", "name"],
)
def test_of_a_large_value_little_is_searched_for_secrets(monkeypatch, rules, value):
    given = []
    monkeypatch.setattr(redaction, "redact", lambda text: given.append(len(text)) or text)
    with pytest.raises(InvalidArguments):
        read_arguments(taking(**rules), json.dumps({"a": value}))
    assert given
    assert max(given) < 5_000


def test_a_value_that_does_not_match_is_not_repeated_where_it_is_a_secret():
    schema = taking(type="object", additionalProperties={"type": "string", "pattern": "^x"})
    for name, value in (("password", "canary"), ("b", "sk-0123456789canary")):
        with pytest.raises(InvalidArguments) as refused:
            read_arguments(schema, json.dumps({"a": {name: value}}))
        assert "canary" not in str(refused.value)


def coded(code: Annotated[str, Field(pattern="^(a+)+$")]) -> None:
    """Do nothing."""


@pytest.mark.timeout(20)
def test_a_pattern_is_tried_in_linear_time():
    """A backtracking engine takes years for this, and holds the whole process meanwhile."""
    schema = arguments_schema(coded)
    assert schema["properties"]["code"]["pattern"]
    with pytest.raises(InvalidArguments, match="code: it does not fit the pattern"):
        read_arguments(schema, json.dumps({"code": "a" * 5000 + "!"}))
    assert read_arguments(schema, '{"code": "aaa"}') == {"code": "aaa"}


def test_what_only_a_backtracking_engine_can_try_is_left_to_the_tool_s_process():
    schema = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^(?!x)"}}}
    assert read_arguments(schema, '{"code": "xyz"}') == {"code": "xyz"}
