"""Messages and tools that stay as they are, so that what is made of one is made once: its JSON, its tokens."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Fixed(dict[str, Any]):
    """A message, or a tool, in the OpenAI chat format. Nobody changes it, nor anything in it: whoever wants another one
    makes one (``fixed | {...}``), which is a plain ``dict``."""

    __slots__ = ("_kept", "json", "tokens")

    _kept: dict[object, Any]
    # Once somebody has asked for them: what every prompt asks of each of its messages.
    json: str
    tokens: int

    def kept(self, key: object, make: Callable[["Fixed"], T]) -> T:
        """What ``make`` makes of it, which is the same each time; kept under a key."""
        try:
            kept = self._kept
        except AttributeError:
            kept = self._kept = {}
        if key not in kept:
            kept[key] = make(self)
        found: T = kept[key]
        return found


def as_json(each: Iterable[Mapping[str, Any]]) -> str:
    """What ``json.dumps(list(each), ensure_ascii=False)`` makes of messages, or of tools."""
    return f"[{', '.join(map(_as_json, each))}]"


def _as_json(value: Any) -> str:
    try:
        return str(value.json)
    except AttributeError:
        made = _encode(value)
    if isinstance(value, Fixed):
        value.json = made
    return made


_encode = json.JSONEncoder(ensure_ascii=False).encode
