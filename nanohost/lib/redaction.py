"""Secrets are taken out of whatever is about to leave the process as text."""

import json
import os
import re

MASK = "[redacted]"

# The shapes of secrets this host handles: its own keys, provider keys, bearer tokens, URLs with a password. Each is
# matched in one pass, without nested repetition: a long line costs time in proportion to its length.
_SHAPES = re.compile(
    r"""(?x)
      (?<![A-Za-z0-9])nh_[A-Za-z0-9]{4,}_[A-Za-z0-9_-]{8,}
    | (?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{8,}
    | (?i:(?<=bearer\ )[A-Za-z0-9._~+/=-]{8,})
    | (?<=://)[^/\s:@"']*:[^/\s@"']+(?=@)
    """
)

# Settings whose values are secrets whatever they look like.
_SECRET_SETTINGS = ("OPENAI_API_KEY", "SECRET_KEY", "NANOHOST_ADMIN_PASSWORD", "NANOHOST_API_KEY")

# Secrets that were read from files, which no variable holds.
_remembered: set[str] = set()

# A shorter value would be found in the midst of words.
_SHORTEST = 6


def remember(secret: str) -> None:
    """Have :func:`redact` take this value out from now on."""
    _remembered.add(secret)


def redact(text: str) -> str:
    """The text with every known secret, and everything shaped like one, replaced by ``[redacted]``."""
    known = {os.environ.get(name, "").strip() for name in _SECRET_SETTINGS} | _remembered
    for value in sorted(known, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            for spelling in _spellings(value):
                text = text.replace(spelling, MASK)
    return _SHAPES.sub(MASK, text)


def _spellings(value: str) -> set[str]:
    """A secret with a quote or an umlaut in it is spelt otherwise in JSON and in Python's ``repr``."""
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
