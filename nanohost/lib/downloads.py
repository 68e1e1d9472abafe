"""What a file is handed out with, so that no browser runs or shows it, whatever is in it, and no spreadsheet
computes it."""

import json
from urllib.parse import quote

from django.http import HttpResponse

from nanohost.lib.redaction import redact_known

# Not even a document that is opened in a browser's tab runs anything, or reaches anyone.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-store",
}

# What no browser has a way to show.
BYTES = "application/octet-stream"


def disposition(name: str) -> str:
    """A Content-Disposition that has a file saved under a name, whatever characters that has."""
    plain = "".join(each if each.isascii() and (each.isalnum() or each in "-_. ") else "_" for each in name) or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def download(content: bytes, name: str) -> HttpResponse:
    """These bytes, to be saved under a name."""
    return HttpResponse(content, content_type=BYTES, headers={**HEADERS, "Content-Disposition": disposition(name)})


def as_cell(value: object) -> str:
    """A value that no spreadsheet takes for a formula, and without known secrets; columns of JSON as JSON."""
    said = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    text = "" if value is None else redact_known(said)
    return f"'{text}" if text.lstrip()[:1] in tuple("=+-@|%") or text[:1] in tuple("\t\r\n") else text
