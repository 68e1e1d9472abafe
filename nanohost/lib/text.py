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
