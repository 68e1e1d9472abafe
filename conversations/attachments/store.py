"""Keeping files: their bytes in the storage, once for each owner and content, and a row each that says where.

A file's path is its row's alone, so that what deletes one can never delete another that has come since:

- *to store* inserts a row that is not stored yet, writes the file, and then says that it is; of two who store the same
  at once, one is told by the database that there is one already, and takes that.
- *to take* one that is there (:func:`take`) says so in its row, which then stays for an hour.
- *to refer* (:func:`are_there`, :func:`refer`) locks the rows, in the transaction that stores the message.
- *to delete* (:func:`collect`) locks a row, looks whether a message refers to it or has taken it lately, and says that
  it is stored no more. From then on nobody takes it; the file is deleted, and the row last, so that a crash in between
  leaves no file behind.
"""

import base64
import hashlib
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from agent import access
from conversations.models import Attachment, AttachmentUse
from nanohost.accounts import holds
from nanohost.accounts.models import ApiKey, Scope
from nanohost.lib.clock import Now, from_now
from nanohost.lib.erasing import Erased
from nanohost.lib.ids import new_id
from tools.documents.reading import NotReadNow, Read

logger = logging.getLogger(__name__)

Reference = dict[str, Any]

# What nobody refers to yet may be about to be.
GRACE = timedelta(hours=1)
# Files that one run deletes at most.
MAX_COLLECTED = 1000


def storage() -> Any:
    """Django's storage of files; S3 or a folder, as the settings say."""
    return storages["attachments"]


def hash_of(data: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def take(owner_id: int, sha256: str) -> Attachment | None:
    """The owner's file of that content, if there is one; from now on it stays for GRACE, whether it is referred to or
    not."""
    return _take(Attachment.objects.filter(owner_id=owner_id, sha256=sha256, is_stored=True))


def take_by_id(owner_id: int, file_id: UUID, key: ApiKey | None) -> Attachment | None:
    """The same of the owner's file of that id, if the key that it was asked with may read it where it is."""
    may_read = key is not None and Scope.READ in key.scopes and use_for(key, owner_id, file_id)
    return _take(Attachment.objects.filter(owner_id=owner_id, pk=file_id, is_stored=True)) if may_read else None


def use_for(key: ApiKey, owner_id: int, file_id: UUID) -> AttachmentUse | None:
    """The last use of the owner's file of that id in a conversation with an agent that the key may name."""
    uses = AttachmentUse.objects.filter(
        attachment=file_id, attachment__owner_id=owner_id, attachment__is_stored=True
    ).select_related("attachment")
    return next(iter(access.admitted(uses, key, agent="conversation__agent").order_by("-pk")[:1]), None)


def _take(row: QuerySet[Attachment]) -> Attachment | None:
    return row.first() if row.update(used_at=Now()) else None


def store(owner_id: int, data: bytes, read: Read) -> Attachment:
    """Store a file; the one there is, if there is one by now. Outside of any transaction. Raises
    :class:`tools.documents.reading.NotReadNow` if the storage does not take it: it is full, away or has another key."""
    sha256 = hash_of(data)
    row = Attachment.objects.create(
        id=new_id(),
        owner_id=owner_id,
        sha256=sha256,
        path=f"{sha256[:2]}/{sha256}-{secrets.token_hex(8)}",
        media_type=read.media_type,
        size=len(data),
        width=read.width,
        height=read.height,
        has_thumbnail=bool(read.thumbnail),
        text=read.text,
        problem=read.problem,
        used_at=Now(),
    )
    try:
        _write(row, data, read.thumbnail)
        with transaction.atomic():
            row.is_stored = True
            row.save(update_fields=["is_stored"])
    except IntegrityError:
        remove(row)
        return take(owner_id, sha256) or store(owner_id, data, read)
    except BaseException:
        # What cannot be deleted now is by retention, since it is not marked as stored.
        with suppress(Exception):
            remove(row)
        raise
    return row


def _write(row: Attachment, data: bytes, thumbnail: bytes) -> None:
    try:
        storage().save(row.path, ContentFile(data))
        if thumbnail:
            storage().save(thumbnail_of(row), ContentFile(thumbnail))
    except Exception as error:
        # Not its words: they tell of folders and buckets.
        logger.error("a file could not be stored (%s)", type(error).__name__)
        words = "A file of this message cannot be stored just now; try again."
        raise NotReadNow(words, headers={"Retry-After": "5"}) from None


def thumbnail_of(row: Attachment) -> str:
    """Where a picture's thumbnail is in the storage."""
    return f"{row.path}-thumbnail"


def reference(row: Attachment, name: str) -> Reference:
    """What a message keeps of a file."""
    told = {"id": str(row.pk), "name": name, "type": row.media_type, "size": row.size, "sha256": row.sha256}
    return told | {"path": row.path} | ({"width": row.width, "height": row.height} if row.width else {})


def told(references: Sequence[Reference] | None) -> list[Reference]:
    """References as others are told of them: without where the files are."""
    return [{name: value for name, value in each.items() if name != "path"} for each in references or ()]


def are_there(references: Sequence[Reference]) -> bool:
    """Whether the files are stored; in the caller's transaction, until whose end they then stay."""
    wanted = {UUID(each["id"]) for each in references}
    rows = Attachment.objects.select_for_update().filter(pk__in=wanted, is_stored=True).order_by("pk")
    return len(rows.values_list("pk", flat=True)) == len(wanted)


def hold(references: Sequence[Reference]) -> None:
    """Have files stay until the end of the caller's transaction; raises :class:`NotReadNow` if one is gone."""
    if references and not are_there(references):
        raise NotReadNow("A file of this message was deleted just now; send it again.")


def refer(conversation_id: UUID, message_id: UUID, references: Sequence[Reference]) -> None:
    """Say that a message refers to files, in the transaction that stores it and holds them."""
    if not references:
        return
    names = {UUID(each["id"]): each["name"] for each in references}
    AttachmentUse.objects.bulk_create(
        AttachmentUse(attachment_id=each, conversation_id=conversation_id, message_id=message_id, name=name)
        for each, name in names.items()
    )


def forget(message_ids: Iterable[UUID]) -> None:
    """Say that messages that are deleted refer to nothing any more."""
    AttachmentUse.objects.filter(message_id__in=list(message_ids)).delete()


def pictures(references: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The bytes of pictures in base64, by hash; raises OSError, or what the storage raises."""
    found: dict[str, str] = {}
    for each in references:
        if each["sha256"] not in found:
            with storage().open(each["path"]) as file:
                found[each["sha256"]] = base64.b64encode(file.read()).decode()
    return found


# --- deleting ----------------------------------------------------------------------------------------------------


def collect(*, owner_id: int | None = None, grace: timedelta = GRACE) -> int:
    """Delete files that no message refers to any longer, and those that were never stored to their end; returns how
    many. ``owner_id``: only that owner's. Those of owners that a legal hold is on are kept."""
    rows = Attachment.objects.filter(used_at__lte=from_now(-grace.total_seconds()))
    rows = rows.exclude(owner_id__in=[hold.subject for hold in holds.placed().holds if hold.kind == holds.Kind.OWNER])
    rows = rows.filter(~Exists(AttachmentUse.objects.filter(attachment=OuterRef("pk"))))
    if owner_id is not None:
        rows = rows.filter(owner_id=owner_id)
    return sum(
        collect_one(pk, grace) for pk in list(rows.order_by("used_at").values_list("pk", flat=True)[:MAX_COLLECTED])
    )


def collect_one(pk: UUID, grace: timedelta) -> bool:
    """Delete a file, unless it is referred to or was sent lately, or a legal hold is on its owner; whether it was
    deleted."""
    aged = Attachment.objects.filter(pk=pk, used_at__lte=from_now(-grace.total_seconds()))
    with transaction.atomic():
        placed = holds.placed_until_the_end()
        row = aged.select_for_update().first()
        if row and placed.on(owner_id=row.owner_id):
            return False
        # Asked once the lock is ours: whoever has referred to it meanwhile has committed.
        if row is None or AttachmentUse.objects.filter(attachment=row).exists():
            return False
        Attachment.objects.filter(pk=pk).update(is_stored=False)
    try:
        remove(row)
    except Exception as error:
        logger.warning("a file could not be deleted, and is tried again (%s)", type(error).__name__)
        return False
    return True


def erase(owner_id: int, rows: int, erased: Erased) -> bool:
    """Delete an owner's files, with what was known of them, in the caller's transaction; True if there are more. If
    that is undone, their rows are there again, and it is gone on with."""
    found = list(Attachment.objects.select_for_update().filter(owner_id=owner_id).order_by("pk")[:rows])
    for row in found:
        erased.add(Attachment, row.pk, row.sha256, row.text)
        Attachment.objects.filter(pk=row.pk).update(is_stored=False)
        remove(row)
    return len(found) == rows


def remove(row: Attachment) -> None:
    """Delete a file that is marked as not stored, and its row last."""
    for path in (row.path, thumbnail_of(row)):
        storage().delete(path)
    Attachment.objects.filter(Q(pk=row.pk), is_stored=False).delete()
