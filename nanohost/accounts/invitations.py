"""Links by which people set their first password: each good once, for a few days, and kept nowhere.

A link's token is a keyed hash over whose it is, what their password is now and when it was made (Django's own, of links
to reset a password). So it is over once a password is set, or when its days are; nobody makes one without SECRET_KEY.
"""

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.encoding import force_bytes, force_str
from django.utils.http import urlsafe_base64_decode, urlsafe_base64_encode

from nanohost.accounts import audit

# By it, logs know a secret. Of ours: it opens an account.
PREFIX = "nh_invite_"


class _Tokens(PasswordResetTokenGenerator):
    key_salt = "nanohost.accounts.invitations"


tokens = _Tokens()


def days() -> float:
    """How long a link is good."""
    return float(settings.PASSWORD_RESET_TIMEOUT) / 86_400


def invite(user: Any) -> str:
    """The token of a link for somebody who has no password yet. Raises ``ValidationError`` for whoever has one: else a
    link would be a second way into their account."""
    if user.has_usable_password():
        raise ValidationError(f"{user} has a password already; another one is set on the user's own page.")
    if not user.is_active:
        raise ValidationError(f"{user} is not active: no link would let them in.")
    audit.record("invitation.made", about=user)
    return f"{PREFIX}{urlsafe_base64_encode(force_bytes(user.pk))}-{tokens.make_token(user)}"


def whose(token: str) -> Any:
    """Whom a link is for; None if it is over, or none of ours."""
    encoded, hyphen, made = token.removeprefix(PREFIX).partition("-")
    if not token.startswith(PREFIX) or not hyphen or len(token) > 200:
        return None
    try:
        number = int(force_str(urlsafe_base64_decode(encoded)))
    except ValueError:
        return None
    user = get_user_model().objects.filter(pk=number, is_active=True).first() if 0 < number < 2**63 else None
    return user if user and not user.has_usable_password() and tokens.check_token(user, made) else None


def accept(token: str, password: str) -> Any:
    """Set the password of whoever the link is for, and return them; None if it is over by now. Of two at once, one."""
    with transaction.atomic():
        user = whose(token)
        if user is None:
            return None
        locked = get_user_model().objects.select_for_update().get(pk=user.pk)
        if locked.has_usable_password():
            return None
        locked.set_password(password)
        locked.save(update_fields=["password"])
        audit.record("invitation.used", about=locked, by=f"user {locked.get_username()}")
    return locked
