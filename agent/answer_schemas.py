"""What the answer of a model is to be, and whether it is: JSON that fits a JSON Schema, any JSON object, or text. Pure.

A format comes from a client or from an agent's page, and an answer from a model: neither is trusted. So a schema has
bounds of size and depth, refers to nothing but itself, and its patterns are tried by pydantic's engine of regular
expressions, which is linear; what only a backtracking one can do is refused. To hold an answer against a schema has a
bound of steps, since alternatives within alternatives multiply them.

Both are written down as they came: a database's own JSON has the keys of an object in another order, and models write
the properties of their answers in the schema's.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema
from pydantic_core import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from nanohost.lib.text import UNSTORABLE
from tools.arguments import explained, leaves, linear_pattern, parse_json, too_deep, unique_items

# Of a schema's JSON, which every prompt pays for; of one pattern in it; and how deep its JSON may be nested.
MAX_SCHEMA_CHARS, MAX_PATTERN_CHARS, MAX_SCHEMA_DEPTH = 32_000, 500, 40

# A longer answer is none: a model has run wild.
MAX_ANSWER_CHARS = 500_000

# Of an answer that does not fit, so much is kept, and shown to the model when it is asked again.
MAX_KEPT_CHARS = 20_000

# What is wrong with an answer is told in so many sentences at most, and so many characters.
_MAX_ERRORS, _MAX_TOLD = 5, 480

# Steps, of which an ordinary answer takes some hundreds: about a second. An error takes more of them than a look.
MAX_STEPS, _STEPS_AN_ERROR = 100_000, 5

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

JSON_SCHEMA, JSON_OBJECT, TEXT = KINDS = ("json_schema", "json_object", "text")

# As a turn keeps it that is to be answered in words, whatever its agent says.
PLAIN_TEXT = '{"type": "text"}'


class InvalidFormat(Exception):
    """A format that is none, or none that can be kept to; says what to change."""


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """What an answer is to be. ``schema`` None: any JSON object. ``strict``: as OpenAI has it."""

    name: str = "answer"
    description: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema_text(self) -> str:
        """The schema that an answer is held against, as JSON."""
        return as_text(_ANY_OBJECT if self.schema is None else self.schema)

    def as_json_schema(self) -> dict[str, Any]:
        """What OpenAI's ``json_schema`` holds."""
        told: dict[str, Any] = {"name": self.name, "schema": self.schema}
        if self.description:
            told["description"] = self.description
        return told if self.strict is None else told | {"strict": self.strict}


_ANY_OBJECT = {"type": "object"}


# --- reading it --------------------------------------------------------------------------------------------------


def read(value: Any) -> AnswerFormat | None:
    """What OpenAI's ``response_format`` asks for; None: text. Raises :class:`InvalidFormat`."""
    if not isinstance(value, dict) or value.get("type") not in KINDS:
        raise InvalidFormat(f"It is an object whose type is one of {', '.join(KINDS)}.")
    kind = value["type"]
    _refuse_others(value, {"type", "json_schema"} if kind == JSON_SCHEMA else {"type"}, "")
    if kind == TEXT:
        return None
    if kind == JSON_OBJECT:
        return AnswerFormat()
    told = value.get("json_schema")
    if not isinstance(told, dict):
        raise InvalidFormat("json_schema: an object with a name and a schema is needed.")
    _refuse_others(told, {"name", "description", "schema", "strict"}, "json_schema.")
    name, description, strict = told.get("name"), told.get("description") or "", told.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidFormat("json_schema.name: 1 to 64 letters, digits, _ and - are needed.")
    if not isinstance(description, str) or len(description) > 1024:
        raise InvalidFormat("json_schema.description: a text of at most 1024 characters.")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidFormat("json_schema.strict: true or false.")
    try:
        check_schema(told.get("schema"))
    except InvalidFormat as error:
        raise InvalidFormat(f"json_schema.{error}") from None
    return AnswerFormat(name=name, description=description, schema=told["schema"], strict=strict)


def as_response_format(wanted: AnswerFormat) -> dict[str, Any]:
    """The other way round."""
    if wanted.schema is None:
        return {"type": JSON_OBJECT}
    return {"type": JSON_SCHEMA, "json_schema": wanted.as_json_schema()}


def _refuse_others(value: dict[str, Any], known: set[str], where: str) -> None:
    if others := sorted(set(value) - known):
        raise InvalidFormat(f"{where}{others[0][:64]}: there is no such field.")


def as_text(value: Any) -> str:
    """As it is kept: its keys in their order."""
    return json.dumps(value, ensure_ascii=False)


def read_schema(text: str) -> dict[str, Any]:
    """A schema that a person has written; raises :class:`InvalidFormat`."""
    if len(text) > 2 * MAX_SCHEMA_CHARS:
        raise InvalidFormat(f"schema: it has {len(text)} characters; {MAX_SCHEMA_CHARS} are allowed.")
    try:
        schema = parse_json(text)
    except RecursionError:
        raise InvalidFormat("schema: it is nested too deeply.") from None
    except ValueError as error:
        raise InvalidFormat(f"schema: this is not JSON: {error}.") from None
    check_schema(schema)
    return schema  # type: ignore[no-any-return]  # which has been checked


@lru_cache(maxsize=256)
def stored(of_turn: str, of_agent: str, agent: str) -> AnswerFormat | None:
    """The format of a turn's answer, of what is stored: its own, or the schema of its agent; None: text."""
    if of_turn:
        return read(json.loads(of_turn))
    if not of_agent:
        return None
    schema = read_schema(of_agent)
    return AnswerFormat(name=_as_name(agent), schema=schema, strict=is_strict(schema) or None)


def _as_name(agent: str) -> str:
    return agent if _NAME.fullmatch(agent) else "answer"


# --- checking a schema -------------------------------------------------------------------------------------------

_MAPS = ("properties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
# What no answer needs, and what would take a schema elsewhere.
_REFUSED = (
    *("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"),
    *("patternProperties", "unevaluatedProperties", "unevaluatedItems"),
)
# An endless reference shows with one of these, whatever the schema says of types.
_PROBES: tuple[Any, ...] = (None, True, 0, "", [], {})


def check_schema(schema: Any) -> None:
    """Raise :class:`InvalidFormat` for what is no JSON Schema (2020-12), or not one that answers are held against."""
    if not isinstance(schema, dict):
        raise InvalidFormat("schema: an object is needed, which is a JSON Schema.")
    if _deeper_than(schema, MAX_SCHEMA_DEPTH):
        raise InvalidFormat(f"schema: it is nested deeper than {MAX_SCHEMA_DEPTH} levels.")
    text = as_text(schema)
    if len(text) > MAX_SCHEMA_CHARS:
        raise InvalidFormat(f"schema: it has {len(text)} characters as JSON; {MAX_SCHEMA_CHARS} are allowed.")
    if UNSTORABLE.search(text) or "\\u0000" in text:
        raise InvalidFormat("schema: a text in it holds a null character or half a surrogate pair.")
    _check_text(text)


@lru_cache(maxsize=256)
def _check_text(text: str) -> None:
    schema = json.loads(text)
    errors = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA).iter_errors(schema)
    if error := next(iter(errors), None):
        where = ".".join(["schema", *map(str, error.absolute_path)])
        raise InvalidFormat(f"{where[:200]}: this is not a JSON Schema: {error.message[:200]}.")
    for where, each in subschemas(schema):
        _check_one(where[:200], each, schema)
    for probe in _PROBES:
        if (wrong := _wrong_with(probe, text)) is not None and wrong in (_ENDLESS, _TOO_MANY_STEPS):
            raise InvalidFormat("schema: it refers to itself without end.")


def _check_one(where: str, schema: dict[str, Any], root: dict[str, Any]) -> None:
    for name in _REFUSED:
        if name in schema:
            raise InvalidFormat(f"{where}.{name}: not supported here; leave it out.")
    if (reference := schema.get("$ref")) is not None and not _resolves(reference, root):
        raise InvalidFormat(f"{where}.$ref: it has to point into this schema, such as #/$defs/name.")
    if (pattern := schema.get("pattern")) is not None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise InvalidFormat(f"{where}.pattern: {MAX_PATTERN_CHARS} characters at most.")
        try:
            linear_pattern(pattern)
        except SchemaError:
            raise InvalidFormat(
                f"{where}.pattern: this is no regular expression that is tried in linear time: look-around and"
                " backreferences are not supported, nor very large repetitions."
            ) from None


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema that is one, and all within it, with where each stands."""
    left: list[tuple[str, Any]] = [("schema", schema)]
    while left:
        where, each = left.pop()
        if not isinstance(each, dict):
            continue
        yield where, each
        left += [(f"{where}.{name}", each[name]) for name in _SINGLE if name in each]
        left += [(f"{where}.{name}.{at}", one) for name in _LISTS for at, one in enumerate(each.get(name, ()))]
        left += [(f"{where}.{name}.{key}", one) for name in _MAPS for key, one in each.get(name, {}).items()]


def _resolves(reference: str, root: dict[str, Any]) -> bool:
    """Whether it is a pointer to something in the schema."""
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    place: Any = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(place):
            place = place[int(name[:9])]
        elif isinstance(place, dict) and name in place:
            place = place[name]
        else:
            return False
    return isinstance(place, dict | bool)


def is_closed(schema: dict[str, Any]) -> bool:
    """Whether every object in it names all the properties that it may have."""
    return all(
        each.get("additionalProperties") is False
        for _, each in subschemas(schema)
        if "properties" in each or "object" in _types(each)
    )


def is_strict(schema: dict[str, Any]) -> bool:
    """Whether it is closed, and every property is required: so OpenAI wants those that it keeps to by all means."""
    objects = [each for _, each in subschemas(schema) if "properties" in each]
    requires = all(set(each["properties"]) == set(each.get("required", ())) for each in objects)
    return requires and schema.get("type") == "object" and is_closed(schema)


def _types(schema: dict[str, Any]) -> Sequence[str]:
    types = schema.get("type", ())
    return [types] if isinstance(types, str) else types


def _deeper_than(value: Any, levels: int) -> bool:
    """Walks level by level, so that depth costs no stack."""
    level = [value]
    for _ in range(levels):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for values in inner for each in values]
        if not level:
            return False
    return True


# --- what a model is told ----------------------------------------------------------------------------------------

_FORMAT_WORDS = (
    "Your answer is read by a program. Whenever you answer, and do not call a tool, write one JSON value and nothing"
    " else: no words before or behind it, no code fence."
)


def in_words(wanted: AnswerFormat) -> str:
    """What a model is told whose provider takes no schema."""
    if wanted.schema is None:
        return f"{_FORMAT_WORDS} It is a JSON object."
    about = f" It is: {wanted.description}" if wanted.description else ""
    return f"{_FORMAT_WORDS}{about} It has to be valid by this JSON Schema:\n\n{wanted.schema_text}"


# What a model is told of an answer that does not fit begins so.
WRONG = "Your answer is not in the form that was asked for: "


def asked_again(answer: str, wrong: str) -> list[dict[str, Any]]:
    """What comes behind a prompt whose answer did not fit: that, and what is wrong with it."""
    told = f"{WRONG}{wrong} Answer once more: the whole JSON value, and nothing else."
    said = [{"role": "assistant", "content": answer}] if answer.strip() else []
    return [*said, {"role": "user", "content": told}]


# --- holding an answer against it --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Checked:
    """An answer as it is to be stored, and what is wrong with it, in words; empty: nothing."""

    text: str
    wrong: str = ""


def check(answer: str, wanted: AnswerFormat) -> Checked:
    """Hold an answer against a format. One that stands in a code fence is taken out of it. May take a second."""
    text = unfenced(answer)
    if len(text) > MAX_ANSWER_CHARS:
        return Checked(text=text, wrong=f"It has {len(text)} characters; {MAX_ANSWER_CHARS} are allowed.")
    try:
        value = parse_json(text)
        is_deep = too_deep(value)
    except RecursionError:
        is_deep = True
    except ValueError as error:
        return Checked(text=text, wrong=f"It is no JSON: {str(error)[:200]}.")
    if is_deep:
        return Checked(text=text, wrong="It is nested too deeply.")
    return Checked(text=text, wrong=_wrong_with(value, wanted.schema_text) or "")


def unfenced(answer: str) -> str:
    """An answer without the code fence around it, if that is all that it is; any other as it is."""
    text = answer.strip()
    if len(text) < 6 or not (text.startswith("```") and text.endswith("```")):
        return answer
    language, line_feed, inner = text[3:-3].partition("\n")
    return inner.strip() if line_feed and language.strip().lower() in ("", "json") else answer


class _TooManySteps(Exception):
    """The bound of steps is reached."""


_TOO_MANY_STEPS = "It is too large to be held against its schema."
_ENDLESS = "Its schema has no end."
_left: ContextVar[list[int]] = ContextVar("steps left")


def _spend(steps: int) -> None:
    left = _left.get()
    left[0] -= steps
    if left[0] < 0:
        raise _TooManySteps


def _wrong_with(value: Any, schema_text: str) -> str | None:
    """What is wrong with a value, in words; None: nothing."""
    token = _left.set([MAX_STEPS])
    try:
        errors = list(islice(leaves(_validator(schema_text).iter_errors(value)), _MAX_ERRORS))
    except _TooManySteps:
        return _TOO_MANY_STEPS
    except RecursionError:
        return _ENDLESS
    except OverflowError:  # of multipleOf, which divides
        return "A number in it is too large."
    except Unresolvable:
        return "Its schema refers to what there is not."
    finally:
        _left.reset(token)
    if not errors:
        return None
    told = "; ".join(dict.fromkeys(explained(each, what="property") for each in errors))
    return f"{told[:_MAX_TOLD]}{'…' if len(told) > _MAX_TOLD else ''}."


Keyword = Callable[[Any, Any, Any, Any], Any]


def _counted(keyword: Keyword) -> Keyword:
    """The keyword, its steps counted: each look at a value, by how many parts that and the keyword have; and each
    new error by its value's size, since jsonschema writes that into it."""

    def counted(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        _spend(1 + _parts(value) + _parts(wanted))
        for error in keyword(validator, wanted, value, schema) or ():
            is_passed_on = isinstance(error.validator, str)
            _spend(_STEPS_AN_ERROR + (0 if is_passed_on else _size(value) // 50))
            yield error

    return counted


def _parts(value: Any) -> int:
    return len(value) // 4 if isinstance(value, list | dict) else 0


def _size(value: Any) -> int:
    """Characters, roughly, that a value takes when it is written out."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _size(each) for name, each in value.items())
    return sum(map(_size, value)) if isinstance(value, list) else 8


def _pattern(_validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    if not isinstance(value, str):
        return
    _spend(len(pattern) * len(value) // 1000)
    try:
        linear_pattern(pattern).validate_python(value)
    except (ValidationError, SchemaError):
        yield jsonschema.ValidationError(f"it does not fit the pattern {pattern}")


def _additional(validator: Any, allowed: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Without jsonschema's look at patternProperties, which are refused."""
    if not isinstance(value, dict):
        return
    others = {name: each for name, each in value.items() if name not in schema.get("properties", {})}
    if allowed is False and others:
        yield jsonschema.ValidationError("it has properties that its schema does not name")
    elif isinstance(allowed, dict):
        for name, each in others.items():
            yield from validator.descend(each, allowed, path=name)


_KEYWORDS = jsonschema.Draft202012Validator.VALIDATORS | {
    "pattern": _pattern,
    "additionalProperties": _additional,
    "uniqueItems": unique_items,
}
_Validator = jsonschema.validators.create(
    meta_schema=jsonschema.Draft202012Validator.META_SCHEMA,
    validators={name: _counted(keyword) for name, keyword in _KEYWORDS.items() if name not in _REFUSED},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER,
)


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    # With a registry of its own, jsonschema fetches nothing.
    return _Validator(json.loads(schema_text), registry=Registry())
