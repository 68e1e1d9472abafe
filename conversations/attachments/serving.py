"""Handing files out: as a download, which no browser runs, whatever is in it."""

import logging
from urllib.parse import quote

from django.http import FileResponse, HttpResponse

from conversations.attachments.store import storage, thumbnail_of
from conversations.models import Attachment
from nanohost.lib.errors import NotFound
from tools.documents.reading import NotReadNow

logger = logging.getLogger(__name__)

# Not even a document that is opened in a browser's tab runs anything, or reaches anyone.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-store",
}


def download(row: Attachment, name: str) -> HttpResponse:
    """The file, as it was sent."""
    plain = "".join(each if each.isascii() and (each.isalnum() or each in "-_. ") else "_" for each in name) or "file"
    disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    return _answer(row, row.path, row.media_type, disposition)


def thumbnail(row: Attachment) -> HttpResponse:
    """A small picture of it, which was made here."""
    if not row.has_thumbnail:
        raise NotFound("There is no thumbnail of this file.")
    return _answer(row, thumbnail_of(row), "image/png", 'inline; filename="thumbnail.png"')


def _answer(row: Attachment, path: str, media_type: str, disposition: str) -> HttpResponse:
    try:
        file = storage().open(path)
    except FileNotFoundError:
        raise NotFound("The file is gone.") from None
    except Exception as error:  # whatever a storage raises that is away
        logger.error("a file could not be opened (%s)", type(error).__name__)
        raise NotReadNow("The file cannot be had just now; try again.", headers={"Retry-After": "5"}) from None
    answer = FileResponse(file, content_type=media_type)
    # Afterwards: it makes a Content-Disposition of its own, which has a browser show the file.
    for header, value in {**_HEADERS, "Content-Disposition": disposition}.items():
        answer[header] = value
    return answer  # type: ignore[return-value]  # it is one
