"""Taking the files of a message in: fetched, read and stored, before the message is accepted.

All of it happens outside of any transaction, and before one: a client is told at once what is wrong with a file, no
message is stored whose files are not there, and a turn never waits for a stranger's server.
"""

import time
from collections.abc import Sequence

from django.conf import settings

from conversations.attachments import store
from conversations.attachments.parts import SentFile
from conversations.attachments.store import Reference
from nanohost.lib.errors import Problem
from tools.documents import reading
from tools.documents.reading import AttachmentTooLarge
from tools.outbound.client import NotFetched, allowed, fetch
from tools.permissions import Permission

# What goes to a model as it is may have so many bytes: as base64, Anthropic's 5 MB.
MAX_IMAGE_BYTES = 3_750_000


class AttachmentNotFetched(Problem):
    """What an address leads to could not be had."""

    code, status, title = "attachment_not_fetched", 422, "A file could not be fetched from its address."


def take_in(owner_id: int, files: Sequence[SentFile]) -> list[Reference]:
    """Have files fetched, read and stored. Raises :class:`AttachmentNotFetched`, and what
    :func:`tools.documents.reading.read` raises."""
    until, left = time.monotonic() + settings.ATTACHMENT_FETCH_SECONDS, settings.ATTACHMENTS_MAX_BYTES
    taken = []
    for each in files:
        data = _fetched(each, until, left) if each.url else each.data
        left -= len(data)
        if left < 0:
            raise AttachmentTooLarge(f"{each.name}: {settings.ATTACHMENTS_MAX_BYTES} bytes are the most of a message.")
        row = store.take(owner_id, store.hash_of(data))
        if row is None:
            read = reading.read(data, name=each.name)
            if read.media_type.startswith("image/") and len(data) > MAX_IMAGE_BYTES:
                raise AttachmentTooLarge(f"{each.name}: a picture may have {MAX_IMAGE_BYTES} bytes.")
            row = store.store(owner_id, data, read)
        taken.append(store.reference(row, each.name))
    return taken


def _fetched(file: SentFile, until: float, left: int) -> bytes:
    if Permission.NET_HTTP not in settings.PERMISSIONS_GRANTED:
        raise AttachmentNotFetched(f"{file.name}: this host fetches nothing (PERMISSIONS_GRANTED); send its data.")
    try:
        seconds = max(until - time.monotonic(), 0.01)
        answer = fetch(file.url, policy=allowed(), seconds=seconds, most=max(left, 1))
    except NotFetched as error:
        raise AttachmentNotFetched(f"{file.name}: {error}") from None
    if answer.status != 200:
        raise AttachmentNotFetched(f"{file.name}: its server answered {answer.status}.")
    return answer.body
