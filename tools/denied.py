"""Commands that are refused whatever was approved: a second net under the sandbox, and no boundary by itself, since
there are other ways to write each of them."""

import re

from django.conf import settings

# nanobot's own, and what stands for each in words.
_DENIED = (
    (re.compile(r"\brm\s+-(?:rf?|fr?)\b", re.IGNORECASE), "rm -r and rm -f"),
    (re.compile(r"\b(?:mkfs|diskpart)\b", re.IGNORECASE), "mkfs and diskpart"),
    (re.compile(r"\bdd\s+if=", re.IGNORECASE), "dd if="),
    (re.compile(r">\s*/dev/sd", re.IGNORECASE), "writing to a disk"),
    (re.compile(r"\b(?:shutdown|reboot|poweroff)\b", re.IGNORECASE), "shutting the machine down"),
    (re.compile(r":\(\)\s*\{"), "a fork bomb"),
)


def why_denied(command: str) -> str:
    """Why a command is refused; "" if it is not."""
    for pattern, words in _DENIED:
        if pattern.search(command):
            return f"This command is refused ({words}). Do it in another way, or leave it to a person."
    for text in settings.EXEC_DENY:
        if text in command:
            return "This command is refused: it holds what the host's EXEC_DENY names."
    return ""
