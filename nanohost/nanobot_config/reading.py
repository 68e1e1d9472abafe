"""A config.json as values, or refused: a file is anybody's, and nothing of it is believed."""

import json
import math
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanohost.lib.text import UNSTORABLE
from nanohost.nanobot_config.errors import Refused

# nanobot's own have some 10 KB and 250 keys.
MAX_BYTES = 1 << 20
MAX_VALUES = 5_000
MAX_DEPTH = 32
MAX_KEY_CHARS = 200

# What all systems' JSON can hold without changing it.
MAX_INTEGER = 2**53

Path_ = tuple[str, ...]


class _NoJson:
    """Stands for a value that Python takes and JSON does not have."""

    def __init__(self, what: str) -> None:
        self.what = what


class _Doubled(dict[str, Any]):
    """An object in which a key stands twice."""

    key = ""


def read_document(file: Path) -> dict[str, Any]:
    """What the file says. Raises :class:`Refused`, which names the line, or the key, at which it is broken."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Refused(str(file), "it is no file")
        with file.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise Refused(str(file), f"it cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise Refused(str(file), f"it is larger than {MAX_BYTES} bytes, and a config.json is not")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Refused(f"{file}:{line}", "it is not UTF-8") from None
    return parse(text, str(file))


def parse(text: str, name: str) -> dict[str, Any]:
    """The object that a text of JSON is."""
    try:
        found = json.loads(
            text, object_pairs_hook=_object, parse_constant=_NoJson, parse_int=_integer, parse_float=_number
        )
    except json.JSONDecodeError as error:
        raise Refused(f"{name}:{error.lineno}:{error.colno}", f"it is broken: {error.msg}") from None
    except RecursionError:
        raise Refused(name, "it is nested too deeply") from None
    if not isinstance(found, dict):
        raise Refused(name, "an object in braces is needed")
    check(found)
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    doubled, seen = _Doubled(found), set()
    for key, _ in pairs:
        if key in seen:
            doubled.key = key
        seen.add(key)
    return doubled


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) <= 17 and abs(int(digits)) <= MAX_INTEGER else _NoJson("so large a number")


def _number(digits: str) -> Any:
    value = float(digits)
    return value + 0.0 if math.isfinite(value) else _NoJson("so large a number")


def check(document: dict[str, Any]) -> None:
    """See that every value can be stored; Refused names the first that cannot."""
    for count, (path, value) in enumerate(_walked(document), 1):
        where = as_text(path)
        if count > MAX_VALUES:
            raise Refused("", f"there are more than {MAX_VALUES} values, and a config.json has some hundred")
        if len(path) > MAX_DEPTH:
            raise Refused(where, f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(value, _NoJson):
            raise Refused(where, f"{value.what} is not taken")
        if isinstance(value, _Doubled):
            raise Refused(as_text((*path, value.key)), "the key is there twice")
        for text in (path[-1] if path else "", value if isinstance(value, str) else ""):
            if UNSTORABLE.search(text):
                raise Refused(where, "it has a character that no database stores (NUL, or half of a pair)")
        if path and len(path[-1]) > MAX_KEY_CHARS:
            raise Refused(where, f"a key of more than {MAX_KEY_CHARS} characters is not taken")


def _walked(document: dict[str, Any]) -> Iterator[tuple[Path_, Any]]:
    """Every value with its path; without recursion, and no deeper than is refused."""
    open_ones: list[tuple[Path_, Any]] = [((), document)]
    while open_ones:
        path, value = open_ones.pop()
        yield path, value
        if isinstance(value, dict):
            open_ones += [((*path, key), each) for key, each in value.items()]
        elif isinstance(value, list):
            open_ones += [((*path, str(index)), each) for index, each in enumerate(value)]


def as_text(path: Path_) -> str:
    """A path as people write it; what a terminal would act on is escaped."""
    return ".".join(
        part[:80]
        if part.isidentifier() or (part.isascii() and part.replace("-", "").isalnum())
        else json.dumps(part[:80])
        for part in path
    )
