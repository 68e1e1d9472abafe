"""What is said in chats elsewhere: stored with what says it, and sent by workers after the commit.

The replies of a conversation that a channel holds go to its chat. What an agent says elsewhere goes to destinations
that it was given, by their names; ``origin`` is where it was spoken to.
"""

from typing import Any
from uuid import UUID

from django.db import transaction

from agent.models import Agent
from conversations.channel_models import ChannelEvent, Chat, Destination
from conversations.channels import accounts, texts
from conversations.channels.registry import NoSuchPlatform, platform_of
from conversations.deliveries import outbox
from conversations.deliveries.outbox import Said
from conversations.engine import doorbell
from conversations.errors import UnknownDestination
from conversations.kinds import DELIVERIES
from conversations.models import Conversation, Delivery, Turn
from conversations.statuses import TurnStatus
from nanohost.accounts import audit
from tools.registry import ORIGIN

CHAT, SYSTEM, TEST = "chat", "system", "test"

# Of a channel whose kind this process does not know: whoever sends finds out.
_LIMIT = 2000


def reply(*, key: str, owner_id: int, conversation_id: UUID, turn_id: UUID, text: str) -> None:
    """Have a turn's reply sent to the chat that its conversation is held in, if it is held in one; in the transaction
    that ends the turn."""
    if not text.strip() or not accounts.is_of_a_channel(key):
        return
    if chat := _chat(owner_id, key):
        answered = ChannelEvent.objects.filter(turn_id=turn_id).values_list("message_id", flat=True).first()
        _put(chat, CHAT, text, conversation_id=conversation_id, turn_id=turn_id, in_reply_to=answered or "")


def no_reply(turn_id: UUID, status: str, *, key: str, owner_id: int, conversation_id: UUID, code: str) -> None:
    """Say in the chat that a turn has failed, which nobody there would find out otherwise."""
    if status != TurnStatus.FAILED or not accounts.is_of_a_channel(key):
        return
    if chat := _chat(owner_id, key):
        words = f"This message could not be answered ({code}). Please send it again later."
        _put(chat, SYSTEM, words, conversation_id=conversation_id, turn_id=turn_id)


def no_reply_to(turn: Turn, status: str, *, code: str) -> None:
    """The same of a turn that its worker has not ended."""
    if status == TurnStatus.FAILED and accounts.names():
        conversation = turn.conversation
        whose: dict[str, Any] = {"key": conversation.key, "owner_id": conversation.owner_id}
        no_reply(turn.pk, status, **whose, conversation_id=conversation.pk, code=code)


def not_taken(chat: Chat, code: str, *, conversation_id: UUID, in_reply_to: str = "") -> None:
    """Say in a chat that a message was not taken in; in the transaction that remembers it."""
    words = f"This message was not taken in ({code})."
    _put(chat, SYSTEM, words, conversation_id=conversation_id, in_reply_to=in_reply_to)


def _chat(owner_id: int, key: str) -> Chat | None:
    active = Chat.objects.select_related("channel").filter(owner_id=owner_id, key=key, channel__is_active=True)
    return active.first()


def names(agent: Agent) -> list[str]:
    """Where an agent may write, as the gate takes it: the destinations it was given, and where it was spoken to."""
    given = Destination.objects.filter(agent=agent, chat__channel__is_active=True).order_by("name")
    return [ORIGIN, *given.values_list("name", flat=True)]


def destinations(conversation: Conversation) -> dict[str, Chat]:
    """Where an agent may write from a conversation, by name."""
    given = Destination.objects.filter(agent=conversation.agent_id, chat__channel__is_active=True)
    found = {each.name: each.chat for each in given.select_related("chat__channel").order_by("name")}
    origin = _chat(conversation.owner_id, conversation.key)
    return found | ({ORIGIN: origin} if origin else {})


def say(
    conversation: Conversation, text: str, *, destination: str = ORIGIN, turn_id: UUID | None = None
) -> list[Delivery]:
    """Have something said in a chat: as many messages as the platform's length makes of it, in their order. Raises
    :class:`UnknownDestination`, whose words name those that there are."""
    found = destinations(conversation)
    if destination not in found:
        raise UnknownDestination.named(destination, found)
    with transaction.atomic():
        return _put(found[destination], CHAT, text, conversation_id=conversation.pk, turn_id=turn_id, name=destination)


def pass_on(conversation: Conversation, text: str, *, destination: str, turn_id: UUID | None = None) -> list[Delivery]:
    """The same of an answer that somebody has asked to be sent elsewhere as well; not to where it was given, and has
    gone to anyway."""
    chat = destinations(conversation).get(destination)
    if not text.strip() or (chat and (chat.owner_id, chat.key) == (conversation.owner_id, conversation.key)):
        return []
    return say(conversation, text, destination=destination, turn_id=turn_id)


def _put(chat: Chat, kind: str, text: str, *, name: str = ORIGIN, **whose: Any) -> list[Delivery]:
    parts = texts.split(text, _limit(chat.channel.kind))
    numbered = [
        {"text": part} | ({"part": number, "parts": len(parts)} if len(parts) > 1 else {})
        for number, part in enumerate(parts, start=1)
    ]
    rows = outbox.put_in_chat(chat, [Said(kind=kind, data=data, name=name, **whose) for data in numbered])
    for row in rows:
        doorbell.notify(DELIVERIES, row.pk)
    return rows


def _limit(kind: str) -> int:
    try:
        return platform_of(kind).capabilities.text_limit
    except NoSuchPlatform:
        return _LIMIT


def try_out(chat: Chat) -> Delivery:
    """Send a chat a message that says that it can be reached."""
    with transaction.atomic():
        (row,) = _put(chat, TEST, f"This is a test of the channel {chat.channel.name}.")
        audit.record("channel.tried", about=chat.channel, after={"delivery": str(row.pk)})
    return row


def cancel(delivery: Delivery) -> bool:
    """Have a delivery sent no more; False if it is being sent, or has ended."""
    with transaction.atomic():
        if not outbox.cancel(delivery):
            return False
        audit.record("delivery.cancelled", about=delivery, name=delivery.kind, before={"status": delivery.status})
    return True
