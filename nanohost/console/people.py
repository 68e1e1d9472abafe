"""What belongs to somebody, and its erasure: in many small transactions, so that it can be cut short and go on."""

import time
from collections.abc import Iterator
from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import models, transaction

from conversations.engine import turn_control
from conversations.models import Conversation, Turn

# Rows that are deleted in one statement.
_MANY = 500


def belongings(user: User) -> dict[str, int]:
    """How many rows there are of each kind that is theirs, by what people call it; none of which there are none."""
    counts = {str(model._meta.verbose_name_plural): rows.count() for model, rows in _rows_of(user)}
    return {name: count for name, count in counts.items() if count}


def has_any(user: User) -> bool:
    """Whether anything would go with them."""
    return has_acted(user) or any(rows.exists() for _, rows in _rows_of(user))


def has_acted(user: User) -> bool:
    """Whether the console's log names them: their row stays then, without a name."""
    return LogEntry.objects.filter(user=user).exists()


def erase(user: User, *, seconds: float) -> bool:
    """Delete all that is theirs, and then their row; False if the time was up: to be called again, it goes on.

    From the first moment their keys open nothing and no schedule of theirs runs. What is under way is cancelled. The
    audit (tool calls, the console's log) stays, with plain ids.
    """
    until = time.monotonic() + seconds
    User.objects.filter(pk=user.pk).update(is_active=False)
    # The last first, so that none starts when one before it ends.
    for turn in Turn.objects.open().filter(owner=user).order_by("conversation_id", "-number"):
        turn_control.cancel_turn(turn)
    for delete in _deletions(user):
        if time.monotonic() > until:
            return False
        delete()
    _take_leave(user)
    return True


def _deletions(user: User) -> Iterator[Any]:
    """One small transaction after the other."""
    # No cursor stays open meanwhile: on SQLite that is a look at the past from which nothing may be written.
    while pks := list(Conversation.objects.filter(owner=user).values_list("pk", flat=True)[:_MANY]):
        for pk in pks:
            yield lambda pk=pk: turn_control.delete_conversation(pk)
    for model, rows in _rows_of(user):
        while found := list(rows.values_list("pk", flat=True)[:_MANY]):
            yield lambda model=model, found=found: model._default_manager.filter(pk__in=found).delete()


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


def _take_leave(user: User) -> None:
    """The row itself; where the console's log says what they did, it stays as a number."""
    with transaction.atomic():
        if not has_acted(user):
            user.delete()
            return
        for relation in _naming_users():
            if relation.on_delete is models.SET_NULL:
                rows = relation.related_model._default_manager.filter(**{relation.field.name: user})
                rows.update(**{relation.field.name: None})
        user.username, user.first_name, user.last_name, user.email = f"erased-{user.pk}", "", "", ""
        user.is_active = user.is_staff = user.is_superuser = False
        user.set_unusable_password()
        user.save()
        user.groups.clear()
        user.user_permissions.clear()
