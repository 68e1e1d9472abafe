"""What a tool is given and what it says, as its function has them and as the gate has: the same wherever it runs."""

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nanohost.lib.redaction import redact

# Characters at each end of a result that secrets are looked for in, many times what is kept of it.
_MAX_REDACTED = 1 << 20


@functools.cache  # making it takes 0.3 ms; a whole call, 0.1
def binder(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Makes JSON's values what the signature says (a date, a dataclass); raises ValueError for those that cannot be.

    The gate has held them against the schema; but a schema says less than a type. Apart from the call, so that a
    validation error of the tool's own is not taken for one of its arguments.
    """
    from pydantic import validate_call

    @validate_call
    @functools.wraps(function)
    def bind(**arguments: Any) -> dict[str, Any]:
        return arguments

    return bind


def as_text(result: Any) -> str:
    """A tool's result as text. It has run, so whatever it returned is told somehow, and is no failure."""
    if isinstance(result, str):
        return result
    for write in (functools.partial(json.dumps, ensure_ascii=False, default=str), repr):
        try:
            return write(result)
        except MemoryError:
            raise
        except Exception:  # noqa: S112 -- the tool's own __str__ or __repr__, which may raise anything
            continue
    return f"[a {type(result).__name__} that cannot be written]"


def described(error: BaseException) -> str:
    """An error as text, whatever its own makes of it."""
    name, text = type(error).__name__, ""
    with suppress(Exception):
        text = str(error)
    return f"{name}: {text}" if text else name


def cap(text: str, limit: int) -> str:
    """The text without secrets, of which half could be left at a cut: its head and its tail, ``limit`` bytes of UTF-8
    together, with a note of what was cut."""
    whole = len(text)
    if len(text) > 2 * _MAX_REDACTED:  # most of a flood is cut anyway, and is not worth the seconds
        text = text[:_MAX_REDACTED] + text[-_MAX_REDACTED:]
    raw = redact(text).encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    tail, size = limit // 4, max(whole, len(raw))
    cut = f"\n[cut: {limit} of {size} bytes are kept, the head and the tail]\n"
    return raw[: limit - tail].decode("utf-8", "ignore") + cut + raw[len(raw) - tail :].decode("utf-8", "ignore")
