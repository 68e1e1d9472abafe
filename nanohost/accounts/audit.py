"""The audit log: entries that are written with what they tell of, and sealed into a chain of hashes soon after.

An entry is written in the transaction that it tells of, and costs that one INSERT. One sealer at a time gives the
entries their numbers: the hash of each is of what it says and of the hash before it, so that nothing in the chain is
changed, taken out, put in or moved without breaking it. Its end could be cut off all the same; therefore the chain's
head is told, once a minute at most, to those who keep it elsewhere (:class:`Sealer`).
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.models import Exists, Min, OuterRef

from nanohost.accounts.models import AuditEntry, AuditSeal, UnsealedEntry
from nanohost.lib import append_only
from nanohost.lib.clock import Now
from nanohost.lib.logs import subject
from nanohost.lib.redaction import redact, redact_json
from nanohost.lib.statements import Insert, Rows
from nanohost.lib.text import storable

logger = logging.getLogger(__name__)
heads = logging.getLogger("AUDIT_HEAD")

# Who acts unless somebody else is said to: the host itself.
HOST = "nanohost"

# What the first entry's hash goes on from.
BEGINNING = "0" * 64

# Entries that are sealed in one transaction: on SQLite nobody else writes meanwhile.
_MANY = 200

# A lock of the database's own; one sealer has it at a time.
_LOCK = 0x6E68_6175  # "nhau"

_actor: ContextVar[str] = ContextVar("actor", default=HOST)


@contextmanager
def acting(who: str) -> Iterator[None]:
    """What is recorded inside was done by them: ``user admin``, ``key nh_ab12… of admin``, ``agent default``."""
    token = _actor.set(who)
    try:
        yield
    finally:
        _actor.reset(token)


def acts(who: str) -> None:
    """The same for the rest of what is done in this context, such as a request's."""
    _actor.set(who)


def who_acts() -> str:
    """Whoever acts in this context."""
    return _actor.get()


_insert = Insert(
    AuditEntry,
    *("actor", "action", "object_type", "object_id", "object_name", "before", "after", "reason", "request_id"),
    at=Now(),
)


def record(
    action: str,
    *,
    about: object = None,
    kind: str = "",
    key: object = "",
    name: str | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
    by: str = "",
    request_id: str = "",
) -> None:
    """Write an entry, in the caller's transaction. ``about``: the row that it is about; or its ``kind``, ``key`` and
    ``name``. ``by``: who, if not whoever acts here. Secrets are taken out of all texts."""
    if about is not None:
        meta: Any = about._meta  # type: ignore[attr-defined]  # a model's
        kind, key, name = meta.label_lower, about.pk, str(about) if name is None else name  # type: ignore[attr-defined]
    _insert(
        actor=_text(by or _actor.get(), 200),
        action=action,
        object_type=kind,
        object_id=str(key)[:64],
        object_name=_text(name or "", 200),
        before=_json(before),
        after=_json(after),
        reason=_text(reason, 2000),
        request_id=request_id or subject("requestId"),
    )


def _text(text: str, most: int) -> str:
    return storable(redact(text))[:most] if text else ""


def _json(values: Mapping[str, Any] | None) -> str:
    if values is None:
        return ""
    return storable(redact_json(json.dumps(values, ensure_ascii=False, sort_keys=True, default=str)))


# With each entry comes its place in the sealer's queue, whoever inserts it.
_QUEUED = {
    "postgresql": """
CREATE OR REPLACE FUNCTION accounts_auditentry_unsealed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO accounts_unsealedentry (entry_id) VALUES (NEW.id);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER accounts_auditentry_unsealed AFTER INSERT ON accounts_auditentry
  FOR EACH ROW EXECUTE FUNCTION accounts_auditentry_unsealed();
""",
    "sqlite": """
CREATE TRIGGER IF NOT EXISTS accounts_auditentry_unsealed AFTER INSERT ON accounts_auditentry
BEGIN INSERT INTO accounts_unsealedentry (entry_id) VALUES (NEW.id); END
""",
}


def guard() -> None:
    """Have the database refuse to change what was recorded, and queue what is to be sealed: at each start of a host."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_QUEUED[connection.vendor])
        for model in (AuditEntry, AuditSeal):
            append_only.protect(connection, model)


# --- the chain ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Head:
    """The chain's last entry, or its :data:`BEGINNING`."""

    number: int
    hash: str


def hash_of(previous: str, number: int, entry: AuditEntry) -> str:
    """What seals an entry. docs/control.md has a script that computes it from an export, without nanohost."""
    said = json.dumps([previous, *line_of(number, entry).values()], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()


def line_of(number: int, entry: AuditEntry) -> dict[str, Any]:
    """What an export says of an entry, in this order."""
    return {
        "number": number,
        "id": entry.pk,
        "at": entry.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "actor": entry.actor,
        "action": entry.action,
        "objectType": entry.object_type,
        "objectId": entry.object_id,
        "objectName": entry.object_name,
        "before": entry.before,
        "after": entry.after,
        "reason": entry.reason,
        "requestId": entry.request_id,
    }


_head = Rows[tuple[int, str]](lambda: AuditSeal.objects.order_by("-number").values_list("number", "hash")[:1])
_entry = AuditEntry.objects.filter(pk=OuterRef("entry_id"))
# Without those that are gone: they stay in the queue, for verification to tell of, and keep none of the others waiting.
_unsealed = Rows[int](
    lambda: UnsealedEntry.objects.filter(Exists(_entry)).order_by("entry_id").values_list("entry_id", flat=True)[:_MANY]
)


def head() -> Head:
    """The chain's end."""
    return Head(*next(iter(_head()), (0, BEGINNING)))


def seal() -> int:
    """Give the entries that have none their places in the chain; returns how many. Of several who seal at once, one
    does."""
    sealed = 0
    while _unsealed():
        done = _seal_some()
        sealed += done
        if done < _MANY:
            break
    return sealed


def _seal_some() -> int:
    with transaction.atomic():
        if not _is_alone():
            return 0
        last, found = head(), _unsealed()
        entries = AuditEntry.objects.in_bulk(found)
        seals, previous = [], last.hash
        for number, entry_id in enumerate(found, last.number + 1):
            previous = hash_of(previous, number, entries[entry_id])
            seals.append(AuditSeal(number=number, entry_id=entry_id, hash=previous))
        AuditSeal.objects.bulk_create(seals)
        UnsealedEntry.objects.filter(entry_id__in=found).delete()
    return len(seals)


def _is_alone() -> bool:
    """Whether nobody else seals, until the transaction ends. On SQLite, where one writes at a time, that is so."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


class NotWhole(Exception):
    """The log was tampered with; says where, and how it shows."""


def verify(anchors: Iterable[Head] = ()) -> Head:
    """Walk the chain from its first entry to its last; returns its head. ``anchors``: heads that were recorded earlier,
    each of which must be in it. Raises :class:`NotWhole` for the first thing that is not as it was sealed.

    Entries that are younger than the sealer's last round are not in the chain yet.
    """
    told: dict[int, set[str]] = {}
    for anchor in anchors:
        if anchor.number:  # of an empty log there is nothing to hold it against
            told.setdefault(anchor.number, set()).add(anchor.hash)
    at = Head(0, BEGINNING)
    for seal, entry in _sealed():
        if seal.number != at.number + 1:
            raise NotWhole(f"number {at.number + 1} is missing; number {seal.number} comes after {at.number}")
        if entry is None:
            raise NotWhole(f"number {seal.number}: its entry {seal.entry_id} is missing")
        if hash_of(at.hash, seal.number, entry) != seal.hash:
            raise NotWhole(f"number {seal.number}: entry {entry.pk} is not what was sealed ({entry}, {entry.at})")
        if told.pop(seal.number, {seal.hash}) != {seal.hash}:
            raise NotWhole(
                f"number {seal.number}: its hash differs from the one that was recorded when it was the last"
            )
        at = Head(seal.number, seal.hash)
    if told:
        raise NotWhole(f"number {min(told)} was recorded, but the chain ends with number {at.number}")
    _refuse_unsealed()
    return at


def _sealed(after: int = 0) -> Iterator[tuple[AuditSeal, AuditEntry | None]]:
    """All of the chain, some at a time: it may be longer than memory."""
    while seals := list(AuditSeal.objects.filter(number__gt=after).order_by("number")[:_MANY]):
        entries = AuditEntry.objects.in_bulk([seal.entry_id for seal in seals])
        for seal in seals:
            yield seal, entries.get(seal.entry_id)
        after = seals[-1].number


def _refuse_unsealed() -> None:
    """What is not in the chain is in the sealer's queue, or something has taken it out of both."""
    lost = UnsealedEntry.objects.filter(~Exists(_entry)).order_by("entry_id").first()
    if lost:
        raise NotWhole(f"entry {lost.entry_id} is gone; it was not sealed yet")
    known = (model.objects.filter(entry_id=OuterRef("pk")) for model in (AuditSeal, UnsealedEntry))
    never = AuditEntry.objects.filter(*(~Exists(rows) for rows in known)).order_by("pk").first()
    if never:
        raise NotWhole(f"entry {never.pk} is neither sealed nor waits for it ({never}, {never.at})")


def lines(*, since: datetime | None = None) -> Iterator[str]:
    """The sealed entries as JSON, each with the hash before it and its own: to be verified by anybody. ``since``: from
    the first on that is so young; one that is older may be among those behind it, since its transaction took long."""
    after, previous = 0, BEGINNING
    if since:
        young = AuditSeal.objects.filter(entry_id__in=AuditEntry.objects.filter(at__gte=since).values("pk"))
        first = young.aggregate(first=Min("number"))["first"]
        before = AuditSeal.objects.filter(number__lt=first) if first else AuditSeal.objects.all()
        after, previous = before.order_by("-number").values_list("number", "hash").first() or (0, BEGINNING)
    for seal, entry in _sealed(after):
        if entry is None:
            raise NotWhole(f"number {seal.number}: its entry {seal.entry_id} is missing")
        yield json.dumps(line_of(seal.number, entry) | {"previous": previous, "hash": seal.hash}, ensure_ascii=False)
        previous = seal.hash


# --- its end -----------------------------------------------------------------------------------------------------

# What a line that tells of the head calls its two members, in the log stream and in the file.
NUMBER, HASH = "auditNumber", "auditHash"

# How often, in seconds.
TELL_SECONDS = 60.0


class Sealer:
    """What a worker does several times a second: seal what is new, and tell of the head, once a minute at most, if it
    has come further. Told are the log stream and ``place``, a file, if there is one: whoever keeps these lines
    elsewhere sees whether the chain's end is cut off later."""

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._told, self._told_at = Head(0, BEGINNING), -TELL_SECONDS
        # When it was looked at, with nothing sealed here since: what others have sealed is seen a minute later.
        self._looked_at = -TELL_SECONDS

    def seal_and_tell(self) -> None:
        """Seal what is new; and tell of the head, if it is time to look at it."""
        if seal():
            self._looked_at = self._told_at
        if time.monotonic() - self._looked_at >= TELL_SECONDS:
            self._looked_at = time.monotonic()
            self.tell()

    def tell(self) -> None:
        """Tell of the head now, if it is not the one that was told of."""
        at = head()
        if at == self._told:
            return
        self._told, self._told_at, anchor = at, time.monotonic(), {NUMBER: at.number, HASH: at.hash}
        heads.info("the audit log has come so far", extra=anchor)
        if self._place is None:
            return
        try:
            with os.fdopen(os.open(self._place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as lines_of_heads:
                lines_of_heads.write(f"{json.dumps(anchor)}\n")
        except OSError as error:
            logger.warning("the audit log's head could not be kept in %s (%s)", self._place, error.strerror)


def anchors_in(lines_of_heads: Iterable[str]) -> Iterator[Head]:
    """The heads that were told of in a log or a file; what else stands there is passed over."""
    for line in lines_of_heads:
        if NUMBER not in line:
            continue
        try:
            said = json.loads(line)
            yield Head(int(said[NUMBER]), str(said[HASH]))
        except (ValueError, KeyError, TypeError):
            continue
