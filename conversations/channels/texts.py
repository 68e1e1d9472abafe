"""Splitting a text by a platform's length: at a paragraph, a line, a word, and never within a character as people see
it; a block of code that is cut is closed and opened again. Pure, and linear in the text."""

import re
import unicodedata

_FENCE = re.compile(r" {0,3}(`{3,20}|~{3,20})([^\n]*)")

# What belongs to the character before it: joiners, variation selectors, skin tones, tags, and what follows a joiner.
_JOINER = "\u200d"
# As far back a place to cut at is looked for, as a share of the limit.
_LOOK_BACK = 2
# The longest character, in code points, that is kept whole: families of emoji have fewer.
_LONGEST = 32


def split(text: str, limit: int) -> list[str]:
    """The parts, each of at most ``limit`` characters, in their order; none of a text that is blank. ``limit``: 32 at
    the least."""
    if limit < 32:
        raise ValueError("a part has at least 32 characters")
    found: list[str] = []
    opened = ""  # the line that begins the block of code that the last part has cut
    at = 0
    text = text.strip("\n")
    while at < len(text):
        head = f"{opened}\n" if opened else ""
        room = limit - len(head)
        if len(text) - at <= room:
            piece, at = text[at:], len(text)
        else:
            # A block that is cut is closed by a line of its own.
            end = _place_to_cut(text, at, at + room - _room_to_close(text, at, at + room, opened))
            piece, at = text[at:end], end
        is_open = _opened_after(piece, opened)
        closes = f"\n{_mark(is_open)}" if is_open and at < len(text) else ""
        part = f"{head}{piece.rstrip(chr(10)) if closes else piece}{closes}".strip("\n")
        if part.strip():
            found.append(part)
        opened = is_open if len(is_open) < limit // 4 else _mark(is_open)
        while not opened and at < len(text) and text[at] == "\n":
            at += 1
    return found


def _room_to_close(text: str, begin: int, end: int, opened: str) -> int:
    """Characters that closing a block would take, if one may be open where the part ends."""
    marks = [match[1] for match in _FENCE.finditer(text, begin, end)]
    longest = max((len(mark) for mark in (*marks, _mark(opened))), default=0)
    return min(longest + 1, (end - begin) // 2) if longest else 0


def _mark(line: str) -> str:
    match = _FENCE.match(line)
    return match[1] if match else ""


def _opened_after(piece: str, opened: str) -> str:
    """The line that begins the block that is open behind a piece; empty if none is."""
    for line in piece.split("\n"):
        match = _FENCE.match(line)
        if not match:
            continue
        if not opened:
            opened = line.strip()
        elif match[1][0] == _mark(opened)[0] and len(match[1]) >= len(_mark(opened)) and not match[2].strip():
            opened = ""
    return opened


def _place_to_cut(text: str, begin: int, most: int) -> int:
    """Where a part ends that begins here and goes no further than ``most``."""
    least = begin + (most - begin) // _LOOK_BACK
    for between in ("\n\n", "\n", " "):
        found = text.rfind(between, least, most)
        if found > begin:
            return found + len(between)
    for place in range(most, max(begin, most - _LONGEST), -1):
        if not _belongs_together(text, begin, place):
            return place
    return most


def _belongs_together(text: str, begin: int, place: int) -> bool:
    """Whether the code points before and behind a place are of one character. ``begin``: where one begins."""
    before, behind = text[place - 1], text[place]
    if behind == _JOINER or before == _JOINER or unicodedata.combining(behind):
        return True
    if (
        "\ufe00" <= behind <= "\ufe0f"
        or "\U0001f3fb" <= behind <= "\U0001f3ff"
        or "\U000e0020" <= behind <= "\U000e007f"
    ):
        return True
    if unicodedata.category(behind) in ("Mn", "Me", "Mc"):
        return True
    if _is_flag(before) and _is_flag(behind):  # two letters are one flag: a cut comes behind an even number
        first = place
        while first > begin and _is_flag(text[first - 1]):
            first -= 1
        return (place - first) % 2 == 1
    return False


def _is_flag(letter: str) -> bool:
    return "\U0001f1e6" <= letter <= "\U0001f1ff"
