"""What a server says of a tool, held against what a gate can work with. Pure.

A name, a description and a schema are foreign text that goes into every prompt. What is too large, or cannot be checked
in bounded time, is no tool here; the reason is told to the administrator.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_NAME = 64
MAX_TOOLS = 200
MAX_DESCRIPTION = 8_000
MAX_SCHEMA_BYTES = 64 * 1024
MAX_DEPTH = 32

# Keywords of JSON Schema by what stands in them: a schema, schemas in a list, schemas by name.
_SCHEMA = {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
_SCHEMA |= {"unevaluatedItems", "unevaluatedProperties"}
_LIST = {"anyOf", "oneOf", "allOf", "prefixItems"}
_NAMED = {"properties", "$defs", "definitions", "dependentSchemas"}
# Those that look at the same value again; each may double the work.
_IN_PLACE = {"not", "if", "then", "else", "anyOf", "oneOf", "allOf", "dependentSchemas"}
_MAX_WORK = 1_000

_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
_NUMBER = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_NUMBER |= {f"{least}{what}" for least in ("min", "max") for what in ("Length", "Items", "Properties", "Contains")}


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any) -> bool:
    return all(isinstance(each, str) and each in _TYPES for each in (value if isinstance(value, list) else [value]))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


# What a validator takes in each keyword. Holding a schema against the schema of schemas says the same, and takes
# seconds for one that is large.
_FITS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_SCHEMA, _is_schema),
    **dict.fromkeys(_LIST, lambda value: isinstance(value, list) and all(map(_is_schema, value))),
    **dict.fromkeys(_NAMED, lambda value: isinstance(value, dict) and all(map(_is_schema, value.values()))),
    **dict.fromkeys(_NUMBER, _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "type": _is_type,
    "required": _is_texts,
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_is_texts, value.values())),
    "enum": lambda value: isinstance(value, list),
    "uniqueItems": lambda value: isinstance(value, bool),
}

_LOCAL = re.compile(r"#/(\$defs|definitions)/([^/~%]{1,200})")
_UNFIT = {"patternProperties", "$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor", "$vocabulary"}


class Unfit(ValueError):
    """A server's tool cannot be one here; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A tool as its server describes it. ``reads``: the server's hint that it changes nothing."""

    name: str
    description: str
    schema: dict[str, Any]
    reads: bool = False

    @property
    def hash(self) -> str:
        """Of all that a model is told of it: what has been seen is told from what has not by this."""
        return hash_of(self.name, self.description, self.schema)


def hash_of(name: str, description: str, schema: Any) -> str:
    """SHA-256, hexadecimal, of a name, a description and a schema."""
    said = json.dumps([name, description, schema], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(said.encode()).hexdigest()


def checked(definition: Definition) -> Definition:
    """The definition; raises :class:`Unfit` if it cannot be a tool here."""
    if not definition.name or len(definition.name) > 200 or not definition.name.isprintable():
        raise Unfit("its name is empty, too long, or not printable")
    if len(definition.description) > MAX_DESCRIPTION or "\0" in definition.description:
        raise Unfit(f"its description is longer than {MAX_DESCRIPTION} characters")
    if _too_deep(definition.schema):
        raise Unfit(f"its schema is nested deeper than {MAX_DEPTH} levels")
    try:
        told = json.dumps(definition.schema, allow_nan=False)
    except ValueError:
        raise Unfit("its schema has numbers that cannot be stored") from None
    if len(told) > MAX_SCHEMA_BYTES:
        raise Unfit(f"its schema is larger than {MAX_SCHEMA_BYTES} bytes")
    if definition.schema.get("type") != "object":
        raise Unfit("its schema is not that of an object")
    if "\\u0000" in told:
        raise Unfit("its schema has characters that cannot be stored")
    schema = usable(definition.schema)
    for part in _parts(schema):
        _check_keywords(part)
    _bounded_work(schema)
    return definition


def _check_keywords(part: dict[str, Any]) -> None:
    """Raise :class:`Unfit` for what a validator would fail at in the middle of a call."""
    for keyword, value in part.items():
        if keyword in _FITS and not _FITS[keyword](value):
            raise Unfit(f"its schema is not valid JSON Schema (2020-12): it has something else in {keyword}")


def usable(schema: Any) -> Any:
    """A schema without what is not taken from a server: its regular expressions, which may take a gate for ever; raises
    :class:`Unfit` for what would mean something else without it, and for what refers to anything outside."""
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _UNFIT:
            raise Unfit(f"its schema uses {keyword}")
        if keyword == "$ref" and not (isinstance(value, str) and _LOCAL.fullmatch(value)):
            raise Unfit("its schema refers to something outside of itself")
        if keyword in ("pattern", "$schema", "format"):
            continue
        if keyword in _SCHEMA:
            made[keyword] = usable(value)
        elif keyword in _LIST and isinstance(value, list):
            made[keyword] = [usable(each) for each in value]
        elif keyword in _NAMED and isinstance(value, dict):
            made[keyword] = {name: usable(each) for name, each in value.items()}
        else:
            made[keyword] = value
    return made


def full_name(server: str, tool: str) -> str:
    """The name that a model knows it by: ``mcp_<server>_<tool>``, within what OpenAI's API takes. A name that had to be
    changed for it ends with a part of its hash, so that it is nobody else's."""
    fit = re.sub(r"[^A-Za-z0-9_-]", "_", tool)
    whole = f"mcp_{server}_{fit}"
    if fit == tool and len(whole) <= MAX_NAME:
        return whole
    return f"{whole[: MAX_NAME - 9]}_{hashlib.sha256(tool.encode()).hexdigest()[:8]}"


def _too_deep(schema: Any) -> bool:
    level = [schema]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for each in level
            if isinstance(each, dict | list)
            for below in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _bounded_work(schema: dict[str, Any]) -> None:
    """See that no value is looked at without end, or too often, by a schema whose parts refer to each other."""
    known: dict[int, int] = {}
    open_: set[int] = set()

    def work(part: Any) -> int:
        if not isinstance(part, dict):
            return 1
        if id(part) in known:
            return known[id(part)]
        if id(part) in open_:
            raise Unfit("its schema refers to itself without end")
        open_.add(id(part))
        total = 1 + sum(map(work, _in_place(schema, part)))
        open_.discard(id(part))
        if total > _MAX_WORK:
            raise Unfit("its schema has too many alternatives")
        known[id(part)] = total
        return total

    for part in _parts(schema):
        work(part)


def _in_place(root: dict[str, Any], part: dict[str, Any]) -> Iterator[Any]:
    if "$ref" in part and (found := _LOCAL.fullmatch(part["$ref"])):
        definitions = root.get(found[1])
        if not isinstance(definitions, dict) or found[2] not in definitions:
            raise Unfit("its schema refers to what is not in it")
        yield definitions[found[2]]
    for keyword in _IN_PLACE & part.keys():
        value = part[keyword]
        yield from value if isinstance(value, list) else value.values() if keyword in _NAMED else [value]


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas within one, no deeper than MAX_DEPTH; each is to be valid by the time that the next is asked for."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in _SCHEMA:
            yield from _parts(value)
        elif keyword in _LIST:
            for each in value:
                yield from _parts(each)
        elif keyword in _NAMED:
            for each in value.values():
                yield from _parts(each)
