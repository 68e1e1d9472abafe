"""Requests to platforms: by the guarded client, and what an answer, or none, means for a message."""

import hashlib
import json
import mimetypes
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from conversations.attachments.parts import SentFile
from conversations.channels.base import InDoubt, Permanent, Retry
from conversations.deliveries.webhooks import retry_after
from tools.outbound.client import Answer, NotFetched, allowed, fetch

# For a whole request, in seconds; bytes of an answer that are read, of news, and of a file.
SECONDS, MAX_READ, MAX_NEWS = 15.0, 65_536, 8 * 1024 * 1024
MAX_FILES, MAX_FILE_BYTES = 10, 20 * 1024 * 1024
# An hour.
MAX_WAIT = 3600.0

# What never reached the other side.
_NOT_SENT = ("http:url", "http:scheme", "http:userinfo", "http:host", "http:header", "http:port", "http:address")
_NOT_YET = ("http:name", "http:connect", "http:tls")


def send(
    url: str, *, body: bytes | Mapping[str, Any], headers: Mapping[str, str] | None = None, method: str = "POST"
) -> Answer:
    """Send something that has an effect, and return the answer, whatever its status. Raises :class:`Retry`,
    :class:`Permanent` or :class:`InDoubt` if there is none."""
    given = dict(headers or {})
    if not isinstance(body, bytes):
        body, given = _as_json(body), {"Content-Type": "application/json; charset=utf-8"} | given
    try:
        return fetch(
            url, policy=allowed(), method=method, headers=given, body=body, seconds=SECONDS, most=MAX_READ, cut=True
        )
    except NotFetched as error:
        raise failure_of(error) from None


def multipart(fields: Mapping[str, str], name: str, file: SentFile) -> tuple[bytes, dict[str, str]]:
    """A form with a file in it (RFC 7578): its body and its header, the same for the same form. ``name``: of the
    file's field."""
    called = "".join(each if each.isprintable() and each not in '"\\' else "_" for each in file.name) or "file"
    told = json.dumps([dict(fields), called], ensure_ascii=False).encode(errors="replace")
    boundary = f"form-{hashlib.sha256(told + file.data).hexdigest()}"
    head = f"--{boundary}\r\nContent-Disposition: form-data; name="
    parts = [f'{head}"{field}"\r\n\r\n{value}\r\n'.encode() for field, value in fields.items()]
    about = f'{head}"{name}"; filename="{called}"\r\nContent-Type: {type_of(file)}\r\n\r\n'
    body = b"".join([*parts, about.encode(), file.data, f"\r\n--{boundary}--\r\n".encode()])
    return body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def type_of(file: SentFile) -> str:
    """The media type that a file's name tells."""
    return mimetypes.guess_type(file.name)[0] or "application/octet-stream"


def ask(
    url: str,
    *,
    query: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> Answer:
    """Ask for something, which may be asked again; returns the answer, whatever its status. Raises :class:`Retry` if
    there is none, :class:`Permanent` where none can be."""
    asked = f"{url}?{urlencode(query)}" if query else url
    given, told = dict(headers or {}), b""
    if body is not None:
        given, told = {"Content-Type": "application/json; charset=utf-8"} | given, _as_json(body)
    method = "GET" if body is None else "POST"
    try:
        return fetch(asked, policy=allowed(), method=method, headers=given, body=told, seconds=seconds, most=MAX_NEWS)
    except NotFetched as error:
        raise once_more(failure_of(error)) from None


def file(url: str, *, name: str, headers: Mapping[str, str] | None = None) -> SentFile:
    """Get a file. Raises :class:`Retry`, and :class:`Permanent` if it is not available or is too large."""
    try:
        answer = fetch(url, policy=allowed(), headers=headers, seconds=2 * SECONDS, most=MAX_FILE_BYTES)
    except NotFetched as error:
        if error.rule == "http:size":
            raise Permanent(f"A file is larger than {MAX_FILE_BYTES} bytes") from None
        raise once_more(failure_of(error)) from None
    try:
        judge(answer)
    except InDoubt as error:
        raise Retry(str(error), status=error.status) from None
    return SentFile(name=name[:100] or "file", data=answer.body)


def said_in(answer: Answer) -> dict[str, Any]:
    """The object that an answer holds; empty if it holds none."""
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def failure_of(error: NotFetched) -> Exception:
    """What it means that there is no answer: it never left, or nobody knows. Its words do not say the address, which
    may hold a secret."""
    words = str(error).replace(error.url, "the platform").rstrip(".")
    if error.rule in _NOT_SENT:
        return Permanent(words)
    return Retry(words) if error.rule in _NOT_YET else InDoubt(words)


def judge(answer: Answer, *, words: str = "", after: float = 0.0) -> None:
    """Raise what an answer means that is no yes. ``words``: what the platform says went wrong. ``after``: seconds that
    it asks for, if not by a header."""
    if 200 <= answer.status < 300:
        return
    said = words or " ".join(answer.body[:400].decode(errors="replace").split())
    told = f"It answered {answer.status}{f': {said}' if said else ''}"
    if answer.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        wait = max(after, retry_after(answer.headers.get("retry-after", "")))
        raise Retry(told, after=wait, status=answer.status, everything=wait > 0)
    if answer.status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT):
        raise InDoubt(told, status=answer.status)
    if answer.status >= 500 or answer.status == HTTPStatus.REQUEST_TIMEOUT:
        raise Retry(told, status=answer.status)
    if 300 <= answer.status < 400:
        told = f"It answered {answer.status}; redirects are not followed: enter the address that it leads to"
    raise Permanent(told, status=answer.status)


def judge_news(answer: Answer, *, words: str = "", after: float = 0.0) -> None:
    """The same of something that may be asked again."""
    try:
        judge(answer, words=words, after=after)
    except InDoubt as error:
        raise Retry(str(error), status=error.status) from None


def wait_in(value: Any, *, unit: float = 1.0) -> float:
    """Seconds that a platform asks for in an answer's body; 0 for what is no number. ``unit``: seconds of one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0.0
    return min(max(value * unit, 0.0), MAX_WAIT)


def once_more(error: Exception) -> Exception:
    """What a failure means for something that may be done again, whatever has become of it."""
    return Retry(str(error)) if isinstance(error, InDoubt) else error


def _as_json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


# --- reading what a platform tells, which may be anything ----------------------------------------------------------


def at(said: Any, *names: str) -> Any:
    """What stands at this place of nested objects; None if nothing does."""
    for name in names:
        said = said.get(name) if isinstance(said, dict) else None
    return said


def text_at(said: Any, *names: str, most: int = 100_000) -> str:
    """The text that stands there, or a number as one; empty if there is none."""
    found = at(said, *names)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    return found[:most] if isinstance(found, str) else ""


def list_at(said: Any, *names: str) -> Sequence[Any]:
    """The list that stands there; empty if there is none."""
    found = at(said, *names)
    return found if isinstance(found, list) else ()
