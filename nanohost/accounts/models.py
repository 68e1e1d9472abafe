"""API keys: who is calling; and the audit log: who has done and decided what."""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from nanohost.accounts.errors import MalformedKey
from nanohost.lib.clock import Now, from_now
from nanohost.lib.statements import Given, Rows
from nanohost.lib.text import UNSTORABLE

# Until it expires, if it does.
MAX_DAYS = 36_500

# What can be said of whether a key opens anything.
ACTIVE, REVOKED, EXPIRED = STATES = ("active", "revoked", "expired")

# All agents there are.
EVERY_AGENT = "*"

MAX_PER_MINUTE, MAX_AT_ONCE = 10_000, 10_000

KEY_PATTERN = r"nh_[a-z0-9]{4,16}_[A-Za-z0-9_-]{16,128}"
# The prefix of a key that was made here. One of another form was chosen by people: NANOHOST_API_KEY alone can name it.
MADE_PREFIX = r"^[0-9a-f]{8}$"


class Scope(models.TextChoices):
    """What a key may do."""

    CHAT = "chat", "Talk to agents: begin, go on with and delete conversations, cancel turns"
    READ = "read", "Read conversations, turns, schedules and tools"
    SCHEDULES = "schedules", "Make, change and run schedules"
    MEMORY = "memory", "Read and rewrite what agents remember"
    APPROVE = "approve", "Decide on calls of tools that need consent"
    ADMIN = "admin", "Make, change and revoke keys, and read what everybody's use has cost"


# What a key may do that nothing else is said of; and what every key could do before there were scopes.
NEW_SCOPES = [Scope.CHAT.value, Scope.READ.value]
FORMER_SCOPES = [*NEW_SCOPES, Scope.SCHEDULES.value, Scope.MEMORY.value]


# What the keys may do that come with a host: its first one, and the one that NANOHOST_API_KEY names.
WIDE: dict[str, Any] = {"scopes": FORMER_SCOPES, "agent_names": [EVERY_AGENT]}


def _as_json(value: list[str]) -> "models.Value":
    """For a column's own default, which nodes of an earlier release leave to it."""
    return models.Value(value, models.JSONField())


def new_scopes() -> list[str]:
    """Of a new key."""
    return list(NEW_SCOPES)


def validate_scopes(scopes: Any) -> None:
    """A list of what there is."""
    _refuse_no_list(scopes)
    if unknown := sorted(set(scopes) - set(Scope.values)):
        raise ValidationError(f"There is no scope {unknown[0]!r}; there are {', '.join(Scope.values)}.")
    if not scopes:
        raise ValidationError(f"A key needs a scope at least: {', '.join(Scope.values)}.")


def validate_names(names: Any) -> None:
    """A list of names."""
    _refuse_no_list(names)
    if any(not name or len(name) > 128 or UNSTORABLE.search(name) for name in names):
        raise ValidationError("A name has 1 to 128 characters.")


def validate_networks(networks: Any) -> None:
    """A list of networks, such as 203.0.113.0/24, or of addresses."""
    _refuse_no_list(networks)
    for network in networks:
        if "%" in network:
            raise ValidationError(f"{network!r} names a zone, which is not supported here.")
        try:
            _network(network)
        except ValueError as error:
            raise ValidationError(f"{error}. A network is written as 203.0.113.0/24 or 2001:db8::/32.") from None


ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")


def validate_origins(origins: Any) -> None:
    """A list of origins of web pages, as browsers write them, such as https://example.org."""
    _refuse_no_list(origins)
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise ValidationError(f"{origin!r} is not an origin such as https://example.org, without a path.")


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The network; of IPv4 addresses written as IPv6, the one of IPv4. Raises ValueError."""
    found = ipaddress.ip_network(text)
    if isinstance(found, ipaddress.IPv6Network) and found.prefixlen >= 96:
        mapped = found.network_address.ipv4_mapped
        return ipaddress.IPv4Network((mapped, found.prefixlen - 96)) if mapped else found
    return found


def _refuse_no_list(texts: Any) -> None:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValidationError("A list of texts is needed.")
    if len(texts) > 100:
        raise ValidationError("A list has 100 entries at most.")


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    """Look-ups that say what they mean."""

    def active(self) -> Self:
        """Keys that open something now: not revoked, not expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=Now()), revoked_at=None)

    def perhaps_configured(self, *, recorded_since: datetime) -> Self:
        """Active keys that NANOHOST_API_KEY may have named before ``recorded_since``, from when on it is recorded which
        it names: those of the admin that were made here. None, if a key is marked that can only have been marked since,
        for then it is recorded."""
        marked = self.filter(is_configured=True)
        if marked.filter(Q(prefix__regex=MADE_PREFIX) | Q(created_at__gte=recorded_since)).exists():
            return self.none()
        before = {"is_configured": False, "owner__username": "admin", "created_at__lt": recorded_since}
        return self.active().filter(prefix__regex=MADE_PREFIX, **before).order_by("pk")


class ApiKeyManager(models.Manager.from_queryset(ApiKeyQuerySet)):  # type: ignore[misc]
    """Makes keys and recognises them."""

    def issue(self, *, owner: object, **may: Any) -> tuple["ApiKey", str]:
        """Make a key ``nh_<prefix>_<secret>``; returned once, since only its SHA-256 is kept. ``may``: values of its
        other fields."""
        key = f"nh_{secrets.token_hex(4)}_{secrets.token_urlsafe(24)}"
        return self.register(key, owner=owner, **may), key

    def register(self, key: str, *, owner: object, **may: Any) -> "ApiKey":
        """Keep a key that was chosen elsewhere; raises :class:`MalformedKey`."""
        if not re.fullmatch(KEY_PATTERN, key):
            raise MalformedKey(
                "An API key looks like nh_<prefix>_<secret>:"
                " 4 to 16 of a-z and 0-9, then 16 to 128 of A-Z, a-z, 0-9, - and _."
            )
        row: ApiKey = self.create(owner=owner, prefix=key.split("_")[1], digest=_digest(key), **may)
        return row

    def configure(self, key: str, *, owner: object) -> list["ApiKey"]:
        """See that this key, which a setting names, opens something. Returns those that the setting named before: they
        are revoked now. Raises :class:`MalformedKey`, and IntegrityError where the prefix is another key's."""
        row = self.recognise(key) or self.register(key, owner=owner, **WIDE)
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
        help_text="The owner of the conversations the key gives access to.",
    )
    prefix = models.CharField(max_length=16, unique=True, help_text="The part between nh_ and the secret; not secret.")
    digest = models.CharField(max_length=64, editable=False, help_text="SHA-256 of the whole key, hexadecimal.")
    created_at = models.DateTimeField(auto_now_add=True)
    name = models.CharField(max_length=100, blank=True, db_default="", help_text="What it is for.")
    scopes = models.JSONField(
        default=new_scopes, db_default=_as_json(NEW_SCOPES), validators=[validate_scopes], help_text="What it may do."
    )
    agent_names = models.JSONField(
        default=list,
        db_default=_as_json([]),
        blank=True,
        validators=[validate_names],
        help_text="The agents that it may name, and whose conversations it opens. Empty: those that are public. * means"
        " all of them.",
    )
    model_names = models.JSONField(
        default=list,
        db_default=_as_json([]),
        blank=True,
        validators=[validate_names],
        help_text="The models it may ask for, besides an agent's own. Empty: those in LLM_MODELS.",
    )
    networks = models.JSONField(
        default=list,
        db_default=_as_json([]),
        blank=True,
        validators=[validate_networks],
        help_text="Where it may be used from, such as 203.0.113.0/24. Empty: from anywhere.",
    )
    allowed_origins = models.JSONField(
        default=list,
        db_default=_as_json([]),
        blank=True,
        validators=[validate_origins],
        help_text="Web pages that may embed a chat with its agent, such as https://example.org. Empty: none.",
    )
    requests_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_PER_MINUTE)],
        help_text="Requests it may make in any 60 seconds. Empty: no limit.",
    )
    turns_at_once = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_AT_ONCE)],
        help_text="Turns it may have open at the same time. Empty: no limit.",
    )
    cancel_on_disconnect = models.BooleanField(
        default=False,
        db_default=False,
        help_text="A client of /v1 that goes away cancels its turn. Otherwise the turn goes on, and is there for who"
        " asks again.",
    )
    expires_at = models.DateTimeField(null=True, blank=True, help_text="From then on it is refused; empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True, help_text="From then on it is refused.")
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="To the minute.")
    is_configured = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="It was set by NANOHOST_API_KEY."
    )

    is_of_browser = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="It belongs to its owner's signed-in browser session. Nobody can see the key itself.",
    )

    objects = ApiKeyManager()

    class Meta:
        verbose_name = "API key"
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["owner"], condition=Q(is_of_browser=True), name="one_browser_key")
        ]

    def __str__(self) -> str:
        return f"nh_{self.prefix}_…"

    def clean(self) -> None:
        """Pages that embed a chat tell everybody the key's prefix, so its rate has to be bounded."""
        if self.allowed_origins and not self.requests_per_minute:
            reason = "A key with allowed origins can be used by anybody: say how many requests a minute it may make."
            raise ValidationError({"requests_per_minute": reason})

    @property
    def state(self) -> str:
        """Whether it opens anything now: one of ``STATES``."""
        if self.revoked_at:
            return REVOKED
        return EXPIRED if self.expires_at and self.expires_at <= timezone.now() else ACTIVE

    def is_wider(self, *, public: Collection[str]) -> bool:
        """Whether it may do more than a key of which nothing is said when it is made. ``public``: the agents that such
        a key may name."""
        more = (
            set(self.scopes) - set(NEW_SCOPES),
            set(self.agent_names) - set(public),
            set(self.model_names) - set(settings.LLM_MODELS),
        )
        return any(more)

    def admits(self, agent: str, *, is_public: bool) -> bool:
        """Whether it may name an agent, and open its conversations."""
        return agent in self.agent_names or EVERY_AGENT in self.agent_names or (is_public and not self.agent_names)

    def opens_at(self, address: str) -> bool:
        """Whether it may be used from there."""
        if not self.networks:
            return True
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
            found = found.ipv4_mapped
        return any(found in _network(network) for network in self.networks)

    def note_use(self) -> None:
        """Remember that the key was used, at most once a minute, so that a busy key costs no write a request."""
        if self.last_used_at is None or self.last_used_at < timezone.now() - timedelta(minutes=1):
            stale = Q(last_used_at=None) | Q(last_used_at__lt=from_now(-60))
            type(self).objects.filter(stale, pk=self.pk).update(last_used_at=Now())

    def revoke(self) -> bool:
        """Refuse the key from now on; False if it was revoked before. The row stays, so that what it did can still be
        traced."""
        return bool(type(self).objects.filter(pk=self.pk, revoked_at=None).update(revoked_at=Now()))


_active = Rows(
    lambda: ApiKey.objects.active().select_related("owner").filter(prefix=Given("prefix"), owner__is_active=True)
)


class AuditEntry(models.Model):
    """One thing that somebody has done or that was decided, written in the transaction that it tells of. The database
    refuses to change or delete one (:mod:`nanohost.lib.append_only`).

    What it is about stands here by name and id, since a log outlives what it is about. ``before`` and ``after`` are
    JSON as text: what was sealed is read back byte by byte.
    """

    at = models.DateTimeField(db_default=Now(), editable=False, help_text="By the database's clock.")
    actor = models.CharField(
        max_length=200, help_text="Who did it: a user, an API key, an agent, a command or the host."
    )
    action = models.CharField(max_length=64, help_text="What was done or decided.")
    object_type = models.CharField(max_length=64, blank=True, help_text="What kind of thing it was done to.")
    object_id = models.CharField(max_length=64, blank=True, help_text="Which of that kind.")
    object_name = models.CharField(max_length=200, blank=True, help_text="What people call it.")
    before = models.TextField(blank=True, help_text="The values before the change, as JSON.")
    after = models.TextField(blank=True, help_text="The values after the change, or the decision, as JSON.")
    reason = models.TextField(blank=True, help_text="The reason given by whoever did it.")
    request_id = models.CharField(max_length=64, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["action", "-id"], name="audit_by_action"),
            models.Index(fields=["actor", "-id"], name="audit_by_actor"),
            models.Index(fields=["object_type", "object_id", "-id"], name="audit_of_an_object"),
            models.Index(fields=["object_id", "-id"], name="audit_by_object_id"),
            models.Index(fields=["object_name", "-id"], name="audit_by_object_name"),
            models.Index(fields=["request_id", "-id"], name="audit_by_request"),
            models.Index(fields=["at"], name="audit_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.object_name or self.object_id}".strip()


class AuditSeal(models.Model):
    """An entry's place in the chain: its hash is of all that the entry says and of the hash before it. Only added."""

    number = models.BigIntegerField(primary_key=True, help_text="Counted from 1, without gaps.")
    entry_id = models.BigIntegerField(unique=True, help_text="The entry that is sealed.")
    hash = models.CharField(max_length=64, help_text="SHA-256, hexadecimal.")

    def __str__(self) -> str:
        return f"seal {self.number}"


class UnsealedEntry(models.Model):
    """An entry that the sealer has not come to yet; the database adds it with each entry."""

    entry_id = models.BigIntegerField(primary_key=True, help_text="The entry that is to be sealed.")

    def __str__(self) -> str:
        return f"unsealed {self.entry_id}"


class LegalHold(models.Model):
    """It prevents everything of an owner, a conversation or an agent from being deleted, until it is released. Its row
    stays. Whom it is about stands here by number, id or name, and never by what people call them."""

    class Kind(models.TextChoices):
        OWNER = "owner", "An owner, with all that is theirs"
        CONVERSATION = "conversation", "A conversation, and what its agent remembers of its owner"
        AGENT = "agent", "An agent, with all of its conversations and what it remembers"

    kind = models.CharField(max_length=12, choices=Kind.choices, help_text="What the hold applies to.")
    owner_id = models.BigIntegerField(
        null=True, blank=True, help_text="The number of the owner; of a conversation, of whoever it belongs to."
    )
    agent = models.CharField(max_length=64, blank=True, help_text="The agent; of a conversation, the one it is with.")
    conversation_id = models.UUIDField(null=True, blank=True, help_text="The conversation.")
    reason = models.TextField(max_length=2000, help_text="Why, such as the matter it is for. The audit log keeps it.")
    placed_by = models.CharField(max_length=200, editable=False, help_text="Who placed it.")
    placed_at = models.DateTimeField(db_default=Now(), editable=False, help_text="Since when.")
    released_by = models.CharField(
        max_length=200, blank=True, default="", db_default="", editable=False, help_text="Who released it."
    )
    released_because = models.TextField(blank=True, default="", db_default="", editable=False, help_text="Why.")
    released_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When the hold ended. Empty: it is in force."
    )

    class Meta:
        ordering = ["-id"]
        # Few are placed at a time, and those are read with each deletion.
        indexes = [models.Index(fields=["id"], condition=Q(released_at=None), name="holds_that_count")]

    def __str__(self) -> str:
        return f"legal hold {self.pk} on {self.what}"

    @property
    def subject(self) -> int | UUID | str | None:
        """Whom or what it is on."""
        if self.kind == self.Kind.OWNER:
            return self.owner_id
        return self.conversation_id if self.kind == self.Kind.CONVERSATION else self.agent

    @property
    def what(self) -> str:
        """The same, for people."""
        return f"{self.kind} {self.subject}"
