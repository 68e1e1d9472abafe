"""What the audit log is told of people: who signs in and who fails to, what becomes of users, roles and jobs, and what
is done in the console beside that.

Models of other people's apps have no one place where they are changed; Django's signals tell of each.
"""

from collections.abc import Iterable
from typing import Any

from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models import Model
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_save
from django.forms.models import model_to_dict
from django_celery_beat.models import PeriodicTask

from nanohost.accounts import audit
from nanohost.lib.locality import address_of

# What is told of a model's rows: an action's first word, and the fields. Of a password, that there is another.
_FIELDS: dict[type[Model], tuple[str, tuple[str, ...]]] = {
    User: ("user", ("username", "email", "is_active", "is_staff", "is_superuser", "password")),
    Group: ("role", ("name",)),
    PeriodicTask: ("job", ("name", "enabled", "interval", "crontab", "one_off", "args", "kwargs")),
}
_HIDDEN = {"password": "(changed)"}

# What the console's own log tells of these, the audit log has from where they are changed.
_TELL_THEMSELVES = {
    *("auth.user", "auth.group", "django_celery_beat.periodictask", "accounts.apikey", "agent.agent"),
    *(
        "tools.toolsetting",
        "tools.mcpserver",
        "tools.mcptool",
        "tools.customtool",
        "scheduler.schedule",
        "agent.modelprice",
        "agent.budget",
    ),
    *("conversations.webhookendpoint", "conversations.delivery", "conversations.channel", "conversations.destination"),
    *("accounts.legalhold", "conversations.intakepause"),
}
# Tables that say who has what: the columns of the one who has it, and of what that is.
_ENDS: dict[type[Model], tuple[str, str]] = {
    User.groups.through: ("user", "group"),
    User.user_permissions.through: ("user", "permission"),
    Group.permissions.through: ("group", "permission"),
}
_DEEDS = {ADDITION: "console.added", CHANGE: "console.changed", DELETION: "console.deleted"}


def connect() -> None:
    """From now on, tell the audit log."""
    for model in _FIELDS:
        pre_save.connect(_before_saving, sender=model, weak=False)
        post_save.connect(_saved, sender=model, weak=False)
        post_delete.connect(_deleted, sender=model, weak=False)
    for through in _ENDS:
        m2m_changed.connect(_members_changed, sender=through, weak=False)
    post_save.connect(_logged, sender=LogEntry, weak=False)
    user_logged_in.connect(_signed_in, weak=False)
    user_logged_out.connect(_signed_out, weak=False)
    user_login_failed.connect(_failed_to_sign_in, weak=False)


def _values(row: Model) -> dict[str, Any]:
    return model_to_dict(row, _FIELDS[type(row)][1])


def _before_saving(sender: type[Model], instance: Any, raw: bool, update_fields: Any, **_: Any) -> None:
    """Keep what the row was, for :func:`_saved`; nothing where none of it is saved."""
    instance.was = None
    if raw or (update_fields is not None and not set(update_fields) & set(_FIELDS[sender][1])):
        return
    instance.was = sender._default_manager.filter(pk=instance.pk).values(*_FIELDS[sender][1]).first() or {}


def _saved(sender: type[Model], instance: Any, created: bool, **_: Any) -> None:
    was = instance.was
    if was is None:
        return
    became = _values(instance)
    changed = [name for name in became if created or was.get(name) != became[name]]
    if not changed:
        return
    before = None if created else _shown(was, changed)
    word = _FIELDS[sender][0]
    audit.record(
        f"{word}.{'made' if created else 'changed'}", about=instance, before=before, after=_shown(became, changed)
    )


def _shown(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: _HIDDEN.get(name, values[name]) for name in names}


def _deleted(sender: type[Model], instance: Any, **_: Any) -> None:
    audit.record(f"{_FIELDS[sender][0]}.deleted", about=instance, before=_shown(_values(instance), _FIELDS[sender][1]))


def _members_changed(
    sender: type[Model], instance: Any, action: str, reverse: bool, model: type[Model], pk_set: Any, **_: Any
) -> None:
    """Of whoever is given something, or has it taken away; ``reverse``: the change was made on what is given."""
    deed = {"post_add": "given", "post_remove": "taken", "pre_clear": "taken"}.get(action)
    if deed is None:
        return
    if action == "pre_clear":
        here, there = _ENDS[sender][::-1] if reverse else _ENDS[sender]
        pk_set = sender._default_manager.filter(**{here: instance}).values_list(there, flat=True)
    # With what their names are made of, such as a permission's model.
    others = sorted(model._default_manager.filter(pk__in=pk_set).select_related(), key=str)
    holders, given = (others, [instance]) if reverse else ([instance], others)
    for holder in holders if given else ():
        names = {str(given[0]._meta.verbose_name_plural): [str(each) for each in given]}
        audit.record(f"{_FIELDS[type(holder)][0]}.{deed}", about=holder, after=names)


def _logged(instance: LogEntry, created: bool, **_: Any) -> None:
    kind = instance.content_type
    label = f"{kind.app_label}.{kind.model}" if kind else ""
    if created and label not in _TELL_THEMSELVES:
        audit.record(
            _DEEDS[instance.action_flag],
            kind=label,
            key=instance.object_id or "",
            name=instance.object_repr,
            reason=instance.get_change_message(),
        )


def _signed_in(request: Any, user: Any, **_: Any) -> None:
    audit.record("signed_in", about=user, by=f"user {user}", after=_from(request))


def _signed_out(request: Any, user: Any, **_: Any) -> None:
    if user is not None:
        audit.record("signed_out", about=user, by=f"user {user}", after=_from(request))


def _failed_to_sign_in(request: Any = None, **_: Any) -> None:
    """Without the name that was tried, which may be a password."""
    audit.record("sign_in_failed", by="somebody", after=_from(request))


def _from(request: Any) -> dict[str, str]:
    return {"address": address_of(request)} if request is not None else {}
