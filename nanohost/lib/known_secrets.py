"""The secrets a process knows by value, however they are spelt, found in time in proportion to a text's length.

Short ones are looked for one by one. Of the others, pieces are: each has within its first characters a piece that
stands in the text at a place which is a multiple of the piece's length. So a text is looked at once for every eighth or
sixteenth character, however many secrets there are, and only where a piece is met are those compared that have it.
"""

import base64
import html
import json
import re
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from urllib.parse import quote, quote_plus

# A shorter value would be found in the midst of words.
SHORTEST = 6

# Lengths of pieces. A spelling of twice the length has a whole piece in it wherever it begins.
_PIECES = (16, 8)

# So many characters tell of most places that no secret begins there.
_HEAD = 4

# So many values of one name are known, the latest: a file's may change every hour for years.
_KEPT = 8

# Files of secrets are looked at again after so many seconds: others write a new secret into them while we run.
LOOK_SECONDS = 5.0

Span = tuple[int, int]


class KnownSecrets:
    """Values by name, and where they stand in a text. Safe to use from any thread."""

    def __init__(self) -> None:
        self._values: dict[str, deque[str]] = {}
        self._files: dict[str, tuple[Path, object]] = {}
        self._look_at = 0.0
        self._lock = threading.Lock()
        self._spellings: Spellings | None = None

    def add(self, name: str, value: str) -> None:
        """Know a value of that name, besides those of before."""
        if len(value := value.strip()) < SHORTEST:
            return
        with self._lock:
            values = self._values.setdefault(name, deque(maxlen=_KEPT))
            if value in values:
                return
            if len(values) == _KEPT:  # the oldest is forgotten, in all its spellings
                self._spellings = None
            values.append(value)
            if self._spellings:
                self._spellings.add([value])

    def add_file(self, name: str, path: Path) -> None:
        """Know what a file holds, now and when that changes. One that cannot be read may be there later."""
        with self._lock:
            if name not in self._files or self._files[name][0] != path:
                self._files[name] = path, None
        self._look()

    def spellings(self) -> "Spellings":
        """All values as they may be spelt."""
        if self._files and time.monotonic() >= self._look_at:
            self._look()
        if known := self._spellings:
            return known
        with self._lock:
            if self._spellings is None:
                self._spellings = Spellings(value for values in self._values.values() for value in values)
            return self._spellings

    def _look(self) -> None:
        self._look_at = time.monotonic() + LOOK_SECONDS
        for name, (path, seen) in list(self._files.items()):
            try:
                status = path.stat()
                state = status.st_mtime_ns, status.st_size, status.st_ino
                if state != seen:
                    self.add(name, path.read_text())
                    self._files[name] = path, state
            except (OSError, ValueError):
                continue


class Spellings:
    """Every way in which some secrets are spelt. Any thread may look while one adds."""

    def __init__(self, values: Iterable[str]) -> None:
        self.longest = 0
        # By their first characters, in order, so that those that begin with a text stand behind it.
        self._by_head: dict[str, list[str]] = {}
        self._heads: set[str] = set()
        self._one_by_one: list[str] = []
        self._pieces: dict[int, dict[str, tuple[str, ...]]] = {}
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Know these, too: in time by how many they are, not by how many are known."""
        spelt = {each for value in values for each in spellings(value)}
        new = sorted(each for each in spelt if each not in self._by_head.get(each[:_HEAD], ()))
        self.longest = max(self.longest, *map(len, new), 0)
        self._heads.update(spelling[:length] for spelling in new for length in range(1, _HEAD + 1))
        for head, those in groupby(new, key=lambda spelling: spelling[:_HEAD]):
            self._by_head[head] = sorted([*self._by_head.get(head, ()), *those])
        for spelling in new:
            self._find_by_its_pieces(spelling)
        self._one_by_one += [spelling for spelling in new if not _size_of_pieces(spelling)]

    def _find_by_its_pieces(self, spelling: str) -> None:
        size = _size_of_pieces(spelling)
        for piece in {spelling[offset : offset + size] for offset in range(size)}:
            those = self._pieces.setdefault(size, {})
            those[piece] = (*those.get(piece, ()), spelling)

    def are_in(self, text: str) -> bool:
        """Whether any stands in the text."""
        return any(map(text.__contains__, self._one_by_one)) or next(self._found_by_pieces(text), None) is not None

    def spans(self, text: str) -> list[Span]:
        """Where they stand, in order. Those that overlap are one."""
        spans: list[Span] = []
        for begin, end in sorted((*self._found_one_by_one(text), *self._found_by_pieces(text))):
            if spans and begin < spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            else:
                spans.append((begin, end))
        return spans

    def begun(self, text: str) -> int:
        """Where at the text's end a part of one begins; the text's length if none does."""
        for at in range(max(0, len(text) - self.longest + 1), len(text)):
            if text[at : at + _HEAD] not in self._heads:
                continue
            rest = text[at:]
            those = self._by_head.get(rest[:_HEAD], ())
            index = bisect_left(those, rest)
            if len(rest) < _HEAD or (index < len(those) and those[index].startswith(rest)):
                return at
        return len(text)

    def _found_one_by_one(self, text: str) -> Iterator[Span]:
        for spelling in filter(text.__contains__, self._one_by_one):
            at = text.find(spelling)
            while at >= 0:
                yield at, at + len(spelling)
                at = text.find(spelling, at + 1)

    def _found_by_pieces(self, text: str) -> Iterator[Span]:
        for size, pieces in tuple(self._pieces.items()):
            for at in range(0, len(text), size):
                if (piece := text[at : at + size]) not in pieces:
                    continue
                for spelling in pieces[piece]:
                    offset = spelling.find(piece)
                    while 0 <= offset < size:
                        if at >= offset and text.startswith(spelling, at - offset):
                            yield at - offset, at - offset + len(spelling)
                        offset = spelling.find(piece, offset + 1)


def _size_of_pieces(spelling: str) -> int:
    """Of which length its pieces are; 0: it is too short for any."""
    return next((size for size in _PIECES if len(spelling) >= 2 * size), 0)


def spellings(value: str) -> set[str]:
    """A secret as it stands in JSON, in Python's ``repr``, in URLs, in HTML and XML, in hexadecimal digits, and in
    base64 at any place of what else was encoded, also in lines; and in some of these within one another. Most are
    the same for a secret of plain letters, and there are fewer than 400 however long it is."""
    raw = value.encode("utf-8", "surrogatepass")
    spelt = {
        value,
        repr(raw)[2:-1],
        raw.hex(),
        raw.hex().upper(),
        *_in_texts(value),
        *_in_html(value),
        *_in_urls(raw),
    }
    for before in range(3):
        whole = _in_base64(raw, before)
        spelt |= {whole, whole.replace("+", "-").replace("/", "_")}
    return spelt | set(_in_lines_of_base64(raw))


def _in_texts(value: str) -> set[str]:
    """Between quotation marks: as Python writes it, PHP (a slash), Go and Ruby, Django's templates (signs of HTML),
    Gson (more signs), .NET (others, and large digits) and Django's escapejs (most signs); and within another such
    text."""
    letters, ascii_ = json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1]
    large = re.sub(r"\\u[0-9a-f]{4}", lambda found: rf"\u{found[0][2:].upper()}", ascii_)
    spelt = {
        *(letters, ascii_, repr(value)[1:-1]),
        *(letters.replace("/", r"\/"), ascii_.replace("/", r"\/")),
        *(_escaped(letters, "<>&", "04x"), _escaped(ascii_, "<>&", "04X")),
        _escaped(large.replace(r"\"", r"\u0022"), "<>&'+`", "04X"),
        _escaped(letters, "<>&='", "04x"),
        _escaped(value, _OF_SCRIPTS, "04X"),
    }
    # A quotation mark within has a backslash or none, by the marks around it.
    doubled = {each.replace("\\", r"\\") for each in spelt}
    within = {json.dumps(each, ensure_ascii=is_ascii)[1:-1] for each in spelt for is_ascii in (True, False)}
    return spelt | within | doubled | {each.replace("'", r"\'") for each in doubled}


def _escaped(text: str, signs: str, digits: str) -> str:
    return text.translate({ord(sign): f"\\u{ord(sign):{digits}}" for sign in signs})


# What Django's escapejs does not leave.
_OF_SCRIPTS = "\\'\"<>&=-;`\u2028\u2029" + "".join(map(chr, range(32)))


def _in_html(value: str) -> set[str]:
    """As Python escapes it, PHP (an apostrophe), .NET (a plus, and letters that are not ASCII), and as templates of
    others do."""
    whole = html.escape(value)
    apostrophes = {whole.replace("&#x27;", mark) for mark in ("&#x27;", "&#39;", "&#039;", "&apos;")}
    more = {ord(sign): f"&#x{ord(sign):X};" for sign in "=`"}
    spelt = {html.escape(value, quote=False), *apostrophes, whole.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")}
    more_still = more | {ord("/"): "&#x2F;"}
    letters = {ord(letter): f"&#x{ord(letter):X};" for letter in value if not letter.isascii()}
    plus, backtick = {ord("+"): "&#x2B;"}, {ord("`"): "&#x60;"}
    of_net = {whole.translate(plus | signs | also) for signs in ({}, backtick) for also in ({}, letters)}
    return spelt | of_net | {each.translate(signs) for each in apostrophes for signs in (more, more_still)}


def _in_urls(raw: bytes) -> set[str]:
    """As Python quotes it, JavaScript (which leaves more signs), and those who write small digits; also in a URL."""
    spelt = {quote(raw), quote(raw, safe=""), quote_plus(raw), quote(raw, safe="!*'()"), quote(raw, safe=_OF_URIS)}
    small = {re.sub("%..", lambda found: found[0].lower(), each) for each in spelt}
    return spelt | small | {quote(each, safe="") for each in spelt | small}


# What JavaScript's encodeURI leaves.
_OF_URIS = ";,/?:@&=+$!*'()#"


def _in_base64(raw: bytes, before: int) -> str:
    """The characters that tell of these bytes alone, where so many bytes stand before them."""
    encoded = base64.b64encode(bytes(before) + raw).decode()
    first = (0, 2, 3)[before]
    return encoded[first : (before + len(raw)) * 8 // 6]


def _in_lines_of_base64(raw: bytes) -> Iterator[str]:
    """As :func:`_in_base64`, in lines as MIME has them, wherever in a line it begins; and these lines in JSON or a
    ``repr``. Short ones are left out, which would be looked for one by one."""
    wholes = [_in_base64(raw, before) for before in range(3)]
    for before in range(_LINE * 6 // 8):
        whole, column = wholes[before % 3], -(-before * 8 // 6)
        ends = range(_LINE - column, len(whole), _LINE)
        if not ends or len(whole) < 2 * min(_PIECES) - 1:  # with the mark, it has a piece
            continue
        lines = [whole[begin:end] for begin, end in zip((0, *ends), (*ends, len(whole)), strict=True)]
        yield from (mark.join(lines) for mark in ("\n", r"\n"))


# So many characters of base64 stand in a line.
_LINE = 76
