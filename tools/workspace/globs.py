"""Patterns of paths: ``*`` and ``?`` in a name, ``**`` for any folders. Linear but for the pattern's length, as no
regular expression made of a foreign pattern would be."""

from collections.abc import Callable, Sequence


def matches(parts: Sequence[str], pattern: str) -> bool:
    """Whether a path fits. A pattern without ``/`` is that of a name, in whatever folder."""
    wanted = [part for part in pattern.split("/") if part not in ("", ".")]
    if "/" not in pattern:
        return bool(parts and wanted) and _name_fits(parts[-1], wanted[0])
    return _fits(parts, wanted, is_star=lambda part: part == "**", same=_name_fits)


def is_within(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a path fits one of these, or a folder above it does."""
    return any(matches(parts[: end + 1], pattern) for pattern in patterns for end in range(len(parts)))


def _name_fits(name: str, pattern: str) -> bool:
    return _fits(name, pattern, is_star=lambda each: each == "*", same=lambda each, wanted: wanted in ("?", each))


def _fits(
    found: Sequence[str],
    pattern: Sequence[str],
    *,
    is_star: Callable[[str], bool],
    same: Callable[[str, str], bool],
) -> bool:
    """Whether all of this fits: what follows the last star met is tried one further on each time it does not."""
    at = here = 0
    star, resume = -1, 0
    while at < len(found):
        if here < len(pattern) and is_star(pattern[here]):
            star, resume = here, at
            here += 1
        elif here < len(pattern) and same(found[at], pattern[here]):
            at, here = at + 1, here + 1
        elif star >= 0:
            resume += 1
            at, here = resume, star + 1
        else:
            return False
    return all(is_star(each) for each in pattern[here:])
