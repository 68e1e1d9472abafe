"""Secrets are taken out of whatever is about to leave the process as text."""

import os
import re

MASK = "[redacted]"

# The shapes of secrets this host handles: its own keys, provider keys, bearer tokens, URLs with a password.
_SHAPES = re.compile(
    r"""(?x)
      \bnh_[A-Za-z0-9]{4,}_[A-Za-z0-9_-]{8,}
    | \bsk-[A-Za-z0-9_-]{8,}
    | (?i:(?<=bearer\ )[A-Za-z0-9._~+/=-]{8,})
    | (?<=://)[^/\s:@"']*:[^/\s@"']+(?=@)
    """
)

# Settings whose values are secrets whatever they look like.
_SECRET_SETTINGS = ("OPENAI_API_KEY", "SECRET_KEY", "NANOHOST_ADMIN_PASSWORD", "NANOHOST_API_KEY")


def redact(text: str) -> str:
    """The text with every known secret, and everything shaped like one, replaced by ``[redacted]``."""
    for name in _SECRET_SETTINGS:
        value = os.environ.get(name, "")
        if len(value) >= 6:
            text = text.replace(value, MASK)
    return _SHAPES.sub(MASK, text)
