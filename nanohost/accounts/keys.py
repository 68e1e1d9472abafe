"""Making, changing and revoking API keys: one way for the console, the API, the shell and the host's start. Each stands
in the audit log."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.forms.models import model_to_dict

from nanohost.accounts import audit
from nanohost.accounts.models import EXPIRED, ApiKey, Scope

# What people set.
LIMITS = (
    *("name", "scopes", "agent_names", "model_names", "networks", "requests_per_minute", "turns_at_once"),
    *("allowed_origins", "cancel_on_disconnect", "expires_at"),
)


def make(*, owner: Any, **limits: Any) -> tuple[ApiKey, str]:
    """A key, and its text, which is shown once. Raises ``ValidationError`` for limits that make no sense."""
    wanted = ApiKey(owner=owner, **limits)
    wanted.clean_fields(exclude={"prefix", "digest"})
    wanted.clean()
    if wanted.state == EXPIRED:
        raise ValidationError({"expires_at": "That is over: the key would open nothing."})
    with transaction.atomic():
        made, text = ApiKey.objects.issue(owner=owner, **limits)
        _note("key.made", made, after=limits_of(made))
    return made, text


def of_browser(user: Any) -> ApiKey:
    """The key that somebody's browser has while they are signed in, made at its first use: it may chat, and do what
    belongs to that. What else it may, and whether it may anything, admins decide as of any key."""
    theirs = ApiKey.objects.filter(owner=user, is_of_browser=True)
    found: ApiKey | None = theirs.first()
    if found:
        return found
    scopes = [Scope.CHAT, Scope.READ, Scope.SCHEDULES, Scope.MEMORY]
    try:
        return make(owner=user, name="Browser", scopes=[str(each) for each in scopes], is_of_browser=True)[0]
    except IntegrityError:  # another tab was first
        return theirs.get()  # type: ignore[no-any-return]


def configure(text: str, *, owner: Any) -> list[ApiKey]:
    """See that the key that a setting names opens something; returns those that it named before, which are revoked now.
    Raises as :meth:`ApiKeyManager.configure` does."""
    with transaction.atomic():
        is_new = ApiKey.objects.recognise(text) is None
        former = ApiKey.objects.configure(text, owner=owner)
        if is_new and (made := ApiKey.objects.recognise(text)):
            _note("key.made", made, after=limits_of(made), reason="NANOHOST_API_KEY names it.")
        for each in former:
            _note("key.revoked", each, reason="NANOHOST_API_KEY names it no longer.")
    return former


def change(key: ApiKey, **limits: Any) -> ApiKey:
    """Set some of what it may do; it counts from the next request on. Raises ``ValidationError``."""
    with transaction.atomic():
        row: ApiKey = ApiKey.objects.select_for_update().select_related("owner").get(pk=key.pk)
        before = limits_of(row)
        after = before | limits
        wanted = ApiKey(owner=row.owner, **after)
        wanted.clean_fields(exclude={"prefix", "digest"})
        wanted.clean()
        changed = [name for name in LIMITS if after[name] != before[name]]
        if changed:
            was, became = ({name: values[name] for name in changed} for values in (before, after))
            ApiKey.objects.filter(pk=row.pk).update(**became)
            row.refresh_from_db()
            _note("key.changed", row, before=was, after=became)
    return row


def revoke(key: ApiKey, *, reason: str = "") -> bool:
    """Refuse it from now on; False if it was revoked before."""
    with transaction.atomic():
        if not key.revoke():
            return False
        _note("key.revoked", key, reason=reason)
    return True


def limits_of(key: ApiKey) -> dict[str, Any]:
    """What it may do, by the names of its fields."""
    return model_to_dict(key, LIMITS)


def _note(action: str, key: ApiKey, **said: Any) -> None:
    owner = {"owner": key.owner.get_username()}
    if "after" in said:
        said["after"] = owner | said["after"]
    audit.record(action, about=key, **said)
