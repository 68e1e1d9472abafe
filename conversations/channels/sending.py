"""How a delivery to a chat is sent: one message by its channel's class, without the database."""

import time
from collections.abc import Callable

from conversations.attachments.parts import SentFile
from conversations.channel_models import WhenInDoubt
from conversations.channels import accounts
from conversations.channels.base import InDoubt, Option, OutgoingMessage, Permanent, Platform, Retry, SecretNotSet
from conversations.channels.registry import NoSuchPlatform
from conversations.deliveries import outbox
from conversations.deliveries.outbox import Outcome
from conversations.deliveries.signatures import NoWebhookKey
from conversations.models import Delivery
from nanohost.lib.redaction import redact_head
from nanohost.lib.text import storable

# Characters of what went wrong that are kept.
MAX_KEPT = 300


def send(delivery: Delivery) -> Outcome:
    """Send it once; never raises for what comes from outside."""
    channel, chat = delivery.account, delivery.chat
    if channel is None or chat is None or not channel.is_active:
        return Outcome(error="The channel is switched off.", is_final=True)
    began = time.monotonic()
    try:
        platform = accounts.platform(channel)
        external_id = _send(platform, delivery)
    except (NoWebhookKey, NoSuchPlatform, SecretNotSet) as error:
        return Outcome(error=f"{error}.")
    except Retry as error:
        hold = max(error.after, 1.0) if error.everything else 0.0
        told = Outcome(status=error.status, error=_words(error), retry_after=error.after, hold_account=hold)
    except Permanent as error:
        told = Outcome(status=error.status, error=_words(error), is_final=True)
    except InDoubt as error:
        is_over = not may_be_sent_again(delivery, platform)
        told = Outcome(status=error.status, error=_words(error), in_doubt=is_over, may_have_arrived=True)
    else:
        told = Outcome(external_id=external_id, status=None)
    return told.after(int((time.monotonic() - began) * 1000))


def _send(platform: Platform, delivery: Delivery) -> str:
    message, key = message_of(delivery), outbox.id_of(delivery)
    if delivery.kind == "file":
        return platform.send_file(message, key)
    if message.picture:
        return platform.send_sticker(message, key)
    if delivery.kind not in _OF_ANOTHER:
        return platform.send(message, key)
    if not message.message_id:
        raise Permanent("The message that it is about is not there")
    _OF_ANOTHER[delivery.kind](platform, message, key)
    return ""


# What is done to a message that is there; to do it again changes nothing.
_OF_ANOTHER: dict[str, Callable[[Platform, OutgoingMessage, str], None]] = {
    "edit": lambda platform, message, key: platform.edit(message, key),
    "reworded": lambda platform, message, key: platform.edit(message, key),
    "reaction": lambda platform, message, key: platform.react(message, key),
}


def message_of(delivery: Delivery) -> OutgoingMessage:
    """What is to be done."""
    assert delivery.chat
    said = delivery.data
    return OutgoingMessage(
        chat_id=delivery.chat.chat_id,
        thread=delivery.chat.thread,
        title=delivery.chat.title,
        text=said.get("text", ""),
        in_reply_to=delivery.in_reply_to,
        began_by=delivery.began_by,
        part=said.get("part", 1),
        parts=said.get("parts", 1),
        options=[Option(label=each["label"], value=each["value"]) for each in said.get("options", ())],
        message_id=said.get("messageId", ""),
        emoji=said.get("emoji", ""),
        picture=said.get("picture", ""),
        file=_file_of(delivery),
    )


def _file_of(delivery: Delivery) -> SentFile | None:
    """What was read with the delivery as it was claimed."""
    if delivery.kind != "file":
        return None
    return SentFile(name=delivery.file.name, data=bytes(delivery.file.data))


def may_be_sent_again(delivery: Delivery, platform: Platform | None = None, *, after: float = 0.0) -> bool:
    """Whether one of which nobody knows whether it has arrived is sent once more. ``after``: seconds since it may
    have."""
    channel = delivery.account
    assert channel
    if channel.in_doubt == WhenInDoubt.AGAIN or delivery.kind in _OF_ANOTHER:
        return True
    try:
        can = (platform or accounts.platform(channel)).capabilities
        return can.tells_duplicates and after < can.remembers_for
    except NoSuchPlatform:
        return False


def _words(error: Exception) -> str:
    return f"{' '.join(storable(redact_head(str(error), MAX_KEPT)).split()).rstrip('.')}."
