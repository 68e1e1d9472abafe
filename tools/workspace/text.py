"""Files as text: what a model is shown of one, and what is found in many."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tools.workspace.errors import NotText

# Characters of a result; the rest is asked for by `offset`. As many as a model is shown of a result by default, less
# what is said around them.
MAX_SHOWN = 15_000
# Of a line that is found.
MAX_LINE = 300
MAX_FOUND = 100
# What a search reads at most, and for how long.
MAX_SEARCHED_BYTES, MAX_SEARCH_SECONDS = 50_000_000, 1.5


def is_wide(content: bytes) -> bool:
    """Whether it says that it is UTF-16."""
    return content.startswith((b"\xff\xfe", b"\xfe\xff"))


def decoded(content: bytes) -> str:
    """The text of a file; raises :class:`NotText` with what it is instead."""
    if is_wide(content):
        encoding = "utf-16"
    elif b"\0" in content:
        raise NotText(f"This is a binary file of {len(content)} bytes; only text can be shown.")
    else:
        encoding = "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise NotText(
            f"This file of {len(content)} bytes is no text in UTF-8: the byte at {error.start} is in no place of one."
        ) from None


def shown(text: str, *, offset: int, limit: int) -> str:
    """Lines from ``offset`` on, which counts from 1, with a note of what is not shown."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return "[the file is empty]"
    if offset > len(lines):
        raise ValueError(f"The file has {len(lines)} lines; there is no line {offset}.")
    kept: list[str] = []
    size = 0
    for line in lines[offset - 1 : offset - 1 + limit]:
        if kept and size + len(line) + 1 > MAX_SHOWN:
            break
        kept.append(line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}[cut: the line has {len(line)} characters]")
        size += len(line) + 1
    last = offset - 1 + len(kept)
    part = "\n".join(kept)
    if offset == 1 and last == len(lines):
        return part
    on = f"; go on with offset={last + 1}" if last < len(lines) else ""
    return f"{part}\n[lines {offset} to {last} of {len(lines)}{on}]"


@dataclass(frozen=True, kw_only=True)
class Search:
    """What was found. ``paths``: the files it was found in; ``cut``: why there may be more, or ""."""

    lines: list[str]
    paths: list[str]
    cut: str


def search(
    paths: Iterable[str], read: Callable[[str], bytes], wanted: str, *, clock: Callable[[], float] = time.monotonic
) -> Search:
    """The lines that have a text in them, whatever its case. Time and bytes are bounded."""
    folded, ends, left = wanted.casefold(), clock() + MAX_SEARCH_SECONDS, MAX_SEARCHED_BYTES
    lines: list[str] = []
    found_in: list[str] = []
    for path in paths:
        if clock() > ends or left <= 0:
            return Search(lines=lines, paths=found_in, cut="the search was ended; name a folder or a pattern")
        try:
            content = read(path)
            text = decoded(content)
        except (ValueError, FileNotFoundError):
            continue
        left -= len(content)
        for found in _found(text, folded):
            if len(lines) == MAX_FOUND:
                return Search(lines=lines, paths=found_in, cut=f"there are more than {MAX_FOUND}")
            lines.append(f"{path}:{found}")
            if path not in found_in[-1:]:
                found_in.append(path)
    return Search(lines=lines, paths=found_in, cut="")


def _found(text: str, folded: str) -> Iterator[str]:
    if folded not in text.casefold():
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if folded in line.casefold():
            cut = line.strip()
            yield f"{number}: {cut[:MAX_LINE]}{'…' if len(cut) > MAX_LINE else ''}"
