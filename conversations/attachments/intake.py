"""Taking the files of a message in: fetched, read and stored, before the message is accepted.

All of it happens outside of any transaction, and before one: a client is told at once what is wrong with a file, no
message is stored whose files are not there, and a turn never waits for a stranger's server.
"""

import time
from collections.abc import Sequence

from django.conf import settings

from agent.loop import ChatMessage
from conversations.attachments import store
from conversations.attachments.parts import SentFile
from conversations.attachments.store import Reference
from nanohost.accounts.models import ApiKey
from nanohost.lib.errors import InvalidRequest, Problem
from tools.documents import reading
from tools.documents.reading import AttachmentTooLarge
from tools.outbound.client import NotFetched, allowed, fetch
from tools.permissions import Permission

# What goes to a model as it is may have so many bytes: as base64, Anthropic's 5 MB.
MAX_IMAGE_BYTES = 3_750_000


class AttachmentNotFetched(Problem):
    """What an address leads to could not be had."""

    code, status, title = "attachment_not_fetched", 422, "A file could not be fetched from its address."


def with_references(owner_id: int, messages: Sequence[ChatMessage], key: ApiKey | None) -> list[ChatMessage]:
    """Messages whose ``files`` are taken in, all of them together, and stand as ``attachments`` in their place; raises
    what :func:`take_in` does."""
    taken = iter(take_in(owner_id, [file for each in messages for file in each.get("files", ())], key))
    made = []
    for each in messages:
        if files := each.get("files"):
            told = {name: value for name, value in each.items() if name != "files"}
            each = told | {"attachments": [*each.get("attachments", ()), *(next(taken) for _ in files)]}
        made.append(each)
    return made


def brought_by(attachments: Sequence[Reference]) -> str:
    """From where the untrusted text of files came, in a few words; empty: there are none."""
    if not attachments:
        return ""
    first, *others = attachments
    return f"the file {first['name']}" + (f" and {len(others)} more" if others else "")


def take_in(owner_id: int, files: Sequence[SentFile], key: ApiKey | None) -> list[Reference]:
    """Have files fetched, read and stored. ``key``: what it is asked with; an id is taken from nobody without, and only
    for a file that the key may read. Raises :class:`AttachmentNotFetched`, and what
    :func:`tools.documents.reading.read` raises."""
    until, left = time.monotonic() + settings.ATTACHMENT_FETCH_SECONDS, settings.ATTACHMENTS_MAX_BYTES
    taken = []
    for each in files:
        if each.file_id:
            if (row := store.take_by_id(owner_id, each.file_id, key)) is None:
                raise InvalidRequest(f"{each.name}: there is no such file, or this key may not read it.")
            left -= row.size
            _refuse_more(left, each)
            taken.append(store.reference(row, each.name))
            continue
        data = _fetched(each, until, left) if each.url else each.data
        left -= len(data)
        _refuse_more(left, each)
        row = store.take(owner_id, store.hash_of(data))
        if row is None:
            read = reading.read(data, name=each.name)
            if read.media_type.startswith("image/") and len(data) > MAX_IMAGE_BYTES:
                raise AttachmentTooLarge(f"{each.name}: a picture may have {MAX_IMAGE_BYTES} bytes.")
            row = store.store(owner_id, data, read)
        taken.append(store.reference(row, each.name))
    return taken


def _refuse_more(left: int, file: SentFile) -> None:
    if left < 0:
        raise AttachmentTooLarge(f"{file.name}: {settings.ATTACHMENTS_MAX_BYTES} bytes are the most of a message.")


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
