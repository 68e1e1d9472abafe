"""Typed readers of environment variables; what makes no sense is refused in one line."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from django.core.exceptions import ImproperlyConfigured

from nanohost.lib.redaction import redact

T = TypeVar("T")


def _read(name: str, default: T, parse: Callable[[str], T], expected: str) -> T:
    raw = os.environ.get(name, "").strip()
    if not raw:
        return default
    try:
        raw.encode()  # what is not UTF-8 arrives as lone surrogates
        return parse(raw)
    except UnicodeEncodeError:
        raise ImproperlyConfigured(f"{name} makes no sense: expected UTF-8.") from None
    except ValueError:
        raise ImproperlyConfigured(redact(f"{name}={raw!r} makes no sense: expected {expected}.")) from None


def string(name: str, default: str = "") -> str:
    return _read(name, default, str, "text")


def secret(name: str) -> str:
    """A key that travels in a header: an error does not show it."""
    value = string(name)
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ImproperlyConfigured(f"{name} makes no sense: expected printable ASCII without blanks.")
    return value


def integer(name: str, default: int, *, minimum: int = 1, maximum: int = 2**31) -> int:
    def parse(raw: str) -> int:
        if not minimum <= (value := int(raw)) <= maximum:
            raise ValueError
        return value

    return _read(name, default, parse, f"a whole number from {minimum} to {maximum}")


def seconds(name: str, default: float) -> float:
    def parse(raw: str) -> float:
        value = float(raw)
        if not 0 < value < 10**7:  # also refuses nan and inf
            raise ValueError
        return value

    return _read(name, default, parse, "a number of seconds above 0")


def boolean(name: str, default: bool) -> bool:
    def parse(raw: str) -> bool:
        words = {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }
        if raw.lower() not in words:
            raise ValueError
        return words[raw.lower()]

    return _read(name, default, parse, "true or false")


def words(name: str, default: Sequence[str] = ()) -> list[str]:
    """A comma-separated list; blanks around its words are dropped."""
    return _read(name, list(default), lambda raw: [word.strip() for word in raw.split(",") if word.strip()], "a list")


def choice(name: str, default: str, choices: Sequence[str]) -> str:
    def parse(raw: str) -> str:
        if raw not in choices:
            raise ValueError
        return raw

    return _read(name, default, parse, f"one of {', '.join(choices)}")


def path(name: str, default: Path) -> Path:
    """An absolute path; ``~`` is the home directory."""

    def parse(raw: str) -> Path:
        try:
            return Path(raw).expanduser().resolve()
        except RuntimeError:  # no such home, or a symlink that leads to itself
            raise ValueError from None

    return _read(name, default, parse, "a path")


def address(name: str, default: str = "") -> str:
    def parse(raw: str) -> str:
        parts = urlsplit(raw)
        # Reading the port raises ValueError for one that is none.
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
        return raw

    return _read(name, default, parse, "an address that starts with http:// or https://")


def time_zone(name: str, default: str) -> str:
    def parse(raw: str) -> str:
        try:
            return ZoneInfo(raw).key
        except (KeyError, OSError):  # a folder of zones is an OSError
            raise ValueError from None

    return _read(name, default, parse, "the name of a timezone, such as Europe/Berlin")
