"""Reading values out of a body. Whatever is no such value is refused, with its name."""

from collections.abc import Collection, Mapping
from typing import Any

from conversations.openai_api.errors import InvalidValue

MAX_PAIRS, MAX_NAME, MAX_VALUE = 16, 64, 512
MAX_WHOLE = 2**31


def or_else(value: Any, without: Any) -> Any:
    """The value, or what stands for none: null is as good as nothing."""
    return without if value is None else value


def as_object(value: Any, param: str | None) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise InvalidValue(f"{param or 'The body'} has to be an object.", param=param)
    return value


def as_list(value: Any, param: str, *, least: int = 0, most: int) -> list[Any]:
    """A JSON array of so many."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise InvalidValue(f"{param} has to be an array of {least} to {most} entries.", param=param)
    return value


def as_text(value: Any, param: str, *, least: int = 0, most: int | None = None) -> str:
    """A JSON string of so many characters."""
    if not isinstance(value, str) or len(value) < least or (most is not None and len(value) > most):
        bounds = f" of {least} to {most} characters" if most else " that is not empty" if least else ""
        raise InvalidValue(f"{param} has to be a string{bounds}.", param=param)
    return value


def as_flag(value: Any, param: str) -> bool:
    """A JSON boolean."""
    if not isinstance(value, bool):
        raise InvalidValue(f"{param} has to be true or false.", param=param)
    return value


def as_whole(value: Any, param: str, *, least: int, most: int = MAX_WHOLE) -> int:
    """A whole number."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidValue(f"{param} has to be a whole number from {least} to {most}.", param=param)
    return value


def as_number(value: Any, param: str, *, least: float, most: float) -> float:
    """A number."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise InvalidValue(f"{param} has to be a number from {least:g} to {most:g}.", param=param)
    return float(value)


def as_one_of(value: Any, param: str, choices: Collection[str]) -> str:
    """One of some strings."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidValue(f"{param} has to be one of {', '.join(choices)}.", param=param)
    return value


def metadata_of(body: Mapping[str, Any]) -> dict[str, str]:
    """What a client keeps with a request: 16 pairs of texts at most."""
    given = body.get("metadata")
    if given is None:
        return {}
    pairs = as_object(given, "metadata")
    if len(pairs) > MAX_PAIRS:
        raise InvalidValue(f"metadata may have {MAX_PAIRS} pairs.", param="metadata")
    for name, value in pairs.items():
        as_text(value, f"metadata.{name[:MAX_NAME]}", most=MAX_VALUE)
        if not 0 < len(name) <= MAX_NAME:
            raise InvalidValue(f"A name in metadata has 1 to {MAX_NAME} characters.", param="metadata")
    return pairs
