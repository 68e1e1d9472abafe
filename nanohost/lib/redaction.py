"""Secrets are taken out of whatever is about to leave the process as text.

One filter serves logs, audit rows, tool results, problems and tracebacks: :func:`redact`. It knows secrets by value
(this host's own, and those its tools declare), by shape and by the name they stand under. What people and models write
to each other is theirs, an example of a password among it; :func:`redact_known` takes only the values out of that.

Texts come from anybody, so the time is in proportion to their length, whatever they are: an expression that fails has
looked at a bounded part of the text, or at a part that it does not look at again
(``tests/unit/lib/test_patterns.py`` holds it).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nanohost.lib import secret_shapes as shapes
from nanohost.lib.known_secrets import KnownSecrets
from nanohost.lib.text import UNSTORABLE

MASK = "[redacted]"

# Known secrets are taken out of so many characters within 3 ms, which an event loop may do at once: more are given to a
# thread. (Of all that redaction does, the worst text takes 0.6 s a million characters.)
LARGE = 64 * 1024

# A secret that begins before the end of what is kept of a text is seen if it ends so many characters later.
_BEHIND = 2048

_Found = re.Match[str]

# What people read of a tag.
_READ_ATTRIBUTES = tuple(f' {name}="' for name in ("title", "alt", "aria-label"))

known_secrets = KnownSecrets()


def remember(name: str, secret: str) -> None:
    """Have :func:`redact` take this value out from now on. Of one name, the latest values are known."""
    known_secrets.add(name, secret)


def remember_file(name: str, path: Path) -> None:
    """Have :func:`redact` take out what the file holds, also when that changes; a file that is not there may come."""
    known_secrets.add_file(name, path)


def redact(text: str) -> str:
    """The text with every known secret, and everything shaped or named like one, replaced by ``[redacted]``."""
    text = redact_known(text)
    lower = _lowered(text)
    if any(map(lower.__contains__, shapes.NAMED_AT)):
        text = _without_named(text, lower)
    for mark in filter(text.__contains__, shapes.WORDS):
        text = shapes.word(mark).sub(_unless_passed_over, text)
    for mark in filter(lower.__contains__, shapes.OTHERS):
        text = shapes.other(mark).sub(rf"\g<kept>{MASK}", text)
    return text


def redact_head(text: str, limit: int) -> str:
    """``limit`` characters of the text without secrets, at most, at a price that the rest of it does not raise."""
    behind = max(_BEHIND, known_secrets.spellings().longest)
    head = redact(text[: limit + behind])
    if len(text) > limit + behind:
        # Masks are shorter than secrets: what was cut at the end may have come within the limit.
        head = head[: max(len(head) - behind, head.rfind(MASK) + len(MASK))]
    return head if len(text) <= limit and len(head) <= limit else f"{head[: limit - 1]}…"


def redact_json_head(text: str, limit: int) -> str:
    """:func:`redact_head` of a text of JSON, which is read as such unless it is long."""
    short = redact_json(text) if len(text) <= limit + _BEHIND else text
    return redact_head(short, limit)


def is_plain(text: str) -> bool:
    """Whether the text surely holds nothing to be taken out. What a field is called, beside it, may say otherwise."""
    lower = _lowered(text)
    return not (
        any(map(lower.__contains__, shapes.NAMED_AT))
        or any(map(text.__contains__, shapes.WORDS))
        or any(map(lower.__contains__, shapes.OTHERS))
        or known_secrets.spellings().are_in(text)
    )


def _lowered(text: str) -> str:
    """In small letters, each in its place: there is one letter whose small one are two characters."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.replace("İ", "i").lower()


def _unless_passed_over(found: _Found) -> str:
    return found[0] if found.lastgroup == "none" else MASK


def _without_named(text: str, lower: str) -> str:
    """``shapes.NAMED.sub``, but fast: each match has one of a few words in it, and is looked for around these only."""
    parts: list[str] = []
    done = 0
    for begin in sorted(likely_places(lower)):
        if begin < done or not (found := shapes.NAMED.match(text, begin)):
            continue
        if not found["pair"] or _is_in_pairs(text, begin):
            parts += text[done:begin], _with_name(found)
            done = found.end()
    return "".join([*parts, text[done:]]) if parts else text


def likely_places(lower: str) -> Iterator[int]:
    """Where matches of ``shapes.NAMED`` may begin."""
    for mark, before in shapes.NAMED_AT.items():
        is_name, leads = "" in before, tuple(filter(None, before))
        at = lower.find(mark)
        while at >= 0:
            if (is_name or lower.endswith(leads, 0, at)) and shapes.GOES_ON.match(lower, at + len(mark)):
                if is_name:
                    yield at
                if lower.endswith(leads, 0, at):
                    yield from (at - len(lead) for lead in leads if lower.endswith(lead, 0, at))
            at = lower.find(mark, at + 1)


def _is_in_pairs(text: str, begin: int) -> bool:
    return shapes.OF_PAIRS.search(text, max(0, begin - _MAX_BEFORE_A_PAIR), begin) is not None


_MAX_BEFORE_A_PAIR = 32


def _with_name(found: _Found) -> str:
    value = found[0].removeprefix(found["name"])
    opens = found["quote"] or found["lines"] or (value[0] if value[0] in "\"'" else "")
    return f"{found['name']}{opens}{found['scheme'] or ''}{MASK}"


def redact_known(text: str) -> str:
    """The text with every known secret replaced by ``[redacted]``."""
    spans = known_secrets.spellings().spans(text)
    return _without(text, spans) if spans else text


def redact_known_html(page: str) -> str:
    """A page whose texts, and attributes that people read, have every known secret replaced. Other parts of its tags
    stay: a password that is an ordinary word would break them."""
    spans: list[tuple[int, int]] = []
    done, tag = 0, -1
    for begin, end in known_secrets.spellings().spans(page):
        opened, closed = page.rfind("<", done, begin), page.rfind(">", done, begin)
        if opened != closed:
            tag = opened if opened > closed else -1
        done = begin
        if tag < 0 or page[tag : page.rfind('"', tag, begin) + 1].endswith(_READ_ATTRIBUTES):
            spans.append((begin, end))
    return _without(page, spans) if spans else page


async def redact_known_aside(text: str) -> str:
    """:func:`redact_known` for an event loop, which others wait for: a large text is read in a thread."""
    if len(text) <= LARGE:
        return redact_known(text)
    import asyncio  # processes of tools, which have no loop, do without

    return await asyncio.to_thread(redact_known, text)


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
        return self._shown(text, known_secrets.spellings().begun(text))

    def end(self) -> str:
        """What was held back, when nothing follows."""
        return self._shown(self._held, len(self._held))

    def _shown(self, text: str, until: int) -> str:
        """What stands before ``until``, without secrets; the rest is held."""
        parts: list[str] = []
        done = self._told
        for begin, end in known_secrets.spellings().spans(text):
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
    return isinstance(name, str) and bool(_is_name(name) or shapes.MAYBE_NAME.fullmatch(name[-shapes.LONGEST_NAME :]))


def _is_name(name: str) -> _Found | None:
    return shapes.NAME.fullmatch(name[-shapes.LONGEST_NAME :])


def _is_secret(name: str, value: Any) -> bool:
    """Whether a field's name tells that its value is a secret, or lets it be and it looks like one."""
    if not value or isinstance(value, bool):
        return False
    if found := _is_name(name):
        if isinstance(value, str):
            return not (shapes.NO_VALUE.match(value) or (found["pwd"] and shapes.FOLDER.match(value)))
        return not (isinstance(value, dict) and _is_schema(value))
    if not isinstance(value, str) or not (found := shapes.MAYBE_NAME.fullmatch(name[-shapes.LONGEST_NAME :])):
        return False
    return bool(shapes.TOKEN.match(value) if found["token"] else shapes.SECRET.match(value))


# Of JSON Schema, what says of a value what it has to be, and holds none.
_OF_SCHEMAS = {
    *("type", "title", "description", "format", "pattern", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "$ref"),
    *("properties", "required", "additionalProperties", "items", "nullable", "writeOnly", "readOnly", "deprecated"),
}


def _is_schema(value: dict[str, Any]) -> bool:
    """Whether an object says what a field takes. With a default or an example, it could tell a secret."""
    return {name for name, inner in value.items() if inner} <= _OF_SCHEMAS and not value.keys().isdisjoint(_KINDS)


_KINDS = {"type", "anyOf", "oneOf", "allOf", "$ref"}


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
        is_of_pairs = all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in value)
        return [
            [changed.get(each[0], each[0]), MASK]  # a header, as lists of them have it
            if is_of_pairs and _is_name(each[0]) and _is_secret(*each)
            else _each_redacted(each, changed)
            for each in value
        ]
    if isinstance(value, dict):
        return {
            changed.get(name, name): MASK if _is_secret(name, inner) else _each_redacted(inner, changed)
            for name, inner in value.items()
        }
    return value
