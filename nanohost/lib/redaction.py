"""Secrets are taken out of whatever is about to leave the process as text.

One filter serves logs, audit rows, tool results, problems and tracebacks: :func:`redact`. It knows secrets by value
(this host's own, and those its tools declare), by shape and by the name they stand under. What people and models write
to each other is theirs, an example of a password among it; :func:`redact_known` takes only the values out of that.

Texts come from anybody, so the time is in proportion to their length, whatever they are: an expression that fails has
looked at a bounded part of the text, or at a part that it does not look at again (``tests/test_patterns.py`` holds it).
"""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nanohost.lib.known_secrets import KnownSecrets
from nanohost.lib.text import UNSTORABLE

MASK = "[redacted]"

# Known secrets are taken out of so many characters within 2 ms, which an event loop may do at once: more are given to a
# thread. (Of all that redaction does, the worst text takes 0.5 s a million characters.)
LARGE = 64 * 1024

# A secret that begins before the end of what is kept of a text is seen if it ends so many characters later.
_BEHIND = 2048

_Found = re.Match[str]

# Where a word begins: also behind a line feed that JSON writes as \n, and behind %22 in a URL.
_BEHIND_WHAT = (
    r"(?<![A-Za-z0-9])",
    r"(?<=\\[abfnrtv0])",
    r"(?<=\\u[0-9A-Fa-f]{4})",
    r"(?<=\\x[0-9A-Fa-f]{2})",
    r"(?<=%[0-9A-Fa-f]{2})",
)
_BEGINS = f"(?:{'|'.join(_BEHIND_WHAT)})"

_JWT = "eyJ"

# A word that tells by its beginning what it is, and what follows then: this host's keys, providers', code hosts',
# clouds', payment's.
_WORDS = {
    "nh_": r"[A-Za-z0-9]{4,}+_[A-Za-z0-9_-]{8,}+",
    "sk-": r"[A-Za-z0-9_-]{8,}+",
    **dict.fromkeys(
        (
            *("sk_", "rk_", "pk_", "gsk_", "csk-", "xai-", "nvapi-", "pplx-", "r8_", "hf_", "tgp_v1_", "whsec_"),
            *("lin_api_", "dop_v1_", "shpat_", "npm_", "pypi-", "glpat-", "ya29.", "GOCSPX-"),
        ),
        r"[A-Za-z0-9_-]{16,}+",
    ),
    "AIza": r"[A-Za-z0-9_-]{30,}+",
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{20,}+"),
    "github_pat_": r"[A-Za-z0-9_]{20,}+",
    "xox": r"[a-z]-[A-Za-z0-9-]{10,}+",
    "xapp-": r"[A-Za-z0-9-]{10,}+",
    **dict.fromkeys(("AKIA", "ASIA"), r"[A-Z0-9]{16}"),
    "SG.": r"[A-Za-z0-9_-]{16,64}+\.[A-Za-z0-9_-]{16,}+",
    # What holds no secret is passed over as a whole: of all the words in it that begin so, none would hold one.
    _JWT: r"(?:[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+|(?P<none>[A-Za-z0-9_-]*+))",
}

# What has another beginning than a word: by what stands in each of its matches, in small letters where they do not
# matter. ``kept``: what of it is no secret.
_KEY_BLOCK = r"[A-Z0-9\ ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----"
_OTHERS = {
    "-----begin ": rf"(?P<kept>)-----BEGIN\ {_KEY_BLOCK} [^-]*+ (?:-(?!----END\ )[^-]*+)*+ (?:-----END\ {_KEY_BLOCK})?",
    "bearer": r"(?P<kept>(?i:bearer)\s) \s{0,3}+ [A-Za-z0-9._~+/=-]{8,}+",
    "basic ": r"(?P<kept>(?i:basic)\ ) [A-Za-z0-9+/]{8,}+ ={0,2}+ (?![A-Za-z0-9+/=\ -])",
    # Everything between a URL's scheme and its host, if there is a password in it.
    "://": r"""(?P<kept>://) [^/\s:@"'<>]*+ : [^/\s"'<>]+ (?=@)""",
    ":\\/\\/": r"""(?P<kept>:\\/\\/) [^/\s:@"'<>]*+ : [^/\s"'<>]+ (?=@)""",
    # The signature of a URL that lets in whoever has it, as Azure makes them.
    "sig=": rf"(?P<kept>{_BEGINS}(?i:sig)=) [A-Za-z0-9%+/=_-]{{16,}}+",
    "sig%3d": rf"(?P<kept>{_BEGINS}(?i:sig%3d)) [A-Za-z0-9%+/=_-]{{16,}}+",
}

_HEADERS = "(?: (?:set-)?cookie | (?:proxy-)?authorization )"
_FIELDS = r"""(?:
        x-api-key | x-auth-token | x-goog-api-key | api[-_]?key | client[-_]?secret | secret[-_]?(?:access[-_]?)?key
      | (?:access|refresh|id|auth|session|api|private|security|vault)[-_]?token | private[-_]?key
      | password | passwd | passphrase | pwd
    )"""

# Tokens that say where a list goes on, or that are counted: no secrets.
_NOT_SECRET = "".join(
    f"(?<!{word})(?<!{word}[-_])"
    for word in (
        *("page", "next", "prev", "previous", "continuation", "sync", "pagination", "resume", "cursor", "delta"),
        *("max", "min", "per", "eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "start", "end", "first"),
    )
)
# Fields that may carry a secret: what they hold has the last word. Also as the last part of a name, githubToken.
_MAYBE_TOKEN = rf"{_NOT_SECRET} token"
_MAYBE_SECRET = r"""(?: secret | (?<=[-_])pass | pass(?= \\{0,3}["'] | =) | (?-i:(?<=[a-z0-9])Pass) )"""  # noqa: S105
_IN_CAMELS = r"(?-i: (?<=[a-z0-9]) (?=Token|Secret|Pass|ApiKey) )"
# GITHUB_TOKEN=, DB_PASS=: in an environment, whatever follows.
_OF_ENVIRONMENT = rf"(?-i: (?<=_) (?: (?i:{_NOT_SECRET}) TOKEN | SECRET | PASS ) ) (?==)"

_NO_VALUE = r"""(?! (?:true|false|null|none|undefined)(?![a-z0-9]) | [$<{%*\[] )"""
# What looks like a token: with a digit and no number; or long.
_LIKELY = rf"""
    {_NO_VALUE} (?! [-+.0-9]{{1,16}}+ (?![^\s"',;&<>}}\])\\]) )
    (?: (?=[^\s"',;&<>}}\])\\]{{6}}) [^\s"',;&<>}}\])\\0-9]{{0,64}}+ [0-9] | [A-Za-z0-9_~+/=%-]{{14}} )
"""
# The same for a secret, of which anything in quotes will do.
_LIKELY_QUOTED = rf"""{_NO_VALUE} [^"'\r\n]{{4}}"""

# A header or a field that carries a secret, whatever it looks like: in HTTP, JSON, Python's repr and query strings.
_NAMED = re.compile(
    rf"""(?xi)
    (?: (?P<listed>(?<=[(\[]["']) | (?<=[(\[]b["']) | (?<=[(\[]\\["'])) | {_BEGINS} | (?=passw) | {_IN_CAMELS} )
    (?P<name>
        (?:
            (?P<header>{_HEADERS}) | {_FIELDS}
          | (?P<variable>{_OF_ENVIRONMENT}) | (?P<token>{_MAYBE_TOKEN}) | (?P<secret>{_MAYBE_SECRET})
        )
        (?:
            \\{{0,3}}["']? \s{{0,3}} (?:[:=]|%3[ad]) (?:\s|%20){{0,3}} (?:b(?=["']))?
          | (?(listed) (?P<pair>\\?["'],\ ?b?(?=\\?["'])) | (?!))
        )
    )
    (?(token) (?=\\{{0,3}}["']? {_LIKELY}) )
    (?(secret) (?=\\{{0,3}}["'] {_LIKELY_QUOTED} | {_LIKELY}) )
    (?(variable) (?=["']? {_NO_VALUE} [^\s"']{{4}}) )
    """
    r"""
    (?:
        (?P<quote>\\{1,3}["']) (?:(?!(?P=quote))[^\r\n])++   # in quotes that are escaped, to the next such quote
      | " (?=[^"\\\r\n]|\\.) [^"\\\r\n]*+ (?:\\.[^"\\\r\n]*+)*+   # in quotes
      | ' (?=[^'\\\r\n]|\\.) [^'\\\r\n]*+ (?:\\.[^'\\\r\n]*+)*+
      | (?P<scheme>(?:bearer|basic|digest|token)[\ \t]{1,3})?+ (?!\[redacted\])
        (?(header)
            (?:[a-z][a-z0-9-]{2,30}:?[\ \t]{1,3})?+   # another scheme
            (?=[^\s"']\S{3}) PART (?: (?: ; | ,(?=\ ?[^\s"',;=]{1,64}=) ) \ ?PART )*+
          | [^\s"',;&<>}\])\\]{4,}+ (?: ;\ ?[^\s"';<>}\])\\]++ )*+
        )
    )
    (?(pair) (?=\\?["']\s?[)\]]))   # of two things in a list, no more
    """.replace("PART", r"""[^\s"',;<>}\])\\]++ (?:(?<==)(?:"[^"\r\n]*+" | '[^'\r\n]*+'))?+""")
)

# What each match of it has in it, in small letters.
_NAMED_AT = ("cookie", "authorization", "api-key", "api_key", "apikey", "token", "secret", "private", "pass", "pwd")
# What a name may have before that, and how much.
_LED_BY = tuple(
    f"{lead}{joint}"
    for lead in (
        *("set", "proxy", "x", "x-goog", "client", "access", "refresh", "id", "auth", "session", "api"),
        *("security", "vault"),
    )
    for joint in ("", "-", "_")
)
_MOST_BEFORE = max(map(len, _LED_BY))
# What follows on each of these words in a match: the rest of the name, and what parts it from its value.
_GOES_ON = re.compile(r"""(?i)[a-z_-]{0,20}+(?:\\{0,3}+["']?+(?:\s{0,3}+(?:[:=]|%3[ad])|,))""")

# The end of a name decides.
_LONGEST_NAME = 64
_NAME = re.compile(rf"(?xi) (?: .*[^a-z0-9] | .*{_IN_CAMELS} )? (?:{_HEADERS} | {_FIELDS}) | .*passw(?:or)?d")
_MAYBE_NAME = re.compile(
    rf"(?xi) .*? (?: {_BEGINS} | {_IN_CAMELS} ) (?: (?P<token>{_MAYBE_TOKEN}) | secret | pass )", re.DOTALL
)
_TOKEN = re.compile(rf"(?xi) {_LIKELY}")
_SECRET = re.compile(rf"(?xi) {_LIKELY_QUOTED}")

# What people read of a tag.
_READ_ATTRIBUTES = tuple(f' {name}="' for name in ("title", "alt", "aria-label"))

_known = KnownSecrets()


def remember(name: str, secret: str) -> None:
    """Have :func:`redact` take this value out from now on. Of one name, the latest values are known."""
    _known.add(name, secret)


def remember_file(name: str, path: Path) -> None:
    """Have :func:`redact` take out what the file holds, also when that changes; a file that is not there may come."""
    _known.add_file(name, path)


def redact(text: str) -> str:
    """The text with every known secret, and everything shaped or named like one, replaced by ``[redacted]``."""
    text = redact_known(text)
    lower = _lowered(text)
    if any(map(lower.__contains__, _NAMED_AT)):
        text = _without_named(text, lower)
    for mark in filter(text.__contains__, _WORDS):
        text = _word(mark).sub(_unless_passed_over if mark == _JWT else MASK, text)
    for mark in filter(lower.__contains__, _OTHERS):
        text = _other(mark).sub(rf"\g<kept>{MASK}", text)
    return text


def redact_head(text: str, limit: int) -> str:
    """``limit`` characters of the text without secrets, at most, at a price that the rest of it does not raise."""
    head = redact(text[: limit + max(_BEHIND, _known.spellings().longest)])
    return head if len(text) <= limit and len(head) <= limit else f"{head[: limit - 1]}…"


def is_plain(text: str) -> bool:
    """Whether the text surely holds nothing to be taken out. What a field is called, beside it, may say otherwise."""
    lower = _lowered(text)
    return not (
        any(map(lower.__contains__, _NAMED_AT))
        or any(map(text.__contains__, _WORDS))
        or any(map(lower.__contains__, _OTHERS))
        or _known.spellings().are_in(text)
    )


def _lowered(text: str) -> str:
    """In small letters, each in its place: there is one letter whose small one are two characters."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.replace("İ", "i").lower()


@cache
def _word(begin: str) -> "re.Pattern[str]":
    """Begins with the word, not with what it stands behind: that is how texts are searched fast."""
    word = re.escape(begin)
    behind = "|".join(f"(?<={what}{word})" for what in _BEHIND_WHAT)
    return re.compile(f"{word}(?:{behind}){_WORDS[begin]}")


@cache
def _other(mark: str) -> "re.Pattern[str]":
    return re.compile(f"(?x){_OTHERS[mark]}")


def _unless_passed_over(found: _Found) -> str:
    return MASK if found["none"] is None else found[0]


def _without_named(text: str, lower: str) -> str:
    """``_NAMED.sub``, but fast: each match has one of a few words in it, and is looked for around these only."""
    parts: list[str] = []
    done = 0
    for first, last in sorted(_places(lower)):
        for begin in range(max(first, done), last + 1):
            if found := _NAMED.match(text, begin):
                parts += text[done:begin], _with_name(found)
                done = found.end()
                break
    return "".join([*parts, text[done:]]) if parts else text


def _places(lower: str) -> Iterator[tuple[int, int]]:
    """Where matches of ``_NAMED`` may begin, from the first to the last place."""
    for mark in _NAMED_AT:
        at = lower.find(mark)
        while at >= 0:
            if _GOES_ON.match(lower, at + len(mark)):
                yield (at - _MOST_BEFORE if lower.endswith(_LED_BY, 0, at) else at), at
            at = lower.find(mark, at + 1)


def _with_name(found: _Found) -> str:
    value = found[0].removeprefix(found["name"])
    quote = found["quote"] or (value[0] if value[0] in "\"'" else "")
    return f"{found['name']}{quote}{found['scheme'] or ''}{MASK}"


def redact_known(text: str) -> str:
    """The text with every known secret replaced by ``[redacted]``."""
    spans = _known.spellings().spans(text)
    return _without(text, spans) if spans else text


def redact_known_html(page: str) -> str:
    """A page whose texts, and attributes that people read, have every known secret replaced. Other parts of its tags
    stay: a password that is an ordinary word would break them."""
    spans: list[tuple[int, int]] = []
    done, tag = 0, -1
    for begin, end in _known.spellings().spans(page):
        opened, closed = page.rfind("<", done, begin), page.rfind(">", done, begin)
        if opened != closed:
            tag = opened if opened > closed else -1
        done = begin
        if tag < 0 or page[tag : page.rfind('"', tag, begin) + 1].endswith(_READ_ATTRIBUTES):
            spans.append((begin, end))
    return _without(page, spans) if spans else page


async def redact_known_aside(text: str) -> str:
    """:func:`redact_known` for an event loop, which others wait for: a large text is read in a thread."""
    return redact_known(text) if len(text) <= LARGE else await asyncio.to_thread(redact_known, text)


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for begin, end in spans:
        parts += text[done:begin], MASK
        done = end
    return "".join([*parts, text[done:]])


class RedactedPieces:
    """:func:`redact_known` for a text that arrives in pieces. What may be the beginning of a secret is held back until
    the next piece tells."""

    def __init__(self) -> None:
        self._held = ""
        # So much of what is held is within a secret that was told of as one.
        self._told = 0

    def add(self, piece: str) -> str:
        """Take a piece; returns what can be shown by now."""
        text = self._held + piece
        return self._shown(text, _known.spellings().begun(text))

    def end(self) -> str:
        """What was held back, when nothing follows."""
        return self._shown(self._held, len(self._held))

    def _shown(self, text: str, until: int) -> str:
        """What stands before ``until``, without secrets; the rest is held."""
        parts: list[str] = []
        done = self._told
        for begin, end in _known.spellings().spans(text):
            if begin >= until:
                break
            if begin >= done:
                parts += text[done:begin], MASK
            done = max(done, end)
        parts.append(text[done:until])
        self._held, self._told = text[until:], max(0, done - until)
        return "".join(parts)


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
        redacted = _each_redacted(value, _changes(_texts_of(value)))
    except (ValueError, RecursionError):
        return redact(text)
    if redacted == value and is_whole:
        return text
    told = json.dumps(redacted, ensure_ascii=False)
    # Half a surrogate pair stays the escape it was: no database stores it otherwise.
    return json.dumps(redacted) if UNSTORABLE.search(told) else told


def names_a_secret(name: object) -> bool:
    """Whether a field of that name carries a secret, or may: what it holds is not looked at."""
    return isinstance(name, str) and bool(_is_name(name) or _MAYBE_NAME.fullmatch(name[-_LONGEST_NAME:]))


def _is_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name[-_LONGEST_NAME:]))


def _is_secret(name: str, value: Any) -> bool:
    """Whether a field's name tells that its value is a secret, or lets it be and it looks like one."""
    if not value or _is_name(name):
        return bool(value)
    if not isinstance(value, str) or not (found := _MAYBE_NAME.fullmatch(name[-_LONGEST_NAME:])):
        return False
    return bool(_TOKEN.match(value) if found["token"] else _SECRET.match(value))


def _texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_of(inner)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts_of(inner)


def _changes(texts: Iterable[str]) -> Mapping[str, str]:
    """What becomes of those texts that are not left as they are. Most are, and many are looked at together: that takes
    a tenth of the time."""
    changed: dict[str, str] = {}
    some: list[str] = []
    size = 0
    for text in (*dict.fromkeys(texts), None):
        if text is not None:
            some.append(text)
            size += len(text)
        if some and (text is None or size > _LOOKED_AT_TOGETHER or len(some) == _LOOKED_AT_TOGETHER // 8):
            whole = "\n".join(some)
            if redact(whole) != whole:
                changed |= {each: redacted for each in some if (redacted := redact(each)) != each}
            some, size = [], 0
    return changed


_LOOKED_AT_TOGETHER = 1024


def _each_redacted(value: Any, changed: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return changed.get(value, value)
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str) and value[1] and _is_name(value[0]):
            return [changed.get(value[0], value[0]), MASK]  # a header, as lists of them have it
        return [_each_redacted(inner, changed) for inner in value]
    if isinstance(value, dict):
        return {
            changed.get(name, name): MASK if _is_secret(name, inner) else _each_redacted(inner, changed)
            for name, inner in value.items()
        }
    return value
