"""A model's arguments, held against the tool's schema: read, cast where models are known to slip, refused otherwise.

Models write ``"5"`` where an integer is asked for, and an object as a text of JSON. Those slips have one reading, and
are mended: a text becomes the integer, number, boolean, object or array that its schema asks for, where the schema
takes no text. Nothing else is: no number becomes a text, nothing is rounded, nothing is left out, no default made up.
"""

import difflib
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn

import jsonschema
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from nanohost.lib.redaction import MASK, names_a_secret, redact_head, redact_json_head

# Deeper than any tool's arguments, shallower than any recursion limit on their way to the tool.
MAX_DEPTH = 64

# So many errors are told of at once; a model mends them one by one otherwise, a round each.
_MAX_ERRORS = 5

# Steps of casting, after which the rest is left as it is: a schema of alternatives in alternatives multiplies them.
_MAX_STEPS = 10_000

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


class InvalidArguments(Exception):
    """Arguments that are not what the tool's schema says; the text tells a model what to change."""


def read_arguments(schema: dict[str, Any], raw: str) -> dict[str, Any]:
    """The arguments as the tool takes them; raises :class:`InvalidArguments`.

    ``schema``: JSON Schema (2020-12) of an object. ``raw``: JSON as the model wrote it; an empty text is ``{}``.
    """
    try:
        arguments = parse_json(raw or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"The arguments are not valid JSON: {error}.") from None
    schema_text = json.dumps(schema)
    try:
        if not too_deep(arguments):
            arguments = _Casting(schema_text).cast(schema, arguments)
        if too_deep(arguments):
            raise InvalidArguments(f"The arguments are nested deeper than {MAX_DEPTH} levels.")
        errors = list(islice(leaves(_validator(schema_text).iter_errors(arguments)), _MAX_ERRORS))
    except OverflowError:  # of multipleOf, which divides
        raise InvalidArguments("The arguments do not fit the tool's schema: a number is too large.") from None
    except RecursionError:  # of a schema that refers to itself
        raise InvalidArguments("The arguments do not fit the tool's schema: they are nested too deep.") from None
    if wrong := dict.fromkeys(explained(error) for error in errors):
        raise InvalidArguments(f"The arguments do not fit the tool's schema: {'; '.join(wrong)}.")
    return arguments  # type: ignore[no-any-return]  # the schema is an object's


def parse_json(text: str) -> Any:
    """JSON as a model writes it, by the letter of it; raises :class:`ValueError` and :class:`RecursionError`."""
    return json.loads(text, parse_constant=_no_constants, parse_float=_finite, object_pairs_hook=_each_once)


def _no_constants(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{_clipped(text, 40)} is too large a number")
    return number


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; which of two values for a key is meant, nobody can tell, and one must not be left out."""
    read: dict[str, Any] = {}
    for name, value in pairs:
        if name in read:
            raise ValueError(f"{redact_head(_json(name), 100)} stands twice in an object")
        read[name] = value
    return read


def too_deep(arguments: Any) -> bool:
    """Whether it is nested deeper than MAX_DEPTH. Walks level by level, so that depth costs no stack."""
    level = [arguments]
    for _ in range(MAX_DEPTH):
        below = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [value for values in below for value in values]
        if not level:
            return False
    return True


def unique_items(_validator: Any, wanted: bool, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    """``uniqueItems`` in time that grows with the number of items: jsonschema compares those that it cannot sort each
    with each other, which a model's 5,000 objects take a minute for."""
    if wanted and isinstance(value, list) and len({_identity(each) for each in value}) < len(value):
        yield jsonschema.ValidationError("an item occurs in it twice")


def _identity(value: Any) -> Any:
    """The same for what JSON Schema takes for equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return dict, frozenset((name, _identity(each)) for name, each in value.items())
    if isinstance(value, list):
        return list, tuple(map(_identity, value))
    return type(value) is bool, value


@lru_cache(maxsize=512)
def linear_pattern(pattern: str) -> SchemaValidator:
    """By an engine that is linear in the text; raises :class:`SchemaError` for what that can't do."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _pattern(_validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    """What the engine can't do is left to the tool's own process, which is killed at its deadline."""
    if not isinstance(value, str):
        return
    try:
        linear_pattern(pattern).validate_python(value)
    except SchemaError:
        return
    except ValidationError:
        yield jsonschema.ValidationError(f"it does not fit the pattern {pattern}")


_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"uniqueItems": unique_items, "pattern": _pattern}
)


@lru_cache(maxsize=512)
def _validator(schema_text: str) -> Any:
    return _Validator(json.loads(schema_text))


class _Casting:
    """Casts one call's arguments; counts its steps."""

    def __init__(self, schema_text: str) -> None:
        self._root = _validator(schema_text)
        self._definitions: dict[str, Any] = json.loads(schema_text).get("$defs", {})
        self._steps = 0

    def cast(self, schema: Any, value: Any) -> Any:
        """The value as the schema asks for it, or as it is."""
        self._steps += 1
        if not isinstance(schema, dict) or self._steps > _MAX_STEPS:
            return value
        schema = self._resolved(schema)
        if alternatives := schema.get("anyOf") or schema.get("oneOf"):
            return self._cast_to_one_of(alternatives, value)
        if isinstance(value, str) and "type" in schema:
            value = _text_as(_types(schema), value)
        if isinstance(value, dict):
            known, others = schema.get("properties", {}), schema.get("additionalProperties")
            return {name: self.cast(known.get(name, others), each) for name, each in value.items()}
        if isinstance(value, list):
            first = schema.get("prefixItems", [])
            return [
                self.cast(first[index] if index < len(first) else schema.get("items"), each)
                for index, each in enumerate(value)
            ]
        return value

    def _cast_to_one_of(self, alternatives: list[Any], value: Any) -> Any:
        """The value as it is if an alternative takes it; else as the first alternative that takes it when cast."""
        if any(self._fits(alternative, value) for alternative in alternatives):
            return value
        for alternative in alternatives:
            if self._fits(alternative, cast := self.cast(alternative, value)):
                return cast
        return value

    def _fits(self, schema: Any, value: Any) -> bool:
        self._steps += 1
        return self._steps <= _MAX_STEPS and bool(self._root.evolve(schema=schema).is_valid(value))

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        resolved: dict[str, Any] = self._definitions.get(name, schema)
        return resolved


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema["type"]
    return [types] if isinstance(types, str) else types


def _text_as(types: list[str], text: str) -> Any:
    """The one reading of a text as a value of these types, or the text."""
    if "string" in types:
        return text
    if "integer" in types and _INTEGER.fullmatch(text):
        return int(text)
    if "boolean" in types and text in ("true", "false"):
        return text == "true"
    try:
        value: Any = parse_json(text)
    except (ValueError, RecursionError):
        return text
    kind = type(value)
    fits = (
        ("number" in types and kind in (int, float) and text.strip() == text)
        or ("object" in types and kind is dict)
        or ("array" in types and kind is list)
    )
    return value if fits and not too_deep(value) else text


# --- what a model is told ----------------------------------------------------------------------------------------


def leaves(errors: Iterable[Any]) -> Iterator[Any]:
    """Where alternatives refuse a value, and it has the type of only one of them: what that one says."""
    for error in errors:
        meant = defaultdict(list)
        for each in error.context or ():
            meant[each.relative_schema_path[0]].append(each)
        of_its_type = [
            said for said in meant.values() if not any(e.validator == "type" and not e.relative_path for e in said)
        ]
        yield from leaves(of_its_type[0]) if len(of_its_type) == 1 else (error,)


def explained(error: Any, *, what: str = "argument") -> str:
    """What is wrong, in words. Without secrets: what a model is told is stored, and shown to people. ``what``: the
    properties of an object are."""
    path = ".".join(str(part) for part in error.absolute_path)
    where = f"{redact_head(path, 300)}: " if path else ""
    got = MASK if any(map(names_a_secret, error.absolute_path)) else _shown(error.instance)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        unknown = [name for name in error.instance if name not in known][:_MAX_ERRORS]
        return "; ".join(f"{where}{_unknown(name, known, what)}" for name in unknown)
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"{where}missing: {', '.join(missing)}"
    if error.validator == "type":
        return f"{where}expected {' or '.join(_types(error.schema))}, got {got}"
    if error.validator in ("anyOf", "oneOf"):
        return f"{where}expected {' or '.join(map(_kind, error.validator_value))}, got {got}"
    if error.validator in ("enum", "const"):
        values = error.validator_value if error.validator == "enum" else [error.validator_value]
        return f"{where}expected one of {_clipped(_json(values))}, got {got}"
    if got == MASK:
        return f"{where}it does not fit {error.validator}"
    return f"{where}{redact_head(error.message, 300)}"


def _unknown(name: str, known: list[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown {what} {_shown(name)}{hint}; there are: {_clipped(', '.join(known)) or 'none'}"


def _kind(schema: Any) -> str:
    return " or ".join(_types(schema)) if isinstance(schema, dict) and "type" in schema else "a value of its schema"


def _shown(value: Any) -> str:
    kind = {dict: "object", list: "array", str: "string", bool: "boolean"}.get(type(value), "number")
    return "null" if value is None else f"{redact_json_head(_json(value), 100)} ({kind})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _clipped(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
