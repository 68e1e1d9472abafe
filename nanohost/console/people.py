"""What belongs to somebody, and its erasure: in many small transactions, so that it can be cut short and go on."""

import hashlib
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.db import models, transaction

from conversations import search
from conversations.attachments import store
from conversations.channel_models import Channel, Chat
from conversations.engine import retention, turn_control
from conversations.models import Attachment, Conversation, DeferredMessage, Delivery, Message, Turn
from conversations.statuses import FINAL
from memory import index
from nanohost.accounts import audit, holds
from nanohost.accounts.models import AuditEntry, LegalHold
from nanohost.console.holding import on_owner
from nanohost.lib import database
from nanohost.lib.clock import read as read_clock
from nanohost.lib.erasing import Erased, Pace, as_pairs, from_pairs
from scheduler.models import ScheduleRun
from tools import retention as calls
from tools.models import ToolCall, ToolCallQuerySet
from tools.workspace import store as workspaces

# Rows that are looked for in one statement.
_MANY = 500

# What stays when all of somebody's is erased, and why: what a receipt says.
KEPT = {
    "audit log": "the proof of what was done and decided: ids, hashes, and names as they were; nothing that was said",
    "tool calls": "the tool, the hash of the arguments, the rule, the status and the duration; not what was in them",
    "legal holds that were released": "with the number of whom they were on",
    "console's log": "what was done to what, with neither names nor texts of theirs",
    "shared workspaces": "files that agents keep for all owners together (WORKSPACE_SHARED)",
    "overview": "figures by hour, which name nobody",
    "outside this database": "copies of it, logs, and what models' providers and tools' servers keep",
}


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Of an erasure that is done. ``rows``: by table. ``hash``: over the hashes of its batches, in their order.
    ``entry``: the audit log's."""

    owner: int
    began_at: str
    ended_at: str
    batches: int
    rows: list[tuple[int, str]]
    hash: str
    entry: int

    def as_json(self) -> dict[str, Any]:
        """What people are given."""
        return {
            "owner": self.owner,
            "began": self.began_at,
            "ended": self.ended_at,
            "batches": self.batches,
            "rows": self.rows,
            "hash": self.hash,
            "auditEntry": self.entry,
            "kept": KEPT,
        }


def belongings(user: User) -> dict[str, int]:
    """How many rows there are of each kind that is theirs, by what people call it; none of which there are none."""
    counts = Counter({str(model._meta.verbose_name_plural): rows.count() for model, rows in _rows_of(user)})
    of_conversations = {"conversation__owner": user}
    counts["messages"] = Message.objects.filter(**of_conversations).count()
    counts["deferred messages"] = DeferredMessage.objects.filter(**of_conversations).count()
    counts["attachments"] = Attachment.objects.filter(owner_id=user.pk).count()
    counts["tool calls"] = calls.of_owner(user.pk).count()
    return dict(+counts)


def has_any(user: User) -> bool:
    """Whether anything would go with them."""
    return has_acted(user) or any(rows.exists() for _, rows in _rows_of(user))


def has_acted(user: User) -> bool:
    """Whether the console's log names them: their row stays then, without a name."""
    return LogEntry.objects.filter(user=user).exists()


def held(user: User) -> list[LegalHold]:
    """The legal holds for which nothing of theirs is erased."""
    return on_owner(user, holds.placed())


def erase(user: User, *, seconds: float | None = None) -> Receipt | None:
    """Delete all that is theirs, and then their row; None if the time was up: to be called again, it goes on.

    From the first moment their keys open nothing and no schedule of theirs runs. What is under way is cancelled. Of
    tool calls, what they were made with and what they answered goes; the rest is the audit, and stays, with plain ids.
    Raises :class:`nanohost.accounts.errors.UnderLegalHold`.
    """
    until = None if seconds is None else time.monotonic() + seconds
    with database.overwriting_what_is_deleted():
        with transaction.atomic():
            holds.refuse(on_owner(user, holds.placed_until_the_end()))
            User.objects.filter(pk=user.pk).update(is_active=False)
        # The last first, so that none starts when one before it ends.
        for turn in Turn.objects.open().filter(owner=user).order_by("conversation_id", "-number"):
            turn_control.cancel_turn(turn)
        for erase_some in _pieces(user):
            if until is not None and time.monotonic() > until:
                return None
            erase_some()
        index.forget_deleted()
        search.forget_deleted()
        return _take_leave(user)


def _pieces(user: User) -> Iterator[Callable[[], object]]:
    """One small transaction after the other."""
    pace = Pace()
    yield from (partial(pace.transact, partial(_unname, kind, keys)) for kind, keys in _in_the_log(user))
    # No cursor stays open meanwhile: on SQLite that is a look at the past from which nothing may be written.
    while pks := list(Conversation.objects.filter(owner=user).order_by("pk").values_list("pk", flat=True)[:_MANY]):
        for pk in pks:
            yield from _until_done(pace, user, partial(_erase_calls, calls.of_conversation(pk)))
            yield from _until_done(pace, user, partial(_erase_messages, pk))
            # What is under way is ended, with its calls, by the conversation's own end.
            ended = Turn.objects.filter(conversation=pk, status__in=FINAL)
            yield from _until_done(pace, user, partial(_delete_some, ended))
            yield partial(turn_control.delete_conversation, pk)
            yield from _until_done(pace, user, partial(_erase_calls, calls.of_conversation(pk)))
    yield from _until_done(pace, user, partial(store.erase, user.pk))
    yield partial(_erase_workspaces, user)
    for each in _of_channels(user):
        yield from _until_done(pace, user, partial(_delete_some, each))
    rows = [rows for _, rows in _rows_of(user)]
    for each in (ScheduleRun.objects.filter(schedule__owner=user), *rows, *_by_number(user), *_by_their_name(user)):
        yield from _until_done(pace, user, partial(_delete_some, each))
    yield from _until_done(pace, user, partial(_erase_calls, calls.of_owner(user.pk)))


def _of_channels(user: User) -> Iterator[models.QuerySet[Any]]:
    """The channels that are theirs, after all that is kept of them."""
    yield Delivery.objects.filter(account__owner=user)
    yield Chat.objects.filter(channel__owner=user)
    yield Channel.objects.filter(owner=user)


def _erase_workspaces(user: User) -> None:
    with transaction.atomic():
        holds.refuse(on_owner(user, holds.placed_until_the_end()))
        workspaces.erase(user.pk)


def _until_done(pace: Pace, user: User, erase_some: Callable[[int, Erased], bool]) -> Iterator[Callable[[], object]]:
    left = deque([True])

    def one_batch() -> None:
        left[0] = pace.transact(partial(_batch, user, erase_some))

    while left[0]:
        yield one_batch


def _batch(user: User, erase_some: Callable[[int, Erased], bool], rows: int) -> bool:
    """Erase some of it in the caller's transaction, with its record; True if there is more."""
    holds.refuse(on_owner(user, holds.placed_until_the_end()))
    erased = Erased()
    is_more = erase_some(rows, erased)
    if erased.rows:
        audit.record("user.erasing", about=user, name=f"user {user.pk}", after=erased.told())
    return is_more


def _erase_messages(conversation_id: UUID, rows: int, erased: Erased) -> bool:
    return retention.erase_messages(conversation_id, before=None, rows=rows, erased=erased)


def _erase_calls(of: ToolCallQuerySet, rows: int, erased: Erased) -> bool:
    """Those that have not ended wait for whoever cancels their turn."""
    found = list(of.exclude(pk__in=of.open().values("pk")).values_list("pk", flat=True)[:rows])
    calls.erase(found, erased=erased)
    return len(found) == rows


def _delete_some(of: models.QuerySet[Any], rows: int, erased: Erased) -> bool:
    found = list(of.order_by("pk")[:rows])
    for row in found:
        erased.add(type(row), row.pk, *(row.serializable_value(field.attname) for field in row._meta.concrete_fields))
    of.model._default_manager.filter(pk__in=[row.pk for row in found]).delete()
    return len(found) == rows


def _rows_of(user: User) -> Iterator[tuple[type[models.Model], models.QuerySet[Any]]]:
    """Of each model whose rows would go with their owner, those that are theirs; but for the console's log."""
    for relation in _naming_users():
        model = relation.related_model
        if relation.on_delete is models.CASCADE and model is not LogEntry:
            yield model, model._default_manager.filter(**{relation.field.name: user})


def _naming_users() -> list[Any]:
    """Every foreign key to a user there is, those of apps to come as well."""
    fields: list[Any] = User._meta.get_fields(include_hidden=True)
    relations = [field for field in fields if field.one_to_many or field.one_to_one]
    return [each for each in relations if each.auto_created and not each.related_model._meta.auto_created]


def _by_number(user: User) -> Iterator[models.QuerySet[Any]]:
    """Of each model that names its owner by a plain number, the rows that are theirs; but for what stays."""
    for model in apps.get_models():
        names = {field.name for field in model._meta.concrete_fields if not field.is_relation}
        for name in sorted(names & {"owner_id", "user_id"}):
            if model not in (ToolCall, LegalHold, Attachment):
                yield model._default_manager.filter(**{name: user.pk})


def _by_their_name(user: User) -> Iterator[models.QuerySet[Any]]:
    """What has no foreign key: failed sign-ins, by their name, and sessions, which say whose they are in their text."""
    for model in (AccessAttempt, AccessFailureLog, AccessLog):
        yield model._default_manager.filter(username=user.get_username())
    sessions = Session.objects.iterator(_MANY)
    mine = [each.pk for each in sessions if each.get_decoded().get(SESSION_KEY) == str(user.pk)]
    yield Session.objects.filter(pk__in=mine)


def _in_the_log(user: User) -> list[tuple[ContentType, list[str]]]:
    """Of the console's log, the entries that name something of theirs, by its number or id."""
    found = [(ContentType.objects.get_for_model(User), [str(user.pk)])]
    for model, rows in _rows_of(user):
        kind = ContentType.objects.get_for_model(model)
        named = LogEntry.objects.filter(content_type=kind).exclude(object_repr=_UNNAMED).order_by("pk")
        for entries in _in_parts(list(named.values_list("object_id", flat=True))):
            mine = rows.filter(pk__in=[key for key in entries if _is_key(model, key)])
            found.append((kind, [str(pk) for pk in mine.values_list("pk", flat=True)]))
    return [(kind, keys) for kind, keys in found if keys]


def _in_parts(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (keys[start : start + _MANY] for start in range(0, len(keys), _MANY))


def _is_key(model: type[models.Model], key: str | None) -> bool:
    try:
        model._meta.pk.to_python(key)
    except ValidationError:
        return False
    return key is not None


# What the console's log calls what is gone.
_UNNAMED = "(erased)"


def _unname(kind: ContentType, keys: Sequence[str], rows: int) -> None:
    LogEntry.objects.filter(content_type=kind, object_id__in=keys).update(object_repr=_UNNAMED)


def _left_of(user: User) -> list[str]:
    """The models that still have something of theirs, also of apps to come: by a foreign key, or by a plain number."""
    left = [str(model._meta.label) for model, rows in _rows_of(user) if rows.exists()]
    left += [str(rows.model._meta.label) for rows in _by_number(user) if rows.exists()]
    return left + ([calls.TABLE] if calls.of_owner(user.pk).exists() else [])


def _take_leave(user: User) -> Receipt | None:
    """The row itself; where the console's log says what they did, it stays as a number. None if there is something of
    theirs again: it was stored meanwhile."""
    with transaction.atomic():
        holds.refuse(on_owner(user, holds.placed_until_the_end()))
        if _left_of(user):
            return None
        receipt = _receipt(user)
        # From here on, so that the audit log does not keep the name that is erased.
        user.username, user.first_name, user.last_name, user.email = f"erased-{user.pk}", "", "", ""
        if not has_acted(user):
            user.delete()
            return receipt
        for relation in _naming_users():
            if relation.on_delete is models.SET_NULL:
                rows = relation.related_model._default_manager.filter(**{relation.field.name: user})
                rows.update(**{relation.field.name: None})
        User.objects.filter(pk=user.pk).update(
            username=user.username,
            first_name="",
            last_name="",
            email="",
            is_active=False,
            is_staff=False,
            is_superuser=False,
            password=make_password(None),
        )
        user.groups.clear()
        user.user_permissions.clear()
    return receipt


def _receipt(user: User) -> Receipt:
    """What all batches have told, put together, and told in turn."""
    entries = AuditEntry.objects.filter(object_type=user._meta.label_lower, object_id=str(user.pk))
    batches = list(entries.filter(action="user.erasing").order_by("pk").values_list("after", "at"))
    rows, digest = Counter[str](), hashlib.sha256()
    for said, _ in batches:
        told = json.loads(said)
        rows += from_pairs(told["rows"])
        digest.update(told["hash"].encode())
    now = read_clock().isoformat()
    receipt = Receipt(
        owner=user.pk,
        began_at=batches[0][1].isoformat() if batches else now,
        ended_at=now,
        batches=len(batches),
        rows=as_pairs(rows),
        hash=digest.hexdigest(),
        entry=0,
    )
    all_but_itself = {name: value for name, value in receipt.as_json().items() if name != "auditEntry"}
    audit.record("user.erased", about=user, name=f"user {user.pk}", after=all_but_itself)
    return replace(receipt, entry=entries.filter(action="user.erased").latest("pk").pk)
