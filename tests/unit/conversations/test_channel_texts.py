"""Long texts are split for platforms that take short ones: nothing is lost, no character or block of code is cut."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conversations.channels.texts import split

PIECES = ["word", " ", "\n", "\n\n", "\n```\n", "\n```§\n", "\n~~~~\n", "👨‍👩‍👧", "🇩🇪", "👍🏽", "e\u0301", "x" * 20]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=80).map("".join)
# A character as people see it never begins with these.
TAILS = tuple("\u200d\u0301\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")


def said(text: str) -> str:
    """What is left without the marks of blocks, and without spaces."""
    return "".join(text.translate(dict.fromkeys(map(ord, "`~§"))).split())


def ends_open(text: str) -> bool:
    """Whether a block of code is open at the end."""
    mark = ""
    for line in text.split("\n"):
        if found := re.match(r" {0,3}(`{3,}|~{3,})(.*)", line):
            if not mark:
                mark = found[1]
            elif found[1][0] == mark[0] and len(found[1]) >= len(mark) and not found[2].strip():
                mark = ""
    return bool(mark)


@given(TEXTS, st.integers(40, 120))
@example("🇩🇪" * 100, 41)
@example("```§\n" + "x = 1\n" * 60 + "```\nDone.", 64)
@example("👨‍👩‍👧" * 60, 40)
def test_parts_fit_and_nothing_is_lost_or_cut(text, limit):
    parts = split(text, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert said("\n".join(parts)) == said(text)
    assert not any(part.startswith(TAILS) for part in parts)
    assert not any(ends_open(part) for part in parts[:-1])


def test_a_cut_comes_between_flags():
    flags = "🇩🇪🇫🇷" * 40
    assert all(len(part) % 2 == 0 for part in split(flags, 41))
    assert "".join(split(flags, 41)) == flags


def test_a_block_of_code_that_is_cut_is_closed_and_opened_again():
    parts = split("```python\n" + "print(1)\n" * 12 + "```", 64)
    assert len(parts) > 1
    assert all(part.startswith("```python\n") and part.endswith("\n```") for part in parts)


def test_a_part_has_room_for_something():
    with pytest.raises(ValueError, match="at least 32"):
        split("Hello", 31)
