"""What a message is made of, as clients send it: a text, or a list of parts. Pure; every API's parts are read here.

    [{"type": "text", "text": "What is this?"},
     {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}},     or https://…
     {"type": "file", "file": {"filename": "report.pdf", "file_data": "data:application/pdf;base64,…"}}]

The shapes of OpenAI's Responses are taken too (``input_text``, ``input_image``, ``input_file``), and plain ones:
``{"type": "image" | "file", "name": …, "data": base64 | "url": …}``. What a client says of a file's type counts for
nothing.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from nanohost.lib.errors import InvalidRequest
from nanohost.lib.text import UNSTORABLE

MAX_PARTS = 100
MAX_NAME = 100
MAX_URL = 8192

# What a name has no use for: what nobody sees, what ends a line, and what turns the direction of reading.
_ODD_IN_NAME = re.compile(
    '[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"<>\\[\\]]'
)

_FILE_ID = re.compile("file-([0-9a-f]{32})")

_TEXTS = ("text", "input_text")
_IMAGES = ("image_url", "input_image", "image")
_FILES = ("file", "input_file")
# Parts that are no text.
OF_FILES = (*_IMAGES, *_FILES)


@dataclass(frozen=True, kw_only=True)
class SentFile:
    """A file as it was sent: its bytes, the address where they are, or the id by which its owner was told of it."""

    name: str
    data: bytes = field(default=b"", repr=False)
    url: str = ""
    file_id: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class Said:
    """A message."""

    text: str
    files: Sequence[SentFile] = ()

    def digest(self) -> str:
        """A hash over its files as they were sent; empty if there are none."""
        if not self.files:
            return ""
        told = [
            [each.name, str(each.file_id or each.url), hashlib.sha256(each.data).hexdigest()] for each in self.files
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def parse(content: Any, *, most: int, max_bytes: int, at: str = "content") -> Said:
    """A message of a client's parts; raises :class:`InvalidRequest`, whose words name the part. ``most``: files.
    ``max_bytes``: of all of them together. ``at``: what the client calls it."""
    if isinstance(content, str):
        return Said(text=_text(content, at))
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{at}: expected a text, or a list of parts.")
    if len(content) > MAX_PARTS:
        raise InvalidRequest(f"{at}: {MAX_PARTS} parts are the most.")
    texts: list[str] = []
    files: list[SentFile] = []
    left = max_bytes
    for number, part in enumerate(content):
        here = f"{at}[{number}]"
        if not isinstance(part, dict):
            raise InvalidRequest(f"{here}: expected an object with a type.")
        kind = part.get("type")
        if kind in _TEXTS:
            texts.append(_text(part.get("text"), f"{here}.text"))
        elif kind in OF_FILES:
            if len(files) == most:
                raise InvalidRequest(f"{here}: {most} files are the most of a message (ATTACHMENTS_MAX).")
            read = _image if kind in _IMAGES else _file
            files.append(read(part, here, left, f"{'image' if kind in _IMAGES else 'file'} {len(files) + 1}"))
            left -= len(files[-1].data)
        else:
            known = ", ".join((*_TEXTS, *OF_FILES))
            raise InvalidRequest(f"{here}.type: there is no such part; it is one of {known}.")
    return Said(text="\n\n".join(text for text in texts if text.strip()), files=files)


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}: expected a text.")
    if UNSTORABLE.search(value):
        raise InvalidRequest(f"{at}: null characters and lone surrogates are not allowed.")
    return value


def _image(part: dict[str, Any], at: str, left: int, otherwise: str) -> SentFile:
    told = part.get("image_url")
    if isinstance(told, dict):
        told, at = told.get("url"), f"{at}.image_url"
    if told is None:
        return _plain(part, at, left, otherwise)
    return _of_url(told, name_of(part.get("name")), f"{at}.url", left, otherwise)


def _file(part: dict[str, Any], at: str, left: int, otherwise: str) -> SentFile:
    inner = part.get("file", part)
    if not isinstance(inner, dict):
        raise InvalidRequest(f"{at}.file: expected an object.")
    return _plain(inner, at, left, otherwise)


def _plain(part: dict[str, Any], at: str, left: int, otherwise: str) -> SentFile:
    name = name_of(part.get("filename", part.get("name")))
    if (told := part.get("file_id")) is not None:
        if (file_id := read_file_id(told)) is None:
            known = "files are not uploaded beforehand here; send file_data, data or a url"
            raise InvalidRequest(f"{at}.file_id: {known}, or an id that this host has returned.")
        return SentFile(name=name or otherwise, file_id=file_id)
    for key in ("file_data", "data"):
        if (data := part.get(key)) is not None:
            if isinstance(data, str) and not data.startswith("data:"):
                return SentFile(name=name or otherwise, data=_decoded(data, f"{at}.{key}", left))
            return _of_url(data, name, f"{at}.{key}", left, otherwise)
    return _of_url(part.get("file_url", part.get("url")), name, f"{at}.url", left, otherwise)


def file_id_of(attachment_id: UUID) -> str:
    """A file's id as clients of OpenAI's API are told it, and may send it again."""
    return f"file-{attachment_id.hex}"


def read_file_id(told: object) -> UUID | None:
    """The file that such an id is of; None if it is none of ours."""
    found = _FILE_ID.fullmatch(told) if isinstance(told, str) else None
    return UUID(found[1]) if found else None


def _of_url(url: Any, name: str, at: str, left: int, otherwise: str) -> SentFile:
    if not isinstance(url, str):
        raise InvalidRequest(f"{at}: expected a data URL, or an address that begins with https:// or http://.")
    if url[:5].lower() == "data:":
        head, comma, _ = url[:1024].partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidRequest(f"{at}: a data URL is written data:TYPE;base64,DATA here.")
        return SentFile(name=name or otherwise, data=_decoded(url[len(head) + 1 :], at, left))
    if not url[:8].lower().startswith(("https://", "http://")):
        raise InvalidRequest(f"{at}: expected a data URL, or an address that begins with https:// or http://.")
    if len(url) > MAX_URL:
        raise InvalidRequest(f"{at}: an address may have {MAX_URL} characters.")
    return SentFile(name=name or _name_in(url) or otherwise, url=url)


def _decoded(data: str, at: str, left: int) -> bytes:
    if len(data) * 3 // 4 > left + 3:
        raise InvalidRequest(f"{at}: the files of a message are too large together (ATTACHMENTS_MAX_BYTES).")
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{at}: this is not base64.") from None
    if len(decoded) > left:
        raise InvalidRequest(f"{at}: the files of a message are too large together (ATTACHMENTS_MAX_BYTES).")
    return decoded


def name_of(value: Any) -> str:
    """A file's name as it is kept: no folder, nothing that nobody sees, and not long. What is none is empty."""
    if not isinstance(value, str):
        return ""
    # What is long has its end looked at, where its suffix is.
    last = value[-2000:].replace("\\", "/").rstrip("/").rpartition("/")[2]
    name = " ".join(_ODD_IN_NAME.sub(" ", last).split()).strip(".")
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 20]}…{name[-19:]}"


def _name_in(url: str) -> str:
    try:
        return name_of(unquote(urlsplit(url).path))
    except ValueError:
        return ""
