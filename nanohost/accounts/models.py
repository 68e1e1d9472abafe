"""API keys: who is calling."""

import hashlib
import hmac
import re
import secrets
from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from nanohost.accounts.errors import MalformedKey
from nanohost.lib.clock import Now, from_now
from nanohost.lib.statements import Given, Rows

# Until it expires, if it does.
MAX_DAYS = 36_500

KEY_PATTERN = r"nh_[a-z0-9]{4,16}_[A-Za-z0-9_-]{16,128}"


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    """Look-ups that say what they mean."""

    def active(self) -> Self:
        """Keys that open something now: not revoked, not expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=Now()), revoked_at=None)


class ApiKeyManager(models.Manager.from_queryset(ApiKeyQuerySet)):  # type: ignore[misc]
    """Makes keys and recognises them."""

    def issue(self, *, owner: object, expires_at: datetime | None = None) -> tuple["ApiKey", str]:
        """Make a key ``nh_<prefix>_<secret>``; returned once, since only its SHA-256 is kept."""
        key = f"nh_{secrets.token_hex(4)}_{secrets.token_urlsafe(24)}"
        return self.register(key, owner=owner, expires_at=expires_at), key

    def register(self, key: str, *, owner: object, expires_at: datetime | None = None) -> "ApiKey":
        """Keep a key that was chosen elsewhere; raises :class:`MalformedKey`."""
        if not re.fullmatch(KEY_PATTERN, key):
            raise MalformedKey(
                "An API key looks like nh_<prefix>_<secret>:"
                " 4 to 16 of a-z and 0-9, then 16 to 128 of A-Z, a-z, 0-9, - and _."
            )
        row: ApiKey = self.create(owner=owner, prefix=key.split("_")[1], digest=_digest(key), expires_at=expires_at)
        return row

    def configure(self, key: str, *, owner: object) -> list["ApiKey"]:
        """See that this key, which a setting names, opens something. Returns those that the setting named before: they
        are revoked now. Raises :class:`MalformedKey`, and IntegrityError where the prefix is another key's."""
        row = self.recognise(key) or self.register(key, owner=owner)
        self.filter(pk=row.pk, is_configured=False).update(is_configured=True)
        former = list(self.active().filter(is_configured=True).exclude(pk=row.pk).order_by("pk"))
        for each in former:
            each.revoke()
        return former

    def recognise(self, key: str) -> "ApiKey | None":
        """The active key this is, or None. Digests are compared in constant time."""
        if not re.fullmatch(KEY_PATTERN, key):
            return None
        row = next(iter(_active(prefix=key.split("_")[1])), None)
        # Something is compared either way, so that the time taken does not tell whether a prefix exists.
        matches = hmac.compare_digest(row.digest if row else _digest(""), _digest(key))
        return row if row and matches else None


class ApiKey(models.Model):
    """A key an owner calls the API with. The key itself is never stored."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="api_keys",
        help_text="Whose conversations the key opens.",
    )
    prefix = models.CharField(max_length=16, unique=True, help_text="The part between nh_ and the secret; not secret.")
    digest = models.CharField(max_length=64, editable=False, help_text="SHA-256 of the whole key, hexadecimal.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="From then on it is refused; empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True, help_text="From then on it is refused.")
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="To the minute.")
    is_configured = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="NANOHOST_API_KEY names it, or did."
    )

    objects = ApiKeyManager()

    class Meta:
        verbose_name = "API key"
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"nh_{self.prefix}_…"

    @property
    def state(self) -> str:
        """Whether it opens anything now: ``active``, ``revoked`` or ``expired``."""
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= timezone.now() else "active"

    def note_use(self) -> None:
        """Remember that the key was used, at most once a minute, so that a busy key costs no write a request."""
        if self.last_used_at is None or self.last_used_at < timezone.now() - timedelta(minutes=1):
            stale = Q(last_used_at=None) | Q(last_used_at__lt=from_now(-60))
            type(self).objects.filter(stale, pk=self.pk).update(last_used_at=Now())

    def revoke(self) -> None:
        """Refuse the key from now on; the row stays, so that what it did can still be traced."""
        type(self).objects.filter(pk=self.pk, revoked_at=None).update(revoked_at=Now())


_active = Rows(
    lambda: ApiKey.objects.active().select_related("owner").filter(prefix=Given("prefix"), owner__is_active=True)
)
