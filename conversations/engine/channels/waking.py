"""When an agent answers in a group: to a mention or a reply always, and else as the channel's settings say."""

from typing import Any

from django.db import transaction

from conversations.channel_models import Channel, Chat
from conversations.channels.base import Event
from conversations.engine import deferred
from conversations.models import Conversation, DeferredMessage, DeferredState, Turn
from nanohost.lib.clock import from_now
from nanohost.lib.text import clip

# For so long after it was spoken to, in seconds, a sticky agent hears everything.
STICKY_SECONDS = 3600
# What is kept of what was not for the agent: so many messages of a chat, the latest, and so many characters of each.
MAX_OVERHEARD, MAX_CHARS = 50, 1000


def is_woken(channel: Channel, event: Event, chat: Chat | None) -> bool:
    """Whether a message wakes the agent. ``chat``: where it was said, if something was said there before."""
    wakes = channel.settings.get("groups") or "mention"
    if event.is_called or wakes == "all":
        return True
    if wakes == "pattern":
        return any(fits(each, event.text) for each in str(channel.settings.get("pattern", "")).split("|"))
    if wakes != "sticky" or chat is None:
        return False
    lately = Turn.objects.filter(conversation__owner_id=chat.owner_id, conversation__key=chat.key)
    return lately.filter(created_at__gt=from_now(-STICKY_SECONDS)).exists()


def fits(pattern: str, text: str) -> bool:
    """Whether a text is as a pattern says, in which * is anything, whatever the case; linear in the text."""
    first, *others = pattern.strip().casefold().split("*")
    said = text.strip().casefold()
    if not others:
        return bool(first) and said == first
    if not said.startswith(first):
        return False
    at, last = len(first), others.pop()
    for part in others:
        if (found := said.find(part, at)) < 0:
            return False
        at = found + len(part)
    return len(said) - len(last) >= at and said.endswith(last)


def overhear(channel: Channel, event: Event, chat: Chat | None, *, key: str, request_id: str) -> bool:
    """Keep a message that wakes nobody for the agent's next turn, if the channel says so, and somebody has spoken to it
    there before; False if nothing is kept."""
    if channel.settings.get("ignored") != "context" or chat is None or not event.text.strip():
        return False
    conversation = Conversation.objects.select_related("agent").filter(owner_id=chat.owner_id, key=chat.key).first()
    if conversation is None:
        return False
    waiting: Any = DeferredMessage.objects.filter(
        conversation=conversation, kind=DeferredMessage.Kind.NOTE, state=DeferredState.WAITING
    )
    with transaction.atomic():
        old = list(waiting.order_by("-pk").values_list("pk", flat=True)[MAX_OVERHEARD - 1 : MAX_OVERHEARD + 50])
        DeferredMessage.objects.filter(pk__in=old).delete()
        deferred.put(
            conversation,
            kind=DeferredMessage.Kind.NOTE,
            content=f"{event.sender_name or event.sender_id} said, not to you: {clip(event.text, MAX_CHARS)}",
            idempotency_key=key,
            request_id=request_id,
        )
    return True
