"""Secrets are taken out of whatever is about to leave the process as text.

One filter serves logs, audit rows, tool results, problems and tracebacks: :func:`redact`. It knows secrets by value
(this host's own, and those its tools declare) and by shape. What people and models write to each other is theirs, an
example of a password among it; :func:`redact_known` takes only the values out of that.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from nanohost.lib.text import UNSTORABLE

MASK = "[redacted]"

# Where a word begins: also behind a line feed that JSON writes as \n, and behind %22 in a URL.
_BEGINS = r"""(?:
        (?<![A-Za-z0-9]) | (?<=\\[abfnrtv0]) | (?<=\\u[0-9A-Fa-f]{4}) | (?<=\\x[0-9A-Fa-f]{2}) | (?<=%[0-9A-Fa-f]{2})
    )"""

# The shapes of secrets: of whom they let in. Each is matched without nested repetition: a long line costs time in
# proportion to its length.
_SHAPES = re.compile(
    rf"(?x) {_BEGINS}"
    r"""
      # A word that tells by its beginning what it is: this host's keys, providers', code hosts', clouds', payment's.
      (?:
          nh_[A-Za-z0-9]{4,}_[A-Za-z0-9_-]{8,}
        | (?:sk|rk|pk|gsk|csk|xai|nvapi|pplx|r8|hf|tgp_v1|whsec|lin_api|dop_v1|shpat|npm|pypi)[-_][A-Za-z0-9_-]{16,}
        | sk-[A-Za-z0-9_-]{8,}
        | AIza[A-Za-z0-9_-]{30,}
        | ya29\.[A-Za-z0-9_-]{16,}
        | gh[pousr]_[A-Za-z0-9]{20,}
        | github_pat_[A-Za-z0-9_]{20,}
        | glpat-[A-Za-z0-9_-]{16,}
        | xox[a-z]-[A-Za-z0-9-]{10,}
        | xapp-[A-Za-z0-9-]{10,}
        | (?:AKIA|ASIA)[A-Z0-9]{16}
        | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
      )
    | -----BEGIN\ [A-Z0-9\ ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----
        (?:(?!-----END\ )[\s\S])*
        (?:-----END\ [A-Z0-9\ ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----)?
    | (?i:(?<=bearer\s)\s{0,3}[A-Za-z0-9._~+/=-]{8,})
    | (?i:(?<=basic\ )[A-Za-z0-9+/]{8,}={0,2}(?![A-Za-z0-9+/=\ -]))
      # Everything between a URL's scheme and its host, if there is a password in it.
    | (?:(?<=://)|(?<=:\\/\\/))[^/\s:@"'<>]*:[^/\s"'<>]+(?=@)
    """
)

_HEADERS = "(?: (?:set-)?cookie | (?:proxy-)?authorization )"
_FIELDS = r"""(?:
        x-api-key | x-auth-token | x-goog-api-key | api[-_]?key | client[-_]?secret | secret[-_]?(?:access[-_]?)?key
      | (?:access|refresh|id|auth|session|api|private|security|vault)[-_]?token | private[-_]?key
      | password | passwd | pwd
    )"""
# A header or a field that carries a secret, whatever it looks like: in HTTP, JSON, Python's repr and query strings.
_NAMED = re.compile(
    rf"""(?xi)
    (?:(?P<listed>(?<=[(\[]["']) | (?<=[(\[]b["']) | (?<=[(\[]\\["'])) | {_BEGINS} | (?=passw))
    (?P<name>
        (?:(?P<header>{_HEADERS}) | {_FIELDS})
        (?:
            \\{{0,3}}["']? \s{{0,3}} (?:[:=]|%3[ad]) (?:\s|%20){{0,3}} (?:b(?=["']))?
          | (?(listed) (?P<pair>\\?["'],\ ?b?(?=\\?["'])) | (?!))
        )
    )
    """
    r"""
    (?:
        (?P<quote>\\{1,3}["']) (?:(?!(?P=quote))[^\r\n])+   # in quotes that are escaped, to the next such quote
      | " (?:\\.|[^"\\\r\n])+ | ' (?:\\.|[^'\\\r\n])+    # in quotes
      | (?P<scheme>(?:bearer|basic|digest|token)[\ \t]{1,3})?+ (?!\[redacted\])
        (?(header)
            (?:[a-z][a-z0-9-]{2,30}:?[\ \t]{1,3})?+   # another scheme
            (?=[^\s"']\S{3}) PART (?: (?:;\ ?|,(?=[^\s"',;=]+=)|,\ (?=[^\s"',;=]+=)) PART )*
          | [^\s"',;&<>}\])\\]{4,} (?:;\ ?[^\s"';<>}\])\\]+)*
        )
    )
    (?(pair) (?=\\?["']\s?[)\]]))   # of two things in a list, no more
    """.replace("PART", r"""[^\s"',;<>}\])\\]+ (?:(?<==)(?:"[^"\r\n]*" | '[^'\r\n]*'))?""")
)

_NAME = re.compile(rf"(?xi) (?:.*[^a-z0-9])? (?:{_HEADERS} | {_FIELDS}) | .*passw(?:or)?d")

# What each match has in it, in small letters, and where the match begins from there, at the earliest and at the latest.
_NAMED_AT = {
    **dict.fromkeys(("cookie", "authorization", "api-key", "api_key", "apikey", "token", "secret"), (-9, 0)),
    **dict.fromkeys(("private", "passw", "pwd"), (0, 0)),
}
_SHAPES_AT = {
    **dict.fromkeys(
        (
            *("nh_", "sk-", "sk_", "rk-", "rk_", "pk-", "pk_", "gsk-", "gsk_", "xai-", "xai_", "pplx-", "pplx_"),
            *("r8-", "r8_", "hf-", "hf_", "npm-", "npm_", "pypi-", "pypi_", "csk-", "csk_", "nvapi", "whsec"),
            *("lin_api", "dop_v1", "tgp_v1", "shpat", "aiza"),
            *("ya29.", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "xapp-", "akia"),
            *("asia", "eyj", "-----begin "),
        ),
        (0, 0),
    ),
    **{before: (len(before), len(before)) for before in ("basic ", "://", ":\\/\\/")},
    "bearer": (7, 7),
}

_MARKS = tuple(_NAMED_AT | _SHAPES_AT)

# Settings whose values are secrets whatever they look like.
_SECRET_SETTINGS = ("OPENAI_API_KEY", "SECRET_KEY", "METRICS_TOKEN", "NANOHOST_ADMIN_PASSWORD", "NANOHOST_API_KEY")

# Secrets that no variable of those holds: read from files, or declared by tools.
_remembered: set[str] = set()

# A shorter value would be found in the midst of words.
_SHORTEST = 6


def remember(secret: str) -> None:
    """Have :func:`redact` take this value out from now on."""
    _remembered.add(secret)


def redact(text: str) -> str:
    """The text with every known secret, and everything shaped or named like one, replaced by ``[redacted]``."""
    text = redact_known(text)
    text = _replaced(text, _NAMED, _NAMED_AT, _masked)
    return _replaced(text, _SHAPES, _SHAPES_AT, lambda found: MASK)


def is_plain(text: str) -> bool:
    """Whether the text surely holds nothing to be taken out. What a field is called, beside it, may say otherwise."""
    lower = text.lower()
    return (
        len(lower) == len(text)
        and not any(map(lower.__contains__, _MARKS))
        and not any(map(text.__contains__, _known_spellings()))
    )


def _replaced(
    text: str,
    pattern: "re.Pattern[str]",
    marks: Mapping[str, tuple[int, int]],
    replace: Callable[["re.Match[str]"], str],
) -> str:
    """``pattern.sub``, but fast: each match has one of a few words in it, and is looked for around these only."""
    lower = text.lower()
    if len(lower) != len(text):  # a letter that has no small one of its length
        return pattern.sub(replace, text)
    present = [mark for mark in marks if mark in lower]
    if not present:
        return text
    places = sorted((at + marks[mark][0], at + marks[mark][1]) for mark in present for at in _places(lower, mark))
    parts: list[str] = []
    done = 0
    for first, last in places:
        for begin in range(max(first, done), last + 1):
            if found := pattern.match(text, begin):
                parts += text[done:begin], replace(found)
                done = found.end()
                break
    return "".join([*parts, text[done:]]) if parts else text


def _places(text: str, mark: str) -> Iterator[int]:
    at = text.find(mark)
    while at >= 0:
        yield at
        at = text.find(mark, at + 1)


def redact_known(text: str) -> str:
    """The text with every known secret replaced by ``[redacted]``."""
    for spelling in _known_spellings():
        text = text.replace(spelling, MASK)
    return text


class RedactedPieces:
    """:func:`redact_known` for a text that arrives in pieces. What may be the beginning of a secret is held back until
    the next piece tells."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, piece: str) -> str:
        """Take a piece; returns what can be shown by now."""
        text = redact_known(self._held + piece)
        shown = min((_where_begun(spelling, text) for spelling in _known_spellings()), default=len(text))
        self._held = text[shown:]
        return text[:shown]

    def end(self) -> str:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        return held


def _where_begun(secret: str, text: str) -> int:
    """Where at the text's end a part of the secret begins; the text's length if none does."""
    at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while at >= 0 and not secret.startswith(text[at:]):
        at = text.find(secret[0], at + 1)
    return at if at >= 0 else len(text)


def _known_spellings() -> list[str]:
    return _all_spellings(frozenset(_remembered.union(map(os.environ.get, _SECRET_SETTINGS))))


@lru_cache(maxsize=16)
def _all_spellings(secrets: frozenset[str | None]) -> list[str]:
    """In whatever way they are spelt, the longest first: none is left in part because it has another within it."""
    known = {secret.strip() for secret in secrets if secret}
    return [
        spelling
        for value in sorted(known, key=len, reverse=True)
        if len(value) >= _SHORTEST
        for spelling in _spellings(value)
    ]


def redact_json(text: str) -> str:
    """:func:`redact` for a text of JSON, which it stays; as it was if there is nothing to take out. Of keys that stand
    twice in an object, the last is left: what another says would be seen by nobody here, and still be written down."""
    is_whole = True

    def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_whole
        found = dict(pairs)
        is_whole = is_whole and len(found) == len(pairs)
        return found

    try:
        value = json.loads(text, object_pairs_hook=as_dict)
        redacted = _each_redacted(value)
    except (ValueError, RecursionError):
        return redact(text)
    if redacted == value and is_whole:
        return text
    told = json.dumps(redacted, ensure_ascii=False)
    # Half a surrogate pair stays the escape it was: no database stores it otherwise.
    return json.dumps(redacted) if UNSTORABLE.search(told) else told


def names_a_secret(name: object) -> bool:
    """Whether a field of that name carries a secret, whatever it looks like."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name))


def _each_redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str) and value[1] and _NAME.fullmatch(value[0]):
            return [redact(value[0]), MASK]  # a header, as lists of them have it
        return [_each_redacted(inner) for inner in value]
    if isinstance(value, dict):
        return {
            redact(name): MASK if inner and _NAME.fullmatch(name) else _each_redacted(inner)
            for name, inner in value.items()
        }
    return value


def _masked(found: "re.Match[str]") -> str:
    value = found[0].removeprefix(found["name"])
    quote = found["quote"] or (value[0] if value[0] in "\"'" else "")
    return f"{found['name']}{quote}{found['scheme'] or ''}{MASK}"


def _spellings(value: str) -> set[str]:
    """A secret with a quote or an umlaut in it is spelt otherwise in JSON, in Python's ``repr`` and in URLs."""
    in_python = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    return {value, *in_python, quote(value), quote(value, safe=""), quote_plus(value)}
