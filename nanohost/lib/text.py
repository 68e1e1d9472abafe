"""Text from outside (models, tools), made fit for every database we run on."""

import re

# PostgreSQL's text takes no NUL; UTF-8 takes no lone surrogate.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """The text with what no database stores (NUL, lone surrogates) replaced by U+FFFD."""
    return UNSTORABLE.sub("\ufffd", text)


def clip(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, never half a character."""
    raw = text.encode("utf-8")
    return text if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")


def duration(seconds: float | None) -> str:
    """Seconds as people say them: 0.4 s, 12 s, 5 min, 3.2 h, 4 days."""
    if seconds is None:
        return "–"
    for most, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < most:
            amount = seconds / size
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
