"""Handing files out: as a download, which no browser runs, whatever is in it."""

import logging

from django.http import FileResponse, HttpResponse

from conversations.attachments.store import storage, thumbnail_of
from conversations.models import Attachment
from nanohost.lib import downloads
from nanohost.lib.errors import NotFound
from tools.documents.reading import NotReadNow

logger = logging.getLogger(__name__)


def download(row: Attachment, name: str) -> HttpResponse:
    """The file, as it was sent."""
    return _answer(row, row.path, row.media_type, downloads.disposition(name))


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
        raise NotReadNow("The file is not available just now; try again.", headers={"Retry-After": "5"}) from None
    answer = FileResponse(file, content_type=media_type)
    # Afterwards: it makes a Content-Disposition of its own, which has a browser show the file.
    for header, value in {**downloads.HEADERS, "Content-Disposition": disposition}.items():
        answer[header] = value
    return answer  # type: ignore[return-value]  # it is one
