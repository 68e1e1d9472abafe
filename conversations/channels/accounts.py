"""Making, changing and switching off channels, each in the audit log; who may write by one; and which there are."""

import hashlib
import secrets
import time
from typing import Any
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from conversations.channel_models import (
    MAX_PLATFORM_ID,
    RESERVED,
    Channel,
    Chat,
    Listener,
    ListenerStatus,
    Sender,
    SenderState,
    Unknown,
)
from conversations.channels.base import EVERYBODY, Account, Event, Platform, SecretNotSet
from conversations.channels.fields import IMPORTED, SECRET_NAME
from conversations.channels.registry import NoSuchPlatform, platform_of
from conversations.deliveries import signatures
from nanohost.accounts import audit
from nanohost.lib import env, imported
from nanohost.lib.clock import Now, from_now
from nanohost.lib.lease import RELEASED
from nanohost.lib.redaction import remember
from nanohost.lib.text import storable

# What people set.
FIELDS = (
    *("name", "kind", "agent", "owner", "settings", "allow_from", "unknown", "in_doubt"),
    *("approvals", "progress", "tool_hints", "typing", "is_active"),
)

# A pairing code opens for so long.
PAIRING_SECONDS = 15 * 60
# What a message begins with that brings a pairing code.
PAIR = "/pair "
# So many of those who were refused are kept a channel, the latest.
MAX_REFUSED = 1000

# Seconds for which a process takes what it has read for what there is.
READ_AGAIN_AFTER = 1.0


def make(*, made_by: str = "", **values: Any) -> tuple[Channel, str]:
    """A channel, and its secret, which is shown once; empty if its kind has none. Raises ``ValidationError`` for values
    that make no sense, and :class:`signatures.NoWebhookKey`."""
    made = Channel(made_by=made_by, seed=signatures.new_seed(), **values)
    check(made)
    secret = signatures.secret_of(made.seed) if signs(made.kind) else ""
    with transaction.atomic():
        made.save()
        audit.record("channel.made", about=made, after=values_of(made))
        _have_listener(made)
        forget()
    if secret:
        _know(made, secret)
    return made, secret


def signs(kind: str) -> bool:
    """Whether channels of this kind have a secret of the host's."""
    try:
        return platform_of(kind).capabilities.signs
    except NoSuchPlatform:
        return False


def _have_listener(channel: Channel) -> None:
    """Have a worker ask the platform for what is new, if it is to be asked. Whoever did so by other settings stops."""
    if channel.is_active and platform_of(channel.kind).has_to_be_asked(channel.settings):
        Listener.objects.get_or_create(channel=channel)
        Listener.objects.filter(channel=channel).update(
            status=ListenerStatus.WAITING, fence=F("fence") + 1, failures=0, error="", run_after=None, **RELEASED
        )
    else:
        Listener.objects.filter(channel=channel).delete()


def check(channel: Channel, *, is_new: bool = True) -> None:
    """Raise ``ValidationError`` unless its values make sense, to its kind as well."""
    channel._state.adding = is_new
    if not isinstance(channel.settings, dict):
        raise ValidationError({"settings": 'An object is needed, such as {"url": "https://…"}.'})
    channel.full_clean()
    try:
        platform_of(channel.kind).check(channel.settings)
    except NoSuchPlatform as error:
        raise ValidationError({"kind": f"{error}."}) from None
    except ValidationError as error:
        raise ValidationError({"settings": error.messages}) from None


def change(channel: Channel, **values: Any) -> Channel:
    """Set some of ``FIELDS`` but its name and its kind, which stay; raises ``ValidationError``."""
    with transaction.atomic():
        row = Channel.objects.select_for_update(of=("self",)).get(pk=channel.pk)
        before = values_of(row)
        now = Channel(pk=row.pk, seed=row.seed, **(_set_in(row) | values))
        if (now.name, now.kind) != (row.name, row.kind):
            raise ValidationError({"name": "The keys of its conversations have its name: make another channel."})
        check(now, is_new=False)
        after = values_of(now)
        changed = [name for name in FIELDS if before[name] != after[name]]
        if changed:
            now.save(update_fields=changed)
            row = now
            was, became = ({name: every[name] for name in changed} for every in (before, after))
            audit.record("channel.changed", about=row, before=was, after=became)
            _have_listener(row)
            forget()
    return row


def rotate(channel: Channel) -> str:
    """Give a channel whose kind :func:`signs` another secret, which is shown once; the one before counts for a day as
    well. Raises :class:`signatures.NoWebhookKey`."""
    seed = signatures.new_seed()
    secret = signatures.secret_of(seed)
    with transaction.atomic():
        row = Channel.objects.select_for_update(of=("self",)).get(pk=channel.pk)
        Channel.objects.filter(pk=row.pk).update(seed=seed, former_seed=row.seed, rotated_at=Now())
        audit.record("channel.rotated", about=row)
    _know(row, secret)
    return secret


def values_of(channel: Channel) -> dict[str, Any]:
    """What people have set, as the audit log has it."""
    return _set_in(channel) | {"agent": channel.agent.name, "owner": channel.owner_id}


def _set_in(channel: Channel) -> dict[str, Any]:
    return {
        "name": channel.name,
        "kind": channel.kind,
        "agent": channel.agent,
        "owner": channel.owner,
        "settings": channel.settings,
        "allow_from": channel.allow_from,
        "unknown": channel.unknown,
        "in_doubt": channel.in_doubt,
        "approvals": channel.approvals,
        "progress": channel.progress,
        "tool_hints": channel.tool_hints,
        "typing": channel.typing,
        "is_active": channel.is_active,
    }


def platform(channel: Channel) -> Platform:
    """What speaks to its platform; raises :class:`NoSuchPlatform`."""
    return platform_of(channel.kind)(
        Account(
            id=channel.pk,
            name=channel.name,
            settings=channel.settings,
            secrets=lambda: list(_secrets_of(channel)),
            secret=_named,
            allow_from=channel.allow_from,
        )
    )


def _named(variable: str) -> str:
    """The secret in a variable of this process; raises :class:`SecretNotSet`."""
    if not SECRET_NAME.fullmatch(variable):
        raise SecretNotSet(f"{variable[:50]!r} is no variable of a channel's secret")
    try:
        value = env.secret(variable)
    except ImproperlyConfigured as error:
        raise SecretNotSet(str(error).rstrip(".")) from None
    if not (value := value or imported.secret(variable, begin=IMPORTED)):
        raise SecretNotSet(f"{variable} is not set here: web nodes and workers of channels need it")
    return value


def _secrets_of(channel: Channel) -> list[str]:
    now = signatures.in_force(channel)
    for each in now:
        _know(channel, each)
    return now


def _know(channel: Channel, secret: str) -> None:
    """From now on it is taken out of all that leaves this process, but for the page that shows it."""
    remember(f"channel {channel.pk}", secret.removeprefix(signatures.PREFIX))


# --- who may write -----------------------------------------------------------------------------------------------


def sender_of(channel: Channel, event: Event) -> tuple[bool, bool, int]:
    """Whether an event's sender may write; whether it is somebody that nobody has allowed, or may not be who they say,
    so that their words are untrusted; and who has the conversation."""
    row = Sender.objects.filter(channel=channel, sender_id=event.sender_id).first()
    owner_id = row.owner_id if row and row.owner_id else channel.owner_id
    if row and row.state == SenderState.BLOCKED:
        return False, False, owner_id
    listed = EVERYBODY in channel.allow_from or event.sender_id in channel.allow_from
    if listed or (row and row.state == SenderState.ALLOWED):
        return True, not event.is_proven, owner_id
    is_open = channel.unknown == Unknown.PUBLIC
    return is_open, is_open, owner_id


def refuse(channel: Channel, event: Event) -> None:
    """Write down that somebody was refused."""
    named = {"name": storable(event.sender_name)[:100], "last_at": timezone.now()}
    row, is_new = Sender.objects.get_or_create(channel=channel, sender_id=event.sender_id, defaults=named)
    Sender.objects.filter(pk=row.pk).update(refusals=F("refusals") + 1, last_at=Now())
    if channel.unknown == Unknown.REQUEST and event.kind == "message" and event.text.strip():
        asks = Sender.objects.filter(pk=row.pk, state=SenderState.REFUSED, held__isnull=True)
        asks.update(held=held_of(event))
    if is_new:
        refused = Sender.objects.filter(channel=channel, state=SenderState.REFUSED).order_by("-last_at", "-pk")
        too_many = list(refused.values_list("pk", flat=True)[MAX_REFUSED : MAX_REFUSED + 50])
        Sender.objects.filter(pk__in=too_many).delete()


# Characters of what somebody has written who asks to be let in.
MAX_HELD_CHARS = 4000


def held_of(event: Event) -> dict[str, Any]:
    """What is kept of a message of somebody who asks to be let in; its files are not."""
    return {
        "external_id": storable(event.external_id),
        "chat_id": storable(event.chat_id),
        "thread": storable(event.thread),
        "sender_id": storable(event.sender_id),
        "sender_name": storable(event.sender_name),
        "message_id": storable(event.message_id),
        "title": storable(event.title),
        "is_proven": event.is_proven,
        "text": storable(event.text[:MAX_HELD_CHARS]),
    }


def set_state(sender: Sender, state: SenderState) -> None:
    """Let somebody write from now on, or no longer."""
    with transaction.atomic():
        if Sender.objects.filter(pk=sender.pk).exclude(state=state).update(state=state):
            told = {"channel": sender.channel.name}
            audit.record(f"sender.{state.value}", about=sender, name=sender.sender_id, after=told)


def new_pairing_code(channel: Channel) -> str:
    """A code that lets one sender in who sends it within 15 minutes; it takes the place of one before."""
    code = secrets.token_hex(8)
    with transaction.atomic():
        Channel.objects.filter(pk=channel.pk).update(
            pairing_digest=_digest(code), pairing_until=from_now(PAIRING_SECONDS)
        )
        audit.record("channel.pairing_opened", about=channel)
    return code


def pair(channel: Channel, event: Event) -> bool:
    """Let the sender in who brings the pairing code, if this is it; it opens once."""
    if channel.unknown != Unknown.PAIRING or not event.text.startswith(PAIR):
        return False
    digest = _digest(event.text.removeprefix(PAIR).strip())
    with transaction.atomic():
        open_one = Channel.objects.filter(pk=channel.pk, pairing_digest=digest, pairing_until__gt=Now())
        if not open_one.update(pairing_digest="", pairing_until=None):
            return False
        named = {"name": storable(event.sender_name)[:100], "state": SenderState.ALLOWED, "last_at": timezone.now()}
        row, _ = Sender.objects.update_or_create(channel=channel, sender_id=event.sender_id, defaults=named)
        audit.record("sender.paired", about=row, name=event.sender_id, after={"channel": channel.name}, by=audit.HOST)
    return True


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode(errors="replace")).hexdigest()


# --- where -------------------------------------------------------------------------------------------------------


def key_of(channel: str, chat_id: str, thread: str = "") -> str:
    """The key of a chat's conversation, as nanobot has it; what would end a part in it is written as in a URL."""
    parts = [channel, *(quote(each, safe=_KEPT) for each in ((chat_id, thread) if thread else (chat_id,)))]
    key = ":".join(parts)
    if len(key) > 255:  # of bytes that a URL writes as three
        key = f"{channel}:{hashlib.sha256(key.encode()).hexdigest()}"
    return key


# All that a key may hold but the colon, and what quoting itself uses.
_KEPT = "!#$&'()*+,/;=?@[]-._~ |^{}<>\\`\""


def chat_of(channel: Channel, event: Event, *, owner_id: int) -> Chat:
    """The chat that an event happened in, made if there is none."""
    assert len(event.chat_id) <= MAX_PLATFORM_ID
    key = key_of(channel.name, event.chat_id, event.thread)
    title = storable(event.title)[:200]
    made = {"channel": channel, "chat_id": event.chat_id, "thread": event.thread, "title": title}
    row, is_new = Chat.objects.get_or_create(owner_id=owner_id, key=key, defaults=made)
    if title and not is_new and not row.title:
        Chat.objects.filter(pk=row.pk).update(title=title)
    return row


# --- which there are ---------------------------------------------------------------------------------------------

# Until when it counts, and what was read.
_read: tuple[float, frozenset[str]] = (0.0, frozenset())


def names() -> frozenset[str]:
    """The names of active channels. Read once a second, since whatever ends a turn in one asks."""
    global _read
    until, found = _read
    if time.monotonic() < until:
        return found
    found = frozenset(Channel.objects.filter(is_active=True).order_by().values_list("name", flat=True))
    _read = time.monotonic() + READ_AGAIN_AFTER, found
    return found


def is_of_a_channel(key: str) -> bool:
    """Whether a conversation of this key is held by a channel that is active. Of those of other doors nothing is
    read."""
    name, _, rest = key.partition(":")
    return bool(rest) and name not in RESERVED and name in names()


def forget() -> None:
    """This process has changed a channel: it reads again, also if others have read meanwhile."""

    def read_again() -> None:
        global _read
        _read = 0.0, frozenset()

    read_again()
    transaction.on_commit(read_again)


def went_well(channel_id: int, *, inwards: bool) -> None:
    """Say that something came in or went out."""
    field = "last_in_at" if inwards else "last_out_at"
    Channel.objects.filter(pk=channel_id).update(**{field: Now(), **({} if inwards else {"error": ""})})
