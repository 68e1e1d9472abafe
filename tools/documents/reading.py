"""Having a file read, in a child process."""

import base64
import json
import threading
from dataclasses import dataclass

from django.conf import settings

from nanohost.lib.errors import Problem
from tools.errors import Interrupted
from tools.sandbox.children import Place, Task, pool

_READER = "tools.documents.reader"

# Of each process: others wait for a moment, and are told to come again.
MAX_AT_ONCE, WAIT_SECONDS = 4, 5.0
_places = threading.BoundedSemaphore(MAX_AT_ONCE)

# What a reader answers besides the text: a thumbnail as PNG, in base64.
_ASIDE_BYTES = 512 * 1024


class UnsupportedContent(Problem):
    """A file is of no kind that is taken."""

    code, status, title = "unsupported_file_type", 400, "A file has a type that is not accepted here."


class Unreadable(Problem):
    """A file is damaged, or cannot be read within the limits."""

    code, status, title = "attachment_unreadable", 422, "A file is damaged, or reading it takes more than is allowed."


class AttachmentTooLarge(Problem):
    """A file has more bytes or pixels than are taken."""

    code, status, title = "attachment_too_large", 413, "A file is larger than is accepted here."


class NotReadNow(Problem):
    """Nothing can read it, store it or hand it out just now."""

    code, status = "attachments_busy", 503
    title = "Files cannot be uploaded or downloaded just now; try again after Retry-After."


_REFUSALS = {"unsupported": UnsupportedContent, "too_large": AttachmentTooLarge, "damaged": Unreadable}


@dataclass(frozen=True, kw_only=True)
class Read:
    """What a file is and says. ``text`` is empty for a picture; ``problem``: why it is not all there."""

    media_type: str
    text: str = ""
    problem: str = ""
    width: int | None = None
    height: int | None = None
    thumbnail: bytes = b""


def read(data: bytes, *, name: str) -> Read:
    """Read a file; raises :class:`UnsupportedContent`, :class:`AttachmentTooLarge`, :class:`Unreadable` and
    :class:`NotReadNow`. ``name``: what it is called in their words."""
    if not data:
        raise Unreadable(f"{name}: it is empty.")
    if not _places.acquire(timeout=WAIT_SECONDS):
        raise _not_now(name)
    try:
        answer = pool().run(_task(data), still_wanted=lambda: True)
    except Interrupted:
        raise _not_now(name) from None
    finally:
        _places.release()
    if answer.rule == "unavailable":
        raise _not_now(name)
    if not answer.ok:
        raise Unreadable(f"{name}: reading it was stopped: {answer.text or answer.rule}.")
    try:
        told = json.loads(answer.text)
        if refused := told.get("refused"):
            raise _REFUSALS[refused](f"{name}: {told['words']}.")
        return Read(
            media_type=str(told["type"]),
            text=str(told.get("text", "")),
            problem=str(told.get("problem", ""))[:200],
            width=told.get("width") and int(told["width"]),
            height=told.get("height") and int(told["height"]),
            thumbnail=base64.b64decode(told.get("thumbnail", "")),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Unreadable(f"{name}: what read it has answered nothing that makes sense.") from None


def _task(data: bytes) -> Task:
    """Each file has a process to itself, forked for it: no file of one owner is read where another's was."""
    most = settings.ATTACHMENT_TEXT_CHARS
    return Task(
        module=_READER,
        qualname="read",
        arguments={"data": base64.b64encode(data).decode(), "max_chars": most},
        timeout=settings.ATTACHMENT_READ_SECONDS,
        # JSON writes a character as twelve bytes at worst.
        output_bytes=12 * most + _ASIDE_BYTES,
        secrets=(),
        repeatable=True,
        alone=Place(app=_READER, permissions=frozenset()),
    )


def _not_now(name: str) -> NotReadNow:
    return NotReadNow(f"{name}: nothing here can read it just now; try again.", headers={"Retry-After": "5"})
